// Package delay holds messages back inside the broker. A mechanism says where
// to publish a message so that it comes back after a delay; it publishes
// nothing itself.
//
// The rule that all mechanisms share: a delay queue has one fixed TTL. RabbitMQ
// expires messages at the head of a queue only, so with TTLs per message a
// short delay would wait behind a long one.
package delay

import (
	"time"

	"github.com/hopback/hopback/topology"
)

// Longest is the longest delay that any slot holds: 25 hours.
const Longest = 90_000 * time.Second

// Shortest is the shortest delay of the wheel.
const Shortest = 100 * time.Millisecond

// Request asks for one delay.
type Request struct {
	Delay time.Duration

	// Exact delays are never rounded down: a handler's RetryAfter, and every
	// delay without jitter. The others may be rounded either way, at random, so
	// that their mean stays what it was.
	Exact bool

	// Min and Max bound the rounding of a delay that is not exact. Zero means
	// no bound.
	Min, Max time.Duration

	// Random is 64 uniformly random bits.
	Random uint64

	// Avoid names the exchange of a slot that just refused the message, so that
	// another is chosen.
	Avoid string
}

// Hold says where a message waits. To hold it, publish it to Exchange, its
// routing key unchanged, with Then as the header x-retry-then where that is not
// empty, and mandatory unless XDelay is set.
type Hold struct {
	Exchange string
	Then     string
	Delay    time.Duration // what the message will wait, after rounding

	// XDelay is the value of the header x-delay, in milliseconds, for the
	// delayed-message plugin; 0 for every other mechanism. Such a message must not
	// be published mandatory: the plugin returns every one that is, though it
	// keeps it.
	XDelay int64
}

// Mechanism is one way to wait. Its methods are safe for concurrent use.
type Mechanism interface {
	// Name is the word for it in the configuration file.
	Name() string

	// Hold chooses where a message waits.
	Hold(Request) Hold

	// Slots lists the TTLs of the delay queues, shortest first.
	Slots() []time.Duration

	// Topology is what must exist on the broker before the first Hold.
	Topology() topology.Topology
}
