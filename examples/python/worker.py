"""A worker that knows nothing of retries: it acknowledges what it handled and
rejects what failed. What waits, for how long and how often is the router's
business. The property "type" of a message says what happens to it here, so that
every kind of failure can be seen."""

import os
import signal

import pika

from fail import fail

URL = os.environ.get("HOPBACK_BROKER_URL", "amqp://guest:guest@127.0.0.1:5672/")
QUEUE = os.environ.get("QUEUE", "orders")


class NotNow(Exception):
    def __init__(self, text, explain=False):
        super().__init__(text)
        self.explain = explain


class NoSuchCustomer(Exception):
    pass


class Busy(Exception):
    def __init__(self, after_ms):
        super().__init__(f"try again in {after_ms} ms")
        self.after_ms = after_ms


def attempt_of(properties):
    """1 for a message that never failed in this queue."""
    headers = properties.headers or {}
    if headers.get("x-retry-queue", QUEUE) != QUEUE:
        return 1
    return int(headers.get("x-retry-count", 0)) + 1


def handle(method, properties, attempt):
    """Where your work would be."""
    what, _, number = (properties.type or "").partition(" ")
    n = int(number or 1)
    if what == "transient" and attempt <= n:  # fails n times
        raise NotNow("the warehouse does not answer")
    if what == "explained" and attempt <= n:  # the same, and the router is told why
        raise NotNow("the warehouse does not answer", explain=True)
    if what == "permanent":  # no retry can help
        raise NoSuchCustomer("no such customer: Zoë")
    if what == "later" and attempt == 1:  # asks for n ms
        raise Busy(n)
    if what == "crash" and not method.redelivered:  # takes the process with it, the first time
        os._exit(3)


def on_message(channel, method, properties, body):
    attempt = attempt_of(properties)

    def say(what):
        print(what, properties.message_id, "attempt", attempt, flush=True)

    try:
        handle(method, properties, attempt)
    except NoSuchCustomer as error:
        say("failed")
        fail(channel, QUEUE, method, properties, body, error, verdict="permanent")
    except Busy as error:
        say("failed")
        fail(channel, QUEUE, method, properties, body, error, after_ms=error.after_ms)
    except Exception as error:
        say("failed")
        if getattr(error, "explain", False):
            fail(channel, QUEUE, method, properties, body, error)
        else:
            channel.basic_reject(method.delivery_tag, requeue=False)
    else:
        channel.basic_ack(method.delivery_tag)
        say("handled")


def main():
    connection = pika.BlockingConnection(pika.URLParameters(URL))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_qos(prefetch_count=10)
    channel.queue_declare(
        QUEUE,
        durable=True,
        arguments={
            "x-queue-type": "quorum",
            "x-dead-letter-exchange": "hop.failed",
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
        },
    )
    channel.basic_consume(QUEUE, on_message)
    signal.signal(signal.SIGTERM, lambda *_: connection.add_callback_threadsafe(channel.stop_consuming))
    print("waiting for messages in", QUEUE, flush=True)
    channel.start_consuming()
    connection.close()  # what was delivered and not settled goes back to the queue


main()
