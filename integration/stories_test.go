package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/attempt"
)

// The three life stories of a message. "work" is bound to the topic exchange
// "shop", and messages are published there, so that the way back and the way in
// are different ways.

var errRefused = errors.New("connection refused")

// failing is a handler that fails n times on each message, by its own count of
// attempts, and then succeeds.
func failing(n int) func(context.Context, *hopback.Message) error {
	return func(_ context.Context, m *hopback.Message) error {
		if m.Attempt <= n {
			return fmt.Errorf("attempt %d: %w", m.Attempt, errRefused)
		}
		return nil
	}
}

func (w *world) shop() {
	w.exchange("shop", "topic")
	w.bind("work", "order.#", "shop", nil)
}

func order(id string) amqp.Publishing {
	return amqp.Publishing{
		MessageId: id, ContentType: "application/json", DeliveryMode: amqp.Persistent,
		Headers: amqp.Table{"tenant": "acme"}, Body: []byte(`{"id":"` + id + `"}`),
	}
}

// eachRoute runs a test for both kinds of work queue and each mechanism.
func eachRoute(t *testing.T, retries int, f func(t *testing.T, w *world, r hopback.Route)) {
	t.Helper()
	eachKind(t, func(t *testing.T, w *world) {
		t.Run("ladder", func(t *testing.T) { f(t, w, quickRoute("work", retries)) })
	})
	t.Run("wheel", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.declare("work", "quorum")
		f(t, w, hopback.Route{Queue: "work", Policy: quick(retries), Mechanism: hopback.Wheel})
	})
	t.Run("native", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		needsNative(t, w.broker)
		w.declare("work", "quorum")
		f(t, w, hopback.Route{Queue: "work", Policy: quick(retries), Mechanism: hopback.Native})
	})
}

func TestStorySuccessTheFirstTime(t *testing.T) {
	t.Parallel()
	eachRoute(t, 3, func(t *testing.T, w *world, r hopback.Route) {
		w.shop()
		var seen calls
		c := w.runConsumer(hopback.ConsumerConfig{Route: r, Handler: seen.handler(failing(0))})
		w.publish("shop", "order.create", order("m1"))
		eventually(t, "handled", func() bool { return len(w.events.of("handled")) == 1 })
		if err := c.stop(); err != nil {
			t.Error(err)
		}
		k := seen.of()
		if len(k) != 1 {
			t.Fatalf("the handler ran %d times, want once", len(k))
		}
		m := k[0]
		if m.Attempt != 1 || m.Retries != 0 || m.RetryID != "" || m.Redelivered || m.LastError != "" || !m.FirstFailedAt.IsZero() {
			t.Errorf("a first attempt looks like a retry: %+v", m.Message)
		}
		if _, there := m.Headers[attempt.HeaderCount]; there {
			t.Errorf("%s is there before the first failure: %v", attempt.HeaderCount, m.Headers)
		}
		if m.Exchange != "shop" || m.RoutingKey != "order.create" || m.Queue != "work" {
			t.Errorf("exchange %q, key %q, queue %q", m.Exchange, m.RoutingKey, m.Queue)
		}
		if got, want := w.events.story("m1"), "received 1, handled 1"; got != want {
			t.Errorf("events: %s; want %s", got, want)
		}
		for _, q := range w.queues() {
			if n := w.depth(q.Name); n != 0 {
				t.Errorf("%d messages are left in %q", n, q.Name)
			}
		}
	})
}

func TestStorySuccessAfterTransientFailures(t *testing.T) {
	t.Parallel()
	const most = 3
	eachRoute(t, most, func(t *testing.T, w *world, r hopback.Route) {
		w.shop()
		var seen calls
		c := w.runConsumer(hopback.ConsumerConfig{
			Route: r,
			Handler: seen.handler(func(ctx context.Context, m *hopback.Message) error {
				return failing(int(m.Headers["fail"].(int64)))(ctx, m)
			}),
		})
		for n := 1; n <= most; n++ {
			o := order(fmt.Sprint("fails-", n))
			o.Headers["fail"] = int64(n)
			w.publish("shop", "order.create", o)
		}
		eventually(t, "handled", func() bool { return len(w.events.of("handled")) == most })
		if err := c.stop(); err != nil {
			t.Error(err)
		}
		for n := 1; n <= most; n++ {
			id := fmt.Sprint("fails-", n)
			k := seen.of(id)
			if len(k) != n+1 {
				t.Fatalf("%s: the handler ran %d times, want %d", id, len(k), n+1)
			}
			var story []string
			for i, m := range k {
				story = append(story, fmt.Sprint("received ", i+1))
				if i < n {
					story = append(story, fmt.Sprint("retried ", i+1))
				} else {
					story = append(story, fmt.Sprint("handled ", i+1))
				}
				if m.Attempt != i+1 || m.Retries != i {
					t.Errorf("%s, run %d: Attempt %d, Retries %d", id, i, m.Attempt, m.Retries)
				}
				if m.Exchange != "shop" || m.RoutingKey != "order.create" || string(m.Body) != `{"id":"`+id+`"}` || m.Headers["tenant"] != "acme" {
					t.Errorf("%s, run %d: not the same message: %+v", id, i, m.Message)
				}
				if i == 0 {
					continue
				}
				// An int32, since consumers in the wild type-assert it.
				if count, ok := m.Headers[attempt.HeaderCount].(int32); !ok || int(count) != i {
					t.Errorf("%s, run %d: %s is %T %[4]v", id, i, attempt.HeaderCount, m.Headers[attempt.HeaderCount])
				}
				if m.RetryID == "" || m.RetryID != k[1].RetryID {
					t.Errorf("%s, run %d: RetryID %q, was %q", id, i, m.RetryID, k[1].RetryID)
				}
				if want := fmt.Sprintf("attempt %d: connection refused", i); m.LastError != want {
					t.Errorf("%s, run %d: LastError %q, want %q", id, i, m.LastError, want)
				}
				if h := m.History(); len(h) != i || h[i-1].N != int32(i) || h[i-1].Delay != 100*time.Millisecond {
					t.Errorf("%s, run %d: history %+v", id, i, h)
				}
			}
			if got, want := w.events.story(id), strings.Join(story, ", "); got != want {
				t.Errorf("%s: events: %s; want %s", id, got, want)
			}
		}
		for _, q := range w.queues() {
			if n := w.depth(q.Name); n != 0 {
				t.Errorf("%d messages are left in %q", n, q.Name)
			}
		}
	})
}

func TestStoryParkedAtTheLimit(t *testing.T) {
	t.Parallel()
	eachRoute(t, 3, func(t *testing.T, w *world, r hopback.Route) {
		w.shop()
		var seen calls
		started := time.Now().Truncate(time.Millisecond)
		w.runConsumer(hopback.ConsumerConfig{Route: r, Handler: seen.handler(failing(99))})
		w.publish("shop", "order.create", order("m1"))
		d := w.awaitParked("work.parked", 1)[0]

		if k := seen.of(); len(k) != 4 {
			t.Errorf("the handler ran %d times, want 4", len(k))
		}
		if got, want := w.events.story("m1"), "received 1, retried 1, received 2, retried 2, received 3, retried 3, received 4, parked 4"; got != want {
			t.Errorf("events: %s; want %s", got, want)
		}
		want := amqp.Table{
			"tenant":                 "acme",
			attempt.HeaderCount:      int32(3),
			attempt.HeaderQueue:      "work",
			attempt.HeaderReason:     attempt.ReasonExhausted,
			attempt.HeaderExchange:   "shop",
			attempt.HeaderRoutingKey: "order.create",
			attempt.HeaderError:      "attempt 4: connection refused",
			attempt.HeaderErrorType:  "errors.errorString",
			attempt.HeaderPolicy:     "quick",
			attempt.HeaderID:         seen.of()[1].RetryID,
		}
		for k, v := range want {
			if d.Headers[k] != v {
				t.Errorf("%s is %T %[2]v, want %T %[3]v", k, d.Headers[k], v)
			}
		}
		for _, k := range []string{attempt.HeaderFirstFailedAt, attempt.HeaderFailedAt} {
			ms, ok := d.Headers[k].(int64)
			if at := time.UnixMilli(ms); !ok || at.Before(started) || at.After(time.Now()) {
				t.Errorf("%s is %T %[2]v", k, d.Headers[k])
			}
		}
		for _, k := range []string{attempt.HeaderDelay, attempt.HeaderDueAt, attempt.HeaderThen, "x-death", "x-first-death-queue"} {
			if v, there := d.Headers[k]; there {
				t.Errorf("a parked message has %s: %v", k, v)
			}
		}
		p := attempt.FromDelivery(&d)
		rec, err := attempt.Read(&p, attempt.Source{})
		if err != nil {
			t.Fatal(err)
		}
		h := rec.History()
		if len(h) != 4 {
			t.Fatalf("history %+v, want four lines", h)
		}
		for i, e := range h {
			wait := 100 * time.Millisecond
			if i == 3 {
				wait = 0
			}
			if e.N != int32(i+1) || e.Error != fmt.Sprintf("attempt %d: connection refused", i+1) || e.Delay != wait || e.Consumer == "" {
				t.Errorf("history line %d: %+v", i, e)
			}
			if i > 0 && e.At.Before(h[i-1].At.Add(h[i-1].Delay)) {
				t.Errorf("history line %d is earlier than its delay allows: %+v", i, h)
			}
		}
		if d.Expiration != "" || d.DeliveryMode != amqp.Persistent {
			t.Errorf("parked with expiration %q, delivery mode %d", d.Expiration, d.DeliveryMode)
		}
		// And nothing ends its rest: the queue has no TTL and no limit that a
		// look could reach.
		i := slices.IndexFunc(w.queues(), func(q queue) bool { return q.Name == "work.parked" })
		q := w.queues()[i]
		if q.Type != "quorum" || !q.Durable {
			t.Errorf("the parking queue is %+v", q)
		}
		for k := range q.Args {
			if k != "x-queue-type" && k != "x-delivery-limit" {
				t.Errorf("the parking queue has %s: %v", k, q.Args[k])
			}
		}
	})
}
