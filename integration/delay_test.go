package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/attempt"
)

// brokerTick is how much earlier than its TTL a message may leave a slot, for
// each slot: RabbitMQ counts whole milliseconds, and cuts the fraction off the
// moment of arrival.
const brokerTick = time.Millisecond

// neverEarly checks each return of each message against the delay that the
// observer was told: from the end of a run to the beginning of the next. It
// reports how many returns there were. It knows a return by its attempt, so a
// message that is snoozed is not for it.
func neverEarly(t *testing.T, w *world, seen *calls) (returns int) {
	t.Helper()
	for _, e := range w.events.of("retried") {
		var failed, back *call
		for _, k := range seen.of(e.MessageID) {
			switch {
			case k.Attempt == e.Attempt && failed == nil:
				failed = &k
			case k.Attempt == e.Attempt+1 && back == nil:
				back = &k
			}
		}
		if failed == nil || back == nil {
			t.Errorf("%s: attempt %d failed, and did not come back", e.MessageID, e.Attempt)
			continue
		}
		returns++
		if waited := back.Began.Sub(failed.Ended); waited < e.Delay-2*brokerTick {
			t.Errorf("%s came back after %s, before its delay of %s was over", e.MessageID, waited, e.Delay)
		}
		if ms := back.Headers[attempt.HeaderDelay]; ms != e.Delay.Milliseconds() {
			t.Errorf("%s: %s is %T %[3]v, told was %s", e.MessageID, attempt.HeaderDelay, ms, e.Delay)
		}
	}
	return returns
}

// A short delay never waits for a long one, and what waits holds no prefetch.
func TestShortDelayPassesLongOne(t *testing.T) {
	t.Parallel()
	const long = 30 * time.Second
	for _, mechanism := range []string{hopback.Ladder, hopback.Wheel, hopback.Native} {
		t.Run(mechanism, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			kind := "classic"
			if mechanism == hopback.Native {
				needsNative(t, w.broker)
				kind = "quorum"
			}
			r := hopback.Route{Queue: "work", Policy: quick(5), Mechanism: mechanism}
			r.Policy.MaxRetryAfter = long
			if mechanism == hopback.Ladder {
				kind, r.Ladder = "quorum", []time.Duration{100 * time.Millisecond, time.Second, long}
			}
			w.declare("work", kind)
			var seen calls
			w.runConsumer(hopback.ConsumerConfig{
				Route: r, Concurrency: 5, Prefetch: 5,
				Handler: seen.handler(func(_ context.Context, m *hopback.Message) error {
					switch {
					case strings.HasPrefix(m.MessageID, "long"):
						return hopback.RetryAfter(errBusy, long)
					case m.MessageID == "short" && m.Attempt == 1:
						return hopback.RetryAfter(errBusy, time.Second)
					}
					return nil
				}),
			})
			// As many as the prefetch wait for 30 s, in front of a hundred.
			w.send("work", "long-1", "long-2", "long-3", "long-4", "long-5")
			eventually(t, "five wait", func() bool { return len(w.events.of("retried")) == 5 })
			var ids []string
			for i := range 100 {
				ids = append(ids, fmt.Sprint("good-", i))
			}
			w.send("work", append(ids, "short")...)
			eventually(t, "the others are handled", func() bool { return len(w.events.of("handled")) == 101 })
			back := seen.of("short")
			if len(back) != 2 || back[1].Began.Sub(back[0].Ended) < time.Second-brokerTick {
				t.Errorf("the short one ran %d times: %+v", len(back), back)
			}
			for _, id := range []string{"long-1", "long-2", "long-3", "long-4", "long-5"} {
				// None of them was waited for, since none is back.
				if k := seen.of(id); len(k) != 1 {
					t.Errorf("%s ran %d times before the others were handled", id, len(k))
				}
			}
			if mechanism == hopback.Native {
				return // they wait on their own queue, and AMQP does not show them
			}
			if n := w.depth("hop.delay.30s"); n != 5 {
				t.Errorf("%d messages wait in the 30 s slot, want 5", n)
			}
		})
	}
}

// Every return, of jittered and of exact delays, of one slot and of two, comes
// when its delay is over and not before.
func TestNeverEarly(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		route hopback.Route
		unit  time.Duration // every delay of at least a second is a multiple
	}{
		{"wheel auto", hopback.Route{Mechanism: hopback.Wheel}, 100 * time.Millisecond},
		{"wheel one", hopback.Route{Mechanism: hopback.Wheel, Precision: hopback.PrecisionOne}, time.Second},
		{"wheel two", hopback.Route{Mechanism: hopback.Wheel, Precision: hopback.PrecisionTwo}, 100 * time.Millisecond},
		{"ladder", hopback.Route{Mechanism: hopback.Ladder, Ladder: []time.Duration{
			100 * time.Millisecond, 250 * time.Millisecond, 700 * time.Millisecond, 1500 * time.Millisecond, 2 * time.Second,
		}}, 500 * time.Millisecond},
		{"isolated", hopback.Route{Mechanism: hopback.Wheel, Isolate: true}, 100 * time.Millisecond},
		{"native", hopback.Route{Mechanism: hopback.Native}, time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if tt.route.Mechanism == hopback.Native {
				needsNative(t, w.broker)
			}
			w.declare("work", "quorum")
			r := tt.route
			r.Queue = "work"
			r.Policy = hopback.Policy{
				MaxRetries: 3, MaxRetryAfter: 2 * time.Second,
				Schedule: hopback.Schedule{Base: 400 * time.Millisecond, Max: 1600 * time.Millisecond, Jitter: hopback.Full},
			}
			var seen calls
			w.runConsumer(hopback.ConsumerConfig{
				Route: r, Concurrency: 50,
				Handler: seen.handler(func(_ context.Context, m *hopback.Message) error {
					if asked, ok := m.Headers["after"].(int64); ok && m.Attempt <= 3 {
						return hopback.RetryAfter(errBusy, time.Duration(asked)*time.Millisecond)
					}
					return failing(3)(context.Background(), m)
				}),
			})
			const each = 40
			var msgs []amqp.Publishing
			for i := range each {
				msgs = append(msgs, amqp.Publishing{MessageId: fmt.Sprint("jittered-", i)},
					amqp.Publishing{MessageId: fmt.Sprint("exact-", i), Headers: amqp.Table{"after": rand.Int64N(2001)}})
			}
			w.publish("", "work", msgs...)
			eventually(t, "all are handled", func() bool { return len(w.events.of("handled")) == 2*each })
			if n := neverEarly(t, w, &seen); n != 3*2*each {
				t.Errorf("%d returns, want %d", n, 3*2*each)
			}
			different := map[time.Duration]bool{}
			for _, e := range w.events.of("retried") {
				if e.Delay >= time.Second && e.Delay%tt.unit != 0 {
					t.Errorf("%s waits %s, which has too many digits", e.MessageID, e.Delay)
				}
				if strings.HasPrefix(e.MessageID, "jittered") {
					different[e.Delay] = true
					continue
				}
				var retryAfter *hopback.RetryAfterError
				if !errors.As(e.Err, &retryAfter) {
					t.Fatalf("%s: %v", e.MessageID, e.Err)
				}
				if asked := retryAfter.After; e.Delay < asked || e.Delay < 100*time.Millisecond {
					t.Errorf("%s asked for %s and was given %s", e.MessageID, asked, e.Delay)
				}
			}
			if len(different) < 4 {
				t.Errorf("120 jittered delays have only the values %v", different)
			}
		})
	}
}

// Where a message waits, by the broker's own word: x-death lists the queues that
// it expired in, the newest first.
func TestHops(t *testing.T) {
	aboutSlots(t)
	t.Parallel()
	w := newWorld(t)
	for _, q := range []string{"two", "one", "own"} {
		w.declare(q, "quorum")
	}
	policy := quick(1)
	policy.MaxRetryAfter = 2 * time.Second
	var seen calls
	h := seen.handler(func(_ context.Context, m *hopback.Message) error {
		if m.Attempt > 1 {
			return nil
		}
		after, err := time.ParseDuration(string(m.Body))
		if err != nil {
			return hopback.Permanent(err)
		}
		return hopback.RetryAfter(errBusy, after)
	})
	for _, r := range []hopback.Route{
		{Mechanism: hopback.Wheel, Queue: "two", Precision: hopback.PrecisionTwo},
		{Mechanism: hopback.Wheel, Queue: "one", Precision: hopback.PrecisionOne},
		{Mechanism: hopback.Wheel, Queue: "own", Isolate: true},
	} {
		r.Policy = policy
		w.runConsumer(hopback.ConsumerConfig{Route: r, Handler: h})
	}
	for _, tt := range []struct {
		queue, after string
		delay        time.Duration
		slots        string // newest first
	}{
		{"two", "340ms", 400 * time.Millisecond, "hop.delay.400ms"}, // nothing is shorter than 100 ms
		{"two", "1.3s", 1300 * time.Millisecond, "hop.delay.300ms hop.delay.1s"},
		{"two", "1.25s", 1300 * time.Millisecond, "hop.delay.300ms hop.delay.1s"},
		{"two", "1s", time.Second, "hop.delay.1s"},
		{"two", "1.95s", 2 * time.Second, "hop.delay.2s"},
		{"two", "1ms", 100 * time.Millisecond, "hop.delay.100ms"},
		{"one", "1.3s", 2 * time.Second, "hop.delay.2s"},
		{"one", "900ms", 900 * time.Millisecond, "hop.delay.900ms"},
		{"own", "1.3s", 1300 * time.Millisecond, "hop.own.delay.300ms hop.own.delay.1s"},
		{"own", "200ms", 200 * time.Millisecond, "hop.own.delay.200ms"},
	} {
		t.Run(tt.queue+" "+tt.after, func(t *testing.T) {
			id := t.Name()
			w.publish("", tt.queue, amqp.Publishing{MessageId: id, Body: []byte(tt.after)})
			eventually(t, "handled", func() bool { return len(w.events.of("handled", id)) == 1 })
			k := seen.of(id)
			if waited := k[1].Began.Sub(k[0].Ended); waited < tt.delay-2*brokerTick {
				t.Errorf("came back after %s", waited)
			}
			if e := w.events.of("retried", id); e[0].Delay != tt.delay {
				t.Errorf("waits %s, want %s", e[0].Delay, tt.delay)
			}
			var slots []string
			deaths, _ := k[1].Headers["x-death"].([]any)
			for _, d := range deaths {
				slots = append(slots, d.(amqp.Table)["queue"].(string))
			}
			if got := strings.Join(slots, " "); got != tt.slots {
				t.Errorf("waited in %s, want %s", got, tt.slots)
			}
			if k[1].RoutingKey != tt.queue || k[1].Exchange != "" {
				t.Errorf("came back from exchange %q, key %q", k[1].Exchange, k[1].RoutingKey)
			}
		})
	}
}

// Two slots, again and again: with x-death kept, RabbitMQ 3.10 takes the second
// round for a cycle and drops the message.
func TestTwoHopsSixTimes(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, w *world) {
		var seen calls
		r := hopback.Route{Queue: "work", Policy: quick(6), Mechanism: crowdMechanism()}
		r.Policy.MaxRetryAfter = 2 * time.Second
		w.runConsumer(hopback.ConsumerConfig{
			Route: r,
			Handler: seen.handler(func(_ context.Context, m *hopback.Message) error {
				return hopback.RetryAfter(errBusy, 1100*time.Millisecond)
			}),
		})
		w.send("work", "m")
		w.awaitParked("work.parked", 1)
		if k := seen.of(); len(k) != 7 {
			t.Errorf("%d runs, want 7", len(k))
		}
		neverEarly(t, w, &seen)
	})
}

// The wheel's queues are bounded by the policy, whatever the load, and jitter is
// spread over them. None can expire, and none relies on the delay that 4.3
// offers and older brokers silently ignore.
func TestSlotsAreBoundedAndRecognisable(t *testing.T) {
	aboutSlots(t)
	t.Parallel()
	w := newWorld(t)
	w.declare("work", "quorum")
	r := hopback.Route{Queue: "work", Mechanism: hopback.Wheel, Policy: hopback.Policy{
		MaxRetries: 10, MaxRetryAfter: time.Second,
		Schedule: hopback.Schedule{Base: 300 * time.Millisecond, Max: 900 * time.Millisecond, Jitter: hopback.Proportional, JitterRatio: 0.9},
	}}
	slots := r.DelayMechanism("hop").Slots()
	if len(slots) != 10 {
		t.Fatalf("%d slots for delays up to a second: %v", len(slots), slots)
	}
	l := newLedger()
	c := w.runConsumer(hopback.ConsumerConfig{
		Route: r, Concurrency: 20, Prefetch: 500,
		Handler: l.handler(hopback.HandlerFunc(failing(1))),
	})
	const n = 1000
	l.send(w, "work", n)
	eventually(t, "all are handled", func() bool { return l.handledCount() == n })
	if err := c.stop(); err != nil {
		t.Error(err)
	}
	spread := map[time.Duration]int{}
	for _, e := range w.events.of("retried") {
		spread[e.Delay]++
		if e.Delay < 100*time.Millisecond || e.Delay > 600*time.Millisecond {
			t.Errorf("waits %s, outside of the policy's 30 to 570 ms and its floor of 100", e.Delay)
		}
	}
	for d := 100 * time.Millisecond; d <= 500*time.Millisecond; d += 100 * time.Millisecond {
		if spread[d] < n/50 {
			t.Errorf("%d of %d wait %s: not spread: %v", spread[d], n, d, spread)
		}
	}
	var names []string
	for _, q := range w.queues() {
		names = append(names, q.Name)
		for _, never := range []string{"x-expires", "x-delayed-retry-type", "x-delayed-retry-min", "x-delayed-retry-max", "x-single-active-consumer"} {
			if v, there := q.Args[never]; there {
				t.Errorf("%s has %s: %v", q.Name, never, v)
			}
		}
		if !q.Durable {
			t.Errorf("%s is not durable", q.Name)
		}
		ttl, isSlot := q.Args["x-message-ttl"].(float64)
		if isSlot != strings.HasPrefix(q.Name, "hop.delay.") {
			t.Errorf("%s has a TTL of %v", q.Name, q.Args["x-message-ttl"])
		}
		if isSlot {
			d, err := time.ParseDuration(strings.TrimPrefix(q.Name, "hop.delay."))
			if err != nil || float64(d.Milliseconds()) != ttl {
				t.Errorf("%s has a TTL of %v", q.Name, ttl)
			}
			if q.Args["x-dead-letter-strategy"] != "at-least-once" || q.Args["x-overflow"] != "reject-publish" || q.Type != "quorum" {
				t.Errorf("%s loses messages: %+v", q.Name, q)
			}
		}
	}
	if len(names) != len(slots)+3 { // and work, work.parked and hop.lost
		t.Errorf("%d queues for %d slots: %v", len(names), len(slots), names)
	}
	if s := l.check(w); s.Handled != n || len(s.Duplicates) > 0 {
		t.Errorf("%v", s)
	}
}

// Numbers are 64 bits wide in what we declare and in what we write.
func TestNumbersKeepTheirWidth(t *testing.T) {
	aboutSlots(t)
	t.Parallel()
	w := newWorld(t)
	w.declare("work", "quorum")
	r := quickRoute("work", 3)
	r.Ladder = []time.Duration{100 * time.Millisecond, 90_000 * time.Second} // 25 h is the longest
	var seen calls
	w.runConsumer(hopback.ConsumerConfig{Route: r, Handler: seen.handler(failing(1))})
	w.send("work", "m")
	eventually(t, "handled", func() bool { return len(w.events.of("handled")) == 1 })
	k := seen.of()[1]
	for _, name := range []string{attempt.HeaderDueAt, attempt.HeaderFailedAt, attempt.HeaderFirstFailedAt} {
		ms, ok := k.Headers[name].(int64)
		if at := time.UnixMilli(ms); !ok || at.Before(seen.of()[0].Began.Add(-time.Second)) || at.After(time.Now()) {
			t.Errorf("%s is %T %[2]v", name, k.Headers[name])
		}
	}
	if due, failed := k.Headers[attempt.HeaderDueAt].(int64), k.Headers[attempt.HeaderFailedAt].(int64); due-failed != 100 {
		t.Errorf("due at %d, failed at %d, and the delay is 100 ms", due, failed)
	}
	// As text, since JSON decoded into float64 would hide a wrong width.
	var raw []struct {
		Name string          `json:"name"`
		Args json.RawMessage `json:"arguments"`
	}
	if err := w.broker.Get(t.Context(), "/api/queues/"+w.vhost+"?disable_stats=true", &raw); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(raw, func(q struct {
		Name string          `json:"name"`
		Args json.RawMessage `json:"arguments"`
	},
	) bool {
		return q.Name == "hop.delay.90000s"
	})
	if i < 0 || !strings.Contains(string(raw[i].Args), `"x-message-ttl":90000000`) {
		t.Errorf("the 25 h slot: %d of %s", i, raw)
	}

	// 40 days, whose ms need more than 31 bits, are refused by name and not cut.
	r.Ladder = []time.Duration{40 * 24 * time.Hour}
	_, err := w.client.NewConsumer(hopback.ConsumerConfig{Route: r, Handler: hopback.HandlerFunc(failing(1))})
	var bad *hopback.ConfigError
	if !errors.As(err, &bad) || bad.Field != "ladder[0]" || !strings.Contains(bad.Value, "960h") || !strings.Contains(bad.Fix, "25h") {
		t.Errorf("a rung of 40 days: %v", err)
	}
}

// A slot that another client declared with a narrower integer is the same slot.
func TestSlotDeclaredWithAnotherWidth(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.declare("work", "quorum")
	w.declare("hop.delay.100ms", "quorum", "x-message-ttl", int32(100), "x-dead-letter-exchange", "hop.return",
		"x-dead-letter-strategy", "at-least-once", "x-overflow", "reject-publish")
	w.runConsumer(hopback.ConsumerConfig{Route: quickRoute("work", 3), Handler: hopback.HandlerFunc(failing(1))})
	w.send("work", "m")
	eventually(t, "handled", func() bool { return len(w.events.of("handled")) == 1 })
}

// Another policy makes other slots; what waits in the old ones comes back on
// time.
func TestPolicyChangeDrainsOldSlots(t *testing.T) {
	aboutSlots(t)
	t.Parallel()
	eachKind(t, func(t *testing.T, w *world) {
		var seen calls
		handler := seen.handler(func(_ context.Context, m *hopback.Message) error {
			if m.Attempt > 1 {
				return nil
			}
			if m.Headers["slow"] == true {
				return hopback.RetryAfter(errBusy, 3*time.Second)
			}
			return hopback.RetryAfter(errBusy, 1500*time.Millisecond)
		})
		route := func(rungs ...time.Duration) hopback.Route {
			r := quickRoute("work", 3)
			r.Ladder, r.Policy.MaxRetryAfter = rungs, rungs[len(rungs)-1]
			return r
		}
		c := w.runConsumer(hopback.ConsumerConfig{Route: route(1500*time.Millisecond, 3*time.Second), Handler: handler})
		for i := range 5 {
			w.publish("", "work",
				amqp.Publishing{MessageId: fmt.Sprint("fast-", i)},
				amqp.Publishing{MessageId: fmt.Sprint("slow-", i), Headers: amqp.Table{"slow": true}})
		}
		eventually(t, "ten wait", func() bool { return len(w.events.of("retried")) >= 10 })
		if err := c.stop(); err != nil {
			t.Fatal(err)
		}
		w.runConsumer(hopback.ConsumerConfig{Route: route(1600*time.Millisecond, 3200*time.Millisecond), Handler: handler})
		eventually(t, "the old ten are handled", func() bool { return len(w.events.of("handled")) == 10 })
		if n := neverEarly(t, w, &seen); n != 10 {
			t.Errorf("%d returns, want 10", n)
		}
		w.publish("", "work", amqp.Publishing{MessageId: "new"})
		eventually(t, "a new one is handled", func() bool { return len(w.events.of("handled", "new")) == 1 })
		if e := w.events.of("retried", "new"); e[0].Delay != 1600*time.Millisecond {
			t.Errorf("the new policy's delay is %s", e[0].Delay)
		}
	})
}
