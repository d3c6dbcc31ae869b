package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/topology"
)

// nativeWorld has a quorum queue "work" on a broker that holds delays itself.
func nativeWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	needsNative(t, w.broker)
	w.declare("work", "quorum")
	return w
}

func nativeRoute(retries int) hopback.Route {
	return hopback.Route{Queue: "work", Policy: quick(retries), Mechanism: hopback.Native}
}

// Auto is native for a quorum queue on 4.3, with or without a management API, and
// the wheel for everything else.
func TestAutoChoosesTheBestThatThereIs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.declare("quorum", "quorum")
	w.declare("classic", "classic")
	conn, err := amqp.Dial(w.url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	caps := hopback.ReadCapabilities(conn)
	best := hopback.Wheel
	if caps.AtLeast("4.3") {
		best = hopback.Native
	}
	declared := hopback.Route{Queue: "to be made", Declare: &hopback.Declare{Type: "quorum"}}
	for _, tt := range []struct {
		name string
		view hopback.View
	}{
		{"management", hopback.View{Capabilities: caps, Management: &topology.Management{URL: w.broker.ManagementURL(), Vhost: w.vhost}}},
		{"AMQP alone", hopback.View{Capabilities: caps, Connection: conn}},
	} {
		routes, decisions, err := hopback.Resolve(t.Context(), tt.view,
			hopback.Route{Queue: "quorum"}, hopback.Route{Queue: "classic"}, declared)
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		for i, want := range []string{best, hopback.Wheel, best} {
			if routes[i].Mechanism != want || decisions[i].Mechanism != want || decisions[i].Why == "" {
				t.Errorf("%s, %s: %+v; want %s", tt.name, routes[i].Queue, decisions[i], want)
			}
		}
	}
}

// What a broker cannot honour is refused by name, and nothing was declared.
func TestNativeIsRefusedWhereItCannotBe(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.declare("work", "classic")
	c, err := w.newClient().NewConsumer(hopback.ConsumerConfig{
		Route:   nativeRoute(3),
		Handler: hopback.HandlerFunc(func(context.Context, *hopback.Message) error { return nil }),
	})
	if err != nil {
		t.Fatal(err)
	}
	var bad *hopback.ConfigError
	if err := c.Run(t.Context()); !errors.As(err, &bad) || bad.Field != "mechanism" || bad.Value != hopback.Native {
		t.Errorf("native on a classic queue: %v", err)
	}
	for _, q := range w.queues() {
		if q.Name != "work" {
			t.Errorf("%q was declared", q.Name)
		}
	}
}

// A queue's messages move between mechanisms in the middle of their retries, as
// after an upgrade of the broker and after a rollback: each goes on with its
// count, its id and its history, and no attempt is missing or made twice.
func TestMessagesMoveBetweenMechanisms(t *testing.T) {
	t.Parallel()
	w := nativeWorld(t)
	const n, retries = 30, 5
	mechanisms := []string{hopback.Wheel, hopback.Native, hopback.Wheel, hopback.Native, hopback.Native, hopback.Wheel}
	var seen calls
	for i := range n {
		w.send("work", fmt.Sprint("m", i))
	}
	for round, m := range mechanisms {
		var failures atomic.Int64
		c := w.runConsumer(hopback.ConsumerConfig{
			Route: hopback.Route{Queue: "work", Mechanism: m, Policy: hopback.Policy{
				Name: "moving", MaxRetries: retries, MaxRetryAfter: time.Second,
				Schedule: hopback.Schedule{Backoff: hopback.Constant, Base: 2 * time.Second, Max: 2 * time.Second, Jitter: hopback.NoJitter},
			}},
			Handler: hopback.HandlerFunc(func(ctx context.Context, m *hopback.Message) error {
				if m.Attempt > round+1 { // back before the round has ended: it is for the next
					return hopback.Snooze(500 * time.Millisecond)
				}
				defer failures.Add(1)
				return seen.handler(func(context.Context, *hopback.Message) error {
					return fmt.Errorf("attempt %d: %w", m.Attempt, errRefused)
				}).Handle(ctx, m)
			}),
		})
		eventually(t, fmt.Sprintf("round %d, %s: all failed once more", round+1, m), func() bool { return failures.Load() >= n })
		if err := c.stop(); err != nil {
			t.Error(err)
		}
	}
	for _, d := range w.awaitParked("work.parked", n) {
		p := attempt.FromDelivery(&d)
		rec, err := attempt.Read(&p, attempt.Source{})
		if err != nil {
			t.Fatal(err)
		}
		if rec.Count != retries || rec.Reason != attempt.ReasonExhausted || len(rec.History()) != retries+1 || rec.Then != "" {
			t.Errorf("%s: parked with count %d, reason %q, then %q, history %v", d.MessageId, rec.Count, rec.Reason, rec.Then, rec.History())
		}
		for i, e := range rec.History() {
			if int(e.N) != i+1 {
				t.Errorf("%s: history line %d is of attempt %d", d.MessageId, i+1, e.N)
			}
		}
	}
	for i := range n {
		k := seen.of(fmt.Sprint("m", i))
		for j := range k {
			if k[j].Attempt != j+1 || j > 0 && k[j].RetryID != k[1].RetryID {
				t.Errorf("m%d, run %d: attempt %d, id %q, then %q", i, j+1, k[j].Attempt, k[1].RetryID, k[j].RetryID)
			}
		}
		if len(k) < retries+1 {
			t.Errorf("m%d ran %d times, want %d", i, len(k), retries+1)
		}
	}
}

// What the parking queue gets is the same whichever transport brought the message.
func TestParkedAlikeByEachMechanism(t *testing.T) {
	t.Parallel()
	parked := map[string]amqp.Delivery{}
	for _, m := range []string{hopback.Wheel, hopback.Native} {
		w := nativeWorld(t)
		w.shop()
		r := nativeRoute(2)
		r.Mechanism = m
		w.runConsumer(hopback.ConsumerConfig{
			Route:   r,
			Handler: hopback.HandlerFunc(func(context.Context, *hopback.Message) error { return errRefused }),
		})
		p := full("m1", 2)
		p.Expiration = ""
		w.publish("shop", "order.create", p)
		parked[m] = w.awaitParked("work.parked", 1)[0]
	}
	wheel, native := parked[hopback.Wheel], parked[hopback.Native]
	for k, v := range wheel.Headers {
		other, ok := native.Headers[k]
		if !ok || fmt.Sprintf("%T", v) != fmt.Sprintf("%T", other) {
			t.Errorf("%s is %T %v after the wheel, %T %v after native", k, v, v, other, other)
		}
	}
	for k, v := range native.Headers {
		if _, ok := wheel.Headers[k]; !ok {
			t.Errorf("%s is only there after native: %T %v", k, v, v)
		}
	}
	a, b := attempt.FromDelivery(&wheel), attempt.FromDelivery(&native)
	a.Headers, b.Headers = nil, nil
	if fmt.Sprintf("%+v", a) != fmt.Sprintf("%+v", b) || wheel.RoutingKey != native.RoutingKey || wheel.Exchange != native.Exchange {
		t.Errorf("after the wheel:  %+v\nafter native: %+v", a, b)
	}
}

// An expiration is a deadline of ours and not the broker's, which would drop the
// message while it waits: it is off the message from the first failure on.
func TestNativeExpirationIsADeadline(t *testing.T) {
	t.Parallel()
	w := nativeWorld(t)
	w.shop()
	p := full("m", 2)
	w.publish("shop", "order.create", p)
	r := nativeRoute(3)
	r.Policy.MaxRetryAfter = 2 * time.Second
	cfg := hopback.ConsumerConfig{Route: r}
	var seen calls
	cfg.Handler = seen.handler(func(_ context.Context, m *hopback.Message) error {
		if m.Attempt == 1 {
			return hopback.RetryAfter(errBusy, 2*time.Second)
		}
		return nil
	})
	c := w.runConsumer(cfg)
	eventually(t, "handled", func() bool { return len(w.events.of("handled", "m")) == 1 })
	k := seen.of("m")
	if len(k) != 2 || k[1].Attempt != 2 || k[1].Expiration != p.Expiration || k[1].RoutingKey != "order.create" || k[1].Exchange != "shop" {
		t.Fatalf("%d runs: %+v", len(k), k)
	}
	if waited := k[1].Began.Sub(k[0].Ended); waited < 2*time.Second-brokerTick {
		t.Errorf("it came back after %s", waited)
	}
	if story := w.events.story("m"); story != "received 1, retried 1, received 2, handled 2" {
		t.Errorf("events: %s", story)
	}
	if err := c.stop(); err != nil {
		t.Fatal(err)
	}
	// Seen on its queue while nobody consumes.
	p.MessageId = "seen"
	cfg.Handler = hopback.HandlerFunc(func(context.Context, *hopback.Message) error { return hopback.RetryAfter(errBusy, time.Second) })
	c = w.runConsumer(cfg)
	w.publish("shop", "order.create", p)
	eventually(t, "retried", func() bool { return len(w.events.of("retried", "seen")) >= 1 })
	if err := c.stop(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is due", func() bool { return w.depth("work") == 1 })
	if d := w.drain("work")[0]; d.Expiration != "" || d.Headers[attempt.HeaderExpiration] != p.Expiration {
		t.Errorf("expiration %q, headers %v", d.Expiration, d.Headers)
	}
}

// What would outgrow a frame in a slot waits on its own queue, since nothing is
// added to it there.
func TestNativeHoldsLargeHeaders(t *testing.T) {
	t.Parallel()
	w := nativeWorld(t)
	var seen calls
	w.runConsumer(hopback.ConsumerConfig{Route: nativeRoute(3), Handler: seen.handler(failing(2))})
	big := strings.Repeat("x", 124_000)
	w.publish("", "work", amqp.Publishing{MessageId: "m", Headers: amqp.Table{"big": big}, Body: []byte("m")})
	eventually(t, "handled", func() bool { return len(w.events.of("handled", "m")) == 1 })
	for i, k := range seen.of("m") {
		if k.Attempt != i+1 || k.Headers["big"] != big {
			t.Errorf("run %d: attempt %d, a header of %d bytes", i+1, k.Attempt, len(fmt.Sprint(k.Headers["big"])))
		}
	}
	if n := len(seen.of("m")); n != 3 {
		t.Errorf("%d runs, want 3", n)
	}
}

// A header that the broker cannot show over AMQP 1.0 does not stop the queue: the
// consumer goes on with the wheel, and says so.
func TestNativeFallsBackToTheWheel(t *testing.T) {
	t.Parallel()
	w := nativeWorld(t)
	var seen calls
	c := w.runConsumer(hopback.ConsumerConfig{Route: nativeRoute(3), Handler: seen.handler(failing(2))})
	w.send("work", "before")
	eventually(t, "the first is handled", func() bool { return len(w.events.of("handled")) == 1 })
	w.publish("", "work", amqp.Publishing{MessageId: "decimal", Body: []byte("d"), Headers: amqp.Table{"price": amqp.Decimal{Scale: 2, Value: 999}}})
	w.send("work", "behind")
	eventually(t, "all are handled", func() bool { return len(w.events.of("handled")) == 3 })
	if err := c.stop(); err != nil {
		t.Error(err)
	}
	for _, id := range []string{"decimal", "behind"} {
		k := seen.of(id)
		if last := k[len(k)-1]; last.Attempt != 3 {
			t.Errorf("%s ended with attempt %d", id, last.Attempt)
		}
		if id == "decimal" && k[len(k)-1].Headers["price"] != (amqp.Decimal{Scale: 2, Value: 999}) {
			t.Errorf("the decimal became %v", k[len(k)-1].Headers["price"])
		}
	}
	if !strings.Contains(w.log.String(), "going on with the mechanism wheel") {
		t.Error("nothing was logged about it")
	}
}
