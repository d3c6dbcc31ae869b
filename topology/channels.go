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
// again after a step that failed, because the broker closes it with its answer.
type worker struct {
	ctx  context.Context
	conn Connection
	ch   *amqp.Channel
}

// do runs one round trip.
func (w *worker) do(step func(*amqp.Channel) error) error {
	if err := w.reopen(); err != nil {
		return err
	}
	err := step(w.ch)
	if err != nil {
		w.close()
	}
	var answer *amqp.Error
	if err != nil && !errors.As(err, &answer) {
		err = &lostError{err} // not the broker's words: the socket's
	}
	return err
}

func (w *worker) open() error {
	if w.ch != nil {
		return nil
	}
	ch, err := w.conn.Channel()
	if err != nil {
		return &lostError{fmt.Errorf("open a channel: %w", err)}
	}
	w.ch = ch
	return nil
}

// reopen is open for a worker that has had a channel. amqp091-go reports a closed
// channel a moment before it gives the number back, which matters on a connection
// that has no other left.
func (w *worker) reopen() error {
	for pause := time.Millisecond; ; pause *= 2 {
		err := w.open()
		if !errors.Is(err, amqp.ErrChannelMax) || pause > time.Second {
			return err
		}
		select {
		case <-w.ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}

func (w *worker) close() {
	if w.ch != nil {
		_ = w.ch.Close() // usually closed already, by the broker
		w.ch = nil
	}
}

// lostError is about the connection and not about one step.
type lostError struct{ error }

func (e *lostError) Unwrap() error { return e.error }

// connectionLost tells an answer about one step, which closes its channel, from
// the end of the whole connection, which every step in flight gets to hear.
func connectionLost(err error) bool {
	var lost *lostError
	var answer *amqp.Error
	return errors.As(err, &lost) || errors.As(err, &answer) && !answer.Recover
}

// crew is the channels of one call, used stage after stage.
type crew struct {
	ctx     context.Context
	workers []*worker

	mu      sync.Mutex
	results [][]error // of each stage, in the order of its items
}

// run gives body a crew for stages of up to n items and waits for it, or for the
// end of ctx. amqp091-go has
// no calls that take a context, and closing a channel under a call that waits
// would let its late answer meet the next owner of the channel's number. So at
// the end of ctx run returns at once with what is known, and the crew goes home
// by itself: after the one answer that each channel waits for, or when the
// connection ends.
func run(ctx context.Context, what string, conn Connection, n int, body func(*crew) error) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%s: not begun: %w", what, context.Cause(ctx))
	}
	c := &crew{ctx: ctx}
	done := make(chan error, 1)
	go func() {
		err := c.muster(conn, min(n, maxChannels))
		if err == nil {
			err = body(c)
		}
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

// muster opens n channels, or as many of them as can be had. All of that comes
// before the first step, so that no worker takes the number of a channel that
// another one is about to open again.
func (c *crew) muster(conn Connection, n int) error {
	workers, errs := make([]*worker, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range workers {
		workers[i] = &worker{ctx: c.ctx, conn: conn}
		wg.Go(func() { errs[i] = workers[i].open() })
	}
	wg.Wait()
	for _, w := range workers {
		if w.ch != nil {
			c.workers = append(c.workers, w)
		}
	}
	if n > 0 && len(c.workers) == 0 {
		return errs[0]
	}
	return nil
}

// goHome closes all channels, side by side since each costs a round trip.
func (c *crew) goHome() {
	var wg sync.WaitGroup
	for _, w := range c.workers {
		wg.Go(w.close)
	}
	wg.Wait()
}

// stage runs step for 0 … n-1, spread over the workers, and returns when all are
// done, when ctx has ended, or when the connection has; the last two are errors. The errors of the steps are kept for run.
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
				if err := w.reopen(); err != nil { // before an item is taken
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

// largest is the size of the largest stage of t.
func (t Topology) largest() int { return max(len(t.Exchanges), len(t.Queues), len(t.Bindings)) }
