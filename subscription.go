package hopback

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/backoff"
	"github.com/hopback/hopback/delay"
	"github.com/hopback/hopback/internal/link"
	"github.com/hopback/hopback/internal/native"
	"github.com/hopback/hopback/topology"
)

// subscription is one life of a consumer at the broker: a generation. Deliveries
// belong to it, and a settlement after its end is dropped: over AMQP 0-9-1 the
// same tag is another message on the next channel.
type subscription struct {
	transport
	delays    delay.Mechanism
	inFlight  atomic.Int64  // messages between their delivery and their settlement
	stopped   chan struct{} // closed when the broker delivers no more
	done      chan struct{} // closed when nothing can be settled any more, after stopped
	abandoned atomic.Bool   // by a shutdown that ran out of time
	err       error         // why it stopped; read after stopped
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
	ended() bool
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
	s := &subscription{delays: delays, stopped: make(chan struct{}), done: make(chan struct{})}
	if s.isNative() {
		err = c.receive(ctx, s, session)
	} else {
		err = c.openChannel(ctx, s, session)
	}
	if err != nil {
		return nil, err
	}
	c.watchWay(s, session)
	c.subs = append(slices.DeleteFunc(c.subs, (*subscription).settled), s)
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

// why waits for the reason of the end, which may be told a moment after the
// deliveries stop.
func (s *subscription) why() error {
	select {
	case <-s.stopped:
		return s.err
	case <-time.After(time.Second):
		return errors.New("deliveries stopped")
	}
}

// isNative reports whether the broker holds the delays on the work queue itself.
func (s *subscription) isNative() bool {
	_, ok := s.delays.(delay.Native)
	return ok
}

// begin and finish bracket a message's time in this process.
func (s *subscription) begin()  { s.inFlight.Add(1) }
func (s *subscription) finish() { s.inFlight.Add(-1) }

// settled reports whether nothing of it is left to settle. When its channel has
// ended nothing is: what still waits for a confirm then is of no consequence.
func (s *subscription) settled() bool { return s.inFlight.Load() == 0 || !s.live() }

// live reports whether a settlement would still reach its message.
func (s *subscription) live() bool {
	if s.abandoned.Load() {
		return false
	}
	select {
	case <-s.done:
		return false
	default:
		return true
	}
}

// abandon makes all settlements to come void.
func (s *subscription) abandon() { s.abandoned.Store(true) }

// end gives up a subscription that stopped. A channel that was cancelled is closed
// when what it delivered is settled; what is not by then goes back to
// the queue, where there still is one.
func (s *subscription) end() {
	if s.ended() {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), topologyTimeout)
		defer cancel()
		waitUntil(ctx, s.settled)
		closing, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		s.close(closing)
	}()
}

// closeTimeout is how long the broker may take to close a channel. It is a time
// of its own: a handler that used up another one is no reason to cut the
// connection, on which the client's other consumers work.
const closeTimeout = 5 * time.Second

// within does something that amqp091-go gives no context to. When the time is
// over the broker does not answer, and the connection is of no more use.
func within(ctx context.Context, s *link.Session, do func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	select {
	case <-done:
	case <-ctx.Done():
		s.Cut()
		<-done
	}
}

// cutUnlessDone is for what amqp091-go gives no context to: unless the function
// that it returns is called soon after the end of ctx, the broker does not
// answer, and the connection is cut.
func cutUnlessDone(ctx context.Context, s *link.Session) func() {
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-done:
		case <-time.After(closeTimeout):
			s.Cut()
		}
	})
	return func() {
		stop()
		close(done)
	}
}

// nothing stands for the subscription that there is not when a shutdown begins
// while the broker is away.
func (c *Consumer) nothing() *subscription {
	s := &subscription{transport: noTransport{}, stopped: make(chan struct{}), done: make(chan struct{})}
	close(s.stopped)
	close(s.done)
	return s
}

// noTransport brings nothing and settles nothing.
type noTransport struct{ transport }

func (noTransport) cancel(context.Context) {}
func (noTransport) close(context.Context)  {}
func (noTransport) ended() bool            { return true }
