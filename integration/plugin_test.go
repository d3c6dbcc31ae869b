package integration

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/delay"
	"github.com/hopback/hopback/rabbittest"
	"github.com/hopback/hopback/topology"
)

func pluginRoute(retries int) hopback.Route {
	return hopback.Route{Queue: "work", Policy: quick(retries), Mechanism: hopback.Plugin}
}

// The plugin's mechanism on a broker that has it: see rabbittest.PluginBroker.
func TestPlugin(t *testing.T) {
	b := rabbittest.StartDelayedExchange(t)
	t.Run("side by side", func(t *testing.T) {
		for name, f := range map[string]func(*testing.T, *world){
			"life stories":                      pluginStories,
			"only the queue that failed sees":   pluginReturnsHome,
			"any delay, never early":            pluginDelays,
			"a queue that is gone":              pluginLostQueue,
			"a binding that is gone":            pluginBinding,
			"an exchange that is gone":          pluginExchange,
			"slots of its own":                  pluginIsolated,
			"an account that sees no binding":   pluginAccess,
			"a headers table at its limit":      pluginHeaders,
			"from the wheel and back":           pluginAndWheel,
			"offered over AMQP and over HTTP":   pluginOffered,
			"the plan is empty after the apply": pluginPlan,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				w := newWorldOn(t, b)
				w.declare("work", "quorum")
				f(t, w)
			})
		}
	})
	t.Run("a restart", func(t *testing.T) { // last: it ends everybody's connections
		w := newWorldOn(t, b)
		// Not a quorum queue: the plugin hands on what came due as soon as its node
		// starts, a quorum queue has no leader then, and 100 of 100 were lost (3.10.8).
		w.declare("work", "classic")
		pluginRestart(t, w)
	})
}

// Every message is counted: those that come through at once, after one, two or
// three retries, and those that never do.
func pluginStories(t *testing.T, w *world) {
	const n, retries = 200, 3
	l := newLedger()
	r := w.runConsumer(hopback.ConsumerConfig{
		Route: pluginRoute(retries),
		Handler: l.handler(hopback.HandlerFunc(func(_ context.Context, m *hopback.Message) error {
			var i int
			if _, err := fmt.Sscanf(m.MessageID, "work-%d", &i); err != nil {
				return hopback.Permanent(err)
			}
			if i%5 >= m.Attempt {
				return errors.New("not yet")
			}
			return nil
		})),
	})
	l.send(w, "work", n)
	eventually(t, "all are handled or parked", func() bool {
		return l.handledCount()+len(w.events.of("parked")) >= n
	})
	for _, q := range w.queues() {
		if strings.Contains(q.Name, "delay") {
			t.Errorf("there is a delay queue %q", q.Name)
		}
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	s := l.check(w)
	if want := n / 5; s.Parked != want || s.Handled != n-want || len(s.Duplicates) > 0 {
		t.Errorf("%v; want %d parked and the others handled, each once", s, want)
	}
	if got := w.events.story("work-3"); got != "received 1, retried 1, received 2, retried 2, received 3, retried 3, received 4, handled 4" {
		t.Errorf("work-3: %s", got)
	}
	if !strings.Contains(w.log.String(), "2026-01-29") {
		t.Error("nobody was told what the plugin costs")
	}
	if n := strings.Count(w.log.String(), "2026-01-29"); n != 1 {
		t.Errorf("it was told %d times", n)
	}
}

// Two queues of one topic exchange: the retry of one is no message for the other,
// and its routing key is what it was.
func pluginReturnsHome(t *testing.T, w *world) {
	w.exchange("shop", "topic")
	w.declare("other", "classic")
	w.bind("work", "order.#", "shop", nil)
	w.bind("other", "order.#", "shop", nil)
	var seen calls
	r := w.runConsumer(hopback.ConsumerConfig{Route: pluginRoute(3), Handler: seen.handler(func(_ context.Context, m *hopback.Message) error {
		if m.Attempt < 3 {
			return errors.New("not yet")
		}
		return nil
	})})
	w.publish("shop", "order.create", amqp.Publishing{MessageId: "a", Body: []byte("a"), Headers: amqp.Table{"x-delay": int64(-5000), "tenant": "t1"}})
	eventually(t, "the third attempt succeeds", func() bool { return len(w.events.of("handled", "a")) == 1 })
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	for _, c := range seen.of("a") {
		if c.RoutingKey != "order.create" || c.Exchange != "shop" || c.Headers["tenant"] != "t1" {
			t.Errorf("attempt %d: exchange %q, key %q, headers %v", c.Attempt, c.Exchange, c.RoutingKey, c.Headers)
		}
	}
	if n := w.depth("other"); n != 1 {
		t.Errorf("the other queue has %d messages, want the one that was published", n)
	}
}

// Delays that no slot has; a message never comes before its time.
func pluginDelays(t *testing.T, w *world) {
	delays := []time.Duration{0, time.Millisecond, 7 * time.Millisecond, 123 * time.Millisecond, 1234 * time.Millisecond, 2345 * time.Millisecond}
	var seen calls
	policy := quick(3)
	policy.MinDelay, policy.MaxRetryAfter = time.Millisecond, time.Minute
	w.runConsumer(hopback.ConsumerConfig{
		Route: hopback.Route{Queue: "work", Policy: policy, Mechanism: hopback.Plugin},
		Handler: seen.handler(func(_ context.Context, m *hopback.Message) error {
			var i int
			if _, err := fmt.Sscan(m.MessageID, &i); err != nil || m.Attempt > 1 {
				return err
			}
			return hopback.RetryAfter(errors.New("later"), delays[i])
		}),
	})
	for i := range delays {
		w.send("work", fmt.Sprint(i))
	}
	for i, d := range delays {
		id := fmt.Sprint(i)
		eventually(t, id+" comes back", func() bool { return len(seen.of(id)) == 2 })
		c := seen.of(id)
		if waited := c[1].Began.Sub(c[0].Ended); waited < d {
			t.Errorf("%s: back after %s", d, waited)
		}
		if told := w.events.of("retried", id); len(told) != 1 || told[0].Delay != max(d, time.Millisecond) {
			t.Errorf("%s: told of %+v", d, told)
		}
	}
}

// What comes back to a queue that was deleted is caught.
func pluginLostQueue(t *testing.T, w *world) {
	l := newLedger()
	policy := quick(3)
	policy.MaxRetryAfter = time.Minute
	r := w.runConsumer(hopback.ConsumerConfig{
		Route: hopback.Route{Queue: "work", Policy: policy, Mechanism: hopback.Plugin},
		Handler: l.handler(hopback.HandlerFunc(func(context.Context, *hopback.Message) error {
			return hopback.RetryAfter(errors.New("later"), 2*time.Second)
		})),
	})
	l.send(w, "work", 20)
	eventually(t, "all wait", func() bool { return len(w.events.of("retried")) == 20 })
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	ch := w.channel()
	if _, err := ch.QueueDelete("work", false, false, false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all are lost and found", func() bool { return w.depth("hop.lost") == 20 })
	if s := l.check(w); s.Lost != 20 || len(s.Duplicates) > 0 {
		t.Errorf("%v; want all in hop.lost", s)
	}
}

// Somebody unbinds the delayed exchange while messages wait in it: the binding is
// back before their time is over, and they are too. Without the check a confirm
// would have covered the loss.
func pluginBinding(t *testing.T, w *world) {
	l := newLedger()
	policy := quick(3)
	policy.MaxRetryAfter = time.Minute
	r := w.runConsumer(hopback.ConsumerConfig{
		Route: hopback.Route{Queue: "work", Policy: policy, Mechanism: hopback.Plugin},
		Handler: l.handler(hopback.HandlerFunc(func(_ context.Context, m *hopback.Message) error {
			if m.Attempt == 1 {
				return hopback.RetryAfter(errors.New("later"), 20*time.Second)
			}
			return nil
		})),
	})
	l.send(w, "work", 20)
	eventually(t, "all wait", func() bool { return len(w.events.of("retried")) == 20 })
	ch := w.channel()
	if err := ch.ExchangeUnbind("hop.return", "", "hop.delay.plugin", false, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all are handled", func() bool { return l.handledCount() == 20 })
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if s := l.check(w); s.Handled != 20 {
		t.Errorf("%v", s)
	}
}

// The exchange itself is deleted under the consumer: what fails then stays on its
// queue until it is there again, and no message is published into nothing.
func pluginExchange(t *testing.T, w *world) {
	l := newLedger()
	r := w.runConsumer(hopback.ConsumerConfig{
		Route: pluginRoute(2),
		Handler: l.handler(hopback.HandlerFunc(func(_ context.Context, m *hopback.Message) error {
			if m.Attempt == 1 {
				return errors.New("later")
			}
			return nil
		})),
	})
	ch := w.channel()
	if err := ch.ExchangeDelete("hop.delay.plugin", false, false); err != nil {
		t.Fatal(err)
	}
	l.send(w, "work", 20)
	eventually(t, "all are handled", func() bool { return l.handledCount() == 20 })
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if s := l.check(w); s.Handled != 20 {
		t.Errorf("%v", s)
	}
}

func pluginIsolated(t *testing.T, w *world) {
	route := pluginRoute(1)
	route.Isolate = true
	r := w.runConsumer(hopback.ConsumerConfig{Route: route, Handler: hopback.HandlerFunc(func(_ context.Context, m *hopback.Message) error {
		if m.Attempt == 1 {
			return errors.New("later")
		}
		return nil
	})})
	w.send("work", "a")
	eventually(t, "it comes back", func() bool { return len(w.events.of("handled", "a")) == 1 })
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	var exchanges []struct{ Name, Type string }
	if err := w.broker.Get(t.Context(), "/api/exchanges/"+url.PathEscape(w.vhost), &exchanges); err != nil {
		t.Fatal(err)
	}
	types := map[string]string{}
	for _, x := range exchanges {
		types[x.Name] = x.Type
	}
	if types["hop.work.delay.plugin"] != delay.PluginType || types["hop.delay.plugin"] != "" {
		t.Errorf("the exchanges are %v", types)
	}
}

// An account that may not bind, with nobody to ask, does not publish into the
// unknown: it is refused. With the management API it may see, and works.
func pluginAccess(t *testing.T, w *world) {
	needs, err := hopback.Topology("", pluginRoute(1))
	if err != nil {
		t.Fatal(err)
	}
	w.depth("work") // dials
	if err := topology.Apply(t.Context(), w.conn, needs); err != nil {
		t.Fatal(err)
	}
	name := "few-rights-" + fmt.Sprint(time.Now().UnixNano())
	if err := w.broker.AddUser(t.Context(), name, "secret", w.vhost, "", `hop\.delay\.plugin|hop\.error`, "work"); err != nil {
		t.Fatal(err)
	}
	defer w.broker.Delete(context.Background(), "/api/users/"+name) //nolint:errcheck // goes with the broker
	u, err := url.Parse(w.url)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(name, "secret")
	as := func(m *topology.Management) func(*hopback.Config) {
		return func(c *hopback.Config) { c.URL, c.SkipDeclare, c.Management = u.String(), true, m }
	}
	cfg := hopback.ConsumerConfig{Route: pluginRoute(1), Handler: hopback.HandlerFunc(func(_ context.Context, m *hopback.Message) error {
		if m.Attempt == 1 {
			return errors.New("later")
		}
		return nil
	})}
	c, err := w.newClient(as(nil)).NewConsumer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err = c.Run(ctx)
	var denied *topology.AccessError
	if !errors.As(err, &denied) || !strings.Contains(denied.Name, "hop.delay.plugin") {
		t.Errorf("without a way to see the binding: %v", err)
	}
	w.runConsumerOn(w.newClient(as(&topology.Management{URL: w.broker.ManagementURL(), Vhost: w.vhost})), cfg)
	w.send("work", "a")
	eventually(t, "it comes back", func() bool { return len(w.events.of("handled", "a")) == 1 })
}

// The header x-delay is counted in, so a message with very long headers still
// waits, or is parked; it does not cost the connection.
func pluginHeaders(t *testing.T, w *world) {
	r := w.runConsumer(hopback.ConsumerConfig{Route: pluginRoute(1), Handler: hopback.HandlerFunc(func(context.Context, *hopback.Message) error {
		return errors.New(strings.Repeat("long ", 100))
	})})
	for i := range 40 { // around the limit of 128 KiB less 8
		size := 122_000 + 20*i
		w.publish("", "work", amqp.Publishing{MessageId: fmt.Sprint(i), Headers: amqp.Table{"big": strings.Repeat("x", size)}})
	}
	eventually(t, "all are parked", func() bool { return len(w.events.of("parked")) == 40 })
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if lost := w.events.of("reconnected"); len(lost) > 0 {
		t.Errorf("a connection was lost: %+v", lost)
	}
}

// Messages that wait in the wheel come home to a consumer with the plugin and the
// other way round: the way back is the same.
func pluginAndWheel(t *testing.T, w *world) {
	l := newLedger()
	policy := quick(5)
	policy.MaxRetryAfter = time.Minute
	start := func(mechanism string) *running {
		return w.runConsumer(hopback.ConsumerConfig{
			Route: hopback.Route{Queue: "work", Policy: policy, Mechanism: mechanism},
			Handler: l.handler(hopback.HandlerFunc(func(_ context.Context, m *hopback.Message) error {
				if m.Attempt < 4 {
					return hopback.RetryAfter(errors.New("later"), time.Second)
				}
				return nil
			})),
		})
	}
	l.send(w, "work", 30)
	for i, mechanism := range []string{hopback.Plugin, hopback.Wheel, hopback.Plugin} {
		r := start(mechanism)
		eventually(t, "a round is over", func() bool { return len(w.events.of("retried")) >= 30*(i+1) })
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
	}
	start(hopback.Wheel)
	eventually(t, "all are handled", func() bool { return l.handledCount() == 30 })
	for id, attempts := range l.attempts {
		if fmt.Sprint(attempts) != "[1 2 3 4]" {
			t.Errorf("%s: attempts %v", id, attempts)
		}
	}
}

func pluginOffered(t *testing.T, w *world) {
	seen := offers(t, w)
	if seen != [2]hopback.Offer{hopback.Offered, hopback.Offered} {
		t.Errorf("over AMQP and HTTP: %v", seen)
	}
}

func pluginPlan(t *testing.T, w *world) {
	needs, err := hopback.Topology("", pluginRoute(1))
	if err != nil {
		t.Fatal(err)
	}
	w.depth("work") // dials
	if err := topology.Apply(t.Context(), w.conn, needs); err != nil {
		t.Fatal(err)
	}
	m := &topology.Management{URL: w.broker.ManagementURL(), Vhost: w.vhost}
	if err := topology.Verify(t.Context(), nil, m, needs); err != nil {
		t.Error(err)
	}
	ch := w.channel()
	if err := ch.ExchangeUnbind("hop.return", "", "hop.delay.plugin", false, nil); err != nil {
		t.Fatal(err)
	}
	if err := topology.Verify(t.Context(), nil, m, needs); !errors.Is(err, topology.ErrDrift) || !strings.Contains(err.Error(), "hop.delay.plugin -> exchange hop.return") {
		t.Errorf("without the way back: %v", err)
	}
}

// What waits is on the disk of its node: a restart delays it and no more.
func pluginRestart(t *testing.T, w *world) {
	l := newLedger()
	policy := quick(3)
	policy.MaxRetryAfter = time.Minute
	r := w.runConsumer(hopback.ConsumerConfig{
		Route: hopback.Route{Queue: "work", Policy: policy, Mechanism: hopback.Plugin},
		Handler: l.handler(hopback.HandlerFunc(func(_ context.Context, m *hopback.Message) error {
			if m.Attempt == 1 {
				return hopback.RetryAfter(errors.New("later"), 8*time.Second)
			}
			return nil
		})),
	})
	l.send(w, "work", 100)
	eventually(t, "all wait", func() bool { return len(w.events.of("retried")) == 100 })
	if err := w.broker.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all are handled", func() bool { return l.handledCount() == 100 })
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if s := l.check(w); s.Handled != 100 {
		t.Errorf("%v", s)
	}
}
