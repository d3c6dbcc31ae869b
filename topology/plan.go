package topology

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"
)

// The states of a [Difference].
const (
	// Missing: the broker does not have it.
	Missing = "missing"
	// Differs: the broker has it with another value. [Apply] cannot change that.
	Differs = "differs"
	// Extra: the broker has a binding beside one that is Sole. [Apply] removes it
	// only when asked, by [WithUnbind].
	Extra = "extra"
	// Unknown: it could not be read. This alone does not make a plan non-empty.
	Unknown = "unknown"
)

// Difference is one thing in which a broker differs from a topology.
type Difference struct {
	Kind  string // "exchange", "queue" or "binding"
	Name  string
	State string // Missing, Differs, Extra or Unknown
	// Key is the argument that differs; or "type", "durable", "auto_delete",
	// "internal" or "exclusive". For a missing binding it is an argument in which
	// another binding of the same ends and key, which is there, differs.
	Key string
	// Want is what the topology says, Have what the broker has: the arguments, if
	// it has any, of a binding that is missing or extra.
	Want, Have Value
	// Note says more in words, or is empty.
	Note string
}

// String tells the difference in one line.
func (d Difference) String() string {
	var b strings.Builder
	b.WriteString(d.Kind)
	if d.Name != "" {
		fmt.Fprintf(&b, " %q", d.Name)
	}
	if d.State == Missing && d.Kind == "binding" && d.Want.Type == "table" {
		fmt.Fprintf(&b, " %s", d.Want.Text)
	}
	if d.State == Extra && d.Have.Type == "table" {
		fmt.Fprintf(&b, " %s", d.Have.Text)
	}
	b.WriteString(": " + d.State)
	switch {
	case d.State == Differs:
		fmt.Fprintf(&b, ": %s is %v on the broker, want %v", d.Key, d.Have, d.Want)
		if d.Want.Text == d.Have.Text {
			b.WriteString(" (they look alike, but the types differ)")
		}
	case d.Key != "":
		fmt.Fprintf(&b, " (there is one with %s %v, want %v)", d.Key, d.Have, d.Want)
	}
	if d.Note != "" {
		b.WriteString(": " + d.Note)
	}
	return b.String()
}

// Plan lists in what a broker differs from a topology, in the topology's order:
// exchanges, queues, bindings.
type Plan struct {
	Differences []Difference
}

// Empty reports whether nothing is missing, differs or is extra, as far as could
// be seen: a difference in state [Unknown] does not count.
func (p Plan) Empty() bool {
	for _, d := range p.Differences {
		if d.State != Unknown {
			return false
		}
	}
	return true
}

// String tells the plan in words, one difference a line, each line ended; or that
// there is nothing to do.
func (p Plan) String() string {
	var b strings.Builder
	if p.Empty() {
		b.WriteString("nothing to do\n")
	}
	for _, d := range p.Differences {
		b.WriteString(d.String() + "\n")
	}
	return b.String()
}

// MakePlan compares t with the broker. It only reads, and declares nothing.
//
// With a management API everything is compared, by three or four requests however large
// the topology is, and c is not used: it may be nil. Without one (m is nil),
// exchanges and queues are looked for by passive declarations, which find what is
// missing and nothing else; one [Difference] in state [Unknown] then says what
// was not seen. The user's work queue is looked for and never compared.
//
// When something cannot be read the plan holds what could be, beside the error.
func MakePlan(ctx context.Context, c Connection, m *Management, t Topology) (Plan, error) {
	if err := t.Validate(); err != nil {
		return Plan{}, fmt.Errorf("plan topology: %w", err)
	}
	if m == nil {
		return planPassively(ctx, c, t)
	}
	if conn, ok := c.(*amqp.Connection); ok && conn != nil && conn.Config.Vhost != m.vhost() {
		return Plan{}, fmt.Errorf("plan topology: the connection is to vhost %q and the management API would read vhost %q: set Management.Vhost", conn.Config.Vhost, m.vhost())
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	s, err := m.state(ctx, t)
	if err != nil {
		return Plan{}, fmt.Errorf("plan topology: %w", err)
	}
	return s.plan(t), nil
}

// Verify returns nil when the broker has all of t, as far as [MakePlan] can see,
// and else a [*DriftError] with the plan. It only reads.
func Verify(ctx context.Context, c Connection, m *Management, t Topology) error {
	p, err := MakePlan(ctx, c, m, t)
	if err != nil {
		return fmt.Errorf("verify topology: %w", err)
	}
	if !p.Empty() {
		return &DriftError{Plan: p}
	}
	return nil
}

// state is what a broker has of a topology.
type state struct {
	exchanges        map[string]exchangeState
	queues           map[string]queueState
	bindings         []bindingState // of the sources of the topology
	defaultQueueType string
	vhost            string
}

func (m *Management) state(ctx context.Context, t Topology) (*state, error) {
	s := &state{exchanges: map[string]exchangeState{}, queues: map[string]queueState{}, vhost: m.vhost()}
	sources := map[string]bool{}
	for _, b := range t.Bindings {
		sources[b.Source] = true
	}
	ours := map[resource]bool{}
	for _, e := range t.Exchanges {
		ours[resource{kind: "exchange", name: e.Name}] = true
	}
	for _, q := range t.Queues {
		ours[resource{kind: "queue", name: q.Name}] = true
	}
	var err error
	if s.defaultQueueType, err = m.defaultQueueType(ctx, t.Queues...); err != nil {
		return nil, err
	}
	if err := each(ctx, m, exchangeColumns, func(e exchangeState) {
		if ours[resource{kind: "exchange", name: e.Name}] {
			s.exchanges[e.Name] = e
		}
	}, "exchanges", m.vhost()); err != nil {
		return nil, err
	}
	if err := each(ctx, m, queueColumns, func(q queueState) {
		if ours[resource{kind: "queue", name: q.Name}] {
			s.queues[q.Name] = q
		}
	}, "queues", m.vhost()); err != nil {
		return nil, err
	}
	return s, each(ctx, m, "", func(b bindingState) {
		if sources[b.Source] {
			s.bindings = append(s.bindings, b)
		}
	}, "bindings", m.vhost())
}

// plan is the difference between a topology and what the broker has.
func (s *state) plan(t Topology) Plan {
	var p Plan
	for _, e := range t.Exchanges {
		if have, ok := s.exchanges[e.Name]; !ok {
			p.add("exchange", e.Name, Difference{State: Missing})
		} else {
			p.add("exchange", e.Name, exchangeDifferences(e, have)...)
		}
	}
	for _, q := range t.Queues {
		if have, ok := s.queues[q.Name]; !ok {
			p.add("queue", q.Name, missingQueue(q))
		} else if !q.User {
			p.add("queue", q.Name, queueDifferences(q, have, s.defaultQueueType)...)
		}
	}
	wanted := map[string]bool{}
	for _, b := range t.Bindings {
		wanted[b.identity()] = true
	}
	there := map[string]bool{}
	near := map[string]Binding{} // not wanted as they are
	for _, h := range s.bindings {
		b := h.binding()
		if there[b.identity()] = true; !wanted[b.identity()] {
			near[b.ends()] = b
		}
	}
	extras := findExtras(t, s.bindings)
	for _, b := range t.Bindings {
		for _, h := range extras[b.identity()] {
			p.add("binding", h.binding().name(), h.extra(b, s.vhost))
		}
		delete(extras, b.identity()) // t may name b twice
		if there[b.identity()] {
			continue
		}
		d := Difference{State: Missing}
		if len(b.Args) > 0 {
			d.Want = valueOf(b.Args)
		}
		if n, ok := near[b.ends()]; ok {
			if diffs := Compare(b.Args, n.Args); len(diffs) > 0 {
				d.Key, d.Want, d.Have = diffs[0].Key, diffs[0].Want, diffs[0].Have
			}
		}
		p.add("binding", b.name(), d)
	}
	return p
}

// ends is a binding without its arguments.
func (b Binding) ends() string {
	b.Args = nil
	return b.identity()
}

func missingQueue(q Queue) Difference {
	d := Difference{State: Missing}
	if q.User && !q.Declare {
		d.Note = "it is the user's work queue, which is not declared here"
	}
	return d
}

func (p *Plan) add(kind, name string, diffs ...Difference) {
	for _, d := range diffs {
		d.Kind, d.Name = kind, name
		p.Differences = append(p.Differences, d)
	}
}

func exchangeDifferences(e Exchange, have exchangeState) []Difference {
	var diffs []Difference
	if e.Kind != have.Kind {
		diffs = append(diffs, Difference{State: Differs, Key: "type", Want: Value{"string", e.Kind}, Have: Value{"string", have.Kind}})
	}
	diffs = append(diffs, flag("durable", true, have.Durable)...)
	diffs = append(diffs, flag("auto_delete", false, have.AutoDelete)...)
	diffs = append(diffs, flag("internal", false, have.Internal)...)
	return append(diffs, Compare(e.Args, amqp.Table(have.Args))...)
}

// queueDifferences compares as the broker does, which gives a queue that names no
// type the default of its virtual host.
func queueDifferences(q Queue, have queueState, defaultType string) []Difference {
	want := amqp.Table{queueType: defaultType}
	for k, v := range q.Args {
		want[k] = v
	}
	var diffs []Difference
	diffs = append(diffs, flag("durable", true, have.Durable)...)
	diffs = append(diffs, flag("auto_delete", false, have.AutoDelete)...)
	diffs = append(diffs, flag("exclusive", false, have.Exclusive)...)
	return append(diffs, Compare(want, amqp.Table(have.Args))...)
}

func flag(key string, want, have bool) []Difference {
	if want == have {
		return nil
	}
	return []Difference{{State: Differs, Key: key, Want: valueOf(want), Have: valueOf(have)}}
}

// planPassively finds what is missing, by AMQP alone.
func planPassively(ctx context.Context, c Connection, t Topology) (Plan, error) {
	var mu sync.Mutex
	missing := map[resource]bool{}
	look := func(w *worker, kind, name string, passive func(*amqp.Channel) error) error {
		err := w.do(passive)
		var e *amqp.Error
		if !errors.As(err, &e) || connectionLost(err) {
			return wrap("look for", kind, name, err)
		}
		if _, ok := notFound(e); ok {
			mu.Lock()
			missing[resource{kind: kind, name: name}] = true
			mu.Unlock()
			return nil
		}
		if e.Code == amqp.ResourceLocked {
			return nil // exclusive to another connection: it exists
		}
		if denied := access(e, kind, name, []resource{{kind, name, "read"}}); denied != nil {
			denied.Permission = "read" // from 4.2.7 and 4.3.1 it takes some permission to look
			return denied
		}
		return wrap("look for", kind, name, err)
	}
	err := run(ctx, "plan topology", c, t.largest(), func(crew *crew) error {
		if err := crew.stage(len(t.Exchanges), func(w *worker, i int) error {
			e := t.Exchanges[i]
			return look(w, "exchange", e.Name, func(ch *amqp.Channel) error {
				return ch.ExchangeDeclarePassive(e.Name, e.Kind, true, false, false, false, nil)
			})
		}); err != nil {
			return fmt.Errorf("exchanges: %w", err)
		}
		if err := crew.stage(len(t.Queues), func(w *worker, i int) error {
			q := t.Queues[i]
			return look(w, "queue", q.Name, func(ch *amqp.Channel) error {
				_, err := ch.QueueDeclarePassive(q.Name, true, false, false, false, nil)
				return err
			})
		}); err != nil {
			return fmt.Errorf("queues: %w", err)
		}
		return nil
	})
	mu.Lock()
	defer mu.Unlock()
	var p Plan
	for _, e := range t.Exchanges {
		if missing[resource{kind: "exchange", name: e.Name}] {
			p.add("exchange", e.Name, Difference{State: Missing})
		}
	}
	for _, q := range t.Queues {
		if missing[resource{kind: "queue", name: q.Name}] {
			p.add("queue", q.Name, missingQueue(q))
		}
	}
	unseen := Difference{State: Unknown, Note: "arguments, exchange types and bindings cannot be read without the management API"}
	for _, b := range t.Bindings {
		// A binding is gone with either of its ends, which needs no reading.
		if missing[b.end()] || missing[resource{kind: "exchange", name: b.Source}] {
			d := Difference{State: Missing}
			if len(b.Args) > 0 {
				d.Want = valueOf(b.Args)
			}
			p.add("binding", b.name(), d)
		}
	}
	if len(t.Exchanges)+len(t.Queues)+len(t.Bindings) > 0 {
		p.add("binding", "", unseen)
	}
	return p, err
}
