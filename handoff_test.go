package hopback

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/delay"
	"github.com/hopback/hopback/internal/link"
)

// unsent is a consumer whose hand-offs are prepared and go nowhere: its
// publisher has no connection, and its channel has ended.
func unsent(t *testing.T, cfg ConsumerConfig) (*Consumer, *subscription) {
	t.Helper()
	client, err := New(Config{URL: "amqp://127.0.0.1:1/", Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Route.Queue == "" {
		cfg.Route.Queue = "orders"
	}
	if cfg.Handler == nil {
		cfg.Handler = HandlerFunc(func(context.Context, *Message) error { return errSentinel })
	}
	c, err := client.NewConsumer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	c.publisher = &link.Publisher{}
	ended := link.NoSubscription()
	ended.Session = &link.Session{Connection: &amqp.Connection{Config: amqp.Config{FrameSize: 128 << 10}}}
	return c, &subscription{Life: ended.Life, transport: &channel{ended}, delays: c.delays}
}

// handoffOf reads a delivery as process does.
func handoffOf(t *testing.T, c *Consumer, sub *subscription, d amqp.Delivery) *handoff {
	t.Helper()
	source := fromChannel(&d)
	rec, err := attempt.Read(&source.msg, attempt.Source{Queue: "orders", Exchange: d.Exchange, RoutingKey: d.RoutingKey, At: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	sub.Begin()
	return &handoff{c: c, sub: sub, source: source, record: rec}
}

// trap is an error all of whose methods panic.
type trap struct{ _ int }

func (*trap) Error() string { panic("Error") }
func (*trap) Unwrap() error { panic("Unwrap") }
func (*trap) Is(error) bool { panic("Is") }
func (*trap) As(any) bool   { panic("As") }

// Whatever a handler ends with, its message waits in a slot: nothing gets past
// the worker, where it would end the process.
func TestFailuresOfEveryKindAreRetried(t *testing.T) {
	var typedNil *trap
	var nilVerdict *RetryAfterError
	for name, handle := range map[string]func() error{
		"an error":                           func() error { return errSentinel },
		"an error whose methods panic":       func() error { return &trap{} },
		"a nil pointer in an error":          func() error { return typedNil },
		"a nil pointer to a verdict":         func() error { return nilVerdict },
		"a panic":                            func() error { panic("boom") },
		"a panic with such an error":         func() error { panic(&trap{}) },
		"a panic with nil":                   func() error { panic(nil) },
		"a panic with a value like a text":   func() error { panic(strings.Repeat("x", 100<<10)) },
		"runtime.Goexit":                     func() error { runtime.Goexit(); return nil },
		"a cancelled context of its own":     func() error { return context.Canceled },
		"the end of its time":                func() error { return context.DeadlineExceeded },
		"an error joined with a hostile one": func() error { return errors.Join(errSentinel, &trap{}) },
	} {
		t.Run(name, func(t *testing.T) {
			c, sub := unsent(t, ConsumerConfig{
				Route:   Route{Policy: Policy{PermanentTypes: []string{"nothing"}, Permanent: []error{io.EOF}}},
				Handler: HandlerFunc(func(context.Context, *Message) error { return handle() }),
			})
			h := handoffOf(t, c, sub, amqp.Delivery{RoutingKey: "order.create", Exchange: "shop"})
			ended := make(chan struct{})
			go func() { // for Goexit
				defer close(ended)
				c.handle(t.Context(), h)
			}()
			<-ended
			if !strings.HasPrefix(h.exchange, "hop.delay.") || h.record.Count != 1 || h.key != "order.create" {
				t.Errorf("handed off to %q with key %q, retry %d; want a slot, the message's key and retry 1", h.exchange, h.key, h.record.Count)
			}
			if h.record.Error == "" {
				t.Error("the record has no error")
			}
			if sub.InFlight() != 1 {
				t.Errorf("%d in flight before it is confirmed, want 1", sub.InFlight())
			}
		})
	}
}

// A handler whose context ended by a shutdown has not failed.
func TestShutdownIsNoFailure(t *testing.T) {
	ctx, giveUp := context.WithCancelCause(t.Context())
	c, sub := unsent(t, ConsumerConfig{AttemptTimeout: time.Hour, Handler: HandlerFunc(func(ctx context.Context, _ *Message) error {
		giveUp(errStopping)
		<-ctx.Done()
		return ctx.Err()
	})})
	h := handoffOf(t, c, sub, amqp.Delivery{})
	c.handle(ctx, h)
	if h.exchange != "" || sub.InFlight() != 0 {
		t.Errorf("handed off to %q, %d in flight; want it left alone", h.exchange, sub.InFlight())
	}

	h = handoffOf(t, c, sub, amqp.Delivery{})
	c.settle(ctx, h, &trap{}) // a failure during a shutdown that says nothing of it
	if !strings.HasPrefix(h.exchange, "hop.delay.") {
		t.Errorf("handed off to %q, want a slot", h.exchange)
	}
}

// Limits count from the first failure, also at the first failure.
func TestLimits(t *testing.T) {
	now := time.Now()
	for _, tt := range []struct {
		name    string
		policy  Policy
		headers amqp.Table
		expires string
		err     error
		want    string // reason, or empty for a slot
	}{
		{name: "the first failure", err: errSentinel},
		{name: "no retries", policy: Policy{MaxRetries: NoRetries}, err: errSentinel, want: attempt.ReasonExhausted},
		{
			name: "no retries, and not due yet", policy: Policy{MaxRetries: NoRetries},
			err: Snooze(time.Second),
		},
		{
			name: "the last retry", policy: Policy{MaxRetries: 3},
			headers: amqp.Table{"x-retry-queue": "orders", "x-retry-count": int32(2)}, err: errSentinel,
		},
		{
			name: "after the last retry", policy: Policy{MaxRetries: 3},
			headers: amqp.Table{"x-retry-queue": "orders", "x-retry-count": int32(3)}, err: errSentinel, want: attempt.ReasonExhausted,
		},
		{
			name: "the count of another queue", policy: Policy{MaxRetries: 3},
			headers: amqp.Table{"x-retry-queue": "invoices", "x-retry-count": int32(3)}, err: errSentinel,
		},
		{
			name: "the first retry would come too late", policy: Policy{MaxAge: time.Minute},
			err: RetryAfter(errSentinel, 2*time.Minute), want: attempt.ReasonExpired,
		},
		{
			name: "too old", policy: Policy{MaxAge: time.Minute}, err: Snooze(time.Second),
			headers: amqp.Table{"x-retry-queue": "orders", "x-retry-first-failed-at": now.Add(-time.Minute).UnixMilli()},
			want:    attempt.ReasonExpired,
		},
		{
			name: "old, and no limit", policy: Policy{MaxAge: Unlimited}, err: errSentinel,
			headers: amqp.Table{"x-retry-queue": "orders", "x-retry-first-failed-at": int64(1)},
		},
		{name: "back after its expiration", expires: "1000", err: RetryAfter(errSentinel, time.Minute), want: attempt.ReasonExpired},
		{name: "permanent", err: Permanent(errSentinel), want: attempt.ReasonPermanent},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, sub := unsent(t, ConsumerConfig{Route: Route{Policy: tt.policy}})
			h := handoffOf(t, c, sub, amqp.Delivery{Headers: tt.headers, Expiration: tt.expires})
			c.fail(h, tt.err)
			parked := h.exchange == "hop.error" && h.key == "orders"
			if h.record.Reason != tt.want || parked != (tt.want != "") {
				t.Errorf("handed off to %q with reason %q, want reason %q", h.exchange, h.record.Reason, tt.want)
			}
		})
	}
}

// A delay that a handler asks for is bounded, whatever it is.
func TestAskedDelays(t *testing.T) {
	for _, tt := range []struct{ asked, least, most time.Duration }{
		{-time.Hour, 100 * time.Millisecond, 100 * time.Millisecond},
		{0, 100 * time.Millisecond, 100 * time.Millisecond},
		{1, 100 * time.Millisecond, 100 * time.Millisecond},
		{3 * time.Second, 3 * time.Second, 3 * time.Second},
		{3410 * time.Millisecond, 3410 * time.Millisecond, 3500 * time.Millisecond},
		{1<<63 - 1, time.Hour, time.Hour},
	} {
		for _, err := range []error{RetryAfter(errSentinel, tt.asked), Snooze(tt.asked)} {
			c, sub := unsent(t, ConsumerConfig{})
			h := handoffOf(t, c, sub, amqp.Delivery{})
			c.fail(h, err)
			if h.record.Delay < tt.least || h.record.Delay > tt.most {
				t.Errorf("%T of %s waits %s, want %s to %s", err, tt.asked, h.record.Delay, tt.least, tt.most)
			}
		}
	}
}

// A routing key that no publisher can have used, in a header that anybody can
// write, must not be published with: amqp091-go gives up the connection.
func TestKeyFromAForgedHeader(t *testing.T) {
	c, sub := unsent(t, ConsumerConfig{})
	h := handoffOf(t, c, sub, amqp.Delivery{RoutingKey: "order.create", Headers: amqp.Table{
		"x-retry-queue": "orders", "x-retry-exchange": "shop", "x-retry-routing-key": strings.Repeat("k", 300),
	}})
	c.fail(h, errSentinel)
	if h.key != "order.create" {
		t.Errorf("published with a key of %d bytes", len(h.key))
	}
}

// What would outgrow a frame on its way back is parked with its record as it
// was, not retried.
func TestTooLargeToWait(t *testing.T) {
	c, sub := unsent(t, ConsumerConfig{})
	h := handoffOf(t, c, sub, amqp.Delivery{Headers: amqp.Table{
		"x-retry-queue": "orders", "x-retry-count": int32(2), "mine": strings.Repeat("x", 128<<10-4<<10),
	}})
	c.fail(h, errSentinel)
	if h.exchange != "hop.error" || h.record.Reason != attempt.ReasonTooLarge || h.record.Count != 2 {
		t.Errorf("handed off to %q, reason %q, count %d; want it parked as too-large with count 2", h.exchange, h.record.Reason, h.record.Count)
	}
}

// However small the frames of a broker are, a message with few headers waits.
func TestSmallFrames(t *testing.T) {
	for _, frame := range []int{4 << 10, 8 << 10, 128 << 10, 0} {
		c, sub := unsent(t, ConsumerConfig{})
		sub.transport.(*channel).sub.Session.Config.FrameSize = frame
		h := handoffOf(t, c, sub, amqp.Delivery{Headers: amqp.Table{"mine": strings.Repeat("x", 500)}})
		c.fail(h, errors.New(strings.Repeat("long", 1000)))
		if !strings.HasPrefix(h.exchange, "hop.delay.") || frame > 0 && attempt.HeaderSize(&h.msg) > frame/2 {
			t.Errorf("frames of %d: handed off to %q with a header of %d bytes", frame, h.exchange, attempt.HeaderSize(&h.msg))
		}
	}
}

// The header x-delivery-count is the broker's word only on a message that was
// delivered before: a client can write it, and one that moves messages keeps it.
func TestCrashCountOfAClient(t *testing.T) {
	var ran atomic.Int64
	c, sub := unsent(t, ConsumerConfig{Handler: HandlerFunc(func(context.Context, *Message) error {
		ran.Add(1)
		return nil
	})})
	for i, redelivered := range []bool{false, true} {
		sub.Begin()
		c.process(t.Context(), job{sub, delivery{
			redelivered: redelivered, msg: amqp.Publishing{Headers: amqp.Table{"x-delivery-count": int64(11)}},
		}})
		if got := ran.Load(); got != 1 {
			t.Errorf("delivery %d, redelivered %t: the handler ran %d times in all, want once", i+1, redelivered, got)
		}
	}
}

// A worker of the Run before, whose handler came back late, takes no message of
// this Run: its context has ended, and the message would stay unsettled.
func TestWorkersBelongToOneRun(t *testing.T) {
	c, _ := unsent(t, ConsumerConfig{Concurrency: 1})
	first := c.startWorkers(t.Context())
	defer first.stop()
	second := c.startWorkers(t.Context())
	defer second.stop()
	if first.jobs == second.jobs {
		t.Error("two runs share their jobs")
	}
}

// A shutdown does not wait for what the broker has back already: it may be away
// for hours. For what can still be settled it waits as long as it may.
func TestShutdownWaits(t *testing.T) {
	shutdown := func(c *Consumer, w *workers) error {
		return c.shutdown(c.nothing(), w, func(error) {})
	}
	c, dead := unsent(t, ConsumerConfig{ShutdownTimeout: time.Hour})
	dead.Begin()
	c.subs = []*subscription{dead}
	if err := shutdown(c, c.startWorkers(t.Context())); err != nil {
		t.Error(err)
	}

	c, live := unsent(t, ConsumerConfig{ShutdownTimeout: 20 * time.Millisecond})
	live.Life = link.NewLife()
	live.Begin()
	c.subs = []*subscription{live}
	if err := shutdown(c, c.startWorkers(t.Context())); !errors.Is(err, ErrShutdownTimeout) || !strings.Contains(err.Error(), "1 message") {
		t.Errorf("%v, want ErrShutdownTimeout for 1 message", err)
	}
	if live.Live() {
		t.Error("after its time a shutdown would still settle")
	}

	c, _ = unsent(t, ConsumerConfig{ShutdownTimeout: time.Hour})
	w := c.startWorkers(t.Context())
	w.busy.Add(1)
	time.AfterFunc(30*time.Millisecond, func() { w.busy.Add(-1) })
	if err := shutdown(c, w); err != nil || w.busy.Load() != 0 {
		t.Errorf("%v with %d handlers running", err, w.busy.Load())
	}
}

// A hand-off that waits for its next try ends with its channel.
func TestWaitingEndsWithTheChannel(t *testing.T) {
	c, sub := unsent(t, ConsumerConfig{})
	sub.Life = link.NewLife()
	h := handoffOf(t, c, sub, amqp.Delivery{})
	c.fail(h, errSentinel)
	h.tries = 100 // half a minute
	h.sent(link.ErrNacked)
	if sub.Settled() {
		t.Fatal("given up while its channel is open")
	}
	sub.Over(nil)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if !waitUntil(ctx, func() bool { return sub.InFlight() == 0 }) {
		t.Error("still in flight 10 s after its channel ended")
	}
}

// cannotDelay is AMQP 1.0 with a settlement that is too large to be sent.
type cannotDelay struct{ transport }

func (cannotDelay) delay(*delivery, time.Time, amqp.Table) error { return errSentinel }

// A message that cannot be delayed is parked with the retries that it had: the one
// that could not begin does not count.
func TestParkedInsteadOfDelayed(t *testing.T) {
	c, sub := unsent(t, ConsumerConfig{})
	sub.Life = link.NewLife()
	sub.transport, sub.delays = cannotDelay{sub.transport}, delay.Native{}
	h := handoffOf(t, c, sub, amqp.Delivery{Headers: amqp.Table{attempt.HeaderQueue: "orders", attempt.HeaderCount: int32(2)}})
	c.fail(h, errSentinel)
	if h.exchange != "hop.error" || h.record.Count != 2 || h.record.Reason != attempt.ReasonTooLarge {
		t.Errorf("to %q with count %d, reason %q", h.exchange, h.record.Count, h.record.Reason)
	}
	if sub.InFlight() != 1 {
		t.Errorf("%d in flight before it is confirmed, want 1", sub.InFlight())
	}
}

// An observer has been told by the time that a message counts as done.
func TestToldBeforeDone(t *testing.T) {
	c, sub := unsent(t, ConsumerConfig{})
	h := handoffOf(t, c, sub, amqp.Delivery{})
	open := int64(-1)
	h.ack(func(Observer) { open = sub.InFlight() })
	if open != 1 || sub.InFlight() != 0 {
		t.Errorf("%d in flight while it was told, %d after; want 1 and 0", open, sub.InFlight())
	}
	h = handoffOf(t, c, sub, amqp.Delivery{})
	h.ack(func(Observer) { panic("observer") })
	if sub.InFlight() != 0 {
		t.Error("an observer that panics keeps a message in flight for ever")
	}
}
