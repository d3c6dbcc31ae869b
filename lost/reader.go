package lost

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/internal/reading"
)

// What a reader must know about quorum queues, measured on 3.10.8, 4.0.5 and
// 4.3.6, all alike:
//
//   - A channel sends the queue 32 commands at a time and keeps the others back
//     (quorum_commands_soft_limit). When it is closed those are dropped: of 150
//     messages that were got and acknowledged just before, 117 were there again.
//   - basic.get makes a consumer of its own for each message. When more than 32 of
//     them give their message back together, by a nack or by the end of the
//     channel, the messages are in disorder afterwards. A single consumer's stay in
//     order when its channel is closed, but on 3.10 not when they are nacked
//     together.
//   - What was given back is counted a moment later.
//   - A consumer holds 2000 unsettled messages at most.
const (
	commands    = 16 // given back at a time, to be well below 32
	maxPrefetch = 2000
)

// open opens a channel and counts the messages that are there.
func (o Options) open(ctx context.Context, c Connection) (ch *amqp.Channel, messages int, err error) {
	if ch, err = reading.Within(ctx, c.Channel); err != nil {
		return nil, 0, fmt.Errorf("open a channel: %w", err)
	}
	if messages, err = reading.Count(ctx, ch, o.queue()); err == nil {
		return ch, messages, nil
	}
	go ch.Close() //nolint:errcheck // the broker has done so after a 404
	var e *amqp.Error
	if errors.As(err, &e) && e.Code == amqp.NotFound {
		return nil, 0, fmt.Errorf("%w: %s: check the prefix, or run hopback apply: %w", ErrNotSetUp, o.queue(), err)
	}
	return nil, 0, fmt.Errorf("look for the queue %s: %w", o.queue(), err)
}

// settled waits until a queue counts that many messages. It gives up soon: a
// number is all that is at stake, and others may have taken some meanwhile.
func settled(ctx context.Context, ch *amqp.Channel, queue string, messages int) {
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if n, err := reading.Count(ctx, ch, queue); err != nil || n >= messages {
			return
		}
	}
}

// reader takes messages out of the lost queue one by one, and no more than were
// there at first. What it took and did not acknowledge is back in its place, in
// its order, when it is closed.
//
// It consumes, until it keeps as many messages as a consumer may hold: what is
// passed over stays unsettled until the end, since it would be at the head again
// if it were given back earlier. From then on it uses basic.get, which has no such
// limit, and takes ten times as long. The consumer stays meanwhile, full, so that
// nothing is on its way to it: 3.10 gives back in disorder what is, when a consumer
// is cancelled.
type reader struct {
	ch    *amqp.Channel
	queue string
	total int // messages when it began
	taken int

	deliveries <-chan amqp.Delivery // nil where there is nothing to read
	prefetch   int
	got        bool // something by basic.get is kept

	kept  []uint64 // delivery tags of what goes back
	acked bool     // something since the queue last answered
}

const consumerTag = "hopback-lost"

func (o Options) reader(ctx context.Context, c Connection) (*reader, error) {
	ch, total, err := o.open(ctx, c)
	if err != nil {
		return nil, err
	}
	r := &reader{ch: ch, queue: o.queue(), total: total, prefetch: min(total, maxPrefetch)}
	if total == 0 {
		return r, nil
	}
	r.deliveries, err = consume(ctx, ch, r.queue, r.prefetch)
	if err != nil {
		_ = reading.CloseSoon(ch)
		return nil, err
	}
	return r, nil
}

func consume(ctx context.Context, ch *amqp.Channel, queue string, prefetch int) (<-chan amqp.Delivery, error) {
	deliveries, err := reading.Within(ctx, func() (<-chan amqp.Delivery, error) {
		if err := ch.Qos(prefetch, 0, false); err != nil {
			return nil, err
		}
		return ch.Consume(queue, consumerTag, false, false, false, false, nil)
	})
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", queue, err)
	}
	return deliveries, nil
}

// patience is how long to wait for a message that was counted: somebody else may
// have taken it meanwhile.
const patience = 2 * time.Second

// next takes a message, or reports that there are no more.
func (r *reader) next(ctx context.Context) (d amqp.Delivery, ok bool, err error) {
	if r.taken == r.total {
		return d, false, nil
	}
	if !r.full(0) {
		return r.receive(ctx)
	}
	if d, ok, err = r.get(ctx); ok {
		r.taken++
		r.got = true
	}
	return d, ok, err
}

// full tells whether the consumer holds all that it may, of which so many are on
// their way elsewhere. It never is where all that there was fits into it.
func (r *reader) full(onTheWay int) bool {
	return r.total > r.prefetch && len(r.kept)+onTheWay >= r.prefetch
}

// receive takes a message from the consumer.
func (r *reader) receive(ctx context.Context) (d amqp.Delivery, ok bool, err error) {
	select {
	case d, ok = <-r.deliveries:
		if !ok {
			return d, false, fmt.Errorf("read %s: %w", r.queue, amqp.ErrClosed)
		}
		r.taken++
		return d, true, nil
	case <-time.After(patience):
		return d, false, nil
	case <-ctx.Done():
		return d, false, fmt.Errorf("read %s: %w", r.queue, context.Cause(ctx))
	}
}

func (r *reader) get(ctx context.Context) (amqp.Delivery, bool, error) {
	type got struct {
		d  amqp.Delivery
		ok bool
	}
	g, err := reading.Within(ctx, func() (g got, err error) {
		g.d, g.ok, err = r.ch.Get(r.queue, false)
		return g, err
	})
	if err != nil {
		return g.d, false, fmt.Errorf("read %s: %w", r.queue, err)
	}
	return g.d, g.ok, nil
}

// keep notes that a message goes back.
func (r *reader) keep(tag uint64) { r.kept = append(r.kept, tag) }

// ack takes messages out of the queue, whose tags ascend.
func (r *reader) ack(tags []uint64) error {
	if len(tags) == 0 {
		return nil
	}
	r.acked = true
	all := len(r.kept) == 0 // one command instead of many
	if all {
		tags = tags[len(tags)-1:]
	}
	for _, tag := range tags {
		if err := r.ch.Ack(tag, all); err != nil {
			return fmt.Errorf("take messages out of %s: %w", r.queue, err)
		}
	}
	return nil
}

// flush returns when the queue has all acknowledgements. It answers a basic.get
// after the commands that were sent before it; those that the channel had kept
// back follow with the answer, and are before the second.
func (r *reader) flush(ctx context.Context) error {
	for range 2 {
		d, ok, err := r.get(ctx)
		if err != nil {
			return err
		}
		if ok {
			r.keep(d.DeliveryTag)
			r.got = true
		}
		if _, err := reading.Count(ctx, r.ch, r.queue); err != nil {
			return err
		}
	}
	return nil
}

// close gives back what was kept and closes the channel.
func (r *reader) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute+time.Duration(len(r.kept))*10*time.Millisecond)
	defer cancel()
	var err error
	if r.acked {
		err = r.flush(ctx)
	}
	if err == nil && r.got {
		err = r.giveBack(ctx)
	}
	if err := errors.Join(err, reading.CloseChannel(ctx, r.ch)); err != nil && !errors.Is(err, amqp.ErrClosed) {
		// The broker does it by itself, if in another order.
		return fmt.Errorf("give back what stays in %s: %w", r.queue, err)
	}
	return nil
}

// settled waits, on another channel, until what was given back is counted.
func (r *reader) settled(ch *amqp.Channel, messages int) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	settled(ctx, ch, r.queue, messages)
}

// giveBack gives back what is unsettled in its order, of which the end of the
// channel would make disorder.
func (r *reader) giveBack(ctx context.Context) error {
	// Else the consumer would get it all again.
	if _, err := reading.Within(ctx, func() (struct{}, error) { return struct{}{}, r.ch.Cancel(consumerTag, false) }); err != nil {
		return err
	}
	for d := range r.deliveries { // that nobody has asked for; ends with the consumer
		r.keep(d.DeliveryTag)
	}
	slices.Sort(r.kept)
	there, err := reading.Count(ctx, r.ch, r.queue)
	for i, tag := range r.kept {
		if err != nil {
			break
		}
		err = r.ch.Nack(tag, false, true)
		if last := i == len(r.kept)-1; err == nil && (last || i%commands == commands-1) {
			settled(ctx, r.ch, r.queue, there+i+1)
		}
	}
	return err
}
