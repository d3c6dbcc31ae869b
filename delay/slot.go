package delay

import (
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/topology"
)

// Names makes the names of exchanges and queues. With an Owner, a route's slots
// are its own and nobody else's messages wait in them.
type Names struct {
	Prefix string // "hop"
	Owner  string // work queue, or empty for the shared slots
}

// Slot is the name of both the exchange and the queue that hold messages for d:
// "hop.delay.3s". The TTL is in the name, so that another policy makes other
// queues instead of clashing with the arguments of these.
func (n Names) Slot(d time.Duration) string { return n.base() + ".delay." + Label(d) }

// then is the exchange into which a slot lets its messages go: it sends those
// with a second digit to wait for into that slot, and all others back.
func (n Names) then(d time.Duration) string { return n.base() + ".then." + Label(decade(d)) }

func (n Names) back() string { return n.Prefix + ".return" }

func (n Names) base() string {
	if n.Owner != "" {
		return n.Prefix + "." + n.Owner
	}
	return n.Prefix
}

// Label writes a duration in whole seconds where it can, else in milliseconds:
// 90s, 1500ms, 90000s.
func Label(d time.Duration) string {
	if d%time.Second == 0 {
		return strconv.FormatInt(int64(d/time.Second), 10) + "s"
	}
	return strconv.FormatInt(d.Milliseconds(), 10) + "ms"
}

// decade is the power of ten at or below d, counted from Shortest: 100ms, 1s,
// 10s, …
func decade(d time.Duration) time.Duration {
	u := Shortest
	for 10*u <= d {
		u *= 10
	}
	return u
}

// slotTopology declares one slot: a fanout exchange, so that any routing key
// reaches its queue and survives, and a queue with one TTL.
//
// Quorum with at-least-once dead-lettering is what makes the way out as safe as
// the way in: a message leaves the slot only after the next queue confirmed it.
// That strategy needs overflow reject-publish; without it RabbitMQ accepts the
// argument and loses messages. There is never an x-expires: it would drop the
// messages with the queue.
func (n Names) slotTopology(d time.Duration) topology.Topology {
	name, next := n.Slot(d), n.then(d)
	if decade(d) == Shortest {
		next = n.back() // nothing is shorter, so there is no second slot
	}
	return topology.Topology{
		Exchanges: []topology.Exchange{{Name: name, Kind: "fanout"}},
		Queues: []topology.Queue{{Name: name, Args: amqp.Table{
			"x-queue-type":           "quorum",
			"x-message-ttl":          d.Milliseconds(),
			"x-dead-letter-exchange": next,
			"x-dead-letter-strategy": "at-least-once",
			"x-overflow":             "reject-publish",
		}}},
		Bindings: []topology.Binding{{Source: name, Destination: name}},
	}
}

// thenTopology declares the exchange between two decades. What has no second
// slot matches nothing and falls through to the way back.
func (n Names) thenTopology(d time.Duration) topology.Topology {
	return topology.Topology{Exchanges: []topology.Exchange{{
		Name: n.then(d), Kind: "headers", Args: amqp.Table{"alternate-exchange": n.back()},
	}}}
}

// thenBinding leads from a decade into one slot of the decade below.
func (n Names) thenBinding(from, to time.Duration) topology.Binding {
	slot := n.Slot(to)
	return topology.Binding{
		Source: n.then(from), Destination: slot,
		Args: amqp.Table{"x-match": "all-with-x", "x-retry-then": slot},
	}
}
