package delay

import (
	"time"

	"github.com/hopback/hopback/topology"
)

// LinearCost says what a route gives up by the broker's own retry, for people.
const LinearCost = "delay n is base × n, without jitter, so messages that failed together come back together; " +
	"what is given back without a count (basic.nack with requeue) waits but is never parked; " +
	"a parked message carries the broker's headers and none of x-retry-*, so no error and no history; " +
	"for consumers that are not Hopback's"

// Linear is the broker's own delayed retry (RabbitMQ 4.3.1 and later, quorum
// queues), for consumers that are not ours: a policy on the work queue makes the
// broker hold back what is returned to it. No code of ours runs, and no header of
// ours is written.
//
// It is what its name says: delay n is min × n, never above max, without jitter,
// so messages that failed together come back together. n is how often the message
// was given back as failed, which is basic.reject with requeue (AMQP 1.0: released
// or modified with delivery-failed). After as many as there are retries the broker
// dead-letters it to the parking queue. A reject without requeue parks at once.
type Linear struct {
	names    Names
	queue    string
	min, max time.Duration
	retries  int32
}

// NewLinear describes the policy for a work queue: the first retry waits least,
// the n-th n times that, never more than most, both in whole milliseconds.
func NewLinear(names Names, queue string, least, most time.Duration, retries int32) *Linear {
	least = max(least, time.Millisecond)
	return &Linear{names: names, queue: queue, min: least, max: max(least, most), retries: max(retries, 0)}
}

// Name is "native-linear".
func (l *Linear) Name() string { return "native-linear" }

// Delay is what retry n = 1, 2, … waits.
func (l *Linear) Delay(n int64) time.Duration {
	if n < 1 {
		n = 1
	}
	if n > int64(l.max/l.min) {
		return l.max
	}
	return l.min * time.Duration(n)
}

// Total is the time that all retries of a message wait, one after the other.
func (l *Linear) Total() time.Duration {
	rising := min(int64(l.retries), int64(l.max/l.min))
	return l.min*time.Duration(rising*(rising+1)/2) + l.max*time.Duration(int64(l.retries)-rising)
}

// Hold is of no use: the broker holds by itself, and nothing of ours publishes.
// It says what the broker would do, for tables, and names no exchange.
func (l *Linear) Hold(r Request) Hold {
	return Hold{Delay: min(max((r.Delay+l.min-1)/l.min*l.min, l.min), l.max)}
}

// Slots is empty: a message waits in its work queue.
func (l *Linear) Slots() []time.Duration { return nil }

// Topology is empty: what there is to set is a policy.
func (l *Linear) Topology() topology.Topology { return topology.Topology{} }

// Policy is what makes the broker do it, as a value to plan, apply and verify over
// the management API.
//
// At-least-once dead-lettering keeps a message on its queue until the parking queue
// has confirmed it; it needs overflow reject-publish. The type is "all": with
// "failed" a message that a consumer gives back without a count (basic.nack, AMQP
// 1.0 released) would be redelivered at once, again and again.
func (l *Linear) Policy() topology.Policy {
	return topology.Policy{
		Name: l.names.Prefix + ".native-linear." + l.queue, Queue: l.queue,
		Priority: 100, ApplyTo: "quorum_queues",
		Definition: map[string]any{
			"delayed-retry-type":      "all",
			"delayed-retry-min":       l.min.Milliseconds(),
			"delayed-retry-max":       l.max.Milliseconds(),
			"delivery-limit":          int64(l.retries),
			"dead-letter-exchange":    l.names.Prefix + ".error",
			"dead-letter-routing-key": l.queue,
			"dead-letter-strategy":    "at-least-once",
			"overflow":                "reject-publish",
		},
	}
}
