package integration

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/router"
)

// Consumers that only reject, with the router behind them.

// Success, recovery and the end of all retries, by nothing but
// reject(requeue=false).
func TestRouterStories(t *testing.T) {
	t.Parallel()
	eachKindRouted(t, 3, func(t *testing.T, w *world, r *runningRouter) {
		l := newLedger()
		k := w.work("work", l.work(func(ch *amqp.Channel, d amqp.Delivery) error {
			return rejectUntil(map[string]int{"work-0": 0, "work-1": 1, "work-2": 3, "work-3": math.MaxInt}[d.MessageId])(ch, d)
		}))
		l.send(w, "work", 4)
		eventually(t, "three are handled", func() bool { return l.handledCount() == 3 })
		d := w.parkedBy("work.parked", 1)["work-3"]
		checkHeaders(t, "parked", d.Headers, amqp.Table{
			attempt.HeaderReason: "exhausted", attempt.HeaderCount: int32(3), attempt.HeaderQueue: "work",
			attempt.HeaderError: "rejected by its consumer",
		})
		for id, want := range map[string]int{"work-0": 1, "work-1": 2, "work-2": 4, "work-3": 4} {
			seen := k.of(id)
			if len(seen) != want {
				t.Errorf("%s: %d attempts, want %d", id, len(seen), want)
			}
			ids := map[any]bool{}
			for i, d := range seen {
				if attemptOf(d) != i+1 || d.RoutingKey != "work" || string(d.Body) != id {
					t.Errorf("%s, attempt %d: counted as %d, key %q, body %q", id, i+1, attemptOf(d), d.RoutingKey, d.Body)
				}
				if i > 0 {
					ids[d.Headers[attempt.HeaderID]] = true
					checkHeaders(t, id, d.Headers, amqp.Table{attempt.HeaderPolicy: "quick", attempt.HeaderDelay: int64(100), attempt.HeaderReason: nil})
				}
			}
			if len(ids) > 1 {
				t.Errorf("%s: its attempts have the retry ids %v", id, ids)
			}
		}
		if got := r.events.story("work-3"); got != "retried 1, retried 2, retried 3, parked 4" {
			t.Errorf("events of the one that is parked: %s", got)
		}
		if n, held, _ := r.events.count(); n != 1+3+4 || held != 0 {
			t.Errorf("%d hand-offs and %d held, want 8 and 0", n, held)
		}
		l.sent["work-3"] = false
		delete(l.sent, "work-3") // taken out of the parking queue above
		if s := l.check(w); len(s.Duplicates) > 0 {
			t.Errorf("twice: %v", s.Duplicates)
		}
	})
}

// Only the queue that failed sees the retry (B28, B30): two queues get every
// message of one exchange, whatever its kind, and one of them fails.
func TestRouterReturnsToTheFailingQueueOnly(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"topic", "fanout", "headers"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.exchange("shop", kind)
			for _, q := range []string{"W1", "W2"} {
				w.attached(q, "quorum")
				w.bind(q, "orders.#", "shop", amqp.Table{"x-match": "all", "tenant": "acme"})
			}
			w.runRouter(w.routerConfig(routedRoute("W1", 4), routedRoute("W2", 4)))
			w1, w2 := w.work("W1", rejectUntil(0)), w.work("W2", rejectUntil(3))
			w.publish("shop", "orders.eu", amqp.Publishing{MessageId: "m", Headers: amqp.Table{"tenant": "acme"}})
			eventually(t, "W2 succeeds", func() bool { return len(w2.of()) == 4 })
			time.Sleep(300 * time.Millisecond) // for what must not come
			if n1, n2 := len(w1.of()), len(w2.of()); n1 != 1 || n2 != 4 {
				t.Errorf("W1 saw it %d times and W2 %d, want 1 and 4", n1, n2)
			}
			for i, d := range w2.of() {
				if d.RoutingKey != "orders.eu" || d.Headers["tenant"] != "acme" {
					t.Errorf("attempt %d has the key %q, headers %v", i+1, d.RoutingKey, d.Headers)
				}
			}
			checkHeaders(t, "the last attempt", w2.of()[3].Headers, amqp.Table{
				attempt.HeaderExchange: "shop", attempt.HeaderRoutingKey: "orders.eu", attempt.HeaderQueue: "W2",
			})
		})
	}
}

// One router, two queues that both fail everything five times: each message goes
// back to its own, and both are parked apart.
func TestRouterKeepsQueuesApart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.attached("W1", "quorum")
	w.attached("W2", "classic")
	w.runRouter(w.routerConfig(routedRoute("W1", 5), routedRoute("W2", 5)))
	const n = 20
	l := newLedger()
	workers := map[string]*worker{}
	for _, q := range []string{"W1", "W2"} {
		workers[q] = w.work(q, l.work(rejectUntil(math.MaxInt)))
		l.send(w, q, n)
	}
	for q, k := range workers {
		for id := range w.parkedBy(q+".parked", n) {
			if !strings.HasPrefix(id, q+"-") {
				t.Errorf("%s is parked for %s", id, q)
			}
			if got := len(k.of(id)); got != 6 {
				t.Errorf("%s: %d attempts, want 6", id, got)
			}
		}
		if got := len(k.of()); got != 6*n {
			t.Errorf("%s saw %d deliveries, want %d", q, got, 6*n)
		}
	}
}

// Two routers side by side: nothing is lost, nothing is doubled while nobody
// dies, and both work.
func TestTwoRouters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.attached("work", "quorum")
	cfg := w.routerConfig(routedRoute("work", 3))
	cfg.Prefetch = 20
	a, b := w.runRouter(cfg), w.runRouter(cfg)
	const n = 500
	l := newLedger()
	w.work("work", l.work(rejectUntil(2)))
	l.send(w, "work", n)
	eventually(t, "all are handled", func() bool { return l.handledCount() == n })
	if s := l.check(w); len(s.Duplicates) > 0 {
		t.Errorf("twice: %v", s.Duplicates)
	}
	for id, attempts := range l.attempts {
		if fmt.Sprint(attempts) != "[1 2 3]" {
			t.Errorf("%s: attempts %v", id, attempts)
		}
	}
	na, _, _ := a.events.count()
	nb, _, _ := b.events.count()
	if na+nb != 2*n || na == 0 || nb == 0 {
		t.Errorf("the routers handed off %d and %d, want %d together and some each", na, nb, 2*n)
	}
}

// A consumer of the library and one in another language, on one queue: one count.
func TestRouterSharesTheCountWithTheLibrary(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.attached("work", "quorum")
	w.runRouter(w.routerConfig(routedRoute("work", 5)))
	const n = 60
	l := newLedger()
	k := w.work("work", l.work(rejectUntil(math.MaxInt)))
	w.runConsumer(hopback.ConsumerConfig{Route: routedRoute("work", 5), Handler: l.handler(hopback.HandlerFunc(failing(math.MaxInt)))})
	l.send(w, "work", n)
	for id, d := range w.parkedBy("work.parked", n) {
		checkHeaders(t, id, d.Headers, amqp.Table{attempt.HeaderReason: "exhausted", attempt.HeaderCount: int32(5)})
		if fmt.Sprint(l.attempts[id]) != "[1 2 3 4 5 6]" {
			t.Errorf("%s: attempts %v, of both consumers together", id, l.attempts[id])
		}
	}
	if mine := len(k.of()); mine == 0 || mine == 6*n {
		t.Errorf("the plain consumer had %d of %d deliveries: the two did not share", mine, 6*n)
	}
}

// What a consumer says by publishing the failure itself.
func TestRichFailures(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"classic", "quorum"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.attached("work", kind)
			wheel := hopback.Route{Queue: "work", Policy: quick(5), Mechanism: hopback.Wheel}
			richFailures(t, w, w.runRouter(w.routerConfig(wheel)))
		})
	}
}

func richFailures(t *testing.T, w *world, r *runningRouter) {
	w.exchange("shop", "topic")
	w.bind("work", "#", "shop", nil)
	advice := map[string]amqp.Table{
		"permanent":       {attempt.HeaderVerdict: "permanent", attempt.HeaderError: "no such customer", attempt.HeaderErrorType: "LookupError"},
		"discard":         {attempt.HeaderVerdict: "discard", attempt.HeaderError: "not for us"},
		"after":           {attempt.HeaderAfter: int64(700), attempt.HeaderError: "429"},
		"after as text":   {attempt.HeaderAfter: "700", attempt.HeaderError: "429"},
		"error":           {attempt.HeaderError: "boom", attempt.HeaderErrorType: "IOError"},
		"misspelt":        {attempt.HeaderVerdict: "pernament", attempt.HeaderError: "boom"},
		"nothing to say":  {},
		"rejected, later": {attempt.HeaderError: "boom"},
	}
	k := w.work("work", func(ch *amqp.Channel, d amqp.Delivery) error {
		switch {
		case attemptOf(d) == 1:
			return give(ch, d, "work", advice[d.MessageId])
		case d.MessageId == "rejected, later" && attemptOf(d) == 2:
			return errReject
		}
		return nil
	})
	for id := range advice {
		w.publish("shop", "order.create", amqp.Publishing{MessageId: id, Body: []byte(id), UserId: "guest"})
	}
	d := w.parkedBy("work.parked", 1)["permanent"]
	checkHeaders(t, "permanent", d.Headers, amqp.Table{
		attempt.HeaderReason: "permanent", attempt.HeaderError: "no such customer", attempt.HeaderErrorType: "LookupError",
		attempt.HeaderCount: int32(0), attempt.HeaderVerdict: nil, attempt.HeaderExchange: "shop", attempt.HeaderRoutingKey: "order.create",
		attempt.HeaderUserID: "guest",
	})
	eventually(t, "the others are handled", func() bool {
		return len(k.of()) == 2*(len(advice)-2)+2+1 && len(r.events.of("discarded")) == 1
	})
	if got := r.events.of("discarded"); got[0].MessageID != "discard" || got[0].Err == nil || got[0].Err.Error() != "not for us" {
		t.Errorf("discarded: %+v", got)
	}
	for id, want := range map[string]struct {
		err, kind any
		delay     int64
	}{
		"after":           {"429", nil, 700},
		"after as text":   {"429", nil, 700},
		"error":           {"boom", "IOError", 100},
		"misspelt":        {"boom", nil, 100},
		"nothing to say":  {"failed; its consumer gave no error", nil, 100},
		"rejected, later": {"boom", nil, 100},
	} {
		seen := k.of(id)
		if len(seen) < 2 {
			t.Errorf("%s: %d attempts", id, len(seen))
			continue
		}
		checkHeaders(t, id, seen[1].Headers, amqp.Table{
			attempt.HeaderError: want.err, attempt.HeaderErrorType: want.kind, attempt.HeaderCount: int32(1),
			attempt.HeaderVerdict: nil, attempt.HeaderAfter: nil, attempt.HeaderExchange: "shop", attempt.HeaderRoutingKey: "order.create",
		})
		if got, _ := seen[1].Headers[attempt.HeaderDelay].(int64); got < want.delay {
			t.Errorf("%s waited %d ms, want %d at least", id, got, want.delay)
		}
		if seen[1].RoutingKey != "order.create" {
			t.Errorf("%s came back with the key %q", id, seen[1].RoutingKey)
		}
	}
	// The error of the failure before is not that of a plain rejection.
	later := k.of("rejected, later")
	checkHeaders(t, "rejected, later", later[2].Headers, amqp.Table{attempt.HeaderError: "rejected by its consumer", attempt.HeaderCount: int32(2)})
}

// An error type that the policy calls permanent parks, also from another language.
func TestRichFailurePermanentType(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.attached("work", "quorum")
	route := routedRoute("work", 5)
	route.Policy.PermanentTypes = []string{"ValidationError"}
	w.runRouter(w.routerConfig(route))
	w.work("work", func(ch *amqp.Channel, d amqp.Delivery) error {
		return give(ch, d, "work", amqp.Table{attempt.HeaderError: "bad zip", attempt.HeaderErrorType: d.MessageId})
	})
	w.send("work", "ValidationError", "shop.ValidationError", "OtherValidationError")
	for id, d := range w.parkedBy("work.parked", 3) {
		want := attempt.ReasonPermanent
		if strings.HasPrefix(id, "Other") {
			want = attempt.ReasonExhausted
		}
		checkHeaders(t, id, d.Headers, amqp.Table{attempt.HeaderReason: want})
	}
}

// What a queue throws out by itself would be thrown out again, and is parked.
func TestRouterParksWhatTheQueueThrowsOut(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, reason, kind string
		args               []any
		send               []string
		parked             string
		do                 func(*amqp.Channel, amqp.Delivery) error
	}{
		{name: "delivery limit", reason: attempt.ReasonCrashLoop, kind: "quorum", args: []any{"x-delivery-limit", int64(2)}, send: []string{"m"}, parked: "m"},
		{name: "queue TTL", reason: attempt.ReasonExpired, kind: "quorum", args: []any{"x-message-ttl", int64(50)}, send: []string{"m"}, parked: "m"},
		{name: "max length", reason: attempt.ReasonOverflow, kind: "classic", args: []any{"x-max-length", int64(1)}, send: []string{"m", "resident"}, parked: "m"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.attached("work", tt.kind, tt.args...)
			r := w.runRouter(w.routerConfig(routedRoute("work", 5)))
			w.send("work", tt.send...)
			if tt.name == "delivery limit" {
				ch := w.channel()
				defer ch.Close()
				deliveries, err := ch.Consume("work", "", false, false, false, false, nil)
				if err != nil {
					t.Fatal(err)
				}
				go func() {
					for d := range deliveries {
						d.Reject(true) //nolint:errcheck // the naive loop
					}
				}()
			}
			d := w.parkedBy("work.parked", 1)[tt.parked]
			checkHeaders(t, "parked", d.Headers, amqp.Table{
				attempt.HeaderReason: tt.reason, attempt.HeaderCount: int32(0), attempt.HeaderQueue: "work",
			})
			if n := len(r.events.of("retried")); n != 0 {
				t.Errorf("it was retried %d times", n)
			}
		})
	}
}

// A message whose headers somebody took off goes nowhere but to a person.
func TestRouterUnknownOrigin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.attached("work", "quorum")
	r := w.runRouter(w.routerConfig(routedRoute("work", 9)))
	var third atomic.Bool
	k := w.work("work", func(ch *amqp.Channel, d amqp.Delivery) error {
		if attemptOf(d) < 3 {
			return errReject
		}
		third.Store(true)
		if _, err := ch.PublishWithDeferredConfirm("hop.failed", d.RoutingKey, true, false, amqp.Publishing{
			MessageId: d.MessageId, Body: d.Body, Headers: amqp.Table{"tenant": "acme"}, // all x-* stripped
		}); err != nil {
			return errLeave
		}
		return nil
	})
	w.send("work", "m")
	d := w.parkedBy(router.Parking(""), 1)["m"]
	checkHeaders(t, "parked", d.Headers, amqp.Table{attempt.HeaderReason: "unknown-origin", attempt.HeaderQueue: nil, "tenant": "acme"})
	if d.RoutingKey != "hop.failed" && string(d.Body) != "m" {
		t.Errorf("parked: %+v", d)
	}
	if !third.Load() || len(k.of()) != 3 || len(r.events.of("retried")) != 2 {
		t.Errorf("%d deliveries, %d retries", len(k.of()), len(r.events.of("retried")))
	}
	eventually(t, "somebody is told", func() bool { return strings.Contains(w.log.String(), "unknown origin") })
}

// Queues that no route names: parked without a policy for those, served with one.
func TestRouterUnroutedQueues(t *testing.T) {
	t.Parallel()
	t.Run("parked", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.attached("stranger", "quorum")
		w.runRouter(w.routerConfig())
		w.work("stranger", rejectUntil(9))
		w.send("stranger", "m")
		d := w.parkedBy(router.Parking(""), 1)["m"]
		checkHeaders(t, "parked", d.Headers, amqp.Table{attempt.HeaderReason: "no-route", attempt.HeaderQueue: "stranger"})
		eventually(t, "somebody is told", func() bool { return strings.Contains(w.log.String(), "queue=stranger") })
	})
	t.Run("served", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		cfg := w.routerConfig()
		p := quick(2)
		cfg.Unrouted = &p
		r := w.runRouter(cfg)
		const n = 100
		l := newLedger()
		for _, q := range []string{"stranger", "other"} {
			w.attached(q, "quorum")
			w.parking[q+".parked"] = true
			w.work(q, l.work(func(ch *amqp.Channel, d amqp.Delivery) error {
				poison := d.MessageId == "stranger-7" || d.MessageId == "other-107"
				return rejectUntil(map[bool]int{true: 9, false: 1}[poison])(ch, d)
			}))
			l.send(w, q, n)
		}
		eventually(t, "all but two are handled", func() bool { return l.handledCount() == 2*n-2 })
		eventually(t, "and those are parked", func() bool { return len(r.events.of("parked")) == 2 })
		s := l.check(w)
		if s.Parked != 2 || len(s.Duplicates) > 0 {
			t.Errorf("%v: twice %v", s, s.Duplicates)
		}
	})
	t.Run("not there", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		cfg := w.routerConfig()
		cfg.Unrouted = &hopback.Policy{}
		w.runRouter(cfg)
		w.publish("hop.failed", "k", amqp.Publishing{MessageId: "m", Headers: amqp.Table{attempt.HeaderQueue: "nowhere"}})
		d := w.parkedBy(router.Parking(""), 1)["m"]
		checkHeaders(t, "parked", d.Headers, amqp.Table{attempt.HeaderReason: "lost-route", attempt.HeaderQueue: "nowhere"})
		for _, q := range w.queues() {
			if strings.Contains(q.Name, "nowhere") {
				t.Errorf("%s was made for a queue that does not exist", q.Name)
			}
		}
	})
}

// A message that is seen for the first time but died here before, in a cycle of
// dead-lettering that the broker counted: the count is taken over where the route
// asks for it, and only there.
func TestRouterTakesOverTheCountOfDeaths(t *testing.T) {
	t.Parallel()
	for _, takes := range []bool{true, false} {
		t.Run(fmt.Sprint(takes), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			// The old way: rejected into a queue with a TTL, and back.
			w.declare("wait", "quorum", "x-message-ttl", int64(50), "x-dead-letter-exchange", "", "x-dead-letter-routing-key", "work")
			w.declare("work", "quorum", "x-dead-letter-exchange", "old", "x-dead-letter-routing-key", "wait")
			w.exchange("old", "direct")
			w.bind("wait", "wait", "old", nil)
			cfg := w.routerConfig(routedRoute("work", 5))
			cfg.Routes[0].CountDeaths = takes
			w.runRouter(cfg)

			// The third time it is rejected, the queue is attached to the router.
			var mu sync.Mutex
			deliveries := 0
			w.work("work", func(*amqp.Channel, amqp.Delivery) error {
				mu.Lock()
				defer mu.Unlock()
				if deliveries++; deliveries == 3 {
					w.bind("hop.failed", "wait", "old", nil)
					ch := w.channel()
					defer ch.Close()
					if err := ch.QueueUnbind("wait", "wait", "old", nil); err != nil {
						t.Error(err)
					}
				}
				return errReject
			})
			w.send("work", "m")
			d := w.parkedBy("work.parked", 1)["m"]
			want := 3 + 5 // and from then on five retries, from 0
			if takes {
				want = 6 // one attempt and five retries, in all
			}
			mu.Lock()
			defer mu.Unlock()
			if deliveries != want || d.Headers[attempt.HeaderCount] != int32(5) {
				t.Errorf("%d attempts and a count of %v, want %d and 5", deliveries, d.Headers[attempt.HeaderCount], want)
			}
		})
	}
}

// B36, B42, B43: the message is the same message.
func TestRouterFidelity(t *testing.T) {
	t.Parallel()
	eachKindRouted(t, 3, func(t *testing.T, w *world, _ *runningRouter) {
		sent := map[string]amqp.Publishing{}
		for _, mode := range []uint8{0, 1, 2} {
			p := full(fmt.Sprint("mode ", mode), mode)
			p.Headers = amqp.Table{
				"nil": nil, "deep": []any{amqp.Table{"e": []any{int32(1), "s", nil}}}, "dec": amqp.Decimal{Scale: 1, Value: 30},
				"bytes": []byte{0xff, 0xfe}, "i8": int8(-3), "u16": uint16(60_000), "i64": int64(1) << 60, "f32": float32(1.5),
				"long": strings.Repeat("é", 1000), "x-retry-note": "theirs", "x-delay": int32(-5000),
			}
			sent[p.MessageId] = p
		}
		sent["bare"] = amqp.Publishing{MessageId: "bare"}
		k := w.work("work", rejectUntil(math.MaxInt))
		for _, p := range sent {
			w.publish("", "work", p)
		}
		for id, d := range w.parkedBy("work.parked", len(sent)) {
			want := sent[id]
			if want.Headers != nil {
				delete(want.Headers, "x-delay")
			}
			p := attempt.FromDelivery(&d)
			rec, err := attempt.Read(&p, attempt.Source{})
			if err != nil {
				t.Fatal(err)
			}
			text := cmp.Transformer("empty", func(b []byte) string { return string(b) })
			if diff := cmp.Diff(want, rec.Original(&p), text); diff != "" {
				t.Errorf("%s: parked as another message (-sent +parked):\n%s", id, diff)
			}
			if n := len(k.of(id)); n != 4 {
				t.Errorf("%s: %d attempts, want 4", id, n)
			}
			for i, d := range k.of(id) {
				if diff := cmp.Diff(want.Body, d.Body, text); diff != "" || d.Priority != want.Priority || d.Type != want.Type || d.AppId != want.AppId {
					t.Errorf("%s, attempt %d: not the same message: %+v", id, i+1, d)
				}
			}
		}
	})
}

// B39: a counter of any type is read; what is none parks the message.
func TestRouterCounters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.attached("work", "quorum")
	w.runRouter(w.routerConfig(routedRoute("work", 4)))
	good := []any{int8(3), uint8(3), int16(3), uint16(3), int32(3), uint32(3), int64(3), float32(3), float64(3), amqp.Decimal{Scale: 1, Value: 30}, "3", []byte("3")}
	bad := []any{"abc", true, nil, int32(-1), 3.7, int64(1) << 40, "", []any{int32(3)}}
	k := w.work("work", rejectUntil(math.MaxInt))
	for i, v := range append(append([]any{}, good...), bad...) {
		id := fmt.Sprintf("%d %T %v", i, v, v)
		w.publish("", "work", amqp.Publishing{MessageId: id, Headers: amqp.Table{attempt.HeaderCount: v}})
	}
	for id, d := range w.parkedBy("work.parked", len(good)+len(bad)) {
		var i int
		fmt.Sscan(id, &i) //nolint:errcheck // it was written so above
		want, runs := attempt.ReasonExhausted, 2
		if i >= len(good) {
			want, runs = attempt.ReasonBadCounter, 1
		}
		checkHeaders(t, id, d.Headers, amqp.Table{attempt.HeaderReason: want})
		if n := len(k.of(id)); n != runs {
			t.Errorf("%s: %d attempts, want %d", id, n, runs)
		}
	}
}

// A record lives with one queue: headers that an application copied to another
// message begin a new life there.
func TestRouterDerivedMessages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.attached("orders", "quorum")
	w.attached("invoices", "quorum")
	w.runRouter(w.routerConfig(routedRoute("orders", 4), routedRoute("invoices", 2)))
	invoices := w.work("invoices", rejectUntil(math.MaxInt))
	w.work("orders", func(ch *amqp.Channel, d amqp.Delivery) error {
		if attemptOf(d) < 4 {
			return errReject
		}
		c, err := ch.PublishWithDeferredConfirm("", "invoices", true, false, amqp.Publishing{MessageId: "invoice", Headers: d.Headers})
		if err != nil || !c.Wait() {
			return errLeave
		}
		return nil
	})
	w.send("orders", "order")
	d := w.parkedBy("invoices.parked", 1)["invoice"]
	checkHeaders(t, "the invoice", d.Headers, amqp.Table{attempt.HeaderCount: int32(2), attempt.HeaderQueue: "invoices", attempt.HeaderReason: "exhausted"})
	if n := len(invoices.of()); n != 3 {
		t.Errorf("the invoice had %d attempts, want 3 of its own", n)
	}
}
