package integration

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	amqp10 "github.com/Azure/go-amqp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/router"
)

// A consumer over AMQP 1.0 rejects, and says why by annotations.
func TestRichFailuresOverAMQP1(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if strings.HasPrefix(w.broker.Version(), "3.") {
		t.Skip("AMQP 1.0 is in the broker from 4.0 on")
	}
	w.attached("work", "quorum")
	w.runRouter(w.routerConfig(routedRoute("work", 3)))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	uri, err := amqp.ParseURI(w.url)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := amqp10.Dial(ctx, strings.Replace(w.url[:strings.LastIndex(w.url, "/")], "guest:guest@", "", 1),
		&amqp10.ConnOptions{SASLType: amqp10.SASLTypePlain("guest", "guest"), HostName: "vhost:" + uri.Vhost})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	session, err := conn.NewSession(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	receiver, err := session.NewReceiver(ctx, "/queues/work", nil)
	if err != nil {
		t.Fatal(err)
	}
	w.send("work", "permanent", "plain")
	seen := map[string]int{}
	for range 5 { // one of the first and four of the second
		m, err := receiver.Receive(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		id, _ := m.Properties.MessageID.(string)
		seen[id]++
		if id == "permanent" {
			err = receiver.ModifyMessage(ctx, m, &amqp10.ModifyMessageOptions{
				DeliveryFailed: true, UndeliverableHere: true,
				Annotations: amqp10.Annotations{"x-retry-verdict": "permanent", "x-retry-error": "no such customer", "x-retry-error-type": "LookupError"},
			})
		} else {
			err = receiver.RejectMessage(ctx, m, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	parked := w.parkedBy("work.parked", 2)
	checkHeaders(t, "permanent", parked["permanent"].Headers, amqp.Table{
		attempt.HeaderReason: "permanent", attempt.HeaderError: "no such customer", attempt.HeaderErrorType: "LookupError",
		attempt.HeaderCount: int32(0), attempt.HeaderVerdict: nil,
	})
	checkHeaders(t, "plain", parked["plain"].Headers, amqp.Table{
		attempt.HeaderReason: "exhausted", attempt.HeaderCount: int32(3), attempt.HeaderError: "rejected by its consumer",
	})
	if seen["permanent"] != 1 || seen["plain"] != 4 {
		t.Errorf("attempts: %v", seen)
	}
}

// B34: a message that somebody moved by hand keeps the origin that was recorded
// before, and gets none that is made up.
func TestRouterOriginAfterAMove(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exchange("sv.t", "topic")
	w.attached("work", "quorum")
	w.bind("work", "orders.#", "sv.t", nil)
	w.runRouter(w.routerConfig(routedRoute("work", hopback.NoRetries)))
	w.work("work", rejectUntil(1_000_000))
	w.publish("sv.t", "orders.eu", amqp.Publishing{MessageId: "recorded"})
	d := w.parkedBy("work.parked", 1)["recorded"]
	checkHeaders(t, "parked", d.Headers, amqp.Table{attempt.HeaderExchange: "sv.t", attempt.HeaderRoutingKey: "orders.eu"})

	// Moved as a shovel does: to the queue by its name, headers and all.
	p := attempt.FromDelivery(&d)
	p.UserId = ""
	w.publish("", "work", p)
	d = w.parkedBy("work.parked", 1)["recorded"]
	checkHeaders(t, "parked again", d.Headers, amqp.Table{attempt.HeaderExchange: "sv.t", attempt.HeaderRoutingKey: "orders.eu"})

	w.publish("", "work", amqp.Publishing{MessageId: "unknown", Headers: amqp.Table{"x-death": []any{amqp.Table{
		"queue": "elsewhere", "reason": "rejected", "count": int64(1), "exchange": "", "routing-keys": []any{"work"}, "time": time.Now(),
	}}}})
	d = w.parkedBy("work.parked", 1)["unknown"]
	if x, there := d.Headers[attempt.HeaderExchange]; there && x == "sv.t" {
		t.Errorf("its origin was made up: %v", d.Headers)
	}
}

// The rights that docs/router.md names are enough.
func TestRouterPermissions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.attached("work", "quorum")
	const own = `^(hop\..*|.*\.parked)$`
	user := "router-" + w.vhost
	if err := w.broker.AddUser(t.Context(), user, "s3cret", w.vhost, own, `^(hop\..*|.*\.parked|work)$`, `^hop\..*$`); err != nil {
		t.Fatal(err)
	}
	cfg := w.routerConfig(routedRoute("work", 2))
	cfg.Client.URL = strings.Replace(w.url, "guest:guest", user+":s3cret", 1)
	r := w.runRouter(cfg)
	if err := r.Trouble(); err != nil {
		t.Errorf("something is missing: %v", err)
	}
	k := w.work("work", rejectUntil(1_000_000))
	w.send("work", "m")
	w.parkedBy("work.parked", 1)
	if n := len(k.of()); n != 3 {
		t.Errorf("%d attempts, want 3", n)
	}

	// Without the right to bind a work queue its route is in trouble, and alone.
	w.attached("forbidden", "quorum")
	both := cfg
	both.Routes = append(both.Routes, router.Route{Route: routedRoute("forbidden", 2)})
	second := w.runRouter(both)
	if err := second.Trouble(); err == nil || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("nothing is said of the missing right: %v", err)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	w.send("work", "n")
	w.parkedBy("work.parked", 1)
}

// A memory alarm, and an end in the midst of it: what cannot be handed off stays
// where it is, and the router ends in time.
func TestRouterBlocked(t *testing.T) {
	t.Parallel()
	b := faultBroker(t)
	w := newWorldOn(t, b)
	w.attached("work", "quorum")
	cfg := w.routerConfig(routedRoute("work", 3))
	cfg.ShutdownTimeout = 3 * time.Second
	r := w.runRouter(cfg)
	if err := r.stop(); err != nil { // it has declared what there is
		t.Fatal(err)
	}
	const n = 100
	l := newLedger()
	w.work("work", l.work(rejectUntil(2)))
	l.send(w, "work", n)
	eventually(t, "all have failed", func() bool { return w.depth("hop.failed") == n })
	if err := b.MemoryAlarm(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	r = w.runRouter(cfg)
	eventually(t, "its first publishes are held up", func() bool { return r.InFlight() > 0 && len(r.events.of("blocked")) > 0 })
	within(t, time.Minute, "the router ends", func() {
		if err := r.stop(); !errors.Is(err, router.ErrShutdownTimeout) {
			t.Errorf("it ended with %v, and %d messages in flight", err, r.InFlight())
		}
	})
	if err := b.MemoryAlarm(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	w.runRouter(cfg)
	eventually(t, "all are handled", func() bool { return l.handledCount() == n })
	l.check(w)
}

// A router that started before the work queue was there makes the way back with the
// first failure, and not with the next look: what waits would come due into hop.lost.
func TestRouterBeforeTheQueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.runRouter(w.routerConfig(routedRoute("work", 3), routedRoute("never-there", 3)))
	w.attached("work", "quorum")
	k := w.work("work", rejectUntil(2))
	w.send("work", "a", "b", "c")
	eventually(t, "each has had three attempts", func() bool { return len(k.of()) == 9 })
	if n := w.depth("hop.lost"); n != 0 {
		t.Errorf("%d messages in hop.lost, want none", n)
	}
}
