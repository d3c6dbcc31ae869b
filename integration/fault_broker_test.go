package integration

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/rabbittest"
)

// The faults of a whole broker, one after another on one of the test's own. In
// each, every message is counted, on a classic and on a quorum work queue.
func TestBrokerFaults(t *testing.T) {
	t.Parallel()
	b := faultBroker(t)
	for _, f := range []struct {
		name string
		test func(*testing.T, *rabbittest.Broker)
	}{
		{"connections killed", testConnectionsKilled},
		{"work queues deleted", testWorkQueuesDeleted},
		{"memory alarm", testMemoryAlarm},
		{"restart", func(t *testing.T, b *rabbittest.Broker) { testRestart(t, b, b.Restart) }},
		{"kill", func(t *testing.T, b *rabbittest.Broker) {
			testRestart(t, b, func(ctx context.Context) error {
				if err := b.Kill(ctx); err != nil {
					return err
				}
				return b.Start(ctx)
			})
		}},
	} {
		t.Run(f.name, func(t *testing.T) {
			if mechanism == hopback.Plugin && (f.name == "restart" || f.name == "kill") {
				t.Skip("the plugin loses what comes due around a restart of its node: docs/plugin.md")
			}
			f.test(t, b)
		})
	}
}

// The broker goes away while messages wait and others are in work, and comes
// back: all are settled.
func testRestart(t *testing.T, b *rabbittest.Broker, restart func(context.Context) error) {
	w := newWorldOn(t, b)
	c := newCrowd(t, w, w.url, 5*time.Millisecond)
	// A quorum queue that is declared less than half a second before a kill -9
	// may come back without its log and without a leader, for good: the broker
	// writes down which queues it has (names.dets) when that has not changed for
	// so long. Seen on 3.10.8 and 4.0.5.
	time.Sleep(3 * time.Second)
	c.feed(300)
	eventually(t, "some wait in slots", func() bool { return c.retried.Load() > 50 })
	if err := restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.feed(100)
	c.finish(t)
	if c.reconnects.Load() < 2 {
		t.Errorf("%d reconnects were told, want both connections'", c.reconnects.Load())
	}
}

// Every connection is killed 20 times, by resets and by the broker, in random
// moments under load.
func testConnectionsKilled(t *testing.T, b *rabbittest.Broker) {
	w := newWorldOn(t, b)
	proxy := b.Proxy(t)
	c := newCrowd(t, w, proxy.URL(w.url), 3*time.Millisecond)
	r := rand.New(rand.NewPCG(20, uint64(time.Now().UnixNano())))
	for i := range 20 {
		// Both connections are there to be killed.
		eventually(t, "both connections are back", func() bool { return c.reconnects.Load() >= int64(2*i) })
		c.feed(30)
		time.Sleep(time.Duration(r.IntN(400)) * time.Millisecond)
		if i%4 == 3 {
			if err := b.CloseConnections(t.Context()); err != nil {
				t.Fatal(err)
			}
			w.hangUp()
		} else {
			proxy.Cut()
		}
	}
	duplicates := c.finish(t)
	// What one lost connection can deliver twice is what was handed out.
	if most := 20 * 2 * 2 * 50; duplicates > most {
		t.Errorf("%d duplicates, at most %d can be explained", duplicates, most)
	}
	if n := c.reconnects.Load(); n < 2*19 {
		t.Errorf("%d reconnects were told, want two for each of the kills", n)
	}
}

// alarmFor is how long the alarm lasts.
func alarmFor() time.Duration {
	if soaking() {
		return 20 * time.Second
	}
	return 5 * time.Second
}

// A memory alarm while 100 handlers fail, and others succeed: what needs no
// publish is acknowledged all the same, nothing is tried over and over, and all
// goes on when it ends. A consumer that is told to stop in the midst of it ends
// by its deadline.
func testMemoryAlarm(t *testing.T, b *rabbittest.Broker) {
	aboutSlots(t) // a retry that publishes nothing goes on, as package native tests
	w := newWorldOn(t, b)
	release, done := make(chan struct{}), make(chan struct{})
	var held atomic.Int64
	hold := func(cfg *hopback.ConsumerConfig) {
		cfg.Concurrency, cfg.Prefetch = 100, 150
		inner := cfg.Handler
		cfg.Handler = hopback.HandlerFunc(func(ctx context.Context, m *hopback.Message) error {
			if m.Attempt == 1 {
				held.Add(1)
				<-release
			}
			return inner.Handle(ctx, m)
		})
	}
	c := newCrowd(t, w, w.url, 0, hold)

	// One that leaves while the alarm is on, in a virtual host of its own.
	lw := newWorldOn(t, b)
	lw.declare("leaver", "quorum")
	leaver := newLedger()
	leaverHandler := func(fail bool) hopback.Handler {
		return leaver.handler(hopback.HandlerFunc(func(context.Context, *hopback.Message) error {
			if !fail {
				return nil
			}
			<-release
			return errCrowd
		}))
	}
	leaves := lw.newClient()
	leaving := lw.runConsumerOn(leaves, hopback.ConsumerConfig{
		Route: quickRoute("leaver", 3), Handler: leaverHandler(true), Concurrency: 20, ShutdownTimeout: 2 * time.Second,
	})

	c.feed(100)
	leaver.send(lw, "leaver", 20)
	eventually(t, "all handlers are running", func() bool {
		return held.Load() == 200 && runsOf(leaver) == 20
	})
	if err := b.MemoryAlarm(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.MemoryAlarm(context.Background(), false) }) //nolint:errcheck // off already, in a test that passed
	constant := func() bool {
		n := w.channels()
		return n["crowd (consume)"] == 2 && n["crowd (publish)"] == 2
	}
	eventually(t, "the crowd has two channels that consume and two that publish, one a consumer", constant)
	close(release)
	eventually(t, "the client is blocked", func() bool { return c.blocks.Load() > 0 })

	go func() {
		defer close(done)
		time.Sleep(alarmFor())
	}()
	// Half of the crowd succeed at once and need no publish; the others wait.
	for _, q := range c.queues {
		eventually(t, "what was handled is acknowledged during the alarm", func() bool { return w.unacked(q) <= 50 })
	}
	within(t, patience, "a consumer that is told to stop during an alarm ends", func() {
		if err := leaving.stop(); err == nil {
			t.Error("stopped during an alarm with 20 hand-offs under way, and Run returned nil")
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if err := leaves.Close(ctx); err != nil {
			t.Errorf("close the client: %v", err)
		}
	})
	<-done
	eventually(t, "the crowd still has four channels", constant)
	if c.retried.Load() > 0 {
		t.Errorf("%d hand-offs were confirmed during the alarm: it is none", c.retried.Load())
	}
	if err := b.MemoryAlarm(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if duplicates := c.finish(t); duplicates > 0 && c.reconnects.Load() == 0 {
		t.Errorf("%d duplicates, and no connection was lost", duplicates)
	}

	again := lw.runConsumer(hopback.ConsumerConfig{Route: quickRoute("leaver", 3), Handler: leaverHandler(false)})
	eventually(t, "the leaver's messages are handled by another", func() bool { return leaver.handledCount() == 20 })
	if err := again.stop(); err != nil {
		t.Error(err)
	}
	leaver.check(lw)
}

// runsOf counts the runs of a ledger's handler.
func runsOf(l *ledger) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, a := range l.attempts {
		n += len(a)
	}
	return n
}

// A broker that permits none of the features which RabbitMQ 4 deprecates: all
// that is declared is durable, and the prefetch is each consumer's.
func TestDeprecatedFeaturesOff(t *testing.T) {
	t.Parallel()
	newWorld(t) // for its skip where there is no broker
	if v := shared.broker.Version(); strings.HasPrefix(v, "3.") {
		t.Skipf("RabbitMQ %s deprecates nothing yet", v)
	}
	b := faultBroker(t,
		"deprecated_features.permit.transient_nonexcl_queues = false",
		"deprecated_features.permit.global_qos = false",
	)
	w := newWorldOn(t, b)
	c := newCrowd(t, w, w.url, 0)
	c.feed(20)
	if n := c.finish(t); n > 0 {
		t.Errorf("%d duplicates, and nothing went wrong", n)
	}
}
