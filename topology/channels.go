package topology

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// maxChannels is how many channels work side by side. Most of the time goes into
// waiting for the broker: 54 quorum slots with exchanges and bindings took 0.8 s
// on one channel and 0.3 s on eight (4.0.5 and 4.3.6, two cores, loopback), and
// over a network each round trip counts.
const maxChannels = 8

// patience is how long a call without a deadline of its own may take in all.
const patience = time.Minute

// worker runs steps on a channel of its own, one at a time. The channel is opened
// when it is first needed and again after a step that failed, because the broker
// closes the channel with its answer.
type worker struct {
	conn Connection
	ch   *amqp.Channel
}

// do runs one round trip.
func (w *worker) do(step func(*amqp.Channel) error) error {
	if err := w.open(); err != nil {
		return err
	}
	err := step(w.ch)
	if err != nil {
		w.close()
	}
	return err
}

func (w *worker) open() error {
	if w.ch != nil {
		return nil
	}
	ch, err := w.conn.Channel()
	if err != nil {
		return fmt.Errorf("open a channel: %w", err)
	}
	w.ch = ch
	return nil
}

func (w *worker) close() {
	if w.ch != nil {
		_ = w.ch.Close() // usually closed already, by the broker
		w.ch = nil
	}
}

// connectionLost tells an answer about one step, which closes its channel, from
// the end of the whole connection, which every step in flight then gets to hear.
func connectionLost(err error) bool {
	var e *amqp.Error
	return errors.As(err, &e) && !e.Recover
}

// crew is the channels of one call, used stage after stage.
type crew struct {
	ctx     context.Context
	workers []*worker

	mu      sync.Mutex
	results [][]error // of each stage, in the order of its items
}

// run gives body a crew and waits for it, or for the end of ctx. amqp091-go has
// no calls that take a context, and closing a channel under a call that waits
// would let its late answer meet the next owner of the channel's number. So at
// the end of ctx run returns at once with what is known, and the crew goes home
// by itself: after the one answer that each channel waits for, or when the
// connection ends.
func run(ctx context.Context, what string, conn Connection, body func(*crew) error) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%s: not begun: %w", what, context.Cause(ctx))
	}
	c := &crew{ctx: ctx}
	for range maxChannels {
		c.workers = append(c.workers, &worker{conn: conn})
	}
	done := make(chan error, 1)
	go func() {
		err := body(c)
		c.goHome()
		done <- err
	}()
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		err = c.unfinished()
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", what, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Join(append(slices.Concat(c.results...), err)...)
}

func (c *crew) unfinished() error { return fmt.Errorf("not finished: %w", context.Cause(c.ctx)) }

// goHome closes all channels, side by side since each costs a round trip.
func (c *crew) goHome() {
	var wg sync.WaitGroup
	for _, w := range c.workers {
		wg.Go(w.close)
	}
	wg.Wait()
}

// stage runs step for 0 … n-1, spread over the workers, and returns when all are
// done, when ctx has ended, or when no channel can be had; the last two are
// errors. The errors of the steps are kept for run.
func (c *crew) stage(n int, step func(w *worker, i int) error) error {
	results := make([]error, n)
	c.mu.Lock()
	c.results = append(c.results, results)
	c.mu.Unlock()

	next, done := 0, 0
	var lost error
	take := func() (int, bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		next++
		return next - 1, next <= n
	}
	lose := func(err error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if lost == nil || errors.Is(lost, amqp.ErrClosed) {
			lost = err // why the connection ended says more than that it has
		}
	}
	var wg sync.WaitGroup
	for _, w := range c.workers[:min(n, len(c.workers))] {
		wg.Go(func() {
			for c.ctx.Err() == nil {
				// First the channel, then a step: a connection that allows fewer channels
				// than there are workers is served by fewer.
				if err := w.open(); err != nil {
					lose(err)
					return
				}
				i, ok := take()
				if !ok {
					return
				}
				err := step(w, i)
				if connectionLost(err) {
					lose(err)
					return
				}
				c.mu.Lock()
				results[i] = err
				done++
				c.mu.Unlock()
			}
		})
	}
	wg.Wait()
	if done == n {
		return nil
	}
	if c.ctx.Err() != nil {
		return c.unfinished()
	}
	return fmt.Errorf("%d of %d were not reached: the connection was lost: %w", n-done, n, lost)
}
