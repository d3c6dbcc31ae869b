<?php

// Tells the router more than a rejection can: docs/rich-failures.md shows this
// function, and a test compares the two.

use PhpAmqpLib\Exception\AMQPInvalidArgumentException;
use PhpAmqpLib\Message\AMQPMessage;
use PhpAmqpLib\Wire\AMQPTable;

// $channel->confirm_select() has been called, and once:
//   $channel->set_nack_handler(fn () => throw new RuntimeException('refused'));
//   $channel->set_return_listener(fn () => throw new RuntimeException('returned'));
function fail($channel, string $queue, AMQPMessage $msg, Throwable $error, ?string $verdict = null, ?int $afterMs = null): void
{
    $properties = $msg->get_properties();
    $headers = clone ($properties['application_headers'] ?? new AMQPTable()); // keeps the types; getNativeData() would not
    $derived = ($headers['x-retry-queue'] ?? $queue) !== $queue;
    foreach (array_keys($headers->getNativeData()) as $k) {
        if ($k === 'x-death' || $derived && str_starts_with((string) $k, 'x-retry-')) {
            unset($headers[$k]);
        }
    }
    if (!isset($headers['x-retry-queue'])) {
        $headers->set('x-retry-queue', $queue);
        $headers->set('x-retry-exchange', $msg->getExchange());
        $headers->set('x-retry-routing-key', $msg->getRoutingKey());
    }
    $headers->set('x-retry-error', $error->getMessage());
    $headers->set('x-retry-error-type', (new ReflectionClass($error))->getShortName());
    if ($verdict !== null) $headers->set('x-retry-verdict', $verdict);
    if ($afterMs !== null) $headers->set('x-retry-after', $afterMs);
    $properties['application_headers'] = $headers;
    unset($properties['user_id']);
    try {
        $channel->basic_publish(new AMQPMessage($msg->getBody(), $properties), 'hop.failed', $msg->getRoutingKey(), true);
    } catch (AMQPInvalidArgumentException $e) { // a header that php-amqplib reads and cannot write; the broker can
        $msg->reject(false);
        return;
    }
    $channel->wait_for_pending_acks_returns(20); // throws, and then the message is not acknowledged:
    $msg->ack();                                 // close the connection, and the broker delivers it again
}
