package hopback

import (
	"context"
	"fmt"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/backoff"
	"github.com/hopback/hopback/delay"
	"github.com/hopback/hopback/internal/link"
	"github.com/hopback/hopback/internal/native"
	"github.com/hopback/hopback/topology"
)

// subscription is one life of a consumer at the broker, and how its delays are held.
type subscription struct {
	*link.Life
	transport
	delays delay.Mechanism
}

// transport is how messages come and are settled: a channel of AMQP 0-9-1, or a
// receiver of AMQP 1.0.
type transport interface {
	// deliveries are the channels that messages come through; one of them is nil.
	deliveries() (<-chan amqp.Delivery, <-chan *native.Delivery)

	// accept removes a message from the queue, soon.
	accept(*delivery)

	// delay leaves a message to its own queue until the time has come, with these
	// headers. Over AMQP 1.0 alone.
	delay(d *delivery, until time.Time, headers amqp.Table) error

	// headerLimit is the most bytes that properties and headers of a successor may
	// take: 8 KiB below the frame, since the broker adds headers of its own when it
	// dead-letters, and one that outgrows the frame can be read by no consumer.
	headerLimit() int

	// cancel stops the deliveries, and close sends the last settlements and ends
	// it. Both give the broker until the end of ctx, and then cut the connection.
	cancel(ctx context.Context)
	close(ctx context.Context)

	// end closes what has stopped when all that it delivered is settled, or when ctx
	// ends; what is not settled by then goes back to the queue, where there still is
	// one.
	end(ctx context.Context)
}

// delivery is a message as it came, whichever transport brought it.
type delivery struct {
	msg                  amqp.Publishing
	exchange, routingKey string
	redelivered          bool

	tag    uint64           // over AMQP 0-9-1
	native *native.Delivery // over AMQP 1.0
}

// resubscribe is how long to wait before subscription attempt n.
var resubscribe = backoff.Schedule{
	Base: 200 * time.Millisecond, Max: 10 * time.Second, MinDelay: 100 * time.Millisecond, Jitter: backoff.Equal,
}.WithDefaults()

func random() uint64 { return backoff.Random() }

// subscribe brings the topology into line and starts to consume.
func (c *Consumer) subscribe(ctx context.Context) (*subscription, error) {
	session, err := c.client.consume.Session(ctx)
	if err != nil {
		return nil, err
	}
	if err := c.applyTopology(ctx, session); err != nil {
		return nil, err
	}
	delays, _ := c.mechanism()
	s := &subscription{delays: delays}
	if s.isNative() {
		if s.Life, s.transport, err = c.receive(ctx, session); err != nil {
			return nil, err
		}
	} else {
		sub, err := link.Subscribe(ctx, session, c.cfg.Route.Queue, c.cfg.Prefetch)
		if err != nil {
			return nil, err
		}
		s.Life, s.transport = sub.Life, &channel{sub}
	}
	c.watchWay(s, session)
	c.subs = append(slices.DeleteFunc(c.subs, (*subscription).Settled), s)
	return s, nil
}

// applyTopology declares what is missing. The account may have no right to do
// so when the topology was applied by somebody else.
func (c *Consumer) applyTopology(ctx context.Context, conn topology.Connection) error {
	if c.client.cfg.SkipDeclare {
		return c.verifyWay(ctx, conn)
	}
	ctx, cancel := context.WithTimeout(ctx, topologyTimeout)
	defer cancel()
	_, needs := c.mechanism()
	if err := topology.Apply(ctx, conn, needs); err != nil {
		return fmt.Errorf("prepare the topology: %w", err)
	}
	return c.verifyWay(ctx, conn)
}

const topologyTimeout = time.Minute

// isNative reports whether the broker holds the delays on the work queue itself.
func (s *subscription) isNative() bool {
	_, ok := s.delays.(delay.Native)
	return ok
}

// closeTimeout is how long the broker may take to close a channel. It is a time
// of its own: a handler that used up another one is no reason to cut the
// connection, on which the client's other consumers work.
const closeTimeout = 5 * time.Second

// nothing stands for the subscription that there is not when a shutdown begins
// while the broker is away.
func (c *Consumer) nothing() *subscription {
	none := link.NoSubscription()
	return &subscription{Life: none.Life, transport: &channel{none}}
}
