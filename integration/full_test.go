package integration

import (
	"context"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/rabbittest"
)

// A message comes back to a work queue that is full and refuses it. It stays in
// its slot and comes back when there is room, and the slots of other routes know
// nothing of it.
func TestReturnToAFullQueue(t *testing.T) {
	aboutSlots(t)
	t.Parallel()
	newWorld(t) // for its skip where there is no broker
	b := rabbittest.Start(t, brokerOptions(rabbittest.Options{}))
	// How soon a slot tries again what was refused: three minutes unless set.
	if _, err := b.Ctl(t.Context(), "eval", "application:set_env(rabbit, dead_letter_worker_publisher_confirm_timeout, 1000)."); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"classic", "quorum"} {
		t.Run(kind, func(t *testing.T) {
			w := newWorldOn(t, b)
			w.declare("full", kind, "x-max-length", int64(1), "x-overflow", "reject-publish")
			w.declare("other", "quorum")
			full := quickRoute("full", 3)
			full.Isolate, full.Ladder = true, []time.Duration{2 * time.Second}
			full.Policy.Max, full.Policy.MaxRetryAfter = 2*time.Second, 2*time.Second
			cfg := hopback.ConsumerConfig{Route: full, Handler: hopback.HandlerFunc(func(_ context.Context, m *hopback.Message) error {
				if strings.HasPrefix(m.MessageID, "retried") {
					return failing(1)(context.Background(), m)
				}
				return nil
			})}
			c := w.runConsumer(cfg)
			w.runConsumer(hopback.ConsumerConfig{Route: quickRoute("other", 3), Handler: hopback.HandlerFunc(failing(1))})
			w.send("full", "retried")
			eventually(t, "retried", func() bool { return len(w.events.of("retried")) == 1 })
			if err := c.stop(); err != nil {
				t.Fatal(err)
			}
			// While it waits, the queue is filled. A quorum queue's limit is soft,
			// so that may take more than one.
			filled := 0
			for ; filled < 20; filled++ {
				if !w.offered("full", "filler") {
					break
				}
			}
			if filled == 20 {
				t.Fatal("the queue never refused a message")
			}
			time.Sleep(4 * time.Second) // refused a few times
			t.Logf("%d messages filled the queue, and it holds %d", filled, w.depth("full"))
			w.send("other", "elsewhere")
			eventually(t, "the other route goes on", func() bool { return len(w.events.of("handled", "elsewhere")) == 1 })
			w.runConsumer(cfg)
			eventually(t, "it is back and handled", func() bool { return len(w.events.of("handled", "retried")) == 1 })
			eventually(t, "the fillers are handled", func() bool { return len(w.events.of("handled", "filler")) == filled })
		})
	}
}

// offered publishes a message to a queue that may refuse it, and reports whether
// it was taken.
func (w *world) offered(queue, id string) bool {
	w.t.Helper()
	ch := w.channel()
	defer ch.Close()
	if err := ch.Confirm(false); err != nil {
		w.t.Fatal(err)
	}
	c, err := ch.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{MessageId: id, DeliveryMode: amqp.Persistent})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	taken, err := c.WaitContext(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	return taken
}
