# Tells the router more than a rejection can: docs/rich-failures.md shows this
# method, and a test compares the two.

# channel.confirm_select has been called
def fail_message(channel, queue, delivery, properties, body, error, verdict: nil, after_ms: nil)
  headers = (properties.headers || {}).reject { |k, _| k == "x-death" }
  if headers["x-retry-queue"] && headers["x-retry-queue"] != queue
    headers = headers.reject { |k, _| k.start_with?("x-retry-") }
  end
  unless headers["x-retry-queue"]
    headers["x-retry-queue"] = queue
    headers["x-retry-exchange"] = delivery.exchange
    headers["x-retry-routing-key"] = delivery.routing_key
  end
  headers["x-retry-error"] = error.message
  headers["x-retry-error-type"] = error.class.name
  headers["x-retry-verdict"] = verdict if verdict
  headers["x-retry-after"] = after_ms if after_ms
  options = properties.to_h.reject { |k, _| k == :user_id }
  options[:timestamp] = options[:timestamp].to_i if options[:timestamp] # bunny reads a Time and writes a number
  returned = nil
  failed = channel.exchange("hop.failed", type: :fanout, no_declare: true)
  failed.on_return { |info, _, _| returned = info.reply_text }
  channel.basic_publish(body, failed, delivery.routing_key, options.merge(headers: headers, mandatory: true))
  unless channel.wait_for_confirms && !returned
    # The message is not acknowledged. Close the connection, and the broker delivers it again.
    raise "the failed message was not taken: #{returned || 'refused'}"
  end
  channel.ack(delivery.delivery_tag)
end
