package integration

import (
	"context"
	"slices"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/attempt"
)

// An existing three-tier set-up, with its own names and arguments, is adopted by
// configuration alone: nothing of it is declared again or changed.

func classicSetup(w *world) {
	w.exchange("main.exchange", "direct")
	w.exchange("retry.exchange", "direct")
	w.declare("payment.main.queue", "classic",
		"x-dead-letter-exchange", "retry.exchange", "x-dead-letter-routing-key", "payment.retry", "x-max-priority", int32(5))
	w.bind("payment.main.queue", "payment.execute", "main.exchange", nil)
	// As PHP or Python would: 32-bit integers, and arguments that we would not give.
	w.declare("payment.error.dlq", "classic", "x-max-length", int32(100_000), "x-overflow", "drop-head")
}

func classicRoute(rung time.Duration) hopback.Route {
	return hopback.Route{
		Queue: "payment.main.queue", Parking: "payment.error.dlq",
		Mechanism: hopback.Ladder, Ladder: []time.Duration{rung},
		Policy: hopback.Policy{
			MaxRetries: 3,
			Schedule:   hopback.Schedule{Backoff: hopback.Constant, Base: rung, Max: rung, Jitter: hopback.NoJitter},
		},
	}
}

func TestClassicNamesAreAdopted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	classicSetup(w)
	before := w.queues()
	var seen calls
	w.runConsumer(hopback.ConsumerConfig{Route: classicRoute(150 * time.Millisecond), Handler: seen.handler(failing(99))})
	w.publish("main.exchange", "payment.execute", amqp.Publishing{MessageId: "p1", Body: []byte("pay")})
	d := w.awaitParked("payment.error.dlq", 1)[0]
	if k := seen.of(); len(k) != 4 || k[3].Retries != 3 {
		t.Errorf("the handler ran %d times, want 4", len(k))
	}
	if d.Headers[attempt.HeaderReason] != attempt.ReasonExhausted || d.Headers[attempt.HeaderExchange] != "main.exchange" ||
		d.Headers[attempt.HeaderRoutingKey] != "payment.execute" || d.Headers[attempt.HeaderCount] != int32(3) {
		t.Errorf("parked with %v", d.Headers)
	}
	after := w.queues()
	for _, q := range before {
		i := slices.IndexFunc(after, func(a queue) bool { return a.Name == q.Name })
		if i < 0 || len(after[i].Args) != len(q.Args) {
			t.Errorf("queue %s was changed: %v, now %v", q.Name, q, after)
		}
	}
	for _, q := range after {
		if q.Name == "payment.main.queue.parked" {
			t.Error("a second parking queue was declared")
		}
	}
	if n := w.depth("payment.main.queue"); n != 0 {
		t.Errorf("%d messages left in the main queue", n)
	}
}

// The one delay of 15 s, as arguments: nothing here waits for it to end.
func TestClassicNamesFifteenSeconds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	classicSetup(w)
	w.runConsumer(hopback.ConsumerConfig{Route: classicRoute(15 * time.Second), Handler: hopback.HandlerFunc(failing(99))})
	w.publish("main.exchange", "payment.execute", amqp.Publishing{MessageId: "p1", Body: []byte("pay")})
	eventually(t, "retried", func() bool { return len(w.events.of("retried")) == 1 })
	if d := w.events.of("retried")[0].Delay; d != 15*time.Second {
		t.Errorf("waits %s, want 15s", d)
	}
	if n := w.depth("hop.delay.15s"); n != 1 {
		t.Errorf("%d messages in the 15 s slot, want 1", n)
	}
	i := slices.IndexFunc(w.queues(), func(q queue) bool { return q.Name == "hop.delay.15s" })
	q := w.queues()[i]
	if q.Args["x-message-ttl"] != float64(15000) || q.Args["x-dead-letter-strategy"] != "at-least-once" ||
		q.Args["x-overflow"] != "reject-publish" || q.Type != "quorum" || !q.Durable {
		t.Errorf("the slot is %+v", q)
	}
}

// The consumers that already run there know nothing of Hopback. They
// type-assert the counter, and panic on anything but an int32.
func TestPlainConsumerReadsOurCounter(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	classicSetup(w)
	c := w.runConsumer(hopback.ConsumerConfig{
		Route: classicRoute(150 * time.Millisecond),
		Handler: hopback.HandlerFunc(func(ctx context.Context, m *hopback.Message) error {
			return failing(2)(ctx, m)
		}),
		Concurrency: 1, Prefetch: 1,
	})
	w.publish("main.exchange", "payment.execute", amqp.Publishing{MessageId: "p1", Body: []byte("pay")})
	eventually(t, "retried", func() bool { return len(w.events.of("retried")) >= 1 })
	if err := c.stop(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "back in the main queue", func() bool { return w.depth("payment.main.queue") == 1 })
	ch := w.channel()
	deliveries, err := ch.Consume("payment.main.queue", "plain", true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	d := <-deliveries
	count, ok := d.Headers["x-retry-count"].(int32)
	if !ok || int(count) != len(w.events.of("retried")) {
		t.Errorf("x-retry-count is %T %[1]v after %d retries, want an int32", d.Headers["x-retry-count"], len(w.events.of("retried")))
	}
	if d.RoutingKey != "payment.execute" || string(d.Body) != "pay" || d.Exchange != "hop.return" {
		t.Errorf("a plain consumer sees exchange %q, key %q, body %q", d.Exchange, d.RoutingKey, d.Body)
	}
}
