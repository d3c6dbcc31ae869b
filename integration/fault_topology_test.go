package integration

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/lost"
	"github.com/hopback/hopback/rabbittest"
	"github.com/hopback/hopback/topology"
)

// Work queues are deleted while messages wait for them: those end in hop.lost,
// more of them than the broker's dead-letter worker could hold back, and the
// messages of another route in the same slot go on. When the queues are there
// again, the consumers subscribe, the way back leads to them, and the lost
// messages return.
func testWorkQueuesDeleted(t *testing.T, b *rabbittest.Broker) {
	aboutSlots(t) // native loses what waits with its queue, as its page says
	const n, each = 40, 5
	w := newWorldOn(t, b)
	l := newLedger()
	route := func(queue string) hopback.Route {
		r := quickRoute(queue, 3)
		r.Policy.Base, r.Policy.Max, r.Policy.MaxRetryAfter = 6*time.Second, 6*time.Second, 6*time.Second
		r.Ladder = []time.Duration{6 * time.Second}
		return r
	}
	var k calls
	handler := l.handler(k.handler(func(_ context.Context, m *hopback.Message) error {
		if m.Attempt == 1 {
			return errCrowd
		}
		return nil
	}))
	deleted := []string{"classic", "quorum"}
	runs := map[string]*running{}
	for queue, kind := range map[string]string{"classic": "classic", "quorum": "quorum", "other": "quorum"} {
		w.declare(queue, kind)
		runs[queue] = w.runConsumer(hopback.ConsumerConfig{Route: route(queue), Handler: handler})
	}
	for _, q := range deleted {
		l.send(w, q, n)
	}
	eventually(t, "all wait in the slot", func() bool { return len(w.events.of("retried")) == 2*n })
	for _, q := range deleted {
		w.deleteQueue(q)
	}
	l.send(w, "other", each) // behind all of them in the slot
	eventually(t, "the other route's messages come back", func() bool { return l.handledCount() == each })
	eventually(t, "the messages of the deleted queues rest in hop.lost", func() bool { return w.depth("hop.lost") == 2*n })
	for _, q := range deleted {
		eventually(t, "its consumer says that it is not subscribed", func() bool { return !runs[q].Ready() })
	}

	for _, q := range deleted {
		w.declare(q, q)
	}
	for _, q := range deleted {
		eventually(t, "its consumer is subscribed again", runs[q].Ready)
		l.send(w, q, each)
	}
	eventually(t, "the way back leads to the new queues", func() bool { return l.handledCount() == 3*each })
	conn, err := amqp.Dial(w.url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	report, err := lost.Return(t.Context(), conn, lost.Options{})
	if err != nil || report.Returned != 2*n {
		t.Fatalf("return the lost messages: %+v, %v; want %d returned", report, err, 2*n)
	}
	eventually(t, "the lost messages are handled", func() bool { return l.handledCount() == 2*n+3*each })
	for _, c := range k.of() {
		if c.Attempt > 2 || c.Attempt == 2 && c.RetryID == "" {
			t.Errorf("%s: attempt %d, retry id %q: its record did not survive", c.MessageID, c.Attempt, c.RetryID)
		}
	}
	for _, r := range runs {
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	}
	if s := l.check(w); len(s.Duplicates) > 0 {
		t.Errorf("there twice: %v", s.Duplicates)
	}
}

// What is Hopback's own and is deleted while messages come is made again, with
// the messages in it. None is tried over and over meanwhile.
func TestOwnQueuesDeleted(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, w *world) {
		l := newLedger()
		gate := newGate(t, w.url)
		client := w.newClient(func(cfg *hopback.Config) { cfg.URL = gate.url(w.url) })
		r := w.runConsumerOn(client, hopback.ConsumerConfig{
			Route: quickRoute("work", 3),
			Handler: l.handler(hopback.HandlerFunc(func(_ context.Context, m *hopback.Message) error {
				switch {
				case strings.Contains(string(m.Body), "poison"):
					return hopback.Permanent(errCrowdPoison)
				case m.Attempt == 1:
					return errCrowd
				}
				return nil
			})),
		})
		poison := func(id string) {
			l.mu.Lock()
			l.sent[id] = true
			l.mu.Unlock()
			w.publish("", "work", amqp.Publishing{MessageId: id, DeliveryMode: amqp.Persistent, Body: []byte("poison " + id)})
		}
		for _, step := range []struct {
			name   string
			remove func()
			poison bool
		}{
			{"parking queue", func() { w.deleteQueue("work.parked") }, true},
			{"exchange of the parking queues", func() { w.deleteExchange("hop.error") }, true},
			{"slot's queue", func() { w.deleteQueue("hop.delay.100ms") }, false},
			{"slot's exchange", func() { w.deleteExchange("hop.delay.100ms") }, false},
			{"all at once", func() {
				w.deleteQueue("hop.delay.100ms")
				w.deleteExchange("hop.delay.100ms")
				w.deleteQueue("hop.lost")
				w.deleteExchange("hop.lost")
			}, false},
		} {
			if noSlots() && !step.poison {
				continue // there are none of these
			}
			step.remove()
			before, handled := gate.published(), l.handledCount()
			start := time.Now()
			if step.poison {
				poison(step.name)
				eventually(t, "the "+step.name+" is there again with the message", func() bool {
					n, err := w.tryDepth("work.parked")
					return err == nil && n == 1
				})
				if d := w.awaitParked("work.parked", 1); d[0].MessageId != step.name {
					t.Errorf("%s: parked %q", step.name, d[0].MessageId)
				}
				l.mu.Lock()
				l.handled[step.name] = 1 // it was seen: the ledger need not look for it
				l.mu.Unlock()
			} else {
				l.send(w, "work", 1)
				eventually(t, "the "+step.name+" is there again, and the message came back", func() bool { return l.handledCount() == handled+1 })
			}
			if n := gate.published() - before; n < 2 || n > 5 {
				t.Errorf("%s: published %d times, want at least twice and at most 5 times", step.name, n)
			}
			t.Logf("%s: %s", step.name, time.Since(start).Round(time.Millisecond))
		}
		if err := r.stop(); err != nil {
			t.Error(err)
		}
		for id, a := range l.attempts {
			if want := 2; len(a) > want || strings.Contains(id, " ") && len(a) != 1 {
				t.Errorf("%s: attempts %v", id, a)
			}
		}
		if s := l.check(w); len(s.Duplicates) > 0 {
			t.Errorf("there twice: %v", s.Duplicates)
		}
	})
}

// An account that may not declare: where the topology is missing Run says what
// permission is missing, and does not try again; where it was applied, with
// SkipDeclare, the account can do everything else.
func TestNoPermissionToDeclare(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.declare("work", "quorum")
	asWorker := w.user("worker", "", ".*", ".*")
	handler := hopback.HandlerFunc(func(_ context.Context, m *hopback.Message) error {
		if m.Attempt == 1 {
			return errCrowd
		}
		return hopback.Permanent(errCrowdPoison)
	})
	cfg := hopback.ConsumerConfig{Route: quickRoute("work", 3), Handler: handler}

	gate := newGate(t, w.url)
	declaring := w.newClient(func(c *hopback.Config) { c.URL = gate.url(asWorker) })
	consumer, err := declaring.NewConsumer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	within(t, patience, "Run returns", func() { err = consumer.Run(t.Context()) })
	var access *topology.AccessError
	if !errors.As(err, &access) || !errors.Is(err, topology.ErrAccess) || access.Permission != "configure" {
		t.Errorf("no permission to declare: %v, want an AccessError about configure", err)
	}
	if err != nil && (strings.Contains(err.Error(), "pass-of-worker") || !strings.Contains(err.Error(), "hop.")) {
		t.Errorf("the error shows the password, or does not name what was to be declared: %v", err)
	}
	if n := w.consumers("work"); n != 0 {
		t.Errorf("%d consumers after Run returned an error", n)
	}

	w.apply(cfg.Route)
	worker := w.newClient(func(c *hopback.Config) { c.URL, c.SkipDeclare = asWorker, true })
	r := w.runConsumerOn(worker, cfg)
	l := newLedger()
	l.send(w, "work", 10)
	eventually(t, "all are parked after one retry", func() bool { return len(w.events.of("parked")) == 10 })
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if s := l.check(w); s.Parked != 10 {
		t.Errorf("%v, want all parked", s)
	}
}

// What a running consumer needs is taken away, and it may not make it again: the
// messages stay on their queue, are tried less than once a second each, and go
// on when it is back.
func TestPermissionLostMidway(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		take, give func(*world)
	}{
		{
			"parking queue deleted",
			func(w *world) { w.deleteQueue("work.parked") },
			func(w *world) { w.apply(quickRoute("work", 3)) },
		},
		{
			"write permission on the slots gone",
			func(w *world) { w.user("worker", "", "^hop\\.error$", ".*") },
			func(w *world) { w.user("worker", "", ".*", ".*") },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if mechanism == hopback.Plugin && strings.Contains(c.name, "slots") {
				t.Skip("with the plugin, who may not make sure of the way back is not subscribed: see TestPlugin")
			}
			w := newWorld(t)
			w.declare("work", "quorum")
			w.apply(quickRoute("work", 3))
			gate := newGate(t, w.url)
			client := w.newClient(func(cfg *hopback.Config) { cfg.URL, cfg.SkipDeclare = gate.url(w.user("worker", "", ".*", ".*")), true })
			l := newLedger()
			r := w.runConsumerOn(client, hopback.ConsumerConfig{
				Route: quickRoute("work", 3),
				Handler: l.handler(hopback.HandlerFunc(func(_ context.Context, m *hopback.Message) error {
					if m.Attempt == 1 {
						return errCrowd
					}
					return hopback.Permanent(errCrowdPoison)
				})),
			})
			c.take(w)
			// The broker remembers what a channel was allowed: let there be new ones.
			gate.cut("consume")
			gate.cut("publish")
			eventually(t, "subscribed again", func() bool { return len(w.events.of("reconnected")) >= 2 && r.Ready() })
			l.send(w, "work", 1)
			eventually(t, "the hand-off is refused", func() bool { return strings.Contains(w.log.String(), "was not confirmed") })
			start, before := time.Now(), gate.published()
			time.Sleep(6 * time.Second)
			// A slow machine makes fewer attempts, and not more.
			if n, most := gate.published()-before, int(time.Since(start).Seconds())+1; n > most {
				t.Errorf("one message was published %d times in %s: a hot loop", n, time.Since(start))
			}
			if n := runsOf(l); n > 2 {
				t.Errorf("the handler ran %d times, want at most two attempts", n)
			}
			if n := len(w.events.of("parked")); n != 0 {
				t.Errorf("%d messages told as parked without a parking queue or a way to it", n)
			}
			c.give(w)
			eventually(t, "the message is parked when all is there again", func() bool { return len(w.events.of("parked")) == 1 })
			if err := r.stop(); err != nil {
				t.Error(err)
			}
			if s := l.check(w); s.Parked != 1 || len(s.Duplicates) > 0 {
				t.Errorf("%v, want one parked", s)
			}
		})
	}
}

// A running consumer that may no longer read its queue says so, asks again at
// growing intervals, and goes on when it may.
func TestReadPermissionLostMidway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.declare("work", "quorum")
	w.apply(quickRoute("work", 3))
	gate := newGate(t, w.url)
	client := w.newClient(func(cfg *hopback.Config) { cfg.URL, cfg.SkipDeclare = gate.url(w.user("worker", "", ".*", ".*")), true })
	l := newLedger()
	r := w.runConsumerOn(client, hopback.ConsumerConfig{
		Route:   quickRoute("work", 3),
		Handler: l.handler(hopback.HandlerFunc(func(context.Context, *hopback.Message) error { return nil })),
	})
	w.user("worker", "", ".*", "^nothing$")
	gate.cut("consume")
	eventually(t, "refused", func() bool { return r.Healthy() != nil && strings.Contains(r.Healthy().Error(), "ACCESS_REFUSED") })
	l.send(w, "work", 3)
	refusals := func() int { return strings.Count(w.log.String(), "not subscribed") }
	start, before := time.Now(), refusals()
	time.Sleep(5 * time.Second)
	if n, most := refusals()-before, 3*int(time.Since(start).Seconds()+1); n > most {
		t.Errorf("asked %d times in %s: a hot loop", n, time.Since(start))
	}
	w.user("worker", "", ".*", ".*")
	eventually(t, "subscribed again, and all handled", func() bool { return r.Ready() && l.handledCount() == 3 })
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if s := l.check(w); len(s.Duplicates) > 0 {
		t.Errorf("handled twice: %v", s.Duplicates)
	}
}

// A slot that somebody declared with another TTL: the error names what differs
// and both values with their types, and the routes that do not need this slot
// go on.
func TestSlotWithAnotherTTL(t *testing.T) {
	aboutSlots(t)
	t.Parallel()
	w := newWorld(t)
	w.declare("work", "quorum")
	w.declare("other", "quorum")
	w.declare("hop.delay.100ms", "quorum", "x-message-ttl", int64(5000), "x-dead-letter-exchange", "hop.return",
		"x-dead-letter-strategy", "at-least-once", "x-overflow", "reject-publish")
	l := newLedger()
	handler := l.handler(hopback.HandlerFunc(func(_ context.Context, m *hopback.Message) error {
		if m.Attempt == 1 {
			return errCrowd
		}
		return nil
	}))
	other := quickRoute("other", 3)
	other.Ladder = []time.Duration{200 * time.Millisecond}
	r := w.runConsumer(hopback.ConsumerConfig{Route: other, Handler: handler})
	consumer, err := w.client.NewConsumer(hopback.ConsumerConfig{Route: quickRoute("work", 3), Handler: handler})
	if err != nil {
		t.Fatal(err)
	}
	l.send(w, "work", 1)
	within(t, patience, "Run returns", func() { err = consumer.Run(t.Context()) })
	var mismatch *topology.MismatchError
	if !errors.As(err, &mismatch) || !errors.Is(err, topology.ErrMismatch) {
		t.Fatalf("%v, want a MismatchError", err)
	}
	for _, part := range []string{"hop.delay.100ms", "x-message-ttl", "int64 100", "integer 5000"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not say %q: %v", part, err)
		}
	}
	l.send(w, "other", 5)
	eventually(t, "the other route goes on", func() bool { return l.handledCount() == 5 })
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if s := l.check(w); s.Waiting != 1 {
		t.Errorf("%v, want the one of the route that cannot run to wait", s)
	}
}

// user makes a user, or changes its permissions, and returns the URL for it.
func (w *world) user(name, configure, write, read string) string {
	w.t.Helper()
	name = w.vhost + "-" + name
	if err := w.broker.AddUser(context.Background(), name, "pass-of-worker", w.vhost, configure, write, read); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { w.broker.Delete(context.Background(), "/api/users/"+url.PathEscape(name)) }) //nolint:errcheck // once is enough
	u, err := url.Parse(w.url)
	if err != nil {
		w.t.Fatal(err)
	}
	u.User = url.UserPassword(name, "pass-of-worker")
	return u.String()
}

// apply declares what routes need, as an account that may.
func (w *world) apply(routes ...hopback.Route) {
	w.t.Helper()
	needs, err := hopback.Topology("hop", routes...)
	if err != nil {
		w.t.Fatal(err)
	}
	conn, err := amqp.Dial(w.url)
	if err != nil {
		w.t.Fatal(err)
	}
	defer conn.Close()
	if err := topology.Apply(context.Background(), conn, needs); err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.prefix["hop"] = true
}
