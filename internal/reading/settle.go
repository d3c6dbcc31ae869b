package reading

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Ack takes messages out of the queue. When it returns, the broker has all the
// acknowledgements, and the end of the channel takes none of them back.
func (r *Reader) Ack(ctx context.Context, items ...Item) error {
	if r.o.Look {
		return fmt.Errorf("take messages out of %q: this reader only looks", r.queue)
	}
	for len(items) > 0 {
		c := items[0].chunk
		var others []Item
		acked := make(map[int]bool, len(items))
		for _, it := range items {
			if it.chunk != c {
				others = append(others, it)
				continue
			}
			acked[it.index] = true
		}
		if err := c.ack(ctx, acked); err != nil {
			return fmt.Errorf("take messages out of %q: %w", r.queue, err)
		}
		if c.held == 0 && len(c.ready) == 0 {
			if err := CloseSoon(c.ch); err != nil {
				return fmt.Errorf("take messages out of %q: %w", r.queue, err)
			}
			r.drop(c)
		}
		items = others
	}
	return nil
}

func (r *Reader) drop(c *chunk) {
	for i := range r.chunks {
		if r.chunks[i] == c {
			r.chunks = append(r.chunks[:i], r.chunks[i+1:]...)
			return
		}
	}
}

func (c *chunk) ack(ctx context.Context, acked map[int]bool) error {
	_, err := Within(ctx, func() (struct{}, error) {
		if !c.tx {
			if err := c.ch.Tx(); err != nil {
				return struct{}{}, err
			}
			c.tx = true
		}
		// One frame for the run at the front, where nothing stays.
		front := c.low
		for front < len(c.settled) && (c.settled[front] || acked[front]) {
			front++
		}
		if front > c.low {
			if err := c.ch.Ack(uint64(front), true); err != nil {
				return struct{}{}, err
			}
		}
		for i := range acked {
			if i >= front {
				if err := c.ch.Ack(uint64(i+1), false); err != nil { // the first tag of a channel is 1
					return struct{}{}, err
				}
			}
		}
		return struct{}{}, c.ch.TxCommit()
	})
	if err != nil {
		return err
	}
	for i := range acked {
		if !c.settled[i] {
			c.settled[i] = true
			c.held--
		}
	}
	for c.low < len(c.settled) && c.settled[c.low] {
		c.low++
	}
	return nil
}

// Held is how many messages the reader holds.
func (r *Reader) Held() int {
	n := 0
	for _, c := range r.chunks {
		n += c.held
	}
	return n
}

// Close gives back what was not acknowledged, in its order, and returns when the
// queue counts it again.
//
// Of what came back earlier nothing may stay in the queue meanwhile, or what is
// given back now would be behind it: a reader that stops half-way receives that
// first. ctx bounds it, and not the rest: when it ends, order is lost and nothing
// else.
func (r *Reader) Close(ctx context.Context) error {
	var errs []error
	if !r.o.Classic && r.Held() > 0 {
		r.o.Look, r.o.Chunk, r.budget = true, lookChunk, lookBudget
		for !r.fresh {
			_, ok, err := r.Next(ctx)
			if err == nil && !ok { // also what is beyond the limit
				var ready int
				if ready, err = r.Ready(ctx); ready == 0 {
					break
				}
				r.total = r.fetched + ready
			}
			if err != nil {
				if !errors.Is(err, amqp.ErrClosed) {
					errs = append(errs, err)
				}
				break
			}
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute+time.Duration(len(r.chunks))*5*time.Second)
	defer cancel()
	// A consumer with room left would receive what the chunks before it give back.
	if c := r.current; c != nil && !c.complete && (len(r.chunks) > 1 || r.o.Nack) {
		c.ready = nil
		if err := r.receive(ctx, c, c.size); err != nil && !errors.Is(err, amqp.ErrClosed) {
			errs = append(errs, fmt.Errorf("receive the rest of what stays in %q: %w", r.queue, err))
		}
	}
	for _, c := range r.chunks {
		if err := r.giveBack(ctx, c); err != nil && !errors.Is(err, amqp.ErrClosed) {
			// The broker does it by itself, if in another order.
			errs = append(errs, fmt.Errorf("give back what stays in %q: %w", r.queue, err))
		}
	}
	r.chunks, r.current = nil, nil
	return errors.Join(append(errs, CloseSoon(r.counting))...)
}

func (r *Reader) giveBack(ctx context.Context, c *chunk) error {
	before, counted := Count(ctx, r.counting, r.queue)
	if r.o.Nack {
		if err := r.finish(ctx, c); err != nil {
			return errors.Join(err, CloseSoon(c.ch))
		}
		_, err := Within(ctx, func() (struct{}, error) {
			if err := c.ch.Nack(0, true, true); err != nil { // 0 is all
				return struct{}{}, err
			}
			if c.tx {
				return struct{}{}, c.ch.TxCommit()
			}
			return struct{}{}, nil
		})
		if err != nil {
			return errors.Join(err, CloseSoon(c.ch))
		}
		if counted == nil {
			settled(ctx, r.counting, r.queue, before+c.held)
		}
		return CloseChannel(ctx, c.ch)
	}
	if err := CloseChannel(ctx, c.ch); err != nil {
		return err
	}
	if counted == nil {
		settled(ctx, r.counting, r.queue, before+c.held)
	}
	return nil
}

// Ready is how many messages of the queue are ready for delivery at the moment.
func (r *Reader) Ready(ctx context.Context) (int, error) { return Count(ctx, r.counting, r.queue) }

// Unread is how many of those that are to be read are still in the queue.
func (r *Reader) Unread() int { return r.total - r.fetched }
