package parking

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/internal/reading"
)

// Tail follows what is parked from now on, until ctx ends. It gets copies: where
// workQueue is the work queue of a route, Hopback's own exchange gives them to a
// queue of this connection, which goes with it, and the parking queue is not
// touched at all. Anywhere else (an empty workQueue, or no such exchange) it looks
// into the queue every so often, and tells what it has not seen before.
//
// When the parking queue is deleted, Tail ends with ErrNoQueue: its own queue
// would let those who park believe that a message has found a place.
//
// The error that ends it is never ctx's own.
func (q *Queue) Tail(ctx context.Context, workQueue string, f Filter, every time.Duration) iter.Seq2[*Message, error] {
	return func(yield func(*Message, error) bool) {
		if err := f.Validate(); err != nil {
			yield(nil, fmt.Errorf("follow %q: %w", q.name, err))
			return
		}
		var err error
		if workQueue != "" {
			err = q.copies(ctx, workQueue, f, func(m *Message) bool { return yield(m, nil) })
		}
		// Also where there is no exchange of Hopback's, or no permission to bind to it.
		if workQueue == "" || refused(err) {
			err = q.poll(ctx, f, every, func(m *Message) bool { return yield(m, nil) })
		}
		if err != nil && ctx.Err() == nil {
			yield(nil, fmt.Errorf("follow %q: %w", q.name, err))
		}
	}
}

// copies binds a queue of our own beside the parking queue.
func (q *Queue) copies(ctx context.Context, workQueue string, f Filter, yield func(*Message) bool) error {
	ch, err := reading.Within(ctx, q.conn.Channel)
	if err != nil {
		return err
	}
	defer reading.CloseSoon(ch) //nolint:errcheck // nothing is held on it
	deliveries, err := reading.Within(ctx, func() (<-chan amqp.Delivery, error) {
		own, err := ch.QueueDeclare("", false, true, true, false, nil)
		if err != nil {
			return nil, err
		}
		if err := ch.QueueBind(own.Name, workQueue, q.o.Prefix+".error", false, nil); err != nil {
			return nil, err
		}
		return ch.Consume(own.Name, consumerTag, true, true, false, false, nil)
	})
	if err != nil {
		return err
	}
	watch := time.NewTicker(time.Second)
	defer watch.Stop()
	for {
		select {
		case <-watch.C:
			_, err := onChannel(ctx, q.conn, func(ch *amqp.Channel) (int, error) { return reading.Count(ctx, ch, q.name) })
			if isMissing(err) {
				return fmt.Errorf("%w: %w", ErrNoQueue, err)
			}
		case d, ok := <-deliveries:
			if !ok {
				return amqp.ErrClosed
			}
			if m := describe(q.name, &d); f.Match(m) && !yield(m) {
				return nil
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// poll looks every so often.
func (q *Queue) poll(ctx context.Context, f Filter, every time.Duration, yield func(*Message) bool) error {
	if every <= 0 {
		every = 5 * time.Second
	}
	// How many messages were there of an ID, parked at a time: one that was replayed
	// and comes back is told again.
	type arrival struct {
		id string
		at int64
	}
	var known map[arrival]int
	for {
		seen := map[arrival]int{}
		for m, err := range q.Messages(ctx, Filter{}) {
			if err != nil {
				return err
			}
			a := arrival{m.ID, m.ParkedAt.UnixMilli()}
			seen[a]++
			if known == nil || seen[a] <= known[a] || !f.Match(m) {
				continue
			}
			if !yield(m) {
				return nil
			}
		}
		known = seen
		if err := sleep(ctx, every); err != nil {
			return nil
		}
	}
}

// refused reports that copies cannot be had.
func refused(err error) bool {
	var e *amqp.Error
	return errors.As(err, &e) && (e.Code == amqp.NotFound || e.Code == amqp.AccessRefused) && !errors.Is(err, ErrNoQueue)
}

// isMissing reports a queue that does not exist.
func isMissing(err error) bool {
	var e *amqp.Error
	return errors.As(err, &e) && e.Code == amqp.NotFound
}
