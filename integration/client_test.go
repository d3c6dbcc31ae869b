package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/topology"
)

func TestReadyAndHealthy(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, w *world) {
		proxy := w.broker.Proxy(t)
		client := w.newClient(func(c *hopback.Config) { c.URL = proxy.URL(w.url) })
		cfg := hopback.ConsumerConfig{Route: quickRoute("work", 3), Handler: hopback.HandlerFunc(failing(1))}
		idle, err := client.NewConsumer(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if idle.Ready() || idle.Healthy() == nil {
			t.Error("ready before Run")
		}
		c := w.runConsumerOn(client, cfg)
		if err := c.Healthy(); err != nil {
			t.Errorf("subscribed, and not healthy: %v", err)
		}

		// The queue goes, and comes back.
		ch := w.channel()
		defer ch.Close()
		kind := "quorum"
		for _, q := range w.queues() {
			if q.Name == "work" {
				kind = q.Type
			}
		}
		if _, err := ch.QueueDelete("work", false, false, false); err != nil {
			t.Fatal(err)
		}
		eventually(t, "not ready without its queue", func() bool { return !c.Ready() })
		eventually(t, "it says that the queue is missing", func() bool {
			err := c.Healthy()
			return err != nil && strings.Contains(err.Error(), "work")
		})
		w.declare("work", kind)
		eventually(t, "ready again", c.Ready)
		w.send("work", "after the queue")
		eventually(t, "handled", func() bool { return len(w.events.of("handled", "after the queue")) == 1 })

		// The connections go, and come back.
		proxy.Refuse(true)
		proxy.Cut()
		eventually(t, "not ready without connection", func() bool { return !c.Ready() })
		if c.Healthy() == nil {
			t.Error("healthy without connection")
		}
		proxy.Refuse(false)
		eventually(t, "ready again", c.Ready)
		w.send("work", "after the cut")
		eventually(t, "handled", func() bool { return len(w.events.of("handled", "after the cut")) == 1 })
		eventually(t, "both connections are told as back", func() bool {
			var names []string
			for _, e := range w.events.of("reconnected") {
				names = append(names, e.Connection)
			}
			return slices.Contains(names, "consume") && slices.Contains(names, "publish")
		})

		if err := c.stop(); err != nil {
			t.Errorf("Run returned %v", err)
		}
		if c.Ready() || c.Healthy() == nil {
			t.Error("ready after the end of Run")
		}
	})
}

// A consumer can be run again, but not twice at once.
func TestRunAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.declare("work", "quorum")
	c := w.runConsumer(hopback.ConsumerConfig{Route: quickRoute("work", 3), Handler: hopback.HandlerFunc(failing(1))})
	if err := c.Run(t.Context()); err == nil {
		t.Error("a second Run at the same time returned nil")
	}
	if !c.Ready() {
		t.Error("the second Run has made the first one not ready")
	}
	if err := c.stop(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- c.Run(ctx) }()
	eventually(t, "ready again", c.Ready)
	w.send("work", "m")
	eventually(t, "handled", func() bool { return len(w.events.of("handled")) == 1 })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// What cannot work is returned at once, and names what is wrong.
func TestRunRefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.declare("work", "quorum")
	w.declare("hop2.delay.100ms", "quorum", "x-message-ttl", int64(5000))
	for _, tt := range []struct {
		name   string
		change func(*hopback.Config)
		queue  string
		is     error
		words  []string
	}{
		{"no work queue", func(*hopback.Config) {}, "nowhere", topology.ErrMissing, []string{"nowhere"}},
		{"another slot", func(c *hopback.Config) { c.Prefix = "hop2" }, "work", topology.ErrMismatch, []string{"hop2.delay.100ms"}},
		{"another password", func(c *hopback.Config) { c.URL = strings.Replace(c.URL, "guest:guest", "guest:s3cret", 1) }, "work", nil, []string{"403"}},
		{"no virtual host", func(c *hopback.Config) { c.URL += "-not" }, "work", nil, []string{"vhost"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if tt.name == "another slot" {
				aboutSlots(t)
			}
			client := w.newClient(tt.change)
			c, err := client.NewConsumer(hopback.ConsumerConfig{Route: quickRoute(tt.queue, 3), Handler: hopback.HandlerFunc(failing(1))})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			err = c.Run(ctx)
			if err == nil || ctx.Err() != nil {
				t.Fatalf("Run returned %v, and its context %v", err, ctx.Err())
			}
			if tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("Run returned %v, want %v", err, tt.is)
			}
			for _, word := range tt.words {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("Run returned %q, without %q", err, word)
				}
			}
			if strings.Contains(err.Error(), "s3cret") || strings.Contains(w.log.String(), "s3cret") {
				t.Errorf("the password was told: %v", err)
			}
		})
	}
}

const oddPassword = "p@ss/w:rd#?%&+ é"

// Virtual hosts, a password and a queue with everything that URLs are sensitive
// to. The password is in no log and in no error.
func TestOddVhostsAndPassword(t *testing.T) {
	t.Parallel()
	b := newWorld(t).broker
	for _, vhost := range []string{"a/b", "a%2Fb", "é ü #?&"} {
		t.Run(vhost, func(t *testing.T) {
			t.Parallel()
			if err := b.AddVhost(t.Context(), vhost); err != nil {
				t.Fatal(err)
			}
			user := fmt.Sprintf("u/@:%d", rand.Uint64())
			if err := b.AddUser(t.Context(), user, oddPassword, vhost, ".*", ".*", ".*"); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				err := errors.Join(b.DeleteVhost(context.Background(), vhost), b.Delete(context.Background(), "/api/users/"+url.PathEscape(user)))
				if err != nil {
					t.Error(err)
				}
			})
			w := newWorldIn(t, b, b.VhostURL(vhost))
			const name = "q/1 %2F é#?"
			w.declare(name, "quorum")
			proxy := b.Proxy(t)
			client := w.newClient(func(c *hopback.Config) {
				u, err := url.Parse(proxy.URL(w.url))
				if err != nil {
					t.Fatal(err)
				}
				u.User = url.UserPassword(user, oddPassword)
				c.URL = u.String()
				management, err := url.Parse(b.ManagementURL())
				if err != nil {
					t.Fatal(err)
				}
				c.Management = &topology.Management{URL: management.String(), Vhost: vhost}
			})
			c := w.runConsumerOn(client, hopback.ConsumerConfig{Route: quickRoute(name, 1), Handler: hopback.HandlerFunc(failing(9))})
			w.send(name, "m")
			d := w.awaitParked(name+".parked", 1)[0]
			if d.Headers[attempt.HeaderQueue] != name {
				t.Errorf("parked with %v", d.Headers)
			}
			// And now some trouble to log about.
			proxy.Refuse(true)
			proxy.Cut()
			eventually(t, "trouble is logged", func() bool { return strings.Contains(w.log.String(), "cannot connect") })
			told := fmt.Sprint(w.log.String(), c.Healthy())
			proxy.Refuse(false)
			eventually(t, "ready again", c.Ready)
			for _, secret := range []string{oddPassword, url.QueryEscape(oddPassword), url.PathEscape(oddPassword), "p%40ss", "ss/w", "p@ss"} {
				if strings.Contains(told, secret) {
					t.Errorf("the password is told as %q", secret)
				}
			}
		})
	}
}

// URLs that cannot work are refused without being repeated.
func TestUnusableURLTellsNoPassword(t *testing.T) {
	t.Parallel()
	for _, u := range []string{
		"amqp://guest:" + oddPassword + "@localhost/",
		"http://guest:s3cret@localhost/",
		"amqp://guest:s3cret@local host/",
		"guest:s3cret@localhost",
		"amqp://guest:s3cret@localhost:port/",
		"amqp://guest:x@s3cret/y@localhost/",
		"",
	} {
		_, err := hopback.New(hopback.Config{URL: u})
		var bad *hopback.ConfigError
		if !errors.As(err, &bad) || bad.Field != "URL" {
			t.Errorf("%s: %v", u, err)
			continue
		}
		for _, secret := range []string{"s3cret", "p@ss", "w:rd"} {
			if strings.Contains(err.Error(), secret) {
				t.Errorf("%s: the password is told: %v", u, err)
			}
		}
	}
}

// Events come in order, each with what it promises.
func TestObserverIsToldEverything(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, w *world) {
		const took = 20 * time.Millisecond
		var seen calls
		c := w.runConsumer(hopback.ConsumerConfig{
			Route: quickRoute("work", 2),
			Handler: seen.handler(func(_ context.Context, m *hopback.Message) error {
				time.Sleep(took)
				return fmt.Errorf("attempt %d: %w", m.Attempt, errBusy)
			}),
		})
		w.send("work", "m")
		w.awaitParked("work.parked", 1)
		if err := c.stop(); err != nil {
			t.Fatal(err)
		}
		if s := w.events.story("m"); s != "received 1, retried 1, received 2, retried 2, received 3, parked 3" {
			t.Errorf("events: %s", s)
		}
		id := seen.of()[1].RetryID
		for what, n := range map[string]int{"received": 3, "retried": 2, "parked": 1} {
			events := w.events.of(what)
			if len(events) != n {
				t.Fatalf("%d times %s, want %d", len(events), what, n)
			}
			for i, e := range events {
				if e.Queue != "work" || e.MessageID != "m" || e.Redelivered {
					t.Errorf("%s %d: %+v", what, i, e)
				}
				wantID := id
				if what == "received" && i == 0 {
					wantID = ""
				}
				if e.RetryID != wantID {
					t.Errorf("%s %d: retry id %q, want %q", what, i, e.RetryID, wantID)
				}
				if what != "received" && (!errors.Is(e.Err, errBusy) || e.Err.Error() != fmt.Sprintf("attempt %d: try again later", e.Attempt)) {
					t.Errorf("%s %d: error %v", what, i, e.Err)
				}
				if what == "retried" && (e.Reason != hopback.ReasonError || e.Delay != 100*time.Millisecond || e.Took < took) {
					t.Errorf("retried %d: %+v", i, e)
				}
				if what == "parked" && e.Reason != attempt.ReasonExhausted {
					t.Errorf("parked: %+v", e)
				}
			}
		}
	})
}

// panicking is an observer that harms nobody.
type panicking struct{ hopback.NopObserver }

func (panicking) Received(hopback.Received) { panic("received") }
func (panicking) Handled(hopback.Handled)   { panic("handled") }
func (panicking) Retried(hopback.Retried)   { panic("retried") }
func (panicking) Parked(hopback.Parked)     { panic("parked") }

func TestPanickingObserver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.declare("work", "quorum")
	client := w.newClient(func(c *hopback.Config) { c.Observer = panicking{} })
	var seen calls
	w.runConsumerOn(client, hopback.ConsumerConfig{Route: quickRoute("work", 1), Handler: seen.handler(func(ctx context.Context, m *hopback.Message) error {
		if m.MessageID == "good" {
			return nil
		}
		return errBusy
	})})
	w.send("work", "good", "bad")
	w.awaitParked("work.parked", 1)
	eventually(t, "the good one ran", func() bool { return len(seen.of("good")) == 1 })
	if n := len(seen.of("bad")); n != 2 {
		t.Errorf("the bad one ran %d times, want 2", n)
	}
	if !strings.Contains(w.log.String(), "observer panicked") {
		t.Error("nothing was logged")
	}
}

// A work queue that can refuse a message gets slots of its own, where the
// management API can be asked.
func TestQueueThatRefusesIsIsolated(t *testing.T) {
	aboutSlots(t)
	t.Parallel()
	w := newWorld(t)
	w.declare("work", "classic", "x-max-length", int32(1000), "x-overflow", "reject-publish")
	client := w.newClient(func(c *hopback.Config) {
		c.Management = &topology.Management{URL: w.broker.ManagementURL(), Vhost: w.vhost}
	})
	var seen calls
	w.runConsumerOn(client, hopback.ConsumerConfig{Route: quickRoute("work", 1), Handler: seen.handler(failing(1))})
	w.send("work", "m")
	eventually(t, "handled", func() bool { return len(w.events.of("handled")) == 1 })
	death := seen.of()[1].Headers["x-death"].([]any)[0].(amqp.Table)
	if death["queue"] != "hop.work.delay.100ms" {
		t.Errorf("it waited in %v", death["queue"])
	}
	for _, q := range w.queues() {
		if q.Name == "hop.delay.100ms" {
			t.Error("a shared slot was declared")
		}
	}
	if log := w.log.String(); !strings.Contains(log, "isolated=true") || !strings.Contains(log, "reject-publish") {
		t.Errorf("not said why: %s", log)
	}
}

// Routes can ask for their queue, and `hopback apply` can be the only one that
// declares.
func TestDeclareAndSkipDeclare(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, w *world) {
		kind := strings.TrimPrefix(t.Name()[strings.LastIndex(t.Name(), "/"):], "/")
		r := quickRoute("made", 2)
		r.Declare = &hopback.Declare{Type: kind, Exchange: "shop", RoutingKey: "order.*", Args: amqp.Table{"x-max-length": int64(500)}}
		top, err := hopback.Topology("", r)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := amqp.Dial(w.url)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := topology.Apply(t.Context(), conn, top); err != nil {
			t.Fatal(err)
		}
		user := fmt.Sprintf("consumer-%d", rand.Uint64())
		if err := w.broker.AddUser(t.Context(), user, "s3cret", w.vhost, "", ".*", ".*"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := w.broker.Delete(context.Background(), "/api/users/"+user); err != nil {
				t.Error(err)
			}
		})
		client := w.newClient(func(c *hopback.Config) {
			c.URL = strings.Replace(c.URL, "guest:guest", user+":s3cret", 1)
			c.SkipDeclare = true
		})
		var seen calls
		w.runConsumerOn(client, hopback.ConsumerConfig{Route: r, Handler: seen.handler(failing(9))})
		w.publish("shop", "order.create", order("m"))
		d := w.awaitParked("made.parked", 1)[0]
		if d.Headers[attempt.HeaderExchange] != "shop" || len(seen.of()) != 3 {
			t.Errorf("%d runs, parked with %v", len(seen.of()), d.Headers)
		}
		for _, q := range w.queues() {
			if q.Name == "made" && (q.Type != kind || q.Args["x-max-length"] != float64(500)) {
				t.Errorf("made as %+v", q)
			}
		}
	})
}
