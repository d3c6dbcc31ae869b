'use strict';

// A worker that knows nothing of retries: it acknowledges what it handled and
// rejects what failed. What waits, for how long and how often is the router's
// business. The property "type" of a message says what happens to it here, so
// that every kind of failure can be seen.

const amqp = require('amqplib');
const { fail } = require('./fail');

const url = process.env.HOPBACK_BROKER_URL ?? 'amqp://guest:guest@127.0.0.1:5672/';
const queue = process.env.QUEUE ?? 'orders';

class NotNow extends Error { name = 'NotNow'; }
class NoSuchCustomer extends Error { name = 'NoSuchCustomer'; }
class Busy extends Error {
  name = 'Busy';
  constructor(after) { super(`try again in ${after} ms`); this.after = after; }
}

// attemptOf is 1 for a message that never failed in this queue.
function attemptOf(msg) {
  const h = msg.properties.headers ?? {};
  return h['x-retry-queue'] === queue || !h['x-retry-queue'] ? Number(h['x-retry-count'] ?? 0) + 1 : 1;
}

// handle is where your work would be.
function handle(msg, attempt) {
  const [what, number] = (msg.properties.type ?? '').split(' ');
  const n = Number(number ?? 1);
  switch (what) {
    case 'transient': // fails n times
      if (attempt <= n) throw new NotNow('the warehouse does not answer');
      break;
    case 'explained': // the same, and the router is told why
      if (attempt <= n) throw Object.assign(new NotNow('the warehouse does not answer'), { explain: true });
      break;
    case 'permanent': // no retry can help
      throw new NoSuchCustomer('no such customer: Zoë');
    case 'later': // asks for n ms
      if (attempt === 1) throw new Busy(n);
      break;
    case 'crash': // takes the process with it, the first time
      if (!msg.fields.redelivered) process.exit(3);
  }
}

async function main() {
  const connection = await amqp.connect(url);
  connection.on('error', (err) => stop(err));
  const channel = await connection.createConfirmChannel();
  channel.on('error', (err) => stop(err));
  channel.on('return', () => { channel.cameBack = true; });
  await channel.assertQueue(queue, {
    durable: true,
    arguments: {
      'x-queue-type': 'quorum', 'x-dead-letter-exchange': 'hop.failed',
      'x-dead-letter-strategy': 'at-least-once', 'x-overflow': 'reject-publish',
    },
  });
  await channel.prefetch(10);
  const { consumerTag } = await channel.consume(queue, async (msg) => {
    if (msg === null) return stop(new Error(`queue ${queue} was deleted`));
    const attempt = attemptOf(msg);
    const say = (what) => console.log(`${what} ${msg.properties.messageId} attempt ${attempt}`);
    try {
      handle(msg, attempt);
      channel.ack(msg);
      say('handled');
    } catch (error) {
      say('failed');
      try {
        if (error instanceof NoSuchCustomer) await fail(channel, queue, msg, error, { verdict: 'permanent' });
        else if (error instanceof Busy) await fail(channel, queue, msg, error, { after: error.after });
        else if (error.explain) await fail(channel, queue, msg, error);
        else channel.reject(msg, false);
      } catch (err) {
        stop(err);
      }
    }
  });
  console.log(`waiting for messages in ${queue}`);
  process.once('SIGTERM', async () => {
    await channel.cancel(consumerTag);
    await connection.close(); // what was delivered and not settled goes back to the queue
  });
}

// stop ends the process without settling what is open: the broker delivers it
// again, to whoever is started next.
function stop(err) {
  console.error(err);
  process.exit(1);
}

main().catch(stop);
