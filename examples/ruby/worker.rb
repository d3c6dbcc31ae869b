# A worker that knows nothing of retries: it acknowledges what it handled and
# rejects what failed. What waits, for how long and how often is the router's
# business. The property "type" of a message says what happens to it here, so that
# every kind of failure can be seen.

require "bigdecimal" # bunny reads decimal headers with it, and does not load it
require "bunny"
require_relative "fail"

QUEUE = ENV.fetch("QUEUE", "orders")
$stdout.sync = true

class NotNow < StandardError
  attr_reader :explain

  def initialize(explain: false)
    super("the warehouse does not answer")
    @explain = explain
  end
end

class NoSuchCustomer < StandardError; end

class Busy < StandardError
  attr_reader :after_ms

  def initialize(after_ms)
    super("try again in #{after_ms} ms")
    @after_ms = after_ms
  end
end

# 1 for a message that never failed in this queue.
def attempt_of(properties)
  headers = properties.headers || {}
  return 1 unless [nil, QUEUE].include?(headers["x-retry-queue"])

  headers.fetch("x-retry-count", 0).to_i + 1
end

# Where your work would be.
def handle(delivery, properties, attempt)
  what, number = (properties.type || "").split
  n = (number || 1).to_i
  case what
  when "transient" # fails n times
    raise NotNow if attempt <= n
  when "explained" # the same, and the router is told why
    raise NotNow.new(explain: true) if attempt <= n
  when "permanent" # no retry can help
    raise NoSuchCustomer, "no such customer: Zoë"
  when "later" # asks for n ms
    raise Busy, n if attempt == 1
  when "crash" # takes the process with it, the first time
    exit!(3) unless delivery.redelivered?
  end
end

# The process ends with what is lost; nothing is settled behind its back.
connection = Bunny.new(ENV.fetch("HOPBACK_BROKER_URL", "amqp://guest:guest@127.0.0.1:5672/"), automatically_recover: false)
connection.start
channel = connection.create_channel
channel.confirm_select
channel.prefetch(10)
channel.on_uncaught_exception do |error, _|
  warn error.full_message
  exit!(1)
end
queue = channel.queue(QUEUE, durable: true, arguments: {
  "x-queue-type" => "quorum", "x-dead-letter-exchange" => "hop.failed",
  "x-dead-letter-strategy" => "at-least-once", "x-overflow" => "reject-publish"
})
puts "waiting for messages in #{QUEUE}"
queue.subscribe(manual_ack: true, block: true) do |delivery, properties, body|
  attempt = attempt_of(properties)
  say = ->(what) { puts "#{what} #{properties.message_id} attempt #{attempt}" }
  begin
    handle(delivery, properties, attempt)
    channel.ack(delivery.delivery_tag)
    say.("handled")
  rescue NoSuchCustomer => e
    say.("failed")
    fail_message(channel, QUEUE, delivery, properties, body, e, verdict: "permanent")
  rescue Busy => e
    say.("failed")
    fail_message(channel, QUEUE, delivery, properties, body, e, after_ms: e.after_ms)
  rescue NotNow => e
    say.("failed")
    if e.explain
      fail_message(channel, QUEUE, delivery, properties, body, e)
    else
      channel.reject(delivery.delivery_tag, false)
    end
  end
end
