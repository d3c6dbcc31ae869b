package lost

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// What a reader must know about quorum queues, measured on 3.10.8, 4.0.5 and
// 4.3.6, all alike:
//
//   - A channel sends the queue 32 commands at a time and keeps the others back
//     (quorum_commands_soft_limit). When it is closed those are dropped: of 150
//     messages that were got, acknowledged and left at once, 117 were there again.
//   - basic.get makes a consumer of its own for each message. When more than 32 of
//     them give their message back together, by a nack or by the end of the
//     channel, the messages are in disorder afterwards. A single consumer's stay in
//     order when its channel is closed.
//   - What was given back is counted a moment later.
const commands = 16 // on their way at a time, to be well below 32

// open opens a channel and counts the messages that are there.
func (o Options) open(ctx context.Context, c Connection) (ch *amqp.Channel, messages int, err error) {
	if ch, err = within(ctx, c.Channel); err != nil {
		return nil, 0, fmt.Errorf("open a channel: %w", err)
	}
	if messages, err = count(ctx, ch, o.queue()); err == nil {
		return ch, messages, nil
	}
	go ch.Close() //nolint:errcheck // the broker has done so after a 404
	var e *amqp.Error
	if errors.As(err, &e) && e.Code == amqp.NotFound {
		return nil, 0, fmt.Errorf("%w: %s: check the prefix, or run hopback apply: %w", ErrNotSetUp, o.queue(), err)
	}
	return nil, 0, fmt.Errorf("look for the queue %s: %w", o.queue(), err)
}

func count(ctx context.Context, ch *amqp.Channel, queue string) (int, error) {
	q, err := within(ctx, func() (amqp.Queue, error) {
		return ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	})
	return q.Messages, err
}

// settled waits until a queue counts that many messages. It gives up soon: a
// number is all that is at stake, and others may have taken some meanwhile.
func settled(ctx context.Context, ch *amqp.Channel, queue string, messages int) {
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if n, err := count(ctx, ch, queue); err != nil || n >= messages {
			return
		}
	}
}

// reader takes messages out of the lost queue one by one, and no more than were
// there at first. What it took and did not acknowledge is back in its place, in
// its order, when it is closed.
//
// It uses basic.get, since a consumer of a quorum queue gets 2000 messages at
// most without acknowledging some, and those that are passed over stay unsettled
// until the end: given back earlier, they would be at the head again.
type reader struct {
	ch    *amqp.Channel
	queue string
	total int // messages when it began
	taken int
	kept  []uint64 // delivery tags of what goes back
	acked int      // commands since the last answer of the queue
}

func (o Options) reader(ctx context.Context, c Connection) (*reader, error) {
	ch, total, err := o.open(ctx, c)
	if err != nil {
		return nil, err
	}
	return &reader{ch: ch, queue: o.queue(), total: total}, nil
}

// next takes a message, or reports that there are no more.
func (r *reader) next(ctx context.Context) (d amqp.Delivery, ok bool, err error) {
	if r.taken == r.total {
		return d, false, nil
	}
	if d, ok, err = r.get(ctx); ok {
		r.taken++
	}
	return d, ok, err
}

func (r *reader) get(ctx context.Context) (amqp.Delivery, bool, error) {
	type got struct {
		d  amqp.Delivery
		ok bool
	}
	g, err := within(ctx, func() (g got, err error) {
		g.d, g.ok, err = r.ch.Get(r.queue, false)
		return g, err
	})
	if err != nil {
		return g.d, false, fmt.Errorf("read %s: %w", r.queue, err)
	}
	// The queue answers this after all commands before it.
	r.acked = 0
	return g.d, g.ok, nil
}

// keep notes that a message goes back.
func (r *reader) keep(tag uint64) { r.kept = append(r.kept, tag) }

// ack takes a message out of the queue.
func (r *reader) ack(tag uint64) error {
	if err := r.ch.Ack(tag, false); err != nil {
		return fmt.Errorf("take a message out of %s: %w", r.queue, err)
	}
	r.acked++
	return nil
}

// close gives back what was kept and closes the channel.
func (r *reader) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute+time.Duration(len(r.kept))*10*time.Millisecond)
	defer cancel()
	if r.acked > 0 {
		// One more answer of the queue, so that no acknowledgement is dropped.
		d, ok, err := r.get(ctx)
		if ok {
			r.keep(d.DeliveryTag)
		}
		if err != nil && !r.ch.IsClosed() {
			return err
		}
	}
	slices.Sort(r.kept)
	there, err := count(ctx, r.ch, r.queue)
	for i, tag := range r.kept {
		if err != nil {
			break
		}
		err = r.ch.Nack(tag, false, true)
		if last := i == len(r.kept)-1; err == nil && (last || i%commands == commands-1) {
			settled(ctx, r.ch, r.queue, there+i+1)
		}
	}
	if err := errors.Join(err, closeChannel(ctx, r.ch)); err != nil && !errors.Is(err, amqp.ErrClosed) {
		// The broker does it by itself, if in another order.
		return fmt.Errorf("give back what stays in %s: %w", r.queue, err)
	}
	return nil
}

// closeChannel closes a channel, also one that is closed already.
func closeChannel(ctx context.Context, ch *amqp.Channel) error {
	_, err := within(ctx, func() (struct{}, error) { return struct{}{}, ch.Close() })
	if errors.Is(err, amqp.ErrClosed) {
		return nil
	}
	return err
}

// closeSoon is closeChannel for a channel on which nothing is left to wait for.
func closeSoon(ch *amqp.Channel) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return closeChannel(ctx, ch)
}

// within does something that knows no context: the broker may leave any
// question unanswered for as long as it has an alarm. What is given up ends
// with its channel or connection.
func within[T any](ctx context.Context, f func() (T, error)) (T, error) {
	type result struct {
		v   T
		err error
	}
	var none T
	if ctx.Err() != nil {
		return none, context.Cause(ctx)
	}
	done := make(chan result, 1)
	go func() {
		v, err := f()
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
}
