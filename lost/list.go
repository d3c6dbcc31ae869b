package lost

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/internal/reading"
)

// Message is a lost message, without its body.
type Message struct {
	// ID is the message's x-retry-id.
	ID string
	// MessageID is the application's own id; it may be empty.
	MessageID string

	// Queue is the work queue that it should return to, empty where the message
	// does not say. QueueExists says whether that is there.
	Queue       string
	QueueExists bool

	// Exchange and RoutingKey are where it was first published; empty where
	// nobody knows (OriginUnknown).
	Exchange, RoutingKey string
	OriginUnknown        bool

	// Retries so far, as far as its counter can be read.
	Retries int

	// Error and ErrorType are the last failure's.
	Error, ErrorType string

	// FirstFailedAt is when it first failed, DueAt when it was to return.
	FirstFailedAt, DueAt time.Time

	// Size of the body in bytes.
	Size int
}

// Listing is what List found.
type Listing struct {
	// Total is how many messages were in the queue, of any work queue. Those
	// that somebody else holds at the moment are not counted.
	Total int

	// Complete is false where there are more than Limit, or than 2000 in all.
	Complete bool

	// Messages in their order, oldest first.
	Messages []Message
}

// List shows the messages whose work queue had gone. They keep their place and,
// up to 2000 of them, their order, and they bear to be looked at any number of
// times; RabbitMQ marks them as redelivered. While it runs, others cannot read
// what it has read.
func List(ctx context.Context, c Connection, o Options) (Listing, error) {
	o = o.withDefaults()
	l, err := o.list(ctx, c)
	if err != nil {
		return l, fmt.Errorf("list lost messages: %w", err)
	}
	return l, nil
}

func (o Options) list(ctx context.Context, c Connection) (l Listing, err error) {
	// One channel to read and one to count: what the first has read is given back
	// by closing it.
	counting, total, err := o.open(ctx, c)
	if err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, reading.CloseSoon(counting)) }()
	looking, err := reading.Within(ctx, c.Channel)
	if err != nil {
		return l, fmt.Errorf("open a channel: %w", err)
	}
	l.Total = total
	// All of them, even for a smaller limit: a quorum queue has a line of its own
	// for what was given back, and a part of it that is read and given back again
	// is behind the rest of it afterwards (3.10.8).
	seen, rerr := read(ctx, looking, o.queue(), min(maxPrefetch, total))
	cerr := reading.CloseSoon(looking)
	settled(ctx, counting, o.queue(), total)
	if err := errors.Join(rerr, cerr); err != nil {
		return l, err
	}
	l.Complete = len(seen) >= total
	work := &queues{c: c, seen: map[string]state{}}
	for _, m := range seen {
		if o.Queue != "" && m.Queue != o.Queue {
			continue
		}
		if len(l.Messages) == o.Limit {
			l.Complete = false
			break
		}
		if m.Queue != "" {
			s := work.find(ctx, m.Queue)
			if s.err != nil {
				return l, s.err
			}
			m.QueueExists = s.exists
		}
		l.Messages = append(l.Messages, m)
	}
	return l, nil
}

// read looks at the first n messages of a queue. They are unsettled, and back
// where they were when the channel is closed.
func read(ctx context.Context, ch *amqp.Channel, queue string, n int) ([]Message, error) {
	if n == 0 {
		return nil, nil
	}
	deliveries, err := consume(ctx, ch, queue, n)
	if err != nil {
		return nil, err
	}
	var seen []Message
	for len(seen) < n {
		select {
		case d, ok := <-deliveries:
			if !ok {
				return nil, fmt.Errorf("read %s: %w", queue, amqp.ErrClosed)
			}
			seen = append(seen, describe(&d))
		case <-time.After(patience):
			return seen, nil
		case <-ctx.Done():
			return nil, fmt.Errorf("read %s: %w", queue, context.Cause(ctx))
		}
	}
	return seen, nil
}

func describe(d *amqp.Delivery) Message {
	p := attempt.FromDelivery(d)
	rec, _ := attempt.Read(&p, source(d)) // a counter that cannot be read is shown as 0
	return Message{
		ID: rec.ID, MessageID: d.MessageId, Queue: rec.Queue,
		Exchange: rec.Exchange, RoutingKey: rec.RoutingKey, OriginUnknown: rec.OriginUnknown,
		Retries: int(rec.Count), Error: rec.Error, ErrorType: rec.ErrorType,
		FirstFailedAt: rec.FirstFailedAt, DueAt: rec.DueAt, Size: len(d.Body),
	}
}
