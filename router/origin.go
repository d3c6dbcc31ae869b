package router

import (
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
)

// What a message can have died of, in RabbitMQ's words.
const (
	rejected      = "rejected"
	expired       = "expired"
	maxLength     = "maxlen"
	deliveryLimit = "delivery_limit"
)

// origin says which work queue a message failed in, and how.
type origin struct {
	queue string

	// reason is what it died of, in the broker's words; empty where its consumer
	// published it.
	reason string

	// exchange and key are where it was published before it died there; known is
	// false where nothing tells.
	exchange, key string
	known         bool

	// expiration is the property that RabbitMQ took off when the message died there.
	expiration string

	deaths int64 // in that queue, by the broker's count, this one included
	held   bool  // it was moved aside by a router, and is back
}

// originOf finds the queue that a message failed in: the newest entry of x-death
// that is not a queue of ours. x-first-death-queue is no help, since from the
// second attempt on it names a slot (3.10.8, 4.0.5 and 4.3.6), and
// x-last-death-queue does not exist before 4.0.
//
// A message without such an entry was published by its consumer, which names the
// queue in x-retry-queue. So was one that gives a verdict or a delay while the two
// disagree: then x-death was copied along, from an earlier dead-lettering. It is
// false where nothing tells.
func (n names) originOf(h amqp.Table) (origin, bool) {
	var o origin
	deaths, _ := h["x-death"].([]any)
	for i, e := range deaths {
		entry, _ := e.(amqp.Table)
		queue := text(entry["queue"])
		if i == 0 && queue == n.held() {
			o.held = true
		}
		if queue == "" || n.ours(queue) {
			continue
		}
		o.queue, o.reason = queue, text(entry["reason"])
		if o.reason == "" {
			o.reason = rejected
		}
		o.deaths, _ = entry["count"].(int64)
		o.expiration = text(entry["original-expiration"])
		if keys, _ := entry["routing-keys"].([]any); len(keys) > 0 {
			o.exchange, o.key, o.known = text(entry["exchange"]), text(keys[0]), true
		}
		break
	}
	named := text(h[attempt.HeaderQueue])
	switch {
	case named == "" || n.ours(named):
	case o.queue == "", o.queue != named && says(h):
		return origin{queue: named, held: o.held}, true
	}
	return o, o.queue != ""
}

// says reports whether a consumer tells the router what to do: these headers are
// never left on a message by us.
func says(h amqp.Table) bool {
	_, verdict := h[attempt.HeaderVerdict]
	_, after := h[attempt.HeaderAfter]
	return verdict || after
}

func text(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case []byte:
		return string(v)
	}
	return ""
}
