"""Tells the router more than a rejection can: docs/rich-failures.md shows this
function, and a test compares the two."""

import struct


# channel.confirm_delivery() has been called: a publish then waits for the broker
def fail(channel, queue, method, properties, body, error, verdict=None, after_ms=None):
    headers = dict(properties.headers or {})
    headers.pop("x-death", None)
    if headers.get("x-retry-queue") not in (None, queue):
        headers = {k: v for k, v in headers.items() if not k.startswith("x-retry-")}
    if "x-retry-queue" not in headers:
        headers["x-retry-queue"] = queue
        headers["x-retry-exchange"] = method.exchange
        headers["x-retry-routing-key"] = method.routing_key
    headers["x-retry-error"] = str(error)
    headers["x-retry-error-type"] = type(error).__name__
    if verdict:
        headers["x-retry-verdict"] = verdict
    if after_ms:
        headers["x-retry-after"] = int(after_ms)
    properties.headers = headers
    properties.user_id = None
    try:
        # Raises UnroutableError or NackError, and then the message is not acknowledged.
        # Close the connection, and the broker delivers it again.
        channel.basic_publish("hop.failed", method.routing_key, body, properties, mandatory=True)
    except struct.error:
        # A header that pika reads and cannot write. The broker can.
        channel.basic_reject(method.delivery_tag, requeue=False)
    else:
        channel.basic_ack(method.delivery_tag)
