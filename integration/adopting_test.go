package integration

import (
	"context"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/attach"
	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/parking"
	"github.com/hopback/hopback/topology"
)

// The walks of docs/adopting.md. Each begins with what people have, attaches it
// while messages are under way, and goes back; every message is counted.

func (w *world) management() *topology.Management {
	return &topology.Management{URL: w.broker.ManagementURL(), Vhost: w.vhost}
}

// setting is what detaching must give back: policies, the policy of each queue, and
// the bindings of exchanges that are not ours.
func (w *world) setting() map[string]any {
	w.t.Helper()
	vhost := url.PathEscape(w.vhost)
	get := func(path string, into any) {
		if err := w.broker.Get(context.Background(), path, into); err != nil {
			w.t.Fatal(err)
		}
	}
	var policies, bindings []any
	var queues []map[string]any
	get("/api/policies/"+vhost, &policies)
	get("/api/bindings/"+vhost, &bindings)
	get("/api/queues/"+vhost+"?disable_stats=true", &queues)
	all := map[string]any{"policies": policies}
	all["bindings"] = slices.DeleteFunc(bindings, func(b any) bool {
		source := b.(map[string]any)["source"].(string)
		return source == "" || strings.HasPrefix(source, "hop.")
	})
	for _, q := range queues {
		if name := q["name"].(string); !strings.HasPrefix(name, "hop.") {
			all["policy of "+name] = q["policy"]
		}
	}
	return all
}

// attachQueue does what hopback attach does, and fails when that refuses.
func (w *world) attachQueue(r attach.Request) *attach.Plan {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	p, err := attach.MakePlan(ctx, w.management(), r)
	if err == nil {
		err = p.Apply(ctx, w.connection())
	}
	if err != nil {
		w.t.Fatalf("attach: %v\n%s", err, p)
	}
	return p
}

// detachesTo detaches a queue and compares the setting with that of before.
func (w *world) detachesTo(before map[string]any, queue string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	p, err := attach.MakeDetachPlan(ctx, w.management(), attach.Request{Queue: queue})
	if err == nil {
		err = p.Apply(ctx, nil)
	}
	if err != nil {
		w.t.Fatalf("detach: %v\n%s", err, p)
	}
	if diff := cmp.Diff(before, w.setting()); diff != "" {
		w.t.Errorf("after detaching (-before +after):\n%s", diff)
	}
}

func (w *world) connection() *amqp.Connection {
	w.channel().Close()
	return w.conn
}

// tries counts what a worker sees of each message, whatever its headers say.
type tries struct {
	mu sync.Mutex
	n  map[string]int
}

func (t *tries) next(id string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n == nil {
		t.n = map[string]int{}
	}
	t.n[id]++
	return t.n[id]
}

func (t *tries) of(id string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n[id]
}

// diedIn is what a consumer reads that counts by x-death.
func diedIn(d amqp.Delivery, queue string) int64 {
	deaths, _ := d.Headers["x-death"].([]any)
	for _, e := range deaths {
		if t, ok := e.(amqp.Table); ok && t["queue"] == queue && t["reason"] == "rejected" {
			n, _ := t["count"].(int64)
			return n
		}
	}
	return 0
}

// passOn publishes a delivery elsewhere and waits for the confirm, as consumers do
// that have an error exchange.
func passOn(ch *amqp.Channel, d amqp.Delivery, exchange, key string) error {
	p := attempt.FromDelivery(&d)
	p.DeliveryMode = amqp.Persistent
	c, err := ch.PublishWithDeferredConfirm(exchange, key, true, false, p)
	if err != nil || !c.Wait() {
		return errLeave
	}
	return errGiven
}

// A queue with an argument for its dead-letter exchange, and a dead letter queue
// full of messages.
func TestAdoptADeadLetterQueue(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"classic", "quorum"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			const dead, recovering, poison = 30, 20, 5
			w.exchange("orders.dlx", "fanout")
			w.declare("orders", kind, "x-dead-letter-exchange", "orders.dlx")
			w.declare("orders.dlq", "classic")
			w.bind("orders.dlq", "", "orders.dlx", nil)
			before := w.setting()
			l := newLedger()
			rejecting := w.work("orders", l.work(rejectUntil(math.MaxInt)))
			l.send(w, "orders", dead)
			eventually(t, "the dead letter queue is full", func() bool { return w.depth("orders.dlq") == dead })
			rejecting.stop()

			route := routedRoute("orders", 3)
			route.Parking = "orders.dlq"
			w.runRouter(w.routerConfig(route))
			w.attachQueue(attach.Request{Queue: "orders", Copies: attach.Unbind})
			if n := w.depth("orders.dlq"); n != dead {
				t.Errorf("the dead letter queue has %d messages after attaching, want %d", n, dead)
			}
			var bad sync.Map
			k := w.work("orders", l.work(func(ch *amqp.Channel, d amqp.Delivery) error {
				if _, ok := bad.Load(d.MessageId); ok {
					return errReject
				}
				return rejectUntil(2)(ch, d)
			}))
			l.send(w, "orders", recovering)
			for i := range poison {
				bad.Store("orders-"+strconv.Itoa(dead+recovering+i), true)
			}
			l.send(w, "orders", poison)
			eventually(t, "the new ones are handled or parked", func() bool {
				return l.handledCount() == recovering && w.depth("orders.dlq") == dead+poison
			})
			bad.Range(func(id, _ any) bool {
				if n := len(k.of(id.(string))); n != 4 {
					t.Errorf("%s: %d attempts, want 4", id, n)
				}
				return true
			})

			// What had died before goes back to the queue that it died in.
			q, err := parking.Open(t.Context(), w.connection(), "orders.dlq", parking.Options{Management: w.management()})
			if err != nil {
				t.Fatal(err)
			}
			r, err := q.Replay(t.Context(), parking.Replay{Limit: dead})
			if err != nil || r.Replayed != dead {
				t.Fatalf("replayed %d of %d: %v", r.Replayed, dead, err)
			}
			eventually(t, "the old ones are handled", func() bool { return l.handledCount() == recovering+dead })

			w.detachesTo(before, "orders")
			bad.Store("orders-"+strconv.Itoa(dead+recovering+poison), true)
			l.send(w, "orders", 1)
			eventually(t, "a rejection goes to the dead letter queue at once", func() bool { return w.depth("orders.dlq") == poison+1 })
			k.stop()
			if s := l.check(w); s.Handled != dead+recovering || s.Parked != poison+1 || len(s.Duplicates) > 0 {
				t.Errorf("%s: %v", s, s.Duplicates)
			}
		})
	}
}

// A main queue, one queue that holds for a fixed time, and one for errors, with
// exchanges of their own, as many tutorials have it.
func TestAdoptThreeTiers(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"classic", "quorum"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			const underWay, fresh, after = 20, 20, 3
			for _, x := range []string{"work", "retry", "error"} {
				w.exchange(x, "direct")
			}
			w.declare("main", kind, "x-dead-letter-exchange", "retry", "x-dead-letter-routing-key", "main.retry")
			w.declare("main.retry", kind, "x-message-ttl", int64(2000), "x-dead-letter-exchange", "work", "x-dead-letter-routing-key", "main")
			w.declare("main.error", kind)
			w.bind("main", "main", "work", nil)
			w.bind("main.retry", "main.retry", "retry", nil)
			w.bind("main.error", "main.error", "error", nil)
			before := w.setting()
			var seen tries
			l := newLedger()
			// Three retries, then it gives up: the consumer's own code, before and after.
			// What it rejects between the two bindings of the change would go both ways, so
			// it holds still meanwhile.
			var change sync.Mutex
			k := w.work("main", func(ch *amqp.Channel, d amqp.Delivery) error {
				change.Lock()
				defer change.Unlock()
				seen.next(d.MessageId)
				if diedIn(d, "main") >= 3 {
					return passOn(ch, d, "error", "main.error")
				}
				return errReject
			})
			l.send(w, "main", underWay)
			eventually(t, "all of them wait", func() bool { return w.depth("main.retry") == underWay })

			for copies, want := range map[string]string{"": "come back to", attach.Keep: "come back to"} {
				p, err := attach.MakePlan(t.Context(), w.management(), attach.Request{Queue: "main", Copies: copies})
				if err != nil || !p.Refused() || !strings.Contains(p.Refusals[0].Reason, want) {
					t.Errorf("with copies %q beside the retry queue: %v\n%s", copies, err, p)
				}
			}
			route := routedRoute("main", 3)
			route.Parking = "main.error"
			cfg := w.routerConfig(route)
			cfg.Routes[0].CountDeaths = true
			r := w.runRouter(cfg)
			change.Lock()
			w.attachQueue(attach.Request{Queue: "main", Copies: attach.Unbind})
			change.Unlock()
			l.send(w, "main", fresh)
			eventually(t, "all are parked", func() bool { return w.depth("main.error") == underWay+fresh })
			byRouter := map[string]bool{}
			for _, e := range r.events.of("parked") {
				byRouter[e.MessageID] = e.Reason == attempt.ReasonExhausted
			}
			for i := range fresh {
				if id := "main-" + strconv.Itoa(underWay+i); !byRouter[id] {
					t.Errorf("%s was not parked by the router as exhausted: its consumer's own count got in the way", id)
				}
			}
			if n := w.depth("main.retry"); n != 0 {
				t.Errorf("%d messages wait in the queue that holds them no more", n)
			}
			for id := range l.sent {
				if n := seen.of(id); n != 4 {
					t.Errorf("%s: %d attempts, want 4, also over the change", id, n)
				}
			}

			w.detachesTo(before, "main")
			l.send(w, "main", after)
			eventually(t, "they go the old way", func() bool { return w.depth("main.error") == underWay+fresh+after })
			for id := range l.sent {
				if n := seen.of(id); n != 4 {
					t.Errorf("%s: %d attempts, want 4", id, n)
				}
			}
			k.stop()
			if s := l.check(w); s.Parked != underWay+fresh+after || len(s.Duplicates) > 0 {
				t.Errorf("%s: %v", s, s.Duplicates)
			}
		})
	}
}

// A consumer that counts by x-death, with a dead-letter exchange that a policy gave
// its queue.
func TestAdoptCountingByDeaths(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"classic", "quorum"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			const underWay, fresh, after = 20, 20, 3
			w.exchange("jobs.dlx", "fanout")
			w.declare("jobs", kind)
			w.declare("jobs.wait", "classic", "x-message-ttl", int64(1000), "x-dead-letter-exchange", "", "x-dead-letter-routing-key", "jobs")
			w.declare("jobs.failed", "quorum")
			w.bind("jobs.wait", "", "jobs.dlx", nil)
			err := w.broker.Put(t.Context(), "/api/policies/"+url.PathEscape(w.vhost)+"/jobs", map[string]any{
				"pattern": "^jobs$", "apply-to": "queues", "priority": 3, "definition": map[string]any{"dead-letter-exchange": "jobs.dlx", "max-length": 100_000},
			})
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "the policy is there", func() bool { return w.setting()["policy of jobs"] == "jobs" })
			before := w.setting()
			var seen tries
			l := newLedger()
			// Some recover at the fourth attempt; the others are given up after five retries.
			k := w.work("jobs", l.work(func(ch *amqp.Channel, d amqp.Delivery) error {
				switch n := seen.next(d.MessageId); {
				case recovers(d.MessageId) && n == 4:
					return nil
				case diedIn(d, "jobs") >= 5:
					return passOn(ch, d, "", "jobs.failed")
				}
				return errReject
			}))
			l.send(w, "jobs", underWay)
			eventually(t, "all were rejected once", func() bool { return len(k.of()) >= underWay })

			cfg := w.routerConfig(hopback.Route{
				Queue: "jobs", Policy: quick(5), Mechanism: hopback.Ladder, Ladder: []time.Duration{100 * time.Millisecond}, Parking: "jobs.failed",
			})
			cfg.Routes[0].CountDeaths = true
			w.runRouter(cfg)
			p := w.attachQueue(attach.Request{Queue: "jobs"})
			if p.How != attach.ByPolicy || !slices.Contains(p.Changes[0].Diff, "    max-length: 100000") {
				t.Errorf("attached with\n%s", p)
			}
			l.send(w, "jobs", fresh)
			done := func(n int) func() bool {
				return func() bool { return l.handledCount()+w.depth("jobs.failed") == n }
			}
			eventually(t, "all are handled or parked", done(underWay+fresh))

			w.detachesTo(before, "jobs")
			l.send(w, "jobs", after)
			eventually(t, "they go the old way", done(underWay+fresh+after))
			for id := range l.sent {
				want := 6
				if recovers(id) {
					want = 4
				}
				if n := seen.of(id); n != want {
					t.Errorf("%s: %d attempts, want %d, also over the change", id, n, want)
				}
			}
			k.stop()
			if s := l.check(w); s.Handled+s.Parked != underWay+fresh+after || s.Parked == 0 || s.Handled == 0 || len(s.Duplicates) > 0 {
				t.Errorf("%s: %v", s, s.Duplicates)
			}
		})
	}
}

// recovers says of half of the messages that they do.
func recovers(id string) bool { return strings.ContainsAny(id[len(id)-1:], "02468") }
