package router

import (
	"errors"
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/delay"
	"github.com/hopback/hopback/topology"
)

// names makes the names of what is the router's own.
type names struct{ prefix string }

// Exchange is the exchange that failed messages go to, "hop.failed": the
// dead-letter exchange of a work queue, and where a consumer publishes a failure
// that it wants to say more about. Queue is the queue behind it, of the same name.
func Exchange(prefix string) string { return names{orDefault(prefix)}.failed() }

// Quarantine is the queue of what the router's client cannot read.
func Quarantine(prefix string) string { return names{orDefault(prefix)}.quarantine() }

// Aside is the queue in which messages rest for a moment whose hand-off was refused.
func Aside(prefix string) string { return names{orDefault(prefix)}.held() }

// Parking is the queue of what belongs to no route.
func Parking(prefix string) string { return names{orDefault(prefix)}.parking() }

func orDefault(prefix string) string {
	if prefix == "" {
		return hopback.DefaultPrefix
	}
	return prefix
}

func (n names) failed() string     { return n.prefix + ".failed" }
func (n names) held() string       { return n.prefix + ".failed.held" }
func (n names) quarantine() string { return n.prefix + ".failed.quarantine" }
func (n names) parking() string    { return n.prefix + ".failed.parked" }
func (n names) errors() string     { return n.prefix + ".error" }

// Own reports whether a queue is one that Hopback declares for itself, and so none
// that a consumer can have failed on: the router's, or a slot, isolated or not.
// Parking queues are not among them: their names are the users'.
func Own(prefix, queue string) bool { return names{orDefault(prefix)}.ours(queue) }

// Slot reads the name of a delay slot: the work queue that it is for, empty where
// all queues share it, and how long messages wait in it. It is false for the name of
// anything else.
func Slot(prefix, queue string) (owner string, wait time.Duration, ok bool) {
	return names{orDefault(prefix)}.slot(queue)
}

func (n names) ours(queue string) bool {
	switch queue {
	case n.failed(), n.held(), n.quarantine(), n.parking(), n.prefix + ".lost":
		return true
	}
	_, _, slot := n.slot(queue)
	return slot
}

func (n names) slot(queue string) (owner string, wait time.Duration, ok bool) {
	base, label, ok := cutLast(queue, ".delay.")
	if !ok {
		return "", 0, false
	}
	if base != n.prefix {
		if owner, ok = strings.CutPrefix(base, n.prefix+"."); !ok || owner == "" {
			return "", 0, false
		}
	}
	wait, err := time.ParseDuration(label)
	if err != nil || wait <= 0 || delay.Label(wait) != label { // what it would be called
		return "", 0, false
	}
	return owner, wait, true
}

// cutLast is strings.Cut at the last separator.
func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

const (
	// heldFor is how long a message stays aside whose hand-off was refused.
	heldFor = 30 * time.Second

	// quarantineAfter is how often a message may go back to hop.failed by the loss
	// of a connection before the broker moves it to the quarantine. Each costs a
	// connection where the message itself is the reason; a lost connection counts
	// for all that were handed out, so a few must be forgiven.
	quarantineAfter = 20
)

// Topology is what a router of these routes needs on the broker: what the routes
// need themselves, and hop.failed with the queues beside it.
func Topology(prefix string, routes ...Route) (topology.Topology, error) {
	if _, err := hopback.Topology(prefix); err != nil {
		return topology.Topology{}, err
	}
	t := base(names{orDefault(prefix)})
	var errs []error
	for _, r := range routes {
		needs, err := hopback.Topology(prefix, r.held())
		if err != nil {
			errs = append(errs, fmt.Errorf("route %q: %w", r.Queue, err))
			continue
		}
		t = t.Merge(needs)
	}
	if err := errors.Join(errs...); err != nil {
		return topology.Topology{}, err
	}
	return t, t.Validate()
}

// base is what every router needs.
func base(n names) topology.Topology {
	shared, err := hopback.Topology(n.prefix)
	if err != nil {
		panic(err) // without routes there is nothing that could be wrong but the prefix, which was checked
	}
	// People look into these; see hopback's own parking queues for the limit.
	visible := func(name string) topology.Queue {
		return topology.Queue{Name: name, Args: amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1_000_000)}}
	}
	// At-least-once dead-lettering needs overflow reject-publish; without it
	// RabbitMQ accepts the argument and loses messages.
	return shared.Merge(topology.Topology{
		Exchanges: []topology.Exchange{
			{Name: n.failed(), Kind: "fanout"}, // dead-lettered messages keep their routing key
			{Name: n.held(), Kind: "fanout"},
			{Name: n.quarantine(), Kind: "fanout"},
		},
		Queues: []topology.Queue{
			{Name: n.failed(), Args: amqp.Table{
				"x-queue-type":           "quorum",
				"x-delivery-limit":       int64(quarantineAfter),
				"x-dead-letter-exchange": n.quarantine(),
				"x-dead-letter-strategy": "at-least-once",
				"x-overflow":             "reject-publish",
			}},
			{Name: n.held(), Args: amqp.Table{
				"x-queue-type":           "quorum",
				"x-message-ttl":          heldFor.Milliseconds(),
				"x-dead-letter-exchange": n.failed(),
				"x-dead-letter-strategy": "at-least-once",
				"x-overflow":             "reject-publish",
			}},
			visible(n.quarantine()),
			visible(n.parking()),
		},
		Bindings: []topology.Binding{
			{Source: n.failed(), Destination: n.failed()},
			{Source: n.held(), Destination: n.held()},
			{Source: n.quarantine(), Destination: n.quarantine()},
			{Source: n.errors(), Destination: n.parking(), Key: n.failed(), Sole: true},
		},
	})
}
