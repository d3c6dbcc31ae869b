// Package parking looks after parked messages: those whose retries are used up,
// or that no retry can help, and that wait for a person to decide. It lists and
// groups them, sends them back to the queue that they failed in, edits, moves,
// exports and discards them. It works on any queue that messages rest in, ours
// or not: on a dead letter queue of old as well.
//
//	q, err := parking.Open(ctx, conn, "orders.parked", parking.Options{})
//	for m, err := range q.Messages(ctx, parking.Filter{Reason: "exhausted"}) {
//		…
//	}
//	report, err := q.Replay(ctx, parking.Replay{Filter: parking.Filter{ErrorType: "TimeoutError"}})
//
// # Looking changes nothing
//
// A message can be looked at over AMQP only by receiving it and giving it back.
// This package receives what there is, in order, holds it, and gives it back in
// order: count, order and dead-letter queues are what they were, and nobody else
// sees a part of it meanwhile. What does change is RabbitMQ's own note that the
// message was delivered before.
//
// Some queues make even that a risk: RabbitMQ 4.0 drops a message of a quorum
// queue that has no delivery limit of its own at the 22nd look. Open finds out
// what looking would cost, and every look ends with a CostError there, unless
// Options.Force is set. Parking queues that Hopback has declared cost nothing.
//
// # Nothing is lost
//
// A message leaves the queue only after RabbitMQ has confirmed its successor and
// did not return it. Where a process or a connection ends between the two, the
// message is there twice, with the same x-retry-id.
package parking

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/internal/reading"
	"github.com/hopback/hopback/topology"
)

// Connection is what this package needs of an *amqp.Connection. Where it is one,
// the broker's version and the frame size are taken from it.
type Connection interface {
	Channel() (*amqp.Channel, error)
}

// Options of a Queue. The zero value suits a queue that Hopback declared.
type Options struct {
	// Prefix begins the name of every exchange of Hopback's. Empty means "hop".
	Prefix string

	// Management, where set, is asked for the queue's arguments and policies.
	// Without it the arguments are found out over AMQP, which needs the permission
	// to configure the queue, and policies stay unseen.
	Management *topology.Management

	// Force looks even where looking costs something.
	Force bool

	// ConfirmTimeout is how long to wait for the broker's confirm of one message. 0
	// means 30 s.
	ConfirmTimeout time.Duration

	// Progress, where set, is called now and then during a look: how many messages of
	// how many were read.
	Progress func(seen, total int)

	// By names who replays, edits or moves, in the history of the message. Empty
	// means user@host.
	By string
}

// DefaultPrefix is the prefix where Options name none.
const DefaultPrefix = "hop"

// ErrNoQueue says that there is no queue of that name.
var ErrNoQueue = errors.New("there is no such queue")

// Queue is a queue that messages are parked in. Its methods may be called one
// after another; one that runs holds messages that the others then do not see.
type Queue struct {
	conn Connection
	name string
	o    Options
	cost Cost
}

// Open looks for the queue and for what looking into it costs. It takes nothing
// out and holds nothing.
func Open(ctx context.Context, c Connection, name string, o Options) (*Queue, error) {
	if o.Prefix == "" {
		o.Prefix = DefaultPrefix
	}
	if o.ConfirmTimeout == 0 {
		o.ConfirmTimeout = 30 * time.Second
	}
	if o.By == "" {
		o.By = whoami()
	}
	q := &Queue{conn: c, name: name, o: o}
	var err error
	if q.cost, err = q.findCost(ctx); err != nil {
		return nil, fmt.Errorf("open %q: %w", name, err)
	}
	return q, nil
}

// Name is the queue's name.
func (q *Queue) Name() string { return q.name }

// Cost is what looking into the queue costs.
func (q *Queue) Cost() Cost { return q.cost }

// Depth is how many messages are ready for delivery: those that nobody holds.
func (q *Queue) Depth(ctx context.Context) (int, error) {
	n, err := onChannel(ctx, q.conn, func(ch *amqp.Channel) (int, error) { return reading.Count(ctx, ch, q.name) })
	if err != nil {
		return 0, fmt.Errorf("count the messages of %q: %w", q.name, err)
	}
	return n, nil
}

// read opens a reader, where that is allowed.
func (q *Queue) read(ctx context.Context, o reading.Options) (*reading.Reader, error) {
	if !q.cost.Free() && !q.o.Force {
		return nil, &CostError{Queue: q.name, Cost: q.cost}
	}
	o.Tag, o.Nack, o.Classic = consumerTag, q.cost.nack, q.cost.Type == "classic"
	return reading.Open(ctx, q.conn, q.name, o)
}

// giveBack closes a reader, also when ctx has ended: order takes a while where
// much is in the queue, and is worth it.
func (q *Queue) giveBack(ctx context.Context, r *reading.Reader) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), maxHold)
	defer cancel()
	return r.Close(ctx)
}

const consumerTag = "hopback-parked"

// onChannel runs an operation on a channel of its own, which a refusal closes.
func onChannel[T any](ctx context.Context, c Connection, f func(*amqp.Channel) (T, error)) (T, error) {
	return reading.Within(ctx, func() (T, error) {
		var none T
		ch, err := c.Channel()
		if err != nil {
			return none, err
		}
		defer ch.Close() //nolint:errcheck // nothing is held on it
		return f(ch)
	})
}

func whoami() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return name
}
