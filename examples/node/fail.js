'use strict';

// Tells the router more than a rejection can: docs/rich-failures.md shows this
// function, and a test compares the two.

// channel is made by connection.createConfirmChannel(), and once, before the first call:
//   channel.on('return', () => { channel.cameBack = true; });
let turn = Promise.resolve(); // one at a time: else nobody knows which message came back

function fail(channel, queue, msg, error, { verdict, after } = {}) {
  const headers = { ...msg.properties.headers };
  delete headers['x-death'];
  if (headers['x-retry-queue'] && headers['x-retry-queue'] !== queue) {
    for (const k of Object.keys(headers)) if (k.startsWith('x-retry-')) delete headers[k];
  }
  if (!headers['x-retry-queue']) {
    headers['x-retry-queue'] = queue;
    headers['x-retry-exchange'] = msg.fields.exchange;
    headers['x-retry-routing-key'] = msg.fields.routingKey;
  }
  headers['x-retry-error'] = String(error.message ?? error);
  headers['x-retry-error-type'] = error.name ?? typeof error;
  if (verdict) headers['x-retry-verdict'] = verdict;
  if (after) headers['x-retry-after'] = Math.ceil(after);
  const { userId, ...properties } = msg.properties;
  turn = turn.then(() => new Promise((done, refused) => {
    channel.cameBack = false;
    channel.publish('hop.failed', msg.fields.routingKey, msg.content, { ...properties, headers, mandatory: true },
      (err) => (err || channel.cameBack ? refused(err ?? new Error('hop.failed has no queue')) : done()));
  })).then(() => channel.ack(msg));
  return turn; // rejected: the message is not acknowledged. Close the connection, and the broker delivers it again
}

module.exports = { fail };
