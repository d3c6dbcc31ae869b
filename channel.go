package hopback

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/internal/link"
	"github.com/hopback/hopback/internal/native"
)

// channel is the transport over AMQP 0-9-1, for every mechanism that publishes.
type channel struct {
	session *link.Session
	ch      *amqp.Channel
	tag     string
	in      <-chan amqp.Delivery
	acks    *link.Acks
}

// openChannel starts to consume over AMQP 0-9-1.
func (c *Consumer) openChannel(ctx context.Context, s *subscription, session *link.Session) error {
	defer cutUnlessDone(ctx, session)()
	ch, err := session.Channel()
	if err != nil {
		return fmt.Errorf("open a channel: %w", err)
	}
	t := &channel{session: session, ch: ch, tag: fmt.Sprintf("hopback-%016x", random())}
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	cancelled := ch.NotifyCancel(make(chan string, 1))
	if err := ch.Qos(c.cfg.Prefetch, 0, false); err != nil {
		return fmt.Errorf("set the prefetch to %d: %w", c.cfg.Prefetch, err)
	}
	t.in, err = ch.Consume(c.cfg.Route.Queue, t.tag, false, false, false, false, nil)
	if err != nil {
		return fmt.Errorf("consume from queue %q: %w", c.cfg.Route.Queue, err)
	}
	t.acks = link.NewAcks(ch, s.done)
	s.transport = t
	go s.watch(closed, cancelled, c.cfg.Route.Queue)
	return nil
}

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

func (t *channel) deliveries() (<-chan amqp.Delivery, <-chan *native.Delivery) { return t.in, nil }

func fromChannel(d *amqp.Delivery) delivery {
	return delivery{
		msg: attempt.FromDelivery(d), exchange: d.Exchange, routingKey: d.RoutingKey,
		redelivered: d.Redelivered, tag: d.DeliveryTag,
	}
}

func (t *channel) accept(d *delivery) { t.acks.Ack(d.tag) }

func (t *channel) delay(*delivery, time.Time, amqp.Table) error {
	return errors.New("AMQP 0-9-1 has no settlement that delays")
}

func (t *channel) headerLimit() int { return headerLimit(t.session) }

func headerLimit(s *link.Session) int {
	frame := s.Config.FrameSize
	if frame <= 0 {
		frame = 128 << 10
	}
	return max(frame-8<<10, frame/2) // RabbitMQ allows frames down to 4 KiB
}

// cancel stops the deliveries; what is prefetched stays unacknowledged.
func (t *channel) cancel(ctx context.Context) {
	within(ctx, t.session, func() { t.ch.Cancel(t.tag, false) }) //nolint:errcheck // a closed channel is cancelled too
}

func (t *channel) ended() bool { return t.ch.IsClosed() }

// close sends the last acknowledgements and closes the channel.
//
// The channel process of a quorum queue keeps acknowledgements back while more
// than 32 of its commands are unapplied, and forgets those it still keeps when
// the channel closes (rabbit_fifo_client, SOFT_LIMIT; a loop of 3,000 single
// acknowledgements on a busy 4.3.6 that closed at once left 90 unsettled). So
// the answer to a question comes first, which says that the channel has them
// all, and then a moment in which it can pass them on. Whatever is kept even
// then is delivered again: a duplicate, not a loss.
func (t *channel) close(ctx context.Context) {
	within(ctx, t.session, func() {
		t.acks.Close()
		if t.ch.Qos(1, 0, false) == nil {
			time.Sleep(settleTime)
		}
		t.ch.Close() //nolint:errcheck // closed is closed
	})
}

// settleTime is hundreds of times what an idle broker needs to apply a command.
const settleTime = 100 * time.Millisecond
