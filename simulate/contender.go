package simulate

import (
	"errors"
	"fmt"
	"math/bits"
	"strings"
	"time"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/backoff"
	"github.com/hopback/hopback/delay"
)

// Way says where a message waits for its retry.
type Way int

// The ways to wait.
const (
	// InBroker is Hopback's: a slot holds the message, and the handler is free.
	InBroker Way = iota

	// Requeued is none: the message goes back to the head of its queue at once,
	// and is delivered again.
	Requeued

	// InHandler sleeps: the message keeps its handler and its prefetch.
	InHandler
)

// Contender is a policy that a simulation tries, with the mechanism that holds
// its delays. [Policy] and [Route] make one of Hopback's own, [Preset] one of
// the well-known.
type Contender struct {
	// Name tells it from others in a report.
	Name string

	// About says what it does where its route does not, and Source where the
	// numbers of somebody else's policy are from. See [Contender.Describe].
	About, Source string

	// Route is the policy and the mechanism. Its queue may be empty; auto means
	// the wheel.
	Route hopback.Route

	// Way is where a message waits.
	Way Way

	// Immediate is how often a handler tries again at once, after each delivery,
	// before the failure counts as one.
	Immediate int

	// Forever lets a message be retried without end.
	Forever bool

	// Delay, where set, is asked in the place of the policy's schedule: for retry
	// n = 1, 2, …, with the delay before and 64 random bits. It must be a pure
	// function.
	Delay func(n int64, previous time.Duration, random uint64) time.Duration

	// To, where set, holds the delays in the place of the route's mechanism.
	// What it does must depend on the request alone.
	To delay.Mechanism
}

// Policy is a contender with a policy of Hopback's, on the wheel.
func Policy(name string, p hopback.Policy) Contender {
	return Contender{Name: name, Route: hopback.Route{Policy: p}}
}

// Route is a contender with a route's policy and mechanism. Its name is that of
// the policy, or of the queue.
func Route(r hopback.Route) Contender {
	name := r.Policy.Name
	if name == "" {
		name = r.Queue
	}
	return Contender{Name: name, Route: r}
}

// Describe says what the contender does: its About, or else its policy in words.
func (c Contender) Describe() string {
	if c.About != "" {
		return c.About
	}
	r := c.route()
	p := r.Policy
	var parts []string
	switch {
	case p.Jitter == backoff.Decorrelated:
		parts = append(parts, "from "+Span(p.Base))
	case p.Backoff == backoff.Exponential:
		parts = append(parts, fmt.Sprintf("exponential from %s × %g", Span(p.Base), p.Factor))
	case p.Backoff == backoff.List:
		parts = append(parts, "list "+spans(p.Delays))
	default:
		parts = append(parts, fmt.Sprintf("%s %s", p.Backoff, Span(p.Base)))
	}
	if p.Backoff != backoff.Constant && p.Backoff != backoff.List {
		parts = append(parts, "at most "+Span(p.Max))
	}
	switch p.Jitter {
	case backoff.None:
		parts = append(parts, "no jitter")
	case backoff.Proportional:
		parts = append(parts, fmt.Sprintf("jitter ± %g %%", 100*p.JitterRatio))
	default:
		parts = append(parts, string(p.Jitter)+" jitter")
	}
	switch n := max(p.MaxRetries, 0); {
	case c.Forever:
		parts = append(parts, "without end")
	case n == 1:
		parts = append(parts, "1 retry")
	default:
		parts = append(parts, fmt.Sprintf("%d retries", n))
	}
	switch {
	case r.Mechanism == hopback.Ladder:
		parts = append(parts, "on a ladder of "+spans(r.Ladder))
	case r.Mechanism == hopback.Native || r.Mechanism == hopback.Plugin || r.Mechanism == hopback.NativeLinear:
		parts = append(parts, r.Mechanism)
	case r.Precision == hopback.PrecisionOne:
		parts = append(parts, "one digit of the wheel")
	case r.Precision == hopback.PrecisionTwo:
		parts = append(parts, "two digits of the wheel")
	}
	return strings.Join(parts, ", ")
}

func spans(ds []time.Duration) string {
	var all []string
	for _, d := range ds {
		all = append(all, Span(d))
	}
	return strings.Join(all, " ")
}

// route is the route with its defaults and a queue.
func (c Contender) route() hopback.Route {
	r := c.Route
	if r.Queue == "" {
		r.Queue = "queue"
	}
	return r.WithDefaults()
}

// Validate reports what cannot work, in the words of the route.
func (c Contender) Validate() error {
	var errs []error
	if c.Name == "" {
		errs = append(errs, &hopback.ConfigError{Field: "name", Value: "", Fix: "name the policy, so that the report can tell it from others"})
	}
	if c.Immediate < 0 || c.Immediate > 1000 {
		errs = append(errs, &hopback.ConfigError{Field: "immediate", Value: fmt.Sprint(c.Immediate), Fix: "use 0 to 1000"})
	}
	if c.Way < InBroker || c.Way > InHandler {
		errs = append(errs, &hopback.ConfigError{Field: "way", Value: fmt.Sprint(int(c.Way)), Fix: "use InBroker, Requeued or InHandler"})
	}
	if err := c.route().Validate(); err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("policy %q: %w", c.Name, err)
	}
	return nil
}

// Precise is a mechanism that holds every delay to the millisecond, as RabbitMQ
// 4.3 does natively.
func Precise() delay.Mechanism { return precise{steps: time.Millisecond} }

// holder says how long the mechanism holds a message for which a delay was
// chosen: how many ms in all, and in how many slots.
type holder interface {
	hold(now uint32, consumer uint16, r delay.Request) (ms uint32, hops uint8)
}

func newHolder(c Contender, consumers int) holder {
	r := c.route()
	switch {
	case c.To != nil:
		if h, ok := c.To.(holder); ok {
			return h
		}
		return mechanism{c.To}
	case r.Mechanism == hopback.Auto:
		r.Mechanism = hopback.Wheel
	}
	if r.Mechanism != hopback.Wheel || r.Precision != hopback.PrecisionAuto {
		return newTable(r.DelayMechanism(hopback.DefaultPrefix))
	}
	one, two := r, r
	one.Precision, two.Precision = hopback.PrecisionOne, hopback.PrecisionTwo
	return &automatic{
		one:   newTable(one.DelayMechanism(hopback.DefaultPrefix)),
		two:   newTable(two.DelayMechanism(hopback.DefaultPrefix)),
		loads: make([]load, consumers),
	}
}

// mechanism asks a delay.Mechanism each time.
type mechanism struct{ delay.Mechanism }

func (m mechanism) hold(_ uint32, _ uint16, r delay.Request) (uint32, uint8) {
	h := m.Hold(r)
	switch {
	case h.Then != "":
		return millis(h.Delay), 2
	case h.Exchange == "": // native: it stays on its queue
		return millis(h.Delay), 0
	}
	return millis(h.Delay), 1
}

// automatic is the wheel with precision auto: two digits, but one of a jittered
// delay from delay.BusyRate messages a second on. The wheel itself counts them on
// the clock of the machine; here time is simulated, so it is counted here, for
// each consumer as a process of its own.
type automatic struct {
	one, two *table
	loads    []load
}

func (a *automatic) hold(now uint32, consumer uint16, r delay.Request) (uint32, uint8) {
	if a.loads[consumer].busy(now) && !r.Exact {
		return a.one.hold(now, consumer, r)
	}
	return a.two.hold(now, consumer, r)
}

// load is delay.Load on a clock of its own.
type load struct{ start, count, last uint32 }

func (l *load) busy(now uint32) bool {
	if age := now - l.start; age >= 1000 {
		l.last, l.count, l.start = l.count, 0, now
		if age >= 2000 {
			l.last = 0
		}
	}
	l.count++
	return max(l.count, l.last) > delay.BusyRate
}

// table remembers what a mechanism answered. A jittered delay is rounded to one
// of two neighbours, with the odds that keep its mean; which one depends on the
// random number only. So it is asked for both ends, once for each delay, and the
// draw between them is made here as the mechanism makes it. A test compares the
// two over all delays. Without this a simulation would spend most of its time on
// the names of slots.
type table struct {
	to       delay.Mechanism
	min, max time.Duration // of the requests that it was filled with
	rows     []row         // by ms
	exact    []row
}

type row struct {
	low, high         uint32 // ms; 0 is unknown
	lowHops, highHops uint8
}

// tableSize bounds what is remembered: delays to about two minutes.
const tableSize = 1 << 17

func newTable(m delay.Mechanism) *table { return &table{to: m} }

func (t *table) hold(_ uint32, _ uint16, r delay.Request) (uint32, uint8) {
	ms := int64(r.Delay / time.Millisecond)
	if ms >= tableSize || ms < 0 || r.Avoid != "" {
		return mechanism{t.to}.hold(0, 0, r)
	}
	if r.Min != t.min || r.Max != t.max {
		t.rows, t.exact, t.min, t.max = nil, nil, r.Min, r.Max
	}
	rows := &t.rows
	if r.Exact {
		rows = &t.exact
	}
	for int64(len(*rows)) <= ms {
		*rows = append(*rows, make([]row, max(256, len(*rows)))...)
	}
	e := &(*rows)[ms]
	if e.low == 0 {
		end := r
		end.Random = ^uint64(0)
		e.low, e.lowHops = mechanism{t.to}.hold(0, 0, end)
		end.Random = 0
		e.high, e.highHops = mechanism{t.to}.hold(0, 0, end)
	}
	if e.low == e.high {
		return e.low, e.lowHops
	}
	return e.draw(uint32(ms), r.Random)
}

// draw is the mechanism's: high with the odds (delay - low) ÷ (high - low).
func (e *row) draw(ms uint32, random uint64) (uint32, uint8) {
	draw, _ := bits.Mul64(random, uint64(e.high-e.low)*uint64(time.Millisecond))
	if draw < uint64(ms-e.low)*uint64(time.Millisecond) {
		return e.high, e.highHops
	}
	return e.low, e.lowHops
}
