package topology

import (
	"context"
	"errors"
	"fmt"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Connection is what this package needs of a connection to the broker; an
// *amqp.Connection is one. Channel is called from several goroutines at a time.
type Connection interface {
	Channel() (*amqp.Channel, error)
}

// Option changes what [Apply] does.
type Option func(*options)

type options struct {
	management *Management
	unbind     bool
	report     func(Difference)
}

// WithManagement lets [Apply] read over HTTP what it cannot see otherwise: the
// value and type of an argument that differs, the arguments of what the account
// may not declare, and a binding that it may not make. It is asked only then, and
// for [WithUnbind].
func WithManagement(m *Management) Option { return func(o *options) { o.management = m } }

// Apply makes what is missing of t: exchanges first, then queues, then bindings.
// It is safe to repeat, and safe when several processes apply at once. It goes on
// past an item that cannot be made, and returns the errors of all of them joined:
// [*MismatchError], [*AccessError] and [*MissingError] where that is what is
// wrong, each found by [errors.As] and wrapping the broker's *amqp.Error. A
// binding to or from an item of t that is not there is left out without an error
// of its own.
//
// Every item is declared actively, which the broker answers with a comparison
// when the item exists. An account without the configure permission is refused
// that; the item is then only looked for, and its arguments go unseen unless
// there is a [WithManagement]. So an operator can apply a topology once, and
// services with fewer rights find it in order. To bind takes write on the
// destination and read on the source, even when the binding exists; without these,
// a binding cannot be seen but over HTTP, and is an *AccessError.
//
// The user's work queue is looked for passively and never compared. It is
// declared only if it is missing and its Declare is set.
//
// Nothing is removed, but for stale bindings when there is a [WithUnbind].
//
// Apply uses up to eight channels of c and closes them. It returns at the end of
// ctx, or after a minute when ctx has no deadline; a channel that is then waiting
// for the broker is closed when the answer comes or the connection ends.
func Apply(ctx context.Context, c Connection, t Topology, opts ...Option) error {
	if err := t.Validate(); err != nil {
		return fmt.Errorf("apply topology: %w", err)
	}
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	a := &applier{ctx: ctx, management: o.management, absent: map[resource]bool{}}
	err := run(ctx, "apply topology", c, t.largest(), func(crew *crew) error {
		a.ctx = crew.ctx
		if err := crew.stage(len(t.Exchanges), func(w *worker, i int) error {
			return a.note("exchange", t.Exchanges[i].Name, a.exchange(w, t.Exchanges[i]))
		}); err != nil {
			return fmt.Errorf("exchanges: %w", err)
		}
		if err := crew.stage(len(t.Queues), func(w *worker, i int) error {
			return a.note("queue", t.Queues[i].Name, a.queue(w, t.Queues[i]))
		}); err != nil {
			return fmt.Errorf("queues: %w", err)
		}
		if err := crew.stage(len(t.Bindings), func(w *worker, i int) error {
			return a.binding(w, t.Bindings[i])
		}); err != nil {
			return fmt.Errorf("bindings: %w", err)
		}
		if o.unbind && o.management != nil {
			if err := a.unbindExtras(crew, t); err != nil {
				return fmt.Errorf("extra bindings: %w", err)
			}
		}
		return nil
	})
	if o.report != nil {
		for _, d := range a.unbound() {
			o.report(d)
		}
	}
	return err
}

type applier struct {
	ctx        context.Context
	management *Management

	mu     sync.Mutex
	absent map[resource]bool // what could not be made
	gone   []Difference      // what was unbound
}

// note remembers what is not there, so that its bindings are not tried.
func (a *applier) note(kind, name string, err error) error {
	if err != nil && !errors.Is(err, ErrMismatch) {
		a.mu.Lock()
		a.absent[resource{kind: kind, name: name}] = true
		a.mu.Unlock()
	}
	return err
}

func (a *applier) isAbsent(kind, name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.absent[resource{kind: kind, name: name}]
}

func (a *applier) exchange(w *worker, e Exchange) error {
	active := func(ch *amqp.Channel) error {
		return ch.ExchangeDeclare(e.Name, e.Kind, true, false, false, false, e.Args)
	}
	passive := func(ch *amqp.Channel) error {
		return ch.ExchangeDeclarePassive(e.Name, e.Kind, true, false, false, false, nil)
	}
	want := func(key string) Value {
		if key == "type" {
			return Value{"string", e.Kind}
		}
		return wanted(e.Args, key)
	}
	needs := []resource{{"exchange", e.Name, "configure"}}
	if alt, ok := e.Args["alternate-exchange"].(string); ok {
		needs = append(needs, resource{"exchange", e.Name, "read"}, resource{"exchange", alt, "write"})
	}
	have := func() ([]Difference, error) {
		h, ok, err := a.management.exchange(a.ctx, e.Name)
		if err != nil || !ok {
			return nil, err
		}
		return exchangeDifferences(e, h), nil
	}
	return a.declare(w, "exchange", e.Name, active, passive, want, needs, have)
}

func (a *applier) queue(w *worker, q Queue) error {
	active := func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(q.Name, true, false, false, false, q.Args)
		return err
	}
	passive := func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(q.Name, true, false, false, false, nil)
		return err
	}
	want := func(key string) Value { return wanted(q.Args, key) }
	needs := []resource{{"queue", q.Name, "configure"}}
	if dlx, ok := q.Args["x-dead-letter-exchange"].(string); ok {
		needs = append(needs, resource{"queue", q.Name, "read"}, resource{"exchange", dlx, "write"})
	}
	if q.User {
		return a.userQueue(w, q, active, passive, needs)
	}
	have := func() ([]Difference, error) {
		h, ok, err := a.management.queue(a.ctx, q.Name)
		if err != nil || !ok {
			return nil, err
		}
		def, err := a.management.defaultQueueType(a.ctx, q)
		if err != nil {
			return nil, err
		}
		return queueDifferences(q, h, def), nil
	}
	return a.declare(w, "queue", q.Name, active, passive, want, needs, have)
}

// declare makes one of our own items, or makes sure that it is there.
func (a *applier) declare(w *worker, kind, name string, active, passive func(*amqp.Channel) error,
	want func(string) Value, needs []resource, have func() ([]Difference, error),
) error {
	err := w.do(active)
	var e *amqp.Error
	if err == nil || !errors.As(err, &e) || connectionLost(err) {
		return wrap("declare", kind, name, err)
	}
	if m := mismatch(e, kind, name, want); m != nil {
		if a.management != nil {
			// The broker's own words are good enough when HTTP does not answer.
			diffs, _ := have()
			for _, d := range diffs {
				if d.Key == m.Key {
					m.Want, m.Have = d.Want, d.Have
				}
			}
		}
		return m
	}
	denied := access(e, kind, name, needs)
	if denied == nil {
		return wrap("declare", kind, name, err)
	}
	if err := w.do(passive); err != nil {
		if connectionLost(err) {
			return err
		}
		return denied // missing, or not even to be looked at
	}
	if a.management == nil {
		return nil
	}
	diffs, err := have()
	if err != nil {
		return fmt.Errorf("compare %s %q, which the account may not declare: %w", kind, name, err)
	}
	if len(diffs) > 0 {
		return &MismatchError{Kind: kind, Name: name, Key: diffs[0].Key, Want: diffs[0].Want, Have: diffs[0].Have}
	}
	return nil
}

// userQueue looks for the user's queue, and declares it only when it is missing
// and may be declared. When somebody else is quicker, with whatever arguments,
// then that is the user's queue.
func (a *applier) userQueue(w *worker, q Queue, active, passive func(*amqp.Channel) error, needs []resource) error {
	look := func() (found bool, err error) {
		err = w.do(passive)
		var e *amqp.Error
		if err == nil || !errors.As(err, &e) || connectionLost(err) {
			return err == nil, wrap("look for", "queue", q.Name, err)
		}
		// From 4.2.7 and 4.3.1 it takes some permission, whichever, to look. A consumer needs read.
		if denied := access(e, "queue", q.Name, []resource{{"queue", q.Name, "read"}}); denied != nil {
			denied.Permission = "read"
			return false, denied
		}
		if missing, ok := notFound(e); ok {
			missing.Queue = q.Name
			return false, missing
		}
		return false, wrap("look for", "queue", q.Name, err)
	}
	found, err := look()
	if found || !errors.Is(err, ErrMissing) || !q.Declare {
		return err
	}
	err = w.do(active)
	var e *amqp.Error
	if err == nil || !errors.As(err, &e) || connectionLost(err) {
		return wrap("declare", "queue", q.Name, err)
	}
	if denied := access(e, "queue", q.Name, needs); denied != nil {
		return denied
	}
	if found, _ := look(); found {
		return nil
	}
	return wrap("declare", "queue", q.Name, err)
}

func (a *applier) binding(w *worker, b Binding) error {
	if a.isAbsent("exchange", b.Source) || a.isAbsent(b.end().kind, b.Destination) {
		return nil // the reason is among the errors already
	}
	err := w.do(func(ch *amqp.Channel) error {
		if b.ToExchange {
			return ch.ExchangeBind(b.Destination, b.Key, b.Source, false, b.Args)
		}
		return ch.QueueBind(b.Destination, b.Key, b.Source, false, b.Args)
	})
	var e *amqp.Error
	if err == nil || !errors.As(err, &e) || connectionLost(err) {
		return wrap("make", "binding", b.name(), err)
	}
	if missing, ok := notFound(e); ok {
		return wrap("make", "binding", b.name(), missing)
	}
	denied := access(e, "binding", b.name(), b.needs())
	if denied == nil {
		return wrap("make", "binding", b.name(), err)
	}
	if a.management != nil {
		if there, err := a.management.hasBinding(a.ctx, b); err == nil && there {
			return nil
		}
	}
	return denied
}

// wanted is an argument as the topology gives it.
func wanted(args amqp.Table, key string) Value {
	switch key {
	case "durable":
		return Value{"bool", "true"}
	case "auto_delete", "internal", "exclusive":
		return Value{"bool", "false"}
	}
	if v, ok := args[key]; ok {
		return valueOf(v)
	}
	return Value{}
}

// wrap names the item that an answer is about. The end of the connection is about
// none.
func wrap(verb, kind, name string, err error) error {
	if err == nil || connectionLost(err) {
		return err
	}
	return fmt.Errorf("%s %s %q: %w", verb, kind, name, err)
}
