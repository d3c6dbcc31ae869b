package integration

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/hopback/hopback"
)

// soak skips a test that takes many minutes.
func soak(t *testing.T) {
	t.Helper()
	if !soaking() {
		t.Skip("takes many minutes: HOPBACK_SOAK=1")
	}
}

// Ten minutes of everything that can happen to a broker and to its connections,
// in random order, under load; then a count.
func TestSoakRandomFaults(t *testing.T) {
	soak(t)
	b := faultBroker(t)
	w := newWorldOn(t, b)
	proxy := b.Proxy(t)
	c := newCrowd(t, w, proxy.URL(w.url), 2*time.Millisecond)
	time.Sleep(3 * time.Second) // see testRestart
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	pause := func(most time.Duration) { time.Sleep(time.Duration(r.Int64N(int64(most)))) }
	counts := map[string]int{}
	faults := []struct {
		name string
		do   func(context.Context) error
	}{
		{"restart", b.Restart},
		{"kill", func(ctx context.Context) error {
			if err := b.Kill(ctx); err != nil {
				return err
			}
			pause(3 * time.Second)
			return b.Start(ctx)
		}},
		{"cut", func(context.Context) error { proxy.Cut(); return nil }},
		{"cut", func(context.Context) error { proxy.Cut(); return nil }},
		{"close", b.CloseConnections},
		{"refuse", func(context.Context) error {
			proxy.Refuse(true)
			proxy.Cut()
			pause(4 * time.Second)
			proxy.Refuse(false)
			return nil
		}},
		{"freeze", func(context.Context) error {
			proxy.Freeze(true)
			pause(30 * time.Second) // longer than a confirm may take, now and then
			proxy.Freeze(false)
			return nil
		}},
		{"alarm", func(ctx context.Context) error {
			if err := b.MemoryAlarm(ctx, true); err != nil {
				return err
			}
			pause(10 * time.Second)
			return b.MemoryAlarm(ctx, false)
		}},
	}
	for end := time.Now().Add(10 * time.Minute); time.Now().Before(end); {
		c.feed(100)
		pause(time.Second)
		f := faults[r.IntN(len(faults))]
		counts[f.name]++
		w.hangUp()
		if err := f.do(t.Context()); err != nil {
			t.Fatalf("%s: %v", f.name, err)
		}
	}
	t.Logf("faults: %v", counts)
	c.finish(t)
}

// 200,000 messages wait in one slot, and the broker restarts in the midst of it:
// each comes back, and none is lost.
func TestSoakLargeSlot(t *testing.T) {
	soak(t)
	const n, wait = 200_000, 60 * time.Second
	b := faultBroker(t)
	w := newWorldOn(t, b)
	w.declare("work", "quorum")
	l := newLedger()
	w.client = w.newClient(func(cfg *hopback.Config) { cfg.Observer = hopback.NopObserver{} })
	route := quickRoute("work", 3)
	route.Policy.Base, route.Policy.Max, route.Policy.MaxRetryAfter = wait, wait, wait
	route.Ladder = []time.Duration{wait}
	r := w.runConsumer(hopback.ConsumerConfig{
		Route: route, Prefetch: 2000, Concurrency: 50,
		Handler: l.handler(hopback.HandlerFunc(func(_ context.Context, m *hopback.Message) error {
			if m.Attempt == 1 {
				return errCrowd
			}
			return nil
		})),
	})
	start := time.Now()
	l.send(w, "work", n)
	eventually(t, "all failed once", func() bool { return runsOf(l) >= n })
	t.Logf("%d handed off in %s", n, time.Since(start).Round(time.Second))
	w.hangUp()
	restart := time.Now()
	if err := b.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("restarted in %s", time.Since(restart).Round(time.Second))
	for deadline := time.Now().Add(15 * time.Minute); l.handledCount() < n; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d handled\n%s", l.handledCount(), n, w.contents())
		}
	}
	t.Logf("all back %s after the restart", time.Since(restart).Round(time.Second))
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	l.check(w)
}

// A work queue that refuses what comes back, because it is full, on a broker
// with its own time of three minutes: the message stays in its slot and is
// delivered when there is room.
func TestSoakRefusingWorkQueue(t *testing.T) {
	soak(t)
	w := newWorldOn(t, faultBroker(t))
	w.declare("full", "classic", "x-max-length", int64(1), "x-overflow", "reject-publish")
	w.declare("other", "quorum")
	wait := 2 * time.Second
	route := func(queue string, isolate bool) hopback.Route {
		r := quickRoute(queue, 3)
		r.Isolate = isolate
		r.Policy.Base, r.Policy.Max, r.Policy.MaxRetryAfter = wait, wait, wait
		r.Ladder = []time.Duration{wait}
		return r
	}
	l := newLedger()
	release := make(chan struct{})
	handle := l.handler(hopback.HandlerFunc(func(_ context.Context, m *hopback.Message) error {
		switch {
		case m.MessageID == "full-1":
			<-release
		case m.MessageID != "full-2" && m.Attempt == 1:
			return errCrowd
		}
		return nil
	}))
	full := w.runConsumer(hopback.ConsumerConfig{Route: route("full", true), Handler: handle, Concurrency: 1, Prefetch: 1})
	other := w.runConsumer(hopback.ConsumerConfig{Route: route("other", false), Handler: handle})

	l.send(w, "full", 1) // full-0 fails and waits
	eventually(t, "full-0 waits in its slot", func() bool { return len(w.events.of("retried", "full-0")) == 1 })
	l.send(w, "full", 1) // full-1 is in work for as long as we like
	eventually(t, "full-1 is in work", func() bool { return runsOf(l) == 2 })
	l.send(w, "full", 1) // full-2 fills the queue
	eventually(t, "the queue refuses full-0, which stays in its slot", func() bool {
		return strings.Contains(w.contents(), "hop.full.delay.2s: 0 ready, 0 with consumers, 1 being dead-lettered")
	})
	if n := w.depth("full"); n != 1 {
		t.Errorf("%d messages in the full queue, want full-2 alone", n)
	}
	l.send(w, "other", 40) // more than one dead-letter worker can hold
	eventually(t, "the other route's messages come back", func() bool { return l.handledCount() == 40 })

	close(release)
	for deadline := time.Now().Add(patience + 4*time.Minute); l.handledCount() < 43; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d of 43 handled: the message did not come back when there was room\n%s", l.handledCount(), w.contents())
		}
	}
	for _, r := range []*running{full, other} {
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	}
	if s := l.check(w); len(s.Duplicates) > 0 {
		t.Errorf("there twice: %v", s.Duplicates)
	}
}

// A delay that is longer than the broker lets a consumer hold a message: it is
// not held, and no channel is closed for it.
func TestSoakConsumerTimeout(t *testing.T) {
	soak(t)
	b := faultBroker(t, "consumer_timeout = 60000")
	w := newWorldOn(t, b)
	c := newCrowd(t, w, w.url, 0, func(cfg *hopback.ConsumerConfig) {
		p := &cfg.Route.Policy
		p.Base, p.Max, p.MaxRetryAfter, p.Jitter = 150*time.Second, 150*time.Second, 150*time.Second, hopback.NoJitter
		p.MaxRetries = 1
		cfg.Handler = hopback.HandlerFunc(func(context.Context, *hopback.Message) error { return errCrowd })
	})
	c.feed(10)
	deadline := time.Now().Add(patience + 5*time.Minute)
	for c.settled() < 20 {
		if time.Now().After(deadline) {
			t.Fatalf("%d of 20 settled\n%s", c.settled(), w.contents())
		}
		time.Sleep(time.Second)
	}
	for _, r := range c.runs {
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	}
	if log := w.log.String(); strings.Contains(log, "406") || strings.Contains(log, "timed out") {
		t.Errorf("the broker closed a channel:\n%s", log)
	}
	if s := c.check(w); s.Parked != 20 {
		t.Errorf("%v, want all parked", s)
	}
}
