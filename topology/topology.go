// Package topology describes exchanges, queues and bindings as values and brings
// a broker into line with them.
//
// A [Topology] is plain data: it can be merged, compared, printed and tested
// without a broker. Four things can be done with one: [MakePlan] says what is
// missing and what differs, and changes nothing; [Apply] declares what is
// missing; [Verify] is a plan that must be empty; [Topology.Definitions] and
// [Topology.Mermaid] export it, for an operator who wants to import it and for a
// reader who wants to see it.
//
// Nothing here ever deletes a queue or an exchange; a stale binding of a [Binding]
// that is Sole only when asked, by [WithUnbind]. And nothing changes what exists:
// RabbitMQ has no way to change the arguments of a queue or an exchange. What
// exists with other arguments is reported, with both values and their types, and
// the rest is applied all the same.
package topology

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Exchange is a durable exchange that is neither auto-deleted nor internal.
type Exchange struct {
	Name string
	// Kind is the exchange's type: "direct", "topic", "fanout", "headers", or one
	// that a plugin brings.
	Kind string
	Args amqp.Table
}

// Queue is a durable queue, not exclusive and not auto-deleted.
type Queue struct {
	Name string
	// Args are the queue's arguments. Numbers must be int64: a Go int is written
	// with 32 bits by the client library, so that 3000000000 would arrive as
	// -1294967296. A queue without x-queue-type gets its virtual host's default.
	Args amqp.Table
	// User marks the user's own work queue. It is only ever checked passively and
	// never compared: its arguments are the user's business.
	User bool
	// Declare allows a missing User queue to be declared, with Args. It has no
	// meaning for other queues, which are always declared when missing.
	Declare bool
}

// Binding leads messages from the exchange Source to the queue Destination, or
// to the exchange of that name with ToExchange.
type Binding struct {
	Source      string
	Destination string
	ToExchange  bool
	Key         string // the routing key, or the pattern of a topic exchange
	Args        amqp.Table
	// Sole says that no other destination may be bound to Source with Key: a
	// message that took both ways would be there twice. Any other such binding is
	// [Extra] in a plan, whoever made it. Keys are compared as they are written,
	// which is what a direct exchange does. The broker knows nothing of this.
	Sole bool
}

// Topology is a set of exchanges, queues and bindings. The zero value is empty
// and ready to use. Names may refer to things that are not in the set: those are
// expected to exist when the topology is applied.
type Topology struct {
	Exchanges []Exchange
	Queues    []Queue
	Bindings  []Binding
}

// Merge returns the union of t and others, in order of first appearance. An item
// that appears again, the same for the broker, is left out. Two definitions of
// one name that differ are both kept, for [Topology.Validate] to report. The
// user's queue that one side may declare and the other may not may be declared,
// and a binding that is Sole for one side is Sole.
// The argument tables are shared with t and others, not copied.
func (t Topology) Merge(others ...Topology) Topology {
	var m Topology
	exchanges, queues := map[string][]int{}, map[string][]int{}
	bindings := map[string]int{}
	for _, o := range append([]Topology{t}, others...) {
		for _, e := range o.Exchanges {
			if !slices.ContainsFunc(exchanges[e.Name], func(i int) bool { return sameExchange(m.Exchanges[i], e) }) {
				exchanges[e.Name] = append(exchanges[e.Name], len(m.Exchanges))
				m.Exchanges = append(m.Exchanges, e)
			}
		}
		for _, q := range o.Queues {
			i := slices.IndexFunc(queues[q.Name], func(i int) bool { return sameQueue(m.Queues[i], q) })
			if i < 0 {
				queues[q.Name] = append(queues[q.Name], len(m.Queues))
				m.Queues = append(m.Queues, q)
			} else if had := &m.Queues[queues[q.Name][i]]; q.Declare && !had.Declare {
				*had = q // the one that may declare knows the arguments
			}
		}
		for _, b := range o.Bindings {
			if i, ok := bindings[b.identity()]; ok {
				m.Bindings[i].Sole = m.Bindings[i].Sole || b.Sole
			} else {
				bindings[b.identity()] = len(m.Bindings)
				m.Bindings = append(m.Bindings, b)
			}
		}
	}
	return m
}

func sameExchange(a, b Exchange) bool {
	return a.Name == b.Name && a.Kind == b.Kind && len(Compare(a.Args, b.Args)) == 0
}

func sameQueue(a, b Queue) bool {
	if a.Name != b.Name || a.User != b.User {
		return false
	}
	if a.User && !(a.Declare && b.Declare) {
		return true // only a queue that is declared has arguments that matter
	}
	return len(Compare(a.Args, b.Args)) == 0
}

// identity is the same for two bindings exactly when the broker would hold them
// as one. The parts are quoted, so that no name can look like two.
func (b Binding) identity() string {
	return fmt.Sprintf("%q %q %t %q %s", b.Source, b.Destination, b.ToExchange, b.Key, canonical(b.Args))
}

// fork is where a message takes every way that is bound.
type fork struct{ source, key string }

func (b Binding) fork() fork { return fork{b.Source, b.Key} }

// sameEnd reports whether both lead to one place.
func (b Binding) sameEnd(o Binding) bool {
	return b.Destination == o.Destination && b.ToExchange == o.ToExchange
}

// end is where b leads to.
func (b Binding) end() resource {
	if b.ToExchange {
		return resource{kind: "exchange", name: b.Destination}
	}
	return resource{kind: "queue", name: b.Destination}
}

// name is how a binding is called in plans and errors.
func (b Binding) name() string {
	n := b.Source + " -> " + b.Destination
	if b.ToExchange {
		n = b.Source + " -> exchange " + b.Destination
	}
	if b.Key != "" {
		n += fmt.Sprintf(" (key %q)", b.Key)
	}
	return n
}

// Validate reports everything in t that no broker could hold, or that would
// arrive there as something else, joined into one error: empty, over-long and
// reserved names, values that the wire does not carry as they are, names with two
// different definitions, and a second destination beside a binding that is Sole.
func (t Topology) Validate() error {
	var errs []error
	fail := func(kind, name, format string, args ...any) {
		errs = append(errs, fmt.Errorf("topology: %s %q: %s", kind, name, fmt.Sprintf(format, args...)))
	}
	exchanges, queues := map[string]Exchange{}, map[string]Queue{}
	for _, e := range t.Exchanges {
		if err := checkName(e.Name); err != nil {
			fail("exchange", e.Name, "name %v", err)
		}
		if e.Kind == "" {
			fail("exchange", e.Name, `kind is empty: want "direct", "topic", "fanout", "headers" or a plugin's type`)
		}
		if err := checkArgs(e.Args, false); err != nil {
			fail("exchange", e.Name, "%v", err)
		}
		if had, ok := exchanges[e.Name]; !ok {
			exchanges[e.Name] = e
		} else if had.Kind != e.Kind {
			fail("exchange", e.Name, "is defined twice, as %q and as %q: keep one, or give them two names", had.Kind, e.Kind)
		} else if d := Compare(had.Args, e.Args); len(d) > 0 {
			fail("exchange", e.Name, "is defined twice, with %s %v and %v: keep one, or give them two names", d[0].Key, d[0].Want, d[0].Have)
		}
	}
	for _, q := range t.Queues {
		if err := checkName(q.Name); err != nil {
			fail("queue", q.Name, "name %v", err)
		}
		if !q.User && strings.HasPrefix(q.Name, "amq.") {
			fail("queue", q.Name, `name begins with "amq.", which brokers keep for themselves: choose another`)
		}
		if err := checkArgs(q.Args, false); err != nil {
			fail("queue", q.Name, "%v", err)
		}
		if had, ok := queues[q.Name]; !ok {
			queues[q.Name] = q
		} else if had.User != q.User {
			fail("queue", q.Name, "is both the user's work queue and one of ours: choose another prefix or name")
		} else if !sameQueue(had, q) {
			d := Compare(had.Args, q.Args)[0]
			fail("queue", q.Name, "is defined twice, with %s %v and %v: keep one, or give them two names", d.Key, d.Want, d.Have)
		}
	}
	soles := map[fork]Binding{}
	for _, b := range t.Bindings {
		if b.Sole {
			soles[b.fork()] = b
		}
	}
	for _, b := range t.Bindings {
		if sole, ok := soles[b.fork()]; ok && !b.sameEnd(sole) {
			fail("binding", b.name(), "cannot be there beside %q, the sole one of this source and key: keep one, or give them two keys", sole.name())
		}
		for _, end := range []string{b.Source, b.Destination} {
			if err := checkName(end); err != nil {
				fail("binding", b.name(), "name %q %v (the default exchange cannot be bound)", end, err)
			}
		}
		if len(b.Key) > maxShortString {
			fail("binding", b.name(), "routing key has %d bytes: at most %d fit", len(b.Key), maxShortString)
		}
		if err := checkArgs(b.Args, true); err != nil {
			fail("binding", b.name(), "%v", err)
		}
	}
	return errors.Join(errs...)
}

// maxShortString is what a "shortstr" of AMQP 0-9-1 holds, in bytes: the length
// of every name and routing key.
const maxShortString = 255

func checkName(s string) error {
	switch {
	case s == "":
		return errors.New("is empty")
	case len(s) > maxShortString:
		return fmt.Errorf("has %d bytes: at most %d fit", len(s), maxShortString)
	case !utf8.ValidString(s):
		return errors.New("is not valid UTF-8")
	case strings.ContainsAny(s, "\r\n"):
		// rabbit_channel strips them, and the name is another one.
		return errors.New("contains a line break, which brokers remove: leave it out")
	}
	return nil
}

// checkArgs finds the first value, by key, that does not survive the way to the
// broker. A headers binding may hold nil, which matches any value of the header.
func checkArgs(args amqp.Table, binding bool) error {
	for _, k := range sortedKeys(args) {
		if len(k) > maxShortString {
			return fmt.Errorf("argument %q has a name of %d bytes: at most %d fit", k, len(k), maxShortString)
		}
		if err := checkValue(args[k], binding); err != nil {
			return fmt.Errorf("argument %s: %w", k, err)
		}
	}
	return nil
}

func checkValue(v any, binding bool) error {
	switch v := v.(type) {
	case bool, byte, int8, int16, uint16, int32, uint32, int64, string, []byte, time.Time:
		return nil
	case int:
		return fmt.Errorf("%d is a Go int, which is written with 32 bits: use int64(%d)", v, v)
	case float32:
		return checkValue(float64(v), binding)
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Errorf("%v closes the connection on every broker: use a finite number", v)
		}
		return nil
	case nil:
		if binding {
			return nil
		}
		return errors.New("nil is not the same as absent for the broker: leave the argument out")
	case amqp.Decimal:
		if binding {
			return nil
		}
		// Comparing it on a redeclare is an internal error of the broker, 541,
		// which ends the connection (3.10.8).
		return errors.New("a decimal ends the connection when the queue or exchange is declared again: use int64")
	case amqp.Table:
		return checkArgs(v, binding)
	case []any:
		for i, e := range v {
			if err := checkValue(e, binding); err != nil {
				return fmt.Errorf("element %d: %w", i, err)
			}
		}
		return nil
	}
	return fmt.Errorf("%v has the Go type %T, which AMQP 0-9-1 does not carry: use int64, string or bool", v, v)
}
