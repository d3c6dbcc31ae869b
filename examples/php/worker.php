<?php

// A worker that knows nothing of retries: it acknowledges what it handled and
// rejects what failed. What waits, for how long and how often is the router's
// business. The property "type" of a message says what happens to it here, so
// that every kind of failure can be seen.

declare(strict_types=1);

require 'PhpAmqpLib/autoload.php'; // Debian's; with Composer: vendor/autoload.php
require __DIR__ . '/fail.php';

use PhpAmqpLib\Connection\AMQPStreamConnection;
use PhpAmqpLib\Message\AMQPMessage;
use PhpAmqpLib\Wire\AMQPTable;

class NotNow extends RuntimeException
{
    public function __construct(public bool $explain = false)
    {
        parent::__construct('the warehouse does not answer');
    }
}

class NoSuchCustomer extends RuntimeException
{
}

class Busy extends RuntimeException
{
    public function __construct(public int $afterMs)
    {
        parent::__construct("try again in $afterMs ms");
    }
}

$queue = getenv('QUEUE') ?: 'orders';
$url = parse_url(getenv('HOPBACK_BROKER_URL') ?: 'amqp://guest:guest@127.0.0.1:5672/');
$connection = new AMQPStreamConnection(
    $url['host'],
    $url['port'] ?? 5672,
    urldecode($url['user'] ?? 'guest'),
    urldecode($url['pass'] ?? 'guest'),
    urldecode(substr($url['path'] ?? '/', 1)) ?: '/'
);
$channel = $connection->channel();
$channel->confirm_select();
$channel->set_nack_handler(fn () => throw new RuntimeException('refused'));
$channel->set_return_listener(fn () => throw new RuntimeException('returned'));
$channel->basic_qos(0, 10, false);
$channel->queue_declare($queue, false, true, false, false, false, new AMQPTable([
    'x-queue-type' => 'quorum', 'x-dead-letter-exchange' => 'hop.failed',
    'x-dead-letter-strategy' => 'at-least-once', 'x-overflow' => 'reject-publish',
]));

// attemptOf is 1 for a message that never failed in this queue.
function attemptOf(AMQPMessage $msg, string $queue): int
{
    $h = $msg->has('application_headers') ? $msg->get('application_headers') : new AMQPTable();
    return ($h['x-retry-queue'] ?? $queue) === $queue ? (int) ($h['x-retry-count'] ?? 0) + 1 : 1;
}

// handle is where your work would be.
function handle(AMQPMessage $msg, int $attempt): void
{
    [$what, $n] = explode(' ', ($msg->has('type') ? $msg->get('type') : '') . ' 1');
    $n = (int) $n;
    if ($what === 'transient' && $attempt <= $n) { // fails n times
        throw new NotNow();
    } elseif ($what === 'explained' && $attempt <= $n) { // the same, and the router is told why
        throw new NotNow(explain: true);
    } elseif ($what === 'permanent') { // no retry can help
        throw new NoSuchCustomer('no such customer: Zoë');
    } elseif ($what === 'later' && $attempt === 1) { // asks for n ms
        throw new Busy($n);
    } elseif ($what === 'crash' && !$msg->isRedelivered()) { // takes the process with it, the first time
        posix_kill(getmypid(), SIGKILL);
    }
}

$channel->basic_consume($queue, '', false, false, false, false, function (AMQPMessage $msg) use ($channel, $queue) {
    $attempt = attemptOf($msg, $queue);
    $say = fn (string $what) => fwrite(STDOUT, "$what {$msg->get('message_id')} attempt $attempt\n");
    try {
        handle($msg, $attempt);
    } catch (NoSuchCustomer $e) {
        $say('failed');
        return fail($channel, $queue, $msg, $e, verdict: 'permanent');
    } catch (Busy $e) {
        $say('failed');
        return fail($channel, $queue, $msg, $e, afterMs: $e->afterMs);
    } catch (NotNow $e) {
        $say('failed');
        return $e->explain ? fail($channel, $queue, $msg, $e) : $msg->reject(false);
    }
    $msg->ack();
    $say('handled');
});
fwrite(STDOUT, "waiting for messages in $queue\n");
while ($channel->is_consuming()) {
    $channel->wait();
}
