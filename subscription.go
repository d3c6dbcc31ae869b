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
	"github.com/hopback/hopback/internal/link"
	"github.com/hopback/hopback/topology"
)

// subscription is one channel that consumes: a generation. Deliveries belong to
// it, and a settlement after its end is dropped, because on the next channel
// the same tag is another message.
type subscription struct {
	session    *link.Session
	ch         *amqp.Channel
	tag        string
	deliveries <-chan amqp.Delivery
	acks       *link.Acks
	inFlight   atomic.Int64  // messages between their delivery and their settlement
	stopped    chan struct{} // closed when the broker delivers no more
	done       chan struct{} // closed when the channel is, after stopped
	abandoned  atomic.Bool   // by a shutdown that ran out of time
	err        error         // why it stopped; read after stopped
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
	defer cutUnlessDone(ctx, session)()
	ch, err := session.Channel()
	if err != nil {
		return nil, fmt.Errorf("open a channel: %w", err)
	}
	s := &subscription{
		session: session, ch: ch, tag: fmt.Sprintf("hopback-%016x", random()),
		stopped: make(chan struct{}), done: make(chan struct{}),
	}
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	cancelled := ch.NotifyCancel(make(chan string, 1))
	if err := ch.Qos(c.cfg.Prefetch, 0, false); err != nil {
		return nil, fmt.Errorf("set the prefetch to %d: %w", c.cfg.Prefetch, err)
	}
	s.deliveries, err = ch.Consume(c.cfg.Route.Queue, s.tag, false, false, false, false, nil)
	if err != nil {
		return nil, fmt.Errorf("consume from queue %q: %w", c.cfg.Route.Queue, err)
	}
	s.acks = link.NewAcks(ch, s.done)
	go s.watch(closed, cancelled, c.cfg.Route.Queue)
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
	if err := topology.Apply(ctx, conn, c.needs); err != nil {
		return fmt.Errorf("prepare the topology: %w", err)
	}
	return c.verifyWay(ctx, conn)
}

const topologyTimeout = time.Minute

// watch notes why the deliveries stop. A basic.cancel, sent when the queue is
// deleted or moves to another node, leaves the channel open: what is in work is
// still settled or handed off on it.
func (s *subscription) watch(closed <-chan *amqp.Error, cancelled <-chan string, queue string) {
	var err *amqp.Error
	select {
	case err = <-closed:
	case _, ok := <-cancelled:
		if ok {
			s.err = fmt.Errorf("the broker cancelled the consumer: was queue %q deleted?", queue)
			close(s.stopped)
			<-closed
			close(s.done)
			return
		}
		err = <-closed
	}
	s.err = errors.New("channel closed")
	if err != nil {
		s.err = fmt.Errorf("channel closed: %w", err)
	}
	close(s.stopped)
	close(s.done)
}

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

// begin and finish bracket a message's time in this process.
func (s *subscription) begin()  { s.inFlight.Add(1) }
func (s *subscription) finish() { s.inFlight.Add(-1) }

// settled reports whether nothing of it is left to settle. When its channel has
// ended nothing is: what still waits for a confirm then is of no consequence.
func (s *subscription) settled() bool { return s.inFlight.Load() == 0 || !s.live() }

// headerLimit is the most bytes that properties and headers of a successor may
// take: 8 KiB below the frame, since the broker adds headers of its own when it
// dead-letters, and one that outgrows the frame can be read by no consumer.
func (s *subscription) headerLimit() int {
	frame := s.session.Config.FrameSize
	if frame <= 0 {
		frame = 128 << 10
	}
	return max(frame-8<<10, frame/2) // RabbitMQ allows frames down to 4 KiB
}

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

// cancel stops the deliveries; what is prefetched stays unacknowledged.
func (s *subscription) cancel(ctx context.Context) {
	if s.ch == nil {
		return
	}
	within(ctx, s.session, func() { s.ch.Cancel(s.tag, false) }) //nolint:errcheck // a closed channel is cancelled too
}

// abandon makes all settlements to come void.
func (s *subscription) abandon() { s.abandoned.Store(true) }

// close sends the last acknowledgements and closes the channel.
//
// The channel process of a quorum queue keeps acknowledgements back while more
// than 32 of its commands are unapplied, and forgets those it still keeps when
// the channel closes (rabbit_fifo_client, SOFT_LIMIT; a loop of 3,000 single
// acknowledgements on a busy 4.3.6 that closed at once left 90 unsettled). So
// the answer to a question comes first, which says that the channel has them
// all, and then a moment in which it can pass them on. Whatever is kept even
// then is delivered again: a duplicate, not a loss.
func (s *subscription) close(ctx context.Context) {
	if s.ch == nil {
		return
	}
	within(ctx, s.session, func() {
		s.acks.Close()
		if s.ch.Qos(1, 0, false) == nil {
			time.Sleep(settleTime)
		}
		s.ch.Close() //nolint:errcheck // closed is closed
	})
}

// settleTime is hundreds of times what an idle broker needs to apply a command.
const settleTime = 100 * time.Millisecond

// end gives up a subscription that stopped. One that was cancelled closes its
// channel when what it delivered is settled; what is not by then goes back to
// the queue, where there still is one.
func (s *subscription) end() {
	if s.ch.IsClosed() {
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
	s := &subscription{stopped: make(chan struct{}), done: make(chan struct{})}
	close(s.stopped)
	close(s.done)
	return s
}
