package topology

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// WithUnbind lets [Apply] remove the bindings that a plan calls [Extra], those
// beside a binding that is Sole, and nothing else: the queue or exchange that such
// a binding led to stays as it is, with its messages. Each is removed only once the
// sole binding is seen on the broker, so that no message is without a way.
//
// It needs [WithManagement], since AMQP 0-9-1 shows no bindings; without that
// nothing is removed. To unbind takes write on the destination and read on the
// source; what is refused is an [*AccessError].
//
// When all is done, and also when Apply fails, report is called for each binding
// that was removed, in the order of their names, before Apply returns and in its
// goroutine. It may be nil.
func WithUnbind(report func(Difference)) Option {
	return func(o *options) { o.unbind, o.report = true, report }
}

// findExtras finds what is bound beside the bindings of t that are sole, by their
// identity. One that leads to the same place with other arguments is not extra: a
// message is put into a queue once, however many bindings lead there.
func findExtras(t Topology, have []bindingState) map[string][]bindingState {
	soles := map[fork]Binding{}
	for _, b := range t.Bindings {
		if b.Sole {
			soles[b.fork()] = b
		}
	}
	extras := map[string][]bindingState{}
	for _, h := range have {
		b := h.binding()
		if sole, ok := soles[b.fork()]; ok && !b.sameEnd(sole) {
			extras[sole.identity()] = append(extras[sole.identity()], h)
		}
	}
	for _, e := range extras {
		slices.SortFunc(e, func(a, b bindingState) int {
			return cmp.Or(strings.Compare(a.binding().name(), b.binding().name()), strings.Compare(a.Properties, b.Properties))
		})
	}
	return extras
}

// extra is what is wrong with a binding beside the sole one, and the remedy.
func (s bindingState) extra(sole Binding, vhost string) Difference {
	d := Difference{
		Kind: "binding", Name: s.binding().name(), State: Extra,
		Note: fmt.Sprintf(`only %s may get what is published with this key: unbind this one by "hopback apply", by Apply WithUnbind, or by %s of the management API`,
			sole.end(), s.deletion(vhost)),
	}
	if len(s.Args) > 0 {
		d.Have = valueOf(amqp.Table(s.Args))
	}
	return d
}

// deletion is the request that removes the binding, on every version.
func (s bindingState) deletion(vhost string) string {
	kind := "q"
	if s.Type == "exchange" {
		kind = "e"
	}
	path := "DELETE /api/bindings"
	for _, part := range []string{vhost, "e", s.Source, kind, s.Destination, s.Properties} {
		path += "/" + url.PathEscape(part)
	}
	return path
}

// needs is what it takes to bind or unbind b.
func (b Binding) needs() []resource {
	end := b.end()
	end.permission = "write"
	return []resource{end, {"exchange", b.Source, "read"}}
}

// bindingsOf reads all bindings of an exchange.
func (m *Management) bindingsOf(ctx context.Context, source string) (have []bindingState, err error) {
	err = each(ctx, m, "", func(b bindingState) { have = append(have, b) }, "exchanges", m.vhost(), source, "bindings", "source")
	return have, err
}

// unbindExtras is the last stage of Apply. It goes by what the broker has now: a
// sole binding that could not be made, for whatever reason, is not there, and
// what is beside it is then the only way.
func (a *applier) unbindExtras(crew *crew, t Topology) error {
	var have []bindingState
	there, read := map[string]bool{}, map[string]bool{}
	for _, b := range t.Bindings {
		if !b.Sole || read[b.Source] || a.isAbsent("exchange", b.Source) {
			continue
		}
		read[b.Source] = true
		found, err := a.management.bindingsOf(a.ctx, b.Source)
		if err != nil {
			return fmt.Errorf("look for the bindings of exchange %q: %w", b.Source, err)
		}
		for _, h := range found {
			there[h.binding().identity()] = true
		}
		have = append(have, found...)
	}
	type pair struct {
		sole  Binding
		extra bindingState
	}
	var pairs []pair
	extras := findExtras(t, have)
	for _, b := range t.Bindings {
		if !there[b.identity()] {
			continue
		}
		for _, h := range extras[b.identity()] {
			pairs = append(pairs, pair{b, h})
		}
		delete(extras, b.identity()) // t may name b twice
	}
	return crew.stage(len(pairs), func(w *worker, i int) error {
		p := pairs[i]
		err := a.unbind(w, p.extra)
		if err == nil {
			a.mu.Lock()
			a.gone = append(a.gone, p.extra.extra(p.sole, a.management.vhost()))
			a.mu.Unlock()
		}
		return err
	})
}

func (a *applier) unbind(w *worker, h bindingState) error {
	b := h.binding()
	args, _ := wire(map[string]any(h.Args)).(amqp.Table)
	err := w.do(func(ch *amqp.Channel) error {
		if b.ToExchange {
			return ch.ExchangeUnbind(b.Destination, b.Key, b.Source, false, args)
		}
		return ch.QueueUnbind(b.Destination, b.Key, b.Source, args)
	})
	var e *amqp.Error
	if errors.As(err, &e) && !connectionLost(err) {
		if _, ok := notFound(e); ok {
			return nil // with its queue or exchange, a binding is gone too
		}
		if denied := access(e, "binding", b.name(), b.needs()); denied != nil {
			denied.unbind = true
			return denied
		}
	}
	if err != nil || len(args) == 0 {
		return wrap("remove", "binding", b.name(), err)
	}
	// Brokers look for the very arguments, and are silent when they find none. JSON
	// tells neither the width of a number nor bytes from a string.
	found, err := a.management.hasBinding(a.ctx, b)
	if errors.Is(err, errNotThere) {
		return nil
	}
	if err == nil && found {
		err = fmt.Errorf("it is there still, since its arguments %s are not of the types that JSON suggests: use %s of the management API",
			canonical(b.Args), h.deletion(a.management.vhost()))
	}
	return wrap("remove", "binding", b.name(), err)
}

// unbound is what was removed.
func (a *applier) unbound() []Difference {
	a.mu.Lock()
	defer a.mu.Unlock()
	gone := slices.Clone(a.gone)
	slices.SortFunc(gone, func(x, y Difference) int {
		return cmp.Or(strings.Compare(x.Name, y.Name), strings.Compare(x.Have.Text, y.Have.Text))
	})
	return gone
}

// wire turns decoded JSON into what AMQP carries.
func wire(v any) any {
	switch v := v.(type) {
	case map[string]any:
		t := amqp.Table{}
		for k, e := range v {
			t[k] = wire(e)
		}
		return t
	case []any:
		list := make([]any, len(v))
		for i, e := range v {
			list[i] = wire(e)
		}
		return list
	case json.Number:
		if i, err := v.Int64(); err == nil {
			return i
		}
		f, _ := v.Float64()
		return f
	}
	return v
}
