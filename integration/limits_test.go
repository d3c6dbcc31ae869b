package integration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/attempt"
)

// What ends a message's life: its retries, its age, its own expiration, a
// counter that is none, and killing the process.

func TestNoRetriesParksAtTheFirstFailure(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, w *world) {
		w.runConsumer(hopback.ConsumerConfig{Route: quickRoute("work", hopback.NoRetries), Handler: hopback.HandlerFunc(failing(math.MaxInt))})
		w.send("work", "m")
		d := w.awaitParked("work.parked", 1)[0]
		if s := w.events.story("m"); s != "received 1, parked 1" {
			t.Errorf("events: %s", s)
		}
		if d.Headers[attempt.HeaderReason] != attempt.ReasonExhausted || d.Headers[attempt.HeaderCount] != int32(0) {
			t.Errorf("parked with %v", d.Headers)
		}
	})
}

// The handler runs exactly limit+1 times on every version: RabbitMQ's own count
// in x-death stopped to count for clients that republish it, and is not used.
func TestTwentyRetriesArrive(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, w *world) {
		var seen calls
		w.runConsumer(hopback.ConsumerConfig{Route: quickRoute("work", 20), Handler: seen.handler(failing(math.MaxInt))})
		w.send("work", "m")
		d := w.awaitParked("work.parked", 1)[0]
		k := seen.of()
		if len(k) != 21 || d.Headers[attempt.HeaderCount] != int32(20) {
			t.Errorf("%d runs and a count of %v, want 21 and 20", len(k), d.Headers[attempt.HeaderCount])
		}
		for i, m := range k {
			deaths, _ := m.Headers["x-death"].([]any)
			if want := min(i, 1); len(deaths) != want && !(noSlots() && len(deaths) == 0) {
				t.Errorf("run %d: %d entries in x-death, want those of the last wait alone: %v", i, len(deaths), deaths)
			}
			for _, e := range deaths {
				if death := e.(amqp.Table); death["count"] != int64(1) || death["queue"] != "hop.delay.100ms" {
					t.Errorf("run %d: x-death %v", i, death)
				}
			}
			if m.Attempt != i+1 || m.RoutingKey != "work" || m.Exchange != "" {
				t.Errorf("run %d: attempt %d, exchange %q, key %q", i, m.Attempt, m.Exchange, m.RoutingKey)
			}
			h := m.History()
			if len(h) != min(i, 10) || (i > 0 && (h[0].N != 1 || h[len(h)-1].N != int32(i))) {
				t.Errorf("run %d: history %+v", i, h)
			}
		}
		for k := range d.Headers {
			if strings.Contains(k, "death") {
				t.Errorf("parked with %s: %v", k, d.Headers[k])
			}
		}
	})
}

func TestMaxAge(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, w *world) {
		r := quickRoute("work", 1_000_000)
		r.Policy.MaxAge = time.Second
		w.runConsumer(hopback.ConsumerConfig{
			Route: r,
			Handler: hopback.HandlerFunc(func(ctx context.Context, m *hopback.Message) error {
				if m.MessageID == "snoozed" {
					return hopback.Snooze(0)
				}
				return errBusy
			}),
		})
		w.send("work", "failing", "snoozed")
		for _, d := range w.awaitParked("work.parked", 2) {
			if d.Headers[attempt.HeaderReason] != attempt.ReasonExpired {
				t.Errorf("%s is parked with %v", d.MessageId, d.Headers)
			}
			// The next retry would have come too late; all before it came in time.
			p := attempt.FromDelivery(&d)
			rec, err := attempt.Read(&p, attempt.Source{})
			if err != nil {
				t.Fatal(err)
			}
			// Both stamps are cut to the ms.
			if age := rec.FailedAt.Sub(rec.FirstFailedAt); age+101*time.Millisecond < time.Second {
				t.Errorf("%s was parked %s after its first failure, with time for another retry of 100ms in 1s", d.MessageId, age)
			}
			if n := len(w.events.of("retried", d.MessageId)); n < 1 || n > 10 {
				t.Errorf("%s came back %d times in a second", d.MessageId, n)
			}
		}
	})
}

// An expiration is a deadline. It would cut a delay short, so it is taken off
// and kept.
func TestExpirationIsADeadline(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, w *world) {
		var seen calls
		w.runConsumer(hopback.ConsumerConfig{Route: quickRoute("work", 1_000_000), Handler: seen.handler(failing(math.MaxInt))})
		w.publish("", "work", amqp.Publishing{MessageId: "m", Expiration: "1000", Body: []byte("m")})
		d := w.awaitParked("work.parked", 1)[0]
		if d.Headers[attempt.HeaderReason] != attempt.ReasonExpired || d.Expiration != "" || d.Headers[attempt.HeaderExpiration] != "1000" {
			t.Errorf("parked with expiration %q and %v", d.Expiration, d.Headers)
		}
		k := seen.of()
		if len(k) < 2 || len(k) > 10 {
			t.Errorf("%d runs in a second", len(k))
		}
		p := attempt.FromDelivery(&d)
		rec, _ := attempt.Read(&p, attempt.Source{})
		if n := rec.FailedAt.Sub(k[0].Began); n+100*time.Millisecond < 990*time.Millisecond {
			t.Errorf("parked after %s, with time for another retry of 100ms in 1s", n)
		}
		for i, m := range k {
			if m.Expiration != "1000" {
				t.Errorf("run %d sees the expiration %q", i, m.Expiration)
			}
		}
	})
}

// In the parking queue nothing ends a message, not even one that is parked at
// its first failure, with the expiration that it came with.
func TestExpirationDoesNotEndAParkedMessage(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, w *world) {
		w.runConsumer(hopback.ConsumerConfig{Route: quickRoute("work", 5), Handler: hopback.HandlerFunc(
			func(context.Context, *hopback.Message) error { return hopback.Permanent(errBusy) },
		)})
		w.publish("", "work", amqp.Publishing{MessageId: "m", Expiration: "600000"})
		d := w.awaitParked("work.parked", 1)[0]
		if d.Expiration != "" || d.Headers[attempt.HeaderExpiration] != "600000" || d.Headers[attempt.HeaderReason] != attempt.ReasonPermanent {
			t.Errorf("parked with expiration %q and %v", d.Expiration, d.Headers)
		}
	})
}

// A message that is past its deadline when it comes back is not handled any
// more.
func TestExpiredBeforeTheHandler(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, w *world) {
		cfg := hopback.ConsumerConfig{Route: quickRoute("work", 5), Handler: hopback.HandlerFunc(failing(math.MaxInt)), Concurrency: 1, Prefetch: 1}
		if cfg.Route.Ladder != nil {
			cfg.Route.Ladder[0] = 900 * time.Millisecond
		}
		c := w.runConsumer(cfg)
		w.publish("", "work", amqp.Publishing{MessageId: "m", Expiration: "2000", Body: []byte("m")})
		eventually(t, "retried", func() bool { return len(w.events.of("retried", "m")) >= 1 })
		if err := c.stop(); err != nil {
			t.Fatal(err)
		}
		runs := len(w.events.of("received"))
		eventually(t, "back", func() bool { return w.depth("work") == 1 || w.depth("work.parked") == 1 })
		time.Sleep(2 * time.Second) // the deadline passes while nobody consumes
		w.runConsumer(cfg)
		d := w.awaitParked("work.parked", 1)[0]
		if d.Headers[attempt.HeaderReason] != attempt.ReasonExpired || !strings.Contains(fmt.Sprint(d.Headers[attempt.HeaderError]), "before this delivery") {
			t.Errorf("parked with %v", d.Headers)
		}
		if n := len(w.events.of("received")); n != runs {
			t.Errorf("the handler ran after the deadline")
		}
	})
}

// counters are the counter 3 in every type that AMQP has for it, as clients in
// other languages write it.
var counters = map[string]any{
	"int8": int8(3), "uint8": uint8(3), "int16": int16(3), "uint16": uint16(3), "int32": int32(3), "uint32": uint32(3),
	"int64": int64(3), "float32": float32(3), "float64": float64(3), "decimal": amqp.Decimal{Scale: 1, Value: 30},
	"string": "3", "bytes": []byte("3"),
}

// badCounters are what is no count of retries.
var badCounters = map[string]any{
	"word": "abc", "blank": " 3", "empty": "", "signed": "+3", "true": true, "void": nil, "negative": int32(-1), "fraction": 3.7,
	"large": int64(math.MaxInt32) + 1, "largest": int64(math.MaxInt64), "decimal": amqp.Decimal{Scale: 1, Value: 37},
	"timestamp": time.Unix(3, 0), "array": []any{int32(3)}, "table": amqp.Table{"n": int32(3)}, "bytes": []byte{3},
}

func TestCounterOfAnyType(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, w *world) {
		var seen calls
		w.runConsumer(hopback.ConsumerConfig{Route: quickRoute("work", 5), Handler: seen.handler(failing(math.MaxInt))})
		all := maps.Clone(counters)
		if mechanism == hopback.Native {
			delete(all, "decimal") // ends the session, so that others come twice
		}
		for name, v := range all {
			for _, whose := range []string{"ours", "foreign"} {
				h := amqp.Table{attempt.HeaderCount: v}
				if whose == "ours" {
					h[attempt.HeaderQueue] = "work"
				}
				w.publish("", "work", amqp.Publishing{MessageId: whose + "-" + name, Headers: h, Body: []byte("m")})
			}
		}
		for _, d := range w.awaitParked("work.parked", 2*len(all)) {
			// Three retries are behind it and two to come, so three runs.
			var retries []int
			for _, m := range seen.of(d.MessageId) {
				retries = append(retries, m.Retries)
			}
			if fmt.Sprint(retries) != "[3 4 5]" {
				t.Errorf("%s: runs with %v retries, want [3 4 5]", d.MessageId, retries)
			}
			if d.Headers[attempt.HeaderCount] != int32(5) || d.Headers[attempt.HeaderReason] != attempt.ReasonExhausted {
				t.Errorf("%s: parked with %v", d.MessageId, d.Headers)
			}
		}
	})
}

func TestBadCounterIsParkedUnseen(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, w *world) {
		var runs atomic.Int32
		w.runConsumer(hopback.ConsumerConfig{Route: quickRoute("work", 5), Handler: hopback.HandlerFunc(func(context.Context, *hopback.Message) error {
			runs.Add(1)
			return nil
		})})
		bad := maps.Clone(badCounters)
		if mechanism == hopback.Native {
			delete(bad, "decimal") // ends the session, so that others come twice
		}
		for name, v := range bad {
			w.publish("", "work",
				amqp.Publishing{MessageId: "foreign-" + name, Body: []byte("m"), Headers: amqp.Table{attempt.HeaderCount: v, "tenant": "acme"}},
				amqp.Publishing{MessageId: "ours-" + name, Body: []byte("m"), Headers: amqp.Table{attempt.HeaderCount: v, attempt.HeaderQueue: "work", "tenant": "acme"}})
		}
		for _, d := range w.awaitParked("work.parked", 2*len(bad)) {
			text, _ := d.Headers[attempt.HeaderError].(string)
			if d.Headers[attempt.HeaderReason] != attempt.ReasonBadCounter || !strings.Contains(text, attempt.HeaderCount) {
				t.Errorf("%s is parked with %v", d.MessageId, d.Headers)
			}
			if string(d.Body) != "m" || d.Headers["tenant"] != "acme" || d.Headers[attempt.HeaderQueue] != "work" {
				t.Errorf("%s: not the same message: %v", d.MessageId, d.Headers)
			}
			if s := w.events.story(d.MessageId); s != "parked 1" {
				t.Errorf("%s: events: %s", d.MessageId, s)
			}
			e := w.events.of("parked", d.MessageId)
			if len(e) != 1 || e[0].Reason != attempt.ReasonBadCounter || !errors.Is(e[0].Err, attempt.ErrBadCounter) {
				t.Errorf("%s: told as %+v", d.MessageId, e)
			}
		}
		if n := runs.Load(); n != 0 {
			t.Errorf("the handler ran %d times", n)
		}
	})
}

// The counter goes up only; at the end of its range it stays.
func TestCounterAtItsEnd(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, w *world) {
		var seen calls
		w.runConsumer(hopback.ConsumerConfig{Route: quickRoute("work", 5), Handler: seen.handler(failing(math.MaxInt))})
		w.publish("", "work", amqp.Publishing{MessageId: "m", Body: []byte("m"), Headers: amqp.Table{attempt.HeaderCount: int64(math.MaxInt32)}})
		d := w.awaitParked("work.parked", 1)[0]
		if d.Headers[attempt.HeaderCount] != int32(math.MaxInt32) || len(seen.of()) != 1 {
			t.Errorf("%d runs, parked with %v", len(seen.of()), d.Headers)
		}
	})
}

// rejectTimes has a queue's first message returned n times without a
// settlement, as a consumer that crashes would.
func (w *world) rejectTimes(queue string, n int) {
	w.t.Helper()
	ch := w.channel()
	defer ch.Close()
	for i := range n {
		var d amqp.Delivery
		eventually(w.t, "the message is there", func() bool {
			var ok bool
			var err error
			if d, ok, err = ch.Get(queue, false); err != nil {
				w.t.Fatal(err)
			}
			return ok
		})
		// reject, since 4.3 counts it and no nack.
		if err := d.Reject(true); err != nil {
			w.t.Fatal(err)
		}
		if got, _ := d.Headers["x-delivery-count"].(int64); got != int64(i) {
			w.t.Fatalf("x-delivery-count is %v at get %d", d.Headers["x-delivery-count"], i+1)
		}
	}
}

func TestCrashLimit(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name           string
		returns, limit int
		parked         bool
	}{
		{"at the default", 10, 0, false},
		{"above the default", 11, 0, true},
		{"above a limit of 1", 2, 1, true},
		{"never", 8, -1, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.declare("work", "quorum")
			w.send("work", "m")
			w.rejectTimes("work", tt.returns)
			w.runConsumer(hopback.ConsumerConfig{Route: quickRoute("work", 3), CrashLimit: tt.limit, Handler: hopback.HandlerFunc(failing(1))})
			if !tt.parked {
				eventually(t, "handled", func() bool { return len(w.events.of("handled")) == 1 })
				// What crashed before is not held against the retry.
				if s := w.events.story("m"); s != "received 1, retried 1, received 2, handled 2" {
					t.Errorf("events: %s", s)
				}
				if !w.events.of("received")[0].Redelivered {
					t.Error("the first run is not told as redelivered")
				}
				return
			}
			d := w.awaitParked("work.parked", 1)[0]
			if d.Headers[attempt.HeaderReason] != attempt.ReasonCrashLoop || d.Headers[attempt.HeaderQueue] != "work" {
				t.Errorf("parked with %v", d.Headers)
			}
			if _, there := d.Headers["x-delivery-count"]; there && d.Headers["x-delivery-count"] != int64(0) {
				t.Errorf("parked with x-delivery-count %v", d.Headers["x-delivery-count"])
			}
			if s := w.events.story("m"); s != "parked 1" {
				t.Errorf("events: %s", s)
			}
		})
	}
}

// A message that really kills: each run of its handler cuts every connection,
// as the end of the process would.
func TestCrashLoopIsParked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.declare("work", "quorum")
	proxy := w.broker.Proxy(t)
	client := w.newClient(func(c *hopback.Config) { c.URL = proxy.URL(w.url) })
	var runs atomic.Int32
	w.runConsumerOn(client, hopback.ConsumerConfig{
		Route: quickRoute("work", 50), CrashLimit: 2,
		Handler: hopback.HandlerFunc(func(_ context.Context, m *hopback.Message) error {
			if m.MessageID != "killer" {
				return nil
			}
			runs.Add(1)
			proxy.Cut()
			return errors.New("never told to the broker")
		}),
	})
	w.send("work", "killer")
	d := w.awaitParked("work.parked", 1)[0]
	if d.MessageId != "killer" || d.Headers[attempt.HeaderReason] != attempt.ReasonCrashLoop {
		t.Errorf("parked with %v", d.Headers)
	}
	// The first delivery has no crash behind it, the third has two, the fourth
	// three, which is more than the limit.
	if n := runs.Load(); n != 3 {
		t.Errorf("the handler ran %d times, want 3", n)
	}
	if n := len(w.events.of("retried")); n != 0 && mechanism != hopback.Native { // whose settlement nobody confirms
		t.Errorf("retried %d times over a dead channel", n)
	}
	w.send("work", "good")
	eventually(t, "the next is handled", func() bool { return len(w.events.of("handled", "good")) == 1 })
}
