package hopback

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
)

// job is a delivery on its way to a worker.
type job struct {
	sub *subscription
	d   delivery
}

// workers is the bounded pool that runs handlers. It belongs to one Run: a
// worker whose handler outlived the Run before takes no message of this one,
// since its context has ended.
type workers struct {
	jobs chan job
	quit chan struct{}
	all  sync.WaitGroup
	busy atomic.Int64 // those that work on a message
}

func (c *Consumer) startWorkers(ctx context.Context) *workers {
	w := &workers{jobs: make(chan job), quit: make(chan struct{})}
	for range c.cfg.Concurrency {
		w.all.Add(1)
		go c.work(ctx, w)
	}
	return w
}

// stop ends the idle workers. One whose handler does not return, although its
// context ended, cannot be stopped in Go; it ends when the handler does.
func (w *workers) stop() { close(w.quit) }

// wait waits for the workers to end, or for ctx.
func (w *workers) wait(ctx context.Context) {
	ended := make(chan struct{})
	go func() {
		w.all.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
}

func (c *Consumer) work(ctx context.Context, w *workers) {
	// runtime.Goexit in a handler ends this goroutine: another takes its place.
	returned := false
	defer func() {
		if returned {
			w.all.Done()
			return
		}
		go c.work(ctx, w)
	}()
	for {
		select {
		case <-w.quit:
			returned = true
			return
		case j := <-w.jobs:
			w.busy.Add(1)
			func() {
				defer w.busy.Add(-1)
				c.process(ctx, j)
			}()
		}
	}
}

// process takes one delivery from its record to its settlement or hand-off.
func (c *Consumer) process(ctx context.Context, j job) {
	now := c.client.clock()
	rec, err := attempt.Read(&j.d.msg, attempt.Source{
		Queue: c.cfg.Route.Queue, Exchange: j.d.exchange, RoutingKey: j.d.routingKey, At: now,
	})
	settleFlags(&j.d, &rec)
	h := &handoff{c: c, sub: j.sub, source: j.d, record: rec}
	switch crashes := deliveryCount(h.source.msg.Headers); {
	case err != nil:
		h.park(attempt.ReasonBadCounter, err)
	case c.cfg.CrashLimit >= 0 && crashes > int64(c.cfg.CrashLimit) && h.source.redelivered:
		// Redelivered, since a client can write the header too, and one that
		// moves messages between queues keeps it.
		h.park(attempt.ReasonCrashLoop, fmt.Errorf("delivered %d times without being settled: "+
			"does the handler kill the process?", crashes))
	case rec.Then == ownQueue && j.sub.isNative():
		h.wait(now)
	case rec.Expired(now):
		h.park(attempt.ReasonExpired, fmt.Errorf("its expiration ended %s before this delivery", now.Sub(rec.Deadline).Round(time.Millisecond)))
	default:
		c.handle(ctx, h)
	}
}

// deliveryCount is how often the broker handed the message out before without
// its being settled. Classic queues do not count.
func deliveryCount(h amqp.Table) int64 {
	n, _ := h["x-delivery-count"].(int64)
	return n
}

// handle runs the handler and settles or hands off the message, even when the
// handler ends its goroutine.
func (c *Consumer) handle(ctx context.Context, h *handoff) {
	m := newMessage(&h.source.msg, h.record, c.cfg.Route.Queue, h.source.redelivered)
	c.client.observe(func(o Observer) { o.Received(Received{Event: h.event(), Redelivered: h.source.redelivered}) })
	start := time.Now()
	var err error
	returned := false
	defer func() {
		if !returned { // panicked, or called Goexit: then recover gives nil
			p := &PanicError{Value: recover(), Stack: stack()}
			err = p
			if others, ok := c.panicked.May(); ok {
				c.log.Error("the handler panicked; the message is retried like after any failure",
					"retry", h.record.Count, "message_id", h.source.msg.MessageId,
					"error", p.Error(), "stack", string(p.Stack), "others", others)
			}
		}
		h.took = time.Since(start)
		c.settle(ctx, h, err)
	}()
	if c.cfg.AttemptTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, c.cfg.AttemptTimeout,
			fmt.Errorf("attempt took longer than %s: %w", c.cfg.AttemptTimeout, context.DeadlineExceeded))
		defer cancel()
	}
	err = c.cfg.Handler.Handle(ctx, m)
	returned = true
}

// settle does what the handler's result asks for.
func (c *Consumer) settle(ctx context.Context, h *handoff, err error) {
	if err == nil {
		h.ack(func(o Observer) { o.Handled(Handled{Event: h.event(), Took: h.took}) })
		return
	}
	if errors.Is(context.Cause(ctx), errStopping) && isError(err, context.Canceled) {
		// Not a failure of the message: the shutdown ran out of time. It
		// stays unacknowledged and is delivered again.
		h.drop()
		return
	}
	c.fail(h, err)
}

// stack is the stack of a panic, without what leads up to it here.
func stack() []byte {
	s := debug.Stack()
	return s[:min(len(s), 8<<10)]
}

// waitUntil reports whether it came about before ctx ended. It is used once, at
// shutdown, so it looks instead of making every message signal.
func waitUntil(ctx context.Context, so func() bool) bool {
	for !so() {
		select {
		case <-ctx.Done():
			return so()
		case <-time.After(2 * time.Millisecond):
		}
	}
	return true
}
