package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	amqp "github.com/rabbitmq/amqp091-go"
	"pgregory.net/rapid"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/attempt"
)

// What must hold for many messages at once, whatever they are and however they
// fail.

// anyVerdict is what the handler of a crowd does: by the message's own number,
// so that it can be told afterwards what had to become of it.
func anyVerdict(n int) func(*hopback.Message) error {
	switch n % 8 {
	case 0, 1:
		return always(nil)
	case 2:
		return secondly(nil)
	case 3:
		return func(m *hopback.Message) error { return failing(3)(context.Background(), m) }
	case 4:
		return always(errBusy)
	case 5:
		return secondly(hopback.Permanent(errBusy))
	case 6:
		return func(m *hopback.Message) error {
			if m.RetryID == "" {
				return hopback.Snooze(200 * time.Millisecond)
			}
			return nil
		}
	default:
		return func(m *hopback.Message) error {
			if m.Attempt < 3 {
				panic("not yet")
			}
			return nil
		}
	}
}

// Two consumers in two clients take from one queue, are started at the same time
// on an empty broker, and are stopped and started again in the midst of it. No
// message is missing at any stop, and none is handled twice.
func TestTwoConsumersOfOneQueue(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, w *world) {
		const n = 400
		r := hopback.Route{Queue: "work", Policy: quick(3), Mechanism: crowdMechanism()}
		l := newLedger()
		handler := l.handler(hopback.HandlerFunc(func(_ context.Context, m *hopback.Message) error {
			var number int
			if _, err := fmt.Sscanf(m.MessageID, "work-%d", &number); err != nil {
				return hopback.Discard(err)
			}
			return anyVerdict(number)(m)
		}))
		clients := []*hopback.Client{w.newClient(), w.newClient()}
		start := func() []*running {
			all := make([]*running, len(clients))
			var both sync.WaitGroup
			for i, c := range clients {
				both.Go(func() { all[i] = w.runConsumerOn(c, hopback.ConsumerConfig{Route: r, Handler: handler, Prefetch: 20}) })
			}
			both.Wait()
			return all
		}
		ends := func() int { return len(w.events.of("handled")) + len(w.events.of("parked")) }
		l.send(w, "work", n)
		for _, enough := range []int{n / 8, n / 2, n} {
			all := start()
			eventually(t, fmt.Sprint(enough, " have come to an end"), func() bool { return ends() >= enough })
			for _, c := range all {
				if err := c.stop(); err != nil {
					t.Error(err)
				}
			}
		}
		parked := w.depth("work.parked")
		s := l.check(w)
		if want := n / 4; s.Parked != want || parked != want || s.Handled != n-want || s.Lost+s.Waiting != 0 || len(s.Duplicates) != 0 {
			t.Errorf("%v, want %d parked and the others handled", s, want)
		}
		for id, attempts := range l.attempts {
			slices.Sort(attempts)
			var number int
			fmt.Sscanf(id, "work-%d", &number) //nolint:errcheck // it was one before
			want := [][]int{{1}, {1}, {1, 2}, {1, 2, 3, 4}, {1, 2, 3, 4}, {1, 2}, {1, 1}, {1, 2, 3}}[number%8]
			if !slices.Equal(attempts, want) {
				t.Errorf("%s ran as attempts %v, want %v", id, attempts, want)
			}
		}
	})
}

// A stop in the midst of failures leaves every message somewhere.
func TestStopLosesNothing(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, w *world) {
		const n = 300
		r := hopback.Route{Queue: "work", Policy: quick(3), Mechanism: crowdMechanism()}
		r.Policy.Base, r.Policy.Jitter = 900*time.Millisecond, hopback.Full
		l := newLedger()
		c := w.runConsumer(hopback.ConsumerConfig{
			Route: r, Prefetch: 50,
			Handler: l.handler(hopback.HandlerFunc(func(_ context.Context, m *hopback.Message) error {
				time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond)
				return failing(rand.IntN(6))(context.Background(), m)
			})),
		})
		l.send(w, "work", n)
		eventually(t, "many fail", func() bool { return len(w.events.of("retried")) > n/2 })
		if err := c.stop(); err != nil {
			t.Error(err)
		}
		if s := l.check(w); s.Waiting == 0 || len(s.Duplicates) > 0 || s.Lost > 0 {
			t.Errorf("%v: %v", s, s.Duplicates)
		}
	})
}

// headerValue draws a header's value of any type that AMQP has.
func headerValue(depth int) *rapid.Generator[any] {
	simple := []*rapid.Generator[any]{
		rapid.Just[any](nil), rapid.Bool().AsAny(), rapid.Int8().AsAny(), rapid.Uint8().AsAny(), rapid.Int16().AsAny(),
		rapid.Uint16().AsAny(), rapid.Int32().AsAny(), rapid.Uint32().AsAny(), rapid.Int64().AsAny(),
		rapid.Float32().AsAny(), rapid.Float64().AsAny(), rapid.String().AsAny(), rapid.SliceOf(rapid.Byte()).AsAny(),
		rapid.Custom(func(t *rapid.T) any {
			return amqp.Decimal{Scale: rapid.Uint8().Draw(t, "scale"), Value: rapid.Int32().Draw(t, "value")}
		}),
		rapid.Custom(func(t *rapid.T) any { return time.Unix(rapid.Int64Range(0, 1<<33).Draw(t, "s"), 0) }),
	}
	if depth > 0 {
		simple = append(simple,
			rapid.Custom(func(t *rapid.T) any { return []any(rapid.SliceOfN(headerValue(depth-1), 0, 4).Draw(t, "list")) }),
			rapid.Custom(func(t *rapid.T) any { return headerTable(depth-1).Draw(t, "table") }))
	}
	return rapid.OneOf(simple...)
}

// headerTable draws a table. Names are at most 128 bytes: AMQP's own limit, which
// amqp091-go does not check.
func headerTable(depth int) *rapid.Generator[amqp.Table] {
	name := rapid.OneOf(rapid.StringN(1, 20, 128), rapid.StringMatching(`x-[a-z]{1,8}(-[a-z]{1,8})?`))
	return rapid.Custom(func(t *rapid.T) amqp.Table {
		return amqp.Table(rapid.MapOfN(name, headerValue(depth), 0, 6).Draw(t, "table"))
	})
}

func anyMessage() *rapid.Generator[amqp.Publishing] {
	short := rapid.StringN(0, 30, 255)
	return rapid.Custom(func(t *rapid.T) amqp.Publishing {
		p := amqp.Publishing{
			ContentType: short.Draw(t, "content type"), ContentEncoding: short.Draw(t, "content encoding"),
			DeliveryMode: rapid.Uint8Range(0, 2).Draw(t, "delivery mode"), Priority: rapid.Uint8().Draw(t, "priority"),
			CorrelationId: short.Draw(t, "correlation id"), ReplyTo: short.Draw(t, "reply to"),
			Type: short.Draw(t, "type"), AppId: short.Draw(t, "app id"),
			Body: rapid.SliceOf(rapid.Byte()).Draw(t, "body"),
		}
		if rapid.Bool().Draw(t, "has a timestamp") {
			p.Timestamp = time.Unix(rapid.Int64Range(1, 1<<33).Draw(t, "timestamp"), 0)
		}
		if h := headerTable(3).Draw(t, "headers"); len(h) > 0 {
			p.Headers = h
		}
		return p
	})
}

// Any message at all is the same message in every attempt and when it is parked:
// body, properties, header types, exchange and routing key.
func TestAnyMessageSurvives(t *testing.T) {
	t.Parallel()
	if mechanism == hopback.Native {
		t.Skip("docs/native.md has what AMQP 1.0 does not show of a message, and package native its tests")
	}
	eachKind(t, func(t *testing.T, w *world) {
		const n = 150
		w.exchange("any", "topic")
		w.bind("work", "#", "any", nil)
		var seen calls
		w.runConsumer(hopback.ConsumerConfig{Route: quickRoute("work", 2), Handler: seen.handler(failing(9))})
		seed := rand.IntN(1 << 30)
		t.Logf("seed %d", seed)
		sent, keys := map[string]amqp.Publishing{}, map[string]string{}
		for i := range n {
			p := anyMessage().Example(seed + i)
			p.MessageId = fmt.Sprint(i)
			key := rapid.StringN(0, 60, 255).Example(seed + i)
			if strings.Contains(fmt.Sprint(p.Headers["CC"], p.Headers["BCC"]), "[") {
				continue // never drawn; it would route a copy
			}
			sent[p.MessageId], keys[p.MessageId] = p, key
			w.publish("any", key, p)
		}
		same := cmp.Options{cmpopts.EquateEmpty(), cmpopts.EquateNaNs()}
		for _, d := range w.awaitParked("work.parked", len(sent)) {
			want, key := sent[d.MessageId], keys[d.MessageId]
			p := attempt.FromDelivery(&d)
			delete(p.Headers, "x-delivery-count")
			rec, err := attempt.Read(&p, attempt.Source{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, rec.Original(&p), same); diff != "" {
				t.Errorf("message %s: parked as another message (-sent +parked):\n%s", d.MessageId, diff)
			}
			k := seen.of(d.MessageId)
			if len(k) != 3 {
				t.Errorf("message %s: %d runs, want 3", d.MessageId, len(k))
			}
			for i, m := range k {
				if diff := cmp.Diff(want, asPublished(&m.Message), same); diff != "" {
					t.Errorf("message %s: attempt %d sees another message (-sent +seen):\n%s", d.MessageId, i+1, diff)
				}
				if m.Exchange != "any" || m.RoutingKey != key {
					t.Errorf("message %s: attempt %d sees exchange %q and key %q, want %q", d.MessageId, i+1, m.Exchange, m.RoutingKey, key)
				}
			}
			if rec.Exchange != "any" || rec.RoutingKey != key {
				t.Errorf("message %s: parked with exchange %q and key %q, want %q", d.MessageId, rec.Exchange, rec.RoutingKey, key)
			}
		}
	})
}
