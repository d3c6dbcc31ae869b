package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/attempt"
)

var (
	errGone = errors.New("the account is gone")
	errBusy = errors.New("try again later")
)

// ValidationError is named in the policy by its type.
type ValidationError struct{ Field string }

func (e *ValidationError) Error() string { return e.Field + " is missing" }

// faultyError panics where the library asks it for its text.
type faultyError struct{}

func (faultyError) Error() string { panic("no text") }

// verdictCase is one message: what its handler does, and what becomes of it.
type verdictCase struct {
	do     func(m *hopback.Message) error
	story  string        // of the events
	reason string        // in the parking queue; empty: it is not parked
	count  int32         // x-retry-count there
	text   string        // of the error there, a prefix
	typ    string        // of the error there
	why    string        // the Reason of the first Retried event
	delay  time.Duration // the Delay of the first Retried event
	least  time.Duration // between the first and the second run
}

func always(err error) func(*hopback.Message) error {
	return func(*hopback.Message) error { return err }
}

// verdictCases run with two retries, a constant delay of 100 ms, and at most
// 900 ms for RetryAfter and Snooze.
func verdictCases() map[string]verdictCase {
	const threeTimes = "received 1, retried 1, received 2, retried 2, received 3, parked 3"
	return map[string]verdictCase{
		"nil": {do: always(nil), story: "received 1, handled 1"},
		"plain": {
			do: always(errBusy), story: threeTimes,
			reason: "exhausted", count: 2, text: "try again later", typ: "errors.errorString", why: "error", delay: 100 * time.Millisecond,
		},

		"permanent":     {do: always(hopback.Permanent(errBusy)), story: "received 1, parked 1", reason: "permanent", text: "try again later", typ: "errors.errorString"},
		"permanent-nil": {do: always(hopback.Permanent(nil)), story: "received 1, handled 1"},
		"permanent-wrapped": {
			do:    always(fmt.Errorf("charge: %w", hopback.Permanent(errBusy))),
			story: "received 1, parked 1", reason: "permanent", text: "charge: try again later", typ: "errors.errorString",
		},
		"permanent-joined": {
			do:    always(errors.Join(errors.New("rolled back"), hopback.Permanent(&ValidationError{"iban"}))),
			story: "received 1, parked 1", reason: "permanent", text: "rolled back\niban is missing", typ: "errors.errorString",
		},
		"permanent-listed": {
			do:    always(fmt.Errorf("look up: %w", errGone)),
			story: "received 1, parked 1", reason: "permanent", text: "look up: the account is gone", typ: "errors.errorString",
		},
		"permanent-type": {
			do:    always(fmt.Errorf("check: %w", &ValidationError{"iban"})),
			story: "received 1, parked 1", reason: "permanent", text: "check: iban is missing", typ: "integration.ValidationError",
		},
		"permanent-later": {
			do: func(m *hopback.Message) error {
				if m.Attempt == 2 {
					return hopback.Permanent(errBusy)
				}
				return errBusy
			},
			story: "received 1, retried 1, received 2, parked 2", reason: "permanent", count: 1, text: "try again later", typ: "errors.errorString",
			why: "error", delay: 100 * time.Millisecond,
		},
		"outermost-parks": {
			do:    always(hopback.Permanent(hopback.RetryAfter(errBusy, time.Second))),
			story: "received 1, parked 1", reason: "permanent", text: "try again later", typ: "errors.errorString",
		},
		"outermost-retries": {
			do: func(m *hopback.Message) error {
				if m.Attempt > 1 {
					return nil
				}
				return hopback.RetryAfter(hopback.Permanent(errBusy), 250*time.Millisecond)
			},
			story: "received 1, retried 1, received 2, handled 2", why: "retry-after", delay: 300 * time.Millisecond, least: 250 * time.Millisecond,
		},
		"verdict-beats-list": {
			do: func(m *hopback.Message) error {
				if m.Attempt > 1 {
					return nil
				}
				return hopback.RetryAfter(errGone, 0)
			},
			story: "received 1, retried 1, received 2, handled 2", why: "retry-after", delay: 100 * time.Millisecond,
		},

		"retry-after": {
			do: func(m *hopback.Message) error {
				if m.Attempt > 1 {
					return nil
				}
				return fmt.Errorf("rate limit: %w", hopback.RetryAfter(errBusy, 250*time.Millisecond))
			},
			// Never rounded down: 250 ms wait 300.
			story: "received 1, retried 1, received 2, handled 2", why: "retry-after", delay: 300 * time.Millisecond, least: 250 * time.Millisecond,
		},
		"retry-after-bounded": {
			do: func(m *hopback.Message) error {
				if m.Attempt > 1 {
					return nil
				}
				return hopback.RetryAfter(errBusy, 24*time.Hour)
			},
			story: "received 1, retried 1, received 2, handled 2", why: "retry-after", delay: 900 * time.Millisecond, least: 900 * time.Millisecond,
		},
		"retry-after-uses-up": {
			do: always(hopback.RetryAfter(nil, 0)), story: threeTimes,
			reason: "exhausted", count: 2, text: "retry asked for by the handler", typ: "errors.errorString", why: "retry-after", delay: 100 * time.Millisecond,
		},

		"snooze": {
			// Five times, which is more than there are retries.
			do: func() func(*hopback.Message) error {
				var n atomic.Int32
				return func(m *hopback.Message) error {
					if n.Add(1) <= 5 {
						return fmt.Errorf("not due: %w", hopback.Snooze(150*time.Millisecond))
					}
					if m.Attempt == 1 {
						return errBusy // and now the first failure
					}
					return nil
				}
			}(),
			story: strings.Repeat("received 1, retried 1, ", 6) + "received 2, handled 2",
			why:   "snooze", delay: 200 * time.Millisecond, least: 150 * time.Millisecond,
		},

		"discard":         {do: always(fmt.Errorf("nobody wants it: %w", hopback.Discard(errBusy))), story: "received 1, discarded 1"},
		"discard-nil":     {do: always(hopback.Discard(nil)), story: "received 1, handled 1"},
		"discard-retried": {do: secondly(hopback.Discard(errBusy)), story: "received 1, retried 1, received 2, discarded 2", why: "error", delay: 100 * time.Millisecond},

		"panic-string": {
			do: func(*hopback.Message) error { panic(strings.Repeat("x", 100<<10)) }, story: threeTimes,
			reason: "exhausted", count: 2, text: "handler panicked: xxxx", typ: "hopback.PanicError", why: "error", delay: 100 * time.Millisecond,
		},
		"panic-error": {
			do: func(*hopback.Message) error { panic(errBusy) }, story: threeTimes,
			reason: "exhausted", count: 2, text: "handler panicked: try again later", typ: "hopback.PanicError", why: "error", delay: 100 * time.Millisecond,
		},
		"panic-listed": {
			do:    func(*hopback.Message) error { panic(fmt.Errorf("at once: %w", errGone)) },
			story: "received 1, parked 1", reason: "permanent", text: "handler panicked: at once: the account is gone", typ: "hopback.PanicError",
		},
		"panic-nil": {
			do: func(*hopback.Message) error { panic(nil) }, story: threeTimes,
			reason: "exhausted", count: 2, text: "handler panicked: panic called with nil", typ: "hopback.PanicError", why: "error", delay: 100 * time.Millisecond,
		},
		"panic-runtime": {
			do: func(m *hopback.Message) error {
				var results []error
				return results[m.Attempt]
			},
			story: threeTimes, reason: "exhausted", count: 2,
			text: "handler panicked: runtime error: index out of range", typ: "hopback.PanicError", why: "error", delay: 100 * time.Millisecond,
		},
		"goexit": {
			do: func(*hopback.Message) error { runtime.Goexit(); return nil }, story: threeTimes,
			reason: "exhausted", count: 2, text: "handler called runtime.Goexit", typ: "hopback.PanicError", why: "error", delay: 100 * time.Millisecond,
		},
		"error-panics": {
			do: always(faultyError{}), story: threeTimes,
			reason: "exhausted", count: 2, text: "(the error's own text panicked: no text)", typ: "integration.faultyError", why: "error", delay: 100 * time.Millisecond,
		},
		"error-empty": {
			do: always(errors.New("")), story: threeTimes,
			reason: "exhausted", count: 2, typ: "errors.errorString", why: "error", delay: 100 * time.Millisecond,
		},
	}
}

// secondly fails once and then returns err.
func secondly(err error) func(*hopback.Message) error {
	return func(m *hopback.Message) error {
		if m.Attempt == 1 {
			return errBusy
		}
		return err
	}
}

func TestVerdicts(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, w *world) {
		cases := verdictCases()
		policy := quick(2)
		policy.Permanent = []error{errGone}
		policy.PermanentTypes = []string{"ValidationError"}
		var seen calls
		c := w.runConsumer(hopback.ConsumerConfig{
			Route: hopback.Route{Queue: "work", Policy: policy, Mechanism: crowdMechanism()},
			Handler: seen.handler(func(_ context.Context, m *hopback.Message) error {
				return cases[m.MessageID].do(m)
			}),
		})
		ids := slices.Sorted(maps.Keys(cases))
		w.send("work", ids...)
		ends := func() (n int) {
			for _, what := range []string{"handled", "parked", "discarded"} {
				n += len(w.events.of(what))
			}
			return n
		}
		eventually(t, "every message has come to its end", func() bool { return ends() == len(ids) })
		// On the same channel, after two dozen settlements of every kind: one
		// settled twice would have closed it.
		w.send("work", "nil")
		eventually(t, "one more is handled", func() bool { return ends() == len(ids)+1 })
		if err := c.stop(); err != nil {
			t.Error(err)
		}
		if log := w.log.String(); strings.Contains(log, "not subscribed") || strings.Contains(log, "lost the") {
			t.Error("a channel was closed")
		}

		parked := map[string]amqp.Delivery{}
		for _, d := range w.drain("work.parked") {
			parked[d.MessageId] = d
		}
		delete(cases, "nil")
		for id, want := range cases {
			if got := w.events.story(id); got != want.story {
				t.Errorf("%s: events: %s; want %s", id, got, want.story)
			}
			d, there := parked[id]
			if there != (want.reason != "") {
				t.Errorf("%s: parked: %t", id, there)
			}
			if there {
				text, _ := d.Headers[attempt.HeaderError].(string)
				if !strings.HasPrefix(text, want.text) || (want.text == "" && text != "") || len(text) > attempt.MaxError {
					t.Errorf("%s: error of %d bytes: %.100q, want %q", id, len(text), text, want.text)
				}
				if got := d.Headers[attempt.HeaderReason]; got != want.reason {
					t.Errorf("%s: parked as %v, want %s", id, got, want.reason)
				}
				if got := d.Headers[attempt.HeaderErrorType]; got != want.typ {
					t.Errorf("%s: error type %v, want %s", id, got, want.typ)
				}
				if got := d.Headers[attempt.HeaderCount]; got != want.count {
					t.Errorf("%s: count %v, want %d", id, got, want.count)
				}
				if !bytes.Equal(d.Body, []byte(id)) {
					t.Errorf("%s: body %.100q", id, d.Body)
				}
			}
			if retried := w.events.of("retried", id); want.why != "" && len(retried) > 0 {
				exact := noSlots() && retried[0].Delay > 0 && retried[0].Delay <= want.delay
				if retried[0].Reason != want.why || retried[0].Delay != want.delay && !exact {
					t.Errorf("%s: retried by %s after %s, want %s after %s", id, retried[0].Reason, retried[0].Delay, want.why, want.delay)
				}
			}
			if k := seen.of(id); want.least > 0 && len(k) > 1 {
				if waited := k[1].Began.Sub(k[0].Ended); waited < want.least {
					t.Errorf("%s: came back after %s, asked for %s", id, waited, want.least)
				}
			}
		}
		for _, q := range w.queues() {
			if n := w.depth(q.Name); n != 0 {
				t.Errorf("%d messages are left in %q", n, q.Name)
			}
		}
		// A panic is told with its stack, bounded.
		for _, e := range w.events.of("retried", "panic-string") {
			var p *hopback.PanicError
			if !errors.As(e.Err, &p) || len(p.Stack) == 0 || len(p.Stack) > 8<<10 || !bytes.Contains(p.Stack, []byte("verdicts_test.go")) {
				t.Errorf("the panic was told as %.200v with a stack of %d bytes", e.Err, len(p.Stack))
			}
		}
		if e := w.events.of("discarded", "discard"); len(e) != 1 || !errors.Is(e[0].Err, errBusy) {
			t.Errorf("discarded: %+v", e)
		}
		if !strings.Contains(w.log.String(), "discarded a message") {
			t.Error("a discarded message was not logged")
		}
	})
}

func TestSnoozeKeepsTheRecord(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, w *world) {
		var seen calls
		var n atomic.Int32
		w.runConsumer(hopback.ConsumerConfig{
			Route: quickRoute("work", 1),
			Handler: seen.handler(func(context.Context, *hopback.Message) error {
				if n.Add(1) <= 3 {
					return hopback.Snooze(0)
				}
				return nil
			}),
		})
		w.send("work", "m")
		eventually(t, "handled", func() bool { return len(w.events.of("handled")) == 1 })
		k := seen.of()
		if len(k) != 4 {
			t.Fatalf("%d runs, want 4", len(k))
		}
		for i, m := range k[1:] {
			if m.Attempt != 1 || m.Retries != 0 || len(m.History()) != 0 {
				t.Errorf("after snooze %d: attempt %d, retries %d, history %v", i+1, m.Attempt, m.Retries, m.History())
			}
			if m.RetryID == "" || m.RetryID != k[1].RetryID || !m.FirstFailedAt.Equal(k[1].FirstFailedAt) || m.FirstFailedAt.IsZero() {
				t.Errorf("after snooze %d: id %q, since %s", i+1, m.RetryID, m.FirstFailedAt)
			}
		}
	})
}

type payment struct {
	Amount int `json:"amount"`
}

func TestHandleDecodesOrParks(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, w *world) {
		got := make(chan int, 10)
		w.runConsumer(hopback.ConsumerConfig{
			Route: quickRoute("work", 1),
			Handler: hopback.Handle(func(_ context.Context, p payment, m *hopback.Message) error {
				got <- p.Amount
				return failing(1)(context.Background(), m)
			}),
		})
		w.publish("", "work", amqp.Publishing{MessageId: "good", Body: []byte(`{"amount": 7}`)},
			amqp.Publishing{MessageId: "bad", Body: []byte(`{"amount": "seven"}`)},
			amqp.Publishing{MessageId: "empty"})
		for _, d := range w.awaitParked("work.parked", 2) {
			if d.Headers[attempt.HeaderReason] != attempt.ReasonPermanent || d.Headers[attempt.HeaderErrorType] != "hopback.DecodeError" ||
				!strings.HasPrefix(d.Headers[attempt.HeaderError].(string), "decode the body into integration.payment: ") {
				t.Errorf("%s is parked with %v", d.MessageId, d.Headers)
			}
			if s := w.events.story(d.MessageId); s != "received 1, parked 1" {
				t.Errorf("%s: events: %s", d.MessageId, s)
			}
		}
		eventually(t, "handled", func() bool { return len(w.events.of("handled", "good")) == 1 })
		if len(got) != 2 || <-got != 7 || <-got != 7 {
			t.Error("the good one was not handed over twice")
		}
	})
}

func TestAttemptTimeout(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, w *world) {
		causes := make(chan error, 10)
		w.runConsumer(hopback.ConsumerConfig{
			Route: quickRoute("work", 1), AttemptTimeout: 200 * time.Millisecond,
			Handler: hopback.HandlerFunc(func(ctx context.Context, m *hopback.Message) error {
				<-ctx.Done()
				causes <- context.Cause(ctx)
				if m.MessageID == "late" {
					return nil // it took longer, and has succeeded after all
				}
				return ctx.Err()
			}),
		})
		w.send("work", "slow", "late")
		d := w.awaitParked("work.parked", 1)[0]
		if d.MessageId != "slow" || d.Headers[attempt.HeaderError] != "context deadline exceeded" || d.Headers[attempt.HeaderReason] != "exhausted" {
			t.Errorf("%s is parked with %v", d.MessageId, d.Headers)
		}
		if s, want := w.events.story("slow"), "received 1, retried 1, received 2, parked 2"; s != want {
			t.Errorf("slow: events: %s; want %s", s, want)
		}
		eventually(t, "the late one is handled", func() bool { return w.events.story("late") == "received 1, handled 1" })
		for range 3 {
			if cause := <-causes; !errors.Is(cause, context.DeadlineExceeded) || !strings.Contains(cause.Error(), "200ms") {
				t.Errorf("the context ended by %v", cause)
			}
		}
		for _, e := range append(w.events.of("retried"), w.events.of("handled")...) {
			if e.Took < 200*time.Millisecond {
				t.Errorf("%s took %s, less than the timeout", e.MessageID, e.Took)
			}
		}
	})
}
