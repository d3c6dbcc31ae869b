package integration

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hopback/hopback"
)

// A handler that outlives its connection and then succeeds: its late
// acknowledgement belongs to a delivery tag that is another message by now, and
// must not acknowledge that.
func TestStaleAcknowledgement(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, w *world) {
		proxy := w.broker.Proxy(t)
		client := w.newClient(func(cfg *hopback.Config) { cfg.URL = proxy.URL(w.url) })
		var k calls
		release := map[string]chan struct{}{"A": make(chan struct{}), "D": make(chan struct{})}
		r := w.runConsumerOn(client, hopback.ConsumerConfig{
			Route: quickRoute("work", 3), Concurrency: 4, Prefetch: 1,
			Handler: k.handler(func(_ context.Context, m *hopback.Message) error {
				if !m.Redelivered {
					<-release[m.MessageID] // the first time; nobody listens to ctx here
				}
				return nil
			}),
		})
		w.send("work", "A")
		eventually(t, "A is in work, with tag 1", func() bool { return len(k.of("A")) == 1 })
		proxy.Refuse(true)
		proxy.Cut()

		// Somebody else takes A, so that tag 1 of the next channel is D.
		other := w.channel()
		defer other.Close()
		eventually(t, "A is back on its queue", func() bool {
			d, ok, err := other.Get("work", false)
			if err != nil {
				t.Fatal(err)
			}
			if ok && d.MessageId != "A" {
				t.Fatalf("got %q, want A", d.MessageId)
			}
			return ok
		})
		w.send("work", "D")
		proxy.Refuse(false)
		eventually(t, "D is in work, with tag 1", func() bool { return len(k.of("D")) == 1 })
		close(release["A"])
		eventually(t, "the handler of A returned", func() bool { return !k.of("A")[0].Ended.IsZero() })
		time.Sleep(200 * time.Millisecond) // for an acknowledgement that should not be

		// If D was acknowledged it is gone with this connection; else it comes again.
		proxy.Cut()
		eventually(t, "D is delivered again", func() bool { return len(k.of("D")) == 2 })
		close(release["D"])
		if err := r.stop(); err != nil {
			t.Error(err)
		}
		if err := other.Close(); err != nil { // gives A back
			t.Fatal(err)
		}
		if got := w.awaitParked("work", 1); got[0].MessageId != "A" {
			t.Errorf("%q is left, want A alone", got[0].MessageId)
		}
	})
}

// A shutdown with messages in work. With time enough all are finished, and none
// is delivered twice; without, none is lost, and the next consumer sees that
// they were delivered before.
func TestShutdownWithWorkInFlight(t *testing.T) {
	t.Parallel()
	const n = 20
	t.Run("time enough", func(t *testing.T) {
		t.Parallel()
		eachKind(t, func(t *testing.T, w *world) {
			l := newLedger()
			started := make(chan struct{}, n)
			cfg := hopback.ConsumerConfig{
				Route: quickRoute("work", 3), Concurrency: n, ShutdownTimeout: patience,
				Handler: l.handler(hopback.HandlerFunc(func(_ context.Context, m *hopback.Message) error {
					if m.Attempt > 1 {
						return nil
					}
					started <- struct{}{}
					time.Sleep(400 * time.Millisecond)
					if crowdFate(m.MessageID)%2 == 0 {
						return errCrowd
					}
					return nil
				})),
			}
			r := w.runConsumer(cfg)
			l.send(w, "work", n)
			for range n {
				<-started
			}
			if err := r.stop(); err != nil {
				t.Errorf("stopped with time enough: %v", err)
			}
			if got := l.handledCount(); got != n/2 {
				t.Errorf("%d handled when Run returned, want those %d that succeed", got, n/2)
			}
			again := w.runConsumer(cfg)
			eventually(t, "the others come back from their slot", func() bool { return l.handledCount() == n })
			if err := again.stop(); err != nil {
				t.Error(err)
			}
			if s := l.check(w); len(s.Duplicates) > 0 {
				t.Errorf("delivered twice: %v", s.Duplicates)
			}
			for id, a := range l.attempts {
				if want := 2 - crowdFate(id)%2; len(a) != want {
					t.Errorf("%s: attempts %v, want %d of them", id, a, want)
				}
			}
		})
	})
	t.Run("too little", func(t *testing.T) {
		t.Parallel()
		eachKind(t, func(t *testing.T, w *world) {
			l := newLedger()
			var k calls
			started, late := make(chan struct{}, n), make(chan struct{})
			var ended atomic.Int64
			r := w.runConsumer(hopback.ConsumerConfig{
				Route: quickRoute("work", 3), Concurrency: n, ShutdownTimeout: 300 * time.Millisecond,
				Handler: hopback.HandlerFunc(func(ctx context.Context, m *hopback.Message) error {
					defer ended.Add(1)
					started <- struct{}{}
					switch crowdFate(m.MessageID) % 4 {
					case 0: // listens, and says so
						<-ctx.Done()
						return ctx.Err()
					case 1: // listens, and says something else
						<-ctx.Done()
						return errors.New("interrupted")
					case 2: // does not listen, and succeeds when all is over
						<-late
						return nil
					default: // the same, and fails
						<-late
						return errCrowd
					}
				}),
			})
			l.send(w, "work", n)
			for range n {
				<-started
			}
			if err := r.stop(); !errors.Is(err, hopback.ErrShutdownTimeout) {
				t.Errorf("stopped with too little time: %v, want ErrShutdownTimeout", err)
			}
			eventually(t, "all are back on their queue", func() bool { return w.depth("work") == n })
			close(late) // handlers that end now settle nothing
			eventually(t, "the last handler ended", func() bool { return ended.Load() == n })

			again := w.runConsumer(hopback.ConsumerConfig{
				Route: quickRoute("work", 3), Handler: l.handler(k.handler(func(context.Context, *hopback.Message) error { return nil })),
			})
			eventually(t, "another consumer handles all", func() bool { return l.handledCount() == n })
			if err := again.stop(); err != nil {
				t.Error(err)
			}
			for _, c := range k.of() {
				if !c.Redelivered || c.Attempt != 1 {
					t.Errorf("%s: redelivered %t, attempt %d; want true and 1: an interruption is no failure", c.MessageID, c.Redelivered, c.Attempt)
				}
			}
			if s := l.check(w); len(s.Duplicates) > 0 {
				t.Errorf("there twice: %v", s.Duplicates)
			}
		})
	})
}

// A consumer that runs out of time when it stops does no harm to another one of
// the same client.
func TestShutdownDisturbsNobodyElse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.declare("stops", "quorum")
	w.declare("stays", "quorum")
	var stops, stays calls
	late := make(chan struct{})
	defer close(late)
	wait := func(context.Context, *hopback.Message) error { <-late; return nil }
	a := w.runConsumer(hopback.ConsumerConfig{Route: quickRoute("stops", 3), ShutdownTimeout: 200 * time.Millisecond, Handler: stops.handler(wait)})
	release := make(chan struct{})
	b := w.runConsumer(hopback.ConsumerConfig{Route: quickRoute("stays", 3), Handler: stays.handler(func(context.Context, *hopback.Message) error {
		<-release
		return nil
	})})
	w.send("stops", "1")
	w.send("stays", "2")
	eventually(t, "both are in work", func() bool { return len(stops.of()) == 1 && len(stays.of()) == 1 })
	if err := a.stop(); !errors.Is(err, hopback.ErrShutdownTimeout) {
		t.Errorf("stopped with a handler that does not return: %v, want ErrShutdownTimeout", err)
	}
	eventually(t, "its message is back", func() bool { return w.depth("stops") == 1 })
	if !b.Ready() {
		t.Errorf("the other consumer is not subscribed any more: %v", b.Healthy())
	}
	close(release)
	eventually(t, "the other's message is handled", func() bool { return len(w.events.of("handled", "2")) == 1 })
	if err := b.stop(); err != nil {
		t.Error(err)
	}
	if n := len(stays.of()); n != 1 {
		t.Errorf("the other consumer's message was delivered %d times: the shutdown cut its connection", n)
	}
	if e := w.events.of("reconnected"); len(e) > 0 {
		t.Errorf("%d reconnects: the shutdown cut the connection that both share", len(e))
	}
}

// Run and Close end in time while the broker says nothing at all: before the
// connection is there, and in the midst of subscribing.
func TestShutdownOfAFrozenBroker(t *testing.T) {
	t.Parallel()
	t.Run("not connected", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.declare("work", "quorum")
		proxy := w.broker.Proxy(t)
		proxy.Freeze(true)
		endFrozen(t, w, proxy.URL(w.url), func() bool { return true })
	})
	for name, method := range map[string][]byte{
		"declaring":   {0, 20, 0, 10}, // channel.open, first sent to declare what is missing
		"subscribing": {0, 60, 0, 10}, // basic.qos
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "subscribing" && mechanism == hopback.Native {
				t.Skip("native subscribes over AMQP 1.0")
			}
			w := newWorld(t)
			w.declare("work", "quorum")
			gate := newGate(t, w.url)
			gate.holdFrom("consume"+toClient, method)
			endFrozen(t, w, gate.url(w.url), func() bool { return gate.holding("consume" + toClient) })
		})
	}
}

func endFrozen(t *testing.T, w *world, url string, frozen func() bool) {
	t.Helper()
	client, err := hopback.New(hopback.Config{URL: url, Heartbeat: 10 * time.Minute, Observer: w.events})
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.NewConsumer(hopback.ConsumerConfig{
		Route: quickRoute("work", 3), ShutdownTimeout: time.Second,
		Handler: hopback.HandlerFunc(func(context.Context, *hopback.Message) error { return nil }),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	eventually(t, "the broker is frozen", frozen)
	time.Sleep(300 * time.Millisecond)
	cancel()
	// The limit is a second; the client's own patience with a silent broker
	// would be minutes.
	within(t, 60*time.Second, "Run ends", func() { <-ended })
	within(t, 60*time.Second, "Close ends", func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := client.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
}
