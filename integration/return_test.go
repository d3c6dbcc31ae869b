package integration

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/attempt"
)

// Where a message goes back to: the queue that failed, and no other.

// Two queues get a copy of each message. One fails three times; the other, which
// nobody consumes from, must hold one copy at the end, and not four.
func TestOnlyTheFailingQueueSeesTheRetry(t *testing.T) {
	t.Parallel()
	for name, bind := range map[string]func(w *world){
		"topic": func(w *world) {
			w.exchange("x", "topic")
			w.bind("failing", "orders.#", "x", nil)
			w.bind("sibling", "orders.#", "x", nil)
		},
		"fanout": func(w *world) {
			w.exchange("x", "fanout")
			w.bind("failing", "", "x", nil)
			w.bind("sibling", "", "x", nil)
		},
		"direct": func(w *world) {
			w.exchange("x", "direct")
			w.bind("failing", "orders.create", "x", nil)
			w.bind("sibling", "orders.create", "x", nil)
		},
		"headers": func(w *world) {
			w.exchange("x", "headers")
			match := amqp.Table{"x-match": "all", "tenant": "acme"}
			w.bind("failing", "", "x", match)
			w.bind("sibling", "", "x", match)
		},
		"exchange to exchange": func(w *world) {
			w.exchange("x", "topic")
			w.exchange("inner", "fanout")
			ch := w.channel()
			defer ch.Close()
			if err := ch.ExchangeBind("inner", "orders.*", "x", false, nil); err != nil {
				w.t.Fatal(err)
			}
			w.bind("failing", "", "inner", nil)
			w.bind("sibling", "", "inner", nil)
		},
		// The sibling's route is ours too, and even named like a slot's key.
		"two routes": func(w *world) {
			w.exchange("x", "fanout")
			w.bind("failing", "", "x", nil)
			w.bind("sibling", "", "x", nil)
			c := w.runConsumer(hopback.ConsumerConfig{Route: quickRoute("sibling", 3), Handler: hopback.HandlerFunc(failing(0))})
			if err := c.stop(); err != nil { // it has declared its way back
				w.t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.declare("failing", "quorum")
			w.declare("sibling", "classic")
			bind(w)
			var seen calls
			w.runConsumer(hopback.ConsumerConfig{Route: quickRoute("failing", 3), Handler: seen.handler(failing(3))})
			w.publish("x", "orders.create", amqp.Publishing{MessageId: "m", Headers: amqp.Table{"tenant": "acme"}, Body: []byte("m")})
			eventually(t, "handled", func() bool { return len(w.events.of("handled")) == 1 })
			if k := seen.of(); len(k) != 4 {
				t.Errorf("the failing queue saw it %d times, want 4", len(k))
			}
			for _, m := range seen.of() {
				if m.Exchange != "x" || m.RoutingKey != "orders.create" {
					t.Errorf("attempt %d: exchange %q, key %q", m.Attempt, m.Exchange, m.RoutingKey)
				}
			}
			if n := w.depth("sibling"); n != 1 {
				t.Errorf("the sibling holds %d copies, want 1", n)
			}
		})
	}
}

// Names that patterns, headers and URLs are sensitive to.
func TestReturnToAnOddName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, name := range []string{"q/1 %2F é#?*", "orders.#", "*", "hop.delay", "all-with-x"} {
		w.declare(name, "quorum")
		w.runConsumer(hopback.ConsumerConfig{Route: quickRoute(name, 1), Handler: hopback.HandlerFunc(failing(9))})
		w.publish("", name, amqp.Publishing{MessageId: name})
	}
	for _, name := range []string{"q/1 %2F é#?*", "orders.#", "*", "hop.delay", "all-with-x"} {
		d := w.awaitParked(name+".parked", 1)[0]
		if d.MessageId != name || d.Headers[attempt.HeaderQueue] != name || d.Headers[attempt.HeaderRoutingKey] != name {
			t.Errorf("%q: parked with %v", name, d.Headers)
		}
		if s := w.events.story(name); s != "received 1, retried 1, received 2, parked 2" {
			t.Errorf("%q: events: %s", name, s)
		}
	}
}

// Two queues fail on the same message five times each. Every return is to its
// own, by the number of runs and by their attempts.
func TestTwoFailingQueues(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exchange("x", "fanout")
	seen := map[string]*calls{}
	for _, q := range []string{"one", "two"} {
		w.declare(q, "quorum")
		w.bind(q, "", "x", nil)
		seen[q] = &calls{}
		w.runConsumer(hopback.ConsumerConfig{Route: quickRoute(q, 5), Handler: seen[q].handler(failing(5))})
	}
	for i := range 20 {
		w.publish("x", "k", amqp.Publishing{MessageId: fmt.Sprint(i)})
	}
	eventually(t, "handled", func() bool { return len(w.events.of("handled")) == 40 })
	ids := map[string]string{}
	for q, k := range seen {
		for i := range 20 {
			runs := k.of(fmt.Sprint(i))
			if len(runs) != 6 {
				t.Errorf("%s: message %d ran %d times, want 6", q, i, len(runs))
			}
			for n, m := range runs {
				if m.Attempt != n+1 || m.Queue != q {
					t.Errorf("%s: message %d, run %d: attempt %d from %s", q, i, n, m.Attempt, m.Queue)
				}
			}
			// Two lives, so two ids.
			id := runs[1].RetryID
			if other, there := ids[id]; there || id == "" {
				t.Errorf("%s: message %d has the retry id of %s", q, i, other)
			}
			ids[id] = fmt.Sprint(q, i)
		}
	}
}

// An application copies headers to the message that it derives. The copy's
// record belongs to another queue: it begins a life of its own.
func TestDerivedMessageStartsAnew(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, w *world) {
		w.declare("derived", "quorum")
		var seen calls
		var once sync.Once
		w.runConsumer(hopback.ConsumerConfig{
			Route: quickRoute("work", 3),
			Handler: seen.handler(func(_ context.Context, m *hopback.Message) error {
				if m.Attempt == 3 {
					once.Do(func() {
						w.publish("", "derived", amqp.Publishing{MessageId: "derived", Headers: maps.Clone(m.Headers), Body: []byte("d")})
					})
				}
				return failing(2)(context.Background(), m)
			}),
		})
		w.runConsumer(hopback.ConsumerConfig{Route: quickRoute("derived", 2), Handler: seen.handler(failing(9))})
		w.publish("", "work", amqp.Publishing{MessageId: "origin", Headers: amqp.Table{"tenant": "acme"}})
		d := w.awaitParked("derived.parked", 1)[0]
		eventually(t, "the origin is handled", func() bool { return len(w.events.of("handled", "origin")) == 1 })

		origin, derived := seen.of("origin"), seen.of("derived")
		if len(derived) != 3 {
			t.Fatalf("%d runs of the derived message, want 3", len(derived))
		}
		if m := derived[0]; m.Attempt != 1 || m.RetryID != "" || len(m.History()) != 0 || m.LastError != "" {
			t.Errorf("the derived message begins with %+v", m.Message)
		}
		if id := derived[1].RetryID; id == "" || id == origin[1].RetryID {
			t.Errorf("retry id %q, the origin's is %q", id, origin[1].RetryID)
		}
		if d.Headers[attempt.HeaderQueue] != "derived" || d.Headers[attempt.HeaderCount] != int32(2) || d.Headers["tenant"] != "acme" ||
			d.Headers[attempt.HeaderRoutingKey] != "derived" {
			t.Errorf("parked with %v", d.Headers)
		}
		p := attempt.FromDelivery(&d)
		rec, _ := attempt.Read(&p, attempt.Source{})
		if n := len(rec.History()); n != 3 {
			t.Errorf("history %+v", rec.History())
		}
		if n := w.depth("work") + w.depth("work.parked"); n != 0 {
			t.Errorf("%d messages went to the origin's queues", n)
		}
	})
}

// A counter without a queue is other people's retry code, and is taken over.
func TestForeignCounterIsTakenOver(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, w *world) {
		var seen calls
		w.runConsumer(hopback.ConsumerConfig{Route: quickRoute("work", 3), Handler: seen.handler(failing(9))})
		w.publish("", "work", amqp.Publishing{MessageId: "m", Headers: amqp.Table{"x-retry-count": int32(2), "x-retry-strategy": "theirs"}})
		d := w.awaitParked("work.parked", 1)[0]
		k := seen.of()
		if len(k) != 2 || k[0].Attempt != 3 || k[0].Retries != 2 || k[1].Attempt != 4 {
			t.Errorf("%d runs: %+v", len(k), k)
		}
		if d.Headers[attempt.HeaderCount] != int32(3) || d.Headers["x-retry-strategy"] != "theirs" {
			t.Errorf("parked with %v", d.Headers)
		}
	})
}

// shovel moves a message as "Move messages" of the management page does: all
// properties and headers, through the default exchange.
func (w *world) shovel(d amqp.Delivery, to string) {
	w.t.Helper()
	p := attempt.FromDelivery(&d)
	w.publish("", to, p)
}

// Moved by hand, a message has lost exchange and routing key. What our record
// says stays; without one, the broker's x-death tells.
func TestMovedMessageKeepsItsOrigin(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, w *world) {
		w.exchange("sv.t", "topic")
		w.bind("work", "orders.#", "sv.t", nil)
		var seen calls
		w.runConsumer(hopback.ConsumerConfig{
			Route:   quickRoute("work", 2),
			Handler: seen.handler(func(context.Context, *hopback.Message) error { return hopback.Permanent(errBusy) }),
		})
		w.publish("sv.t", "orders.eu", amqp.Publishing{MessageId: "m", Body: []byte("m")})
		for round := range 3 {
			d := w.awaitParked("work.parked", 1)[0]
			if d.Headers[attempt.HeaderExchange] != "sv.t" || d.Headers[attempt.HeaderRoutingKey] != "orders.eu" {
				t.Fatalf("round %d: parked with %v", round, d.Headers)
			}
			k := seen.of()
			if m := k[len(k)-1]; m.Exchange != "sv.t" || m.RoutingKey != "orders.eu" || len(k) != round+1 {
				t.Errorf("round %d: run %d has exchange %q, key %q", round, len(k), m.Exchange, m.RoutingKey)
			}
			w.shovel(d, "work")
		}
		w.awaitParked("work.parked", 1)
	})
}

// The same without a record: rejected by other people's consumer into their
// dead-letter queue, and moved back from there.
func TestMovedForeignMessage(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"classic", "quorum"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.declare("work", kind, "x-dead-letter-exchange", "", "x-dead-letter-routing-key", "theirs.dlq")
			w.declare("theirs.dlq", "classic")
			w.exchange("sv.t", "topic")
			w.bind("work", "orders.#", "sv.t", nil)
			w.publish("sv.t", "orders.eu", amqp.Publishing{MessageId: "by exchange"})
			w.publish("", "work", amqp.Publishing{MessageId: "by name"})
			ch := w.channel()
			defer ch.Close()
			for range 2 {
				d, ok, err := ch.Get("work", false)
				if err != nil || !ok {
					t.Fatal(ok, err)
				}
				if err := d.Reject(false); err != nil {
					t.Fatal(err)
				}
			}
			for _, d := range w.awaitParked("theirs.dlq", 2) {
				w.shovel(d, "work")
			}
			var seen calls
			w.runConsumer(hopback.ConsumerConfig{Route: quickRoute("work", 1), Handler: seen.handler(failing(9))})
			for _, d := range w.awaitParked("work.parked", 2) {
				exchange, known := d.Headers[attempt.HeaderExchange]
				key := d.Headers[attempt.HeaderRoutingKey]
				if d.MessageId == "by exchange" && (exchange != "sv.t" || key != "orders.eu") {
					t.Errorf("parked with exchange %v and key %v", exchange, key)
				}
				// Whether it was published straight to the queue or moved there
				// before, nobody can tell: unknown, and never a wrong "".
				if d.MessageId == "by name" && known {
					t.Errorf("parked with exchange %q and key %v", exchange, key)
				}
			}
			if k := seen.of("by exchange"); len(k) != 2 || k[0].Exchange != "sv.t" || k[1].RoutingKey != "orders.eu" {
				t.Errorf("the handler sees %+v", k)
			}
		})
	}
}

// A work queue with other people's dead-letter exchange: nothing of ours goes
// through it.
func TestForeignDeadLetterExchangeIsLeftAlone(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"classic", "quorum"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.exchange("theirs", "fanout")
			w.declare("theirs.dlq", "classic")
			w.bind("theirs.dlq", "", "theirs", nil)
			w.declare("work", kind, "x-dead-letter-exchange", "theirs")
			w.runConsumer(hopback.ConsumerConfig{Route: quickRoute("work", 2), Handler: hopback.HandlerFunc(failing(9))})
			w.send("work", "m")
			w.awaitParked("work.parked", 1)
			if n := w.depth("theirs.dlq"); n != 0 {
				t.Errorf("%d messages in the foreign dead-letter queue", n)
			}
		})
	}
}

// Two clients with different prefixes, each with a queue of its own, do not
// touch each other: no shared slot, no shared way back.
func TestPrefixesAreSeparate(t *testing.T) {
	aboutSlots(t)
	t.Parallel()
	w := newWorld(t)
	var seen calls
	for _, name := range []string{"red", "blue"} {
		w.declare(name, "quorum")
		client := w.newClient(func(c *hopback.Config) { c.Prefix = name + "-hop" })
		w.runConsumerOn(client, hopback.ConsumerConfig{Route: quickRoute(name, 3), Handler: seen.handler(failing(2))})
	}
	for i := range 10 {
		w.send("red", fmt.Sprint("red-", i))
		w.send("blue", fmt.Sprint("blue-", i))
	}
	eventually(t, "handled", func() bool { return len(w.events.of("handled")) == 20 })
	for _, m := range seen.of() {
		if m.MessageID[:3] != m.Queue[:3] {
			t.Errorf("%s was read from %s", m.MessageID, m.Queue)
		}
		if m.Attempt > 1 {
			death := m.Headers["x-death"].([]any)[0].(amqp.Table)
			if death["queue"] != m.Queue+"-hop.delay.100ms" {
				t.Errorf("%s waited in %v", m.MessageID, death["queue"])
			}
		}
	}
	var names []string
	for _, q := range w.queues() {
		names = append(names, q.Name)
	}
	slices.Sort(names)
	want := []string{
		"blue", "blue-hop.delay.100ms", "blue-hop.lost", "blue.parked",
		"red", "red-hop.delay.100ms", "red-hop.lost", "red.parked",
	}
	if !slices.Equal(names, want) {
		t.Errorf("queues %v, want %v", names, want)
	}
}

// Many routes on one client, each failing on its own messages at the same time.
func TestManyRoutesOnOneClient(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const routes, each = 12, 20
	ledgers := map[string]*ledger{}
	var all []*running
	for i := range routes {
		name := fmt.Sprint("queue-", i)
		w.declare(name, []string{"classic", "quorum"}[i%2])
		ledgers[name] = newLedger()
		all = append(all, w.runConsumer(hopback.ConsumerConfig{
			Route: quickRoute(name, 3), Handler: ledgers[name].handler(hopback.HandlerFunc(failing(i % 5))),
		}))
	}
	for name, l := range ledgers {
		l.send(w, name, each)
	}
	eventually(t, "all have come to an end", func() bool {
		return len(w.events.of("handled"))+len(w.events.of("parked")) == routes*each
	})
	for _, c := range all {
		if err := c.stop(); err != nil {
			t.Error(err)
		}
	}
	for i := range routes {
		name := fmt.Sprint("queue-", i)
		l := ledgers[name]
		handled, parked := each, 0
		if i%5 > 3 {
			handled, parked = 0, each
		}
		if l.handledCount() != handled || w.depth(name+".parked") != parked {
			t.Errorf("%s: %d handled and %d parked, want %d and %d", name, l.handledCount(), w.depth(name+".parked"), handled, parked)
		}
		for id, attempts := range l.attempts {
			if want := []int{1, 2, 3, 4}[:min(i%5+1, 4)]; !slices.Equal(attempts, want) {
				t.Errorf("%s ran as attempts %v, want %v", id, attempts, want)
			}
		}
	}
	for _, e := range w.events.of("retried") {
		if e.Delay != 100*time.Millisecond {
			t.Errorf("%s waits %s", e.MessageID, e.Delay)
		}
	}
}
