package conformance

import (
	"slices"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Where a message was seen.
const (
	rejected    = "rejected"    // dead-lettered from the work queue
	published   = "published"   // to the router, by the consumer
	returned    = "returned"    // on its way back to the work queue
	parked      = "parked"      // in its parking queue
	astray      = "astray"      // parked as nobody's
	quarantined = "quarantined" // the router could not work with it
)

// event is one sight of a message.
type event struct {
	where  string
	at     time.Time // when it was seen, never before it was there
	reason string    // what it died of, where rejected
	d      amqp.Delivery
}

// ledger has everything that came out, by message.
type ledger struct {
	mu      sync.Mutex
	events  map[string][]event
	stray   []event // of none of our messages
	changed chan struct{}
}

func newLedger() *ledger {
	return &ledger{events: map[string][]event{}, changed: make(chan struct{})}
}

func (l *ledger) add(id string, e event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if id == "" {
		if len(l.stray) < 100 {
			l.stray = append(l.stray, e)
		}
	} else {
		l.events[id] = append(l.events[id], e)
	}
	close(l.changed)
	l.changed = make(chan struct{})
}

// of lists the sights of a message, in the order in which they were seen, which
// between two places is not that in which they happened.
func (l *ledger) of(id string) []event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.events[id])
}

// next is closed at the next event.
func (l *ledger) next() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// strays lists what could not be told to be any of our messages.
func (l *ledger) strays() []event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.stray)
}

// failures are the ends of attempts, in order.
func failures(events []event) []event {
	return some(events, func(e event) bool { return e.where == rejected || e.where == published })
}

func in(events []event, where string) []event {
	return some(events, func(e event) bool { return e.where == where })
}

func some(events []event, is func(event) bool) []event {
	var list []event
	for _, e := range events {
		if is(e) {
			list = append(list, e)
		}
	}
	return list
}

// idPrefix begins the id of every message of ours.
const idPrefix = "conformance-"

// idOf finds out which message it is, also when a consumer has lost some of it.
func idOf(d *amqp.Delivery) string {
	if id, ok := d.Headers[headerID].(string); ok {
		return id
	}
	if b, ok := d.Headers[headerID].([]byte); ok {
		return string(b)
	}
	if strings.HasPrefix(d.MessageId, idPrefix) {
		return d.MessageId
	}
	if text := string(d.Body[:min(len(d.Body), 200)]); strings.HasPrefix(text, idPrefix) {
		id, _, _ := strings.Cut(text, "\n")
		return id
	}
	return ""
}

// deathIn is the newest entry of x-death, where it is of that queue.
func deathIn(h amqp.Table, queue string) (reason string, ok bool) {
	deaths, _ := h["x-death"].([]any)
	if len(deaths) == 0 {
		return "", false
	}
	entry, _ := deaths[0].(amqp.Table)
	reason, _ = entry["reason"].(string)
	return reason, entry["queue"] == queue
}
