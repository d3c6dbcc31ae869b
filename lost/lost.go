// Package lost looks after messages whose work queue had gone while they
// waited. They rest in the queue <prefix>.lost, where the way back ends when it
// finds no queue: without that net they would be dropped, or block the slot
// that they waited in for everybody else.
//
// List shows them and changes nothing. Return sends each back to its work queue
// once that exists again, and, where it is asked to, those whose queue is gone
// for good to their parking queue.
//
// Both stop at what was there when they began, hold nothing back when they are
// stopped half-way, and may run while everything else does.
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

// DefaultPrefix begins the names of exchanges and queues where Options name
// none.
const DefaultPrefix = "hop"

// Options choose messages, and what becomes of them. The zero value is all
// messages of the default prefix.
type Options struct {
	// Prefix begins the name of every exchange and queue of Hopback's. Empty
	// means "hop".
	Prefix string

	// Queue picks the messages of one work queue. Empty means all.
	Queue string

	// Limit is how many messages List returns at most, the oldest first. 0 and
	// what is above 2000, which is the most that a quorum queue hands to one
	// consumer, mean 2000. Return does not use it.
	Limit int

	// Park has Return send messages whose work queue does not exist to their
	// parking queue, with attempt.ReasonLostRoute. Without it they stay.
	Park bool

	// ConfirmTimeout is how long Return waits for the broker's confirm of one
	// message. 0 means 30 s.
	ConfirmTimeout time.Duration

	// Progress, where set, is called by Return now and then, from its own
	// goroutine.
	Progress func(Report)
}

func (o Options) withDefaults() Options {
	if o.Prefix == "" {
		o.Prefix = DefaultPrefix
	}
	if o.Limit <= 0 || o.Limit > maxPrefetch {
		o.Limit = maxPrefetch
	}
	if o.ConfirmTimeout == 0 {
		o.ConfirmTimeout = 30 * time.Second
	}
	return o
}

func (o Options) queue() string { return o.Prefix + ".lost" }

// ErrNotSetUp says that there is no queue <prefix>.lost: Hopback was never set
// up in this virtual host, or with another prefix.
var ErrNotSetUp = errors.New("there is no queue for lost messages")

// Connection is what this package needs of an *amqp.Connection.
type Connection interface {
	Channel() (*amqp.Channel, error)
}

// queues remembers which work queues exist.
type queues struct {
	c    Connection
	seen map[string]state
}

type state struct {
	exists bool
	err    error // it could not be looked for, or not be bound
}

// find looks for a work queue, at most once, and changes nothing.
func (q *queues) find(ctx context.Context, name string) state {
	if s, ok := q.seen[name]; ok {
		return s
	}
	s := q.look(ctx, name)
	q.seen[name] = s
	return s
}

func (q *queues) look(ctx context.Context, name string) state {
	var s state
	s.err = q.do(ctx, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
		return err
	})
	var e *amqp.Error
	switch {
	case s.err == nil:
		s.exists = true
	case errors.As(s.err, &e) && e.Code == amqp.NotFound:
		s.err = nil
	default:
		s.err = fmt.Errorf("look for the work queue %q: %w", name, s.err)
	}
	return s
}

// do runs one operation on a channel of its own, which a refusal closes.
func (q *queues) do(ctx context.Context, f func(*amqp.Channel) error) error {
	_, err := reading.Within(ctx, func() (struct{}, error) {
		ch, err := q.c.Channel()
		if err != nil {
			return struct{}{}, err
		}
		defer ch.Close() //nolint:errcheck // nothing is open on it
		return struct{}{}, f(ch)
	})
	return err
}

// source is where a lost message's record is read from: whichever queue it
// names.
func source(d *amqp.Delivery) attempt.Source {
	return attempt.Source{RoutingKey: d.RoutingKey, Exchange: d.Exchange, OriginUnknown: true, At: time.Now()}
}
