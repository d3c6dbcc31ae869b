package link

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/backoff"
)

// Subscription is one channel that consumes.
type Subscription struct {
	*Life
	Session    *Session
	Deliveries <-chan amqp.Delivery

	queue string
	ch    *amqp.Channel
	tag   string
	acks  *Acks
}

// closeTimeout is how long the broker may take to close a channel. It is a time
// of its own: whatever used up another one is no reason to cut the connection.
const closeTimeout = 5 * time.Second

// settleTime is hundreds of times what an idle broker needs to apply a command.
const settleTime = 100 * time.Millisecond

// Subscribe consumes from a queue. It cuts the session when the broker does not
// answer soon after the end of ctx.
func Subscribe(ctx context.Context, session *Session, queue string, prefetch int) (*Subscription, error) {
	defer cutUnlessDone(ctx, session)()
	ch, err := session.Channel()
	if err != nil {
		return nil, fmt.Errorf("open a channel: %w", err)
	}
	s := &Subscription{
		Life: NewLife(), Session: session, queue: queue, ch: ch, tag: fmt.Sprintf("hopback-%016x", backoff.Random()),
	}
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	cancelled := ch.NotifyCancel(make(chan string, 1))
	if err := ch.Qos(prefetch, 0, false); err != nil {
		return nil, fmt.Errorf("set the prefetch to %d: %w", prefetch, err)
	}
	if s.Deliveries, err = ch.Consume(queue, s.tag, false, false, false, false, nil); err != nil {
		return nil, fmt.Errorf("consume from queue %q: %w", queue, err)
	}
	s.acks = NewAcks(ch, s.done)
	go s.watch(closed, cancelled)
	return s, nil
}

// NoSubscription stands for the subscription that there is not when a shutdown
// begins while the broker is away.
func NoSubscription() *Subscription {
	s := &Subscription{Life: NewLife()}
	s.Over(nil)
	return s
}

// watch notes why the deliveries stop. A basic.cancel, sent when the queue is
// deleted or moves to another node, leaves the channel open: what is in work is
// still settled or handed off on it.
func (s *Subscription) watch(closed <-chan *amqp.Error, cancelled <-chan string) {
	var err *amqp.Error
	select {
	case err = <-closed:
	case _, ok := <-cancelled:
		if ok {
			s.stop(fmt.Errorf("the broker cancelled the consumer: was queue %q deleted?", s.queue))
			<-closed
			close(s.done)
			return
		}
		err = <-closed
	}
	if err == nil {
		s.Over(errors.New("channel closed"))
		return
	}
	s.Over(fmt.Errorf("channel closed: %w", err))
}

// Ack acknowledges a delivery soon, unless that would reach nobody any more.
func (s *Subscription) Ack(tag uint64) {
	if s.Live() {
		s.acks.Ack(tag)
	}
}

// Reject lets the broker dead-letter a delivery, unless that would reach nobody any
// more. It writes to the socket before it returns.
func (s *Subscription) Reject(tag uint64) {
	if s.Live() && s.ch.Reject(tag, false) == nil {
		s.acks.Skip(tag)
	}
}

// HeaderLimit is the most bytes that properties and headers of a successor may
// take: 8 KiB below the frame, since the broker adds headers of its own when it
// dead-letters, and one that outgrows the frame can be read by no consumer.
func (s *Session) HeaderLimit() int {
	frame := s.Config.FrameSize
	if frame <= 0 {
		frame = 128 << 10
	}
	return max(frame-8<<10, frame/2) // RabbitMQ allows frames down to 4 KiB
}

// HeaderLimit is its session's.
func (s *Subscription) HeaderLimit() int { return s.Session.HeaderLimit() }

// Cancel stops the deliveries; what is prefetched stays unacknowledged.
func (s *Subscription) Cancel(ctx context.Context) {
	if s.ch == nil {
		return
	}
	within(ctx, s.Session, func() { s.ch.Cancel(s.tag, false) }) //nolint:errcheck // a closed channel is cancelled too
}

// Close sends the last acknowledgements and closes the channel.
//
// The channel process of a quorum queue keeps acknowledgements back while more
// than 32 of its commands are unapplied, and forgets those it still keeps when
// the channel closes (rabbit_fifo_client, SOFT_LIMIT; a loop of 3,000 single
// acknowledgements on a busy 4.3.6 that closed at once left 90 unsettled). So
// the answer to a question comes first, which says that the channel has them
// all, and then a moment in which it can pass them on. Whatever is kept even
// then is delivered again: a duplicate, not a loss.
func (s *Subscription) Close(ctx context.Context) {
	if s.ch == nil {
		return
	}
	within(ctx, s.Session, func() {
		s.acks.Close()
		if s.ch.Qos(1, 0, false) == nil {
			time.Sleep(settleTime)
		}
		s.ch.Close() //nolint:errcheck // closed is closed
	})
}

// End gives up a subscription that stopped: its channel is closed when what it
// delivered is settled, or when ctx ends. What is not settled by then goes back
// to the queue, where there still is one.
func (s *Subscription) End(ctx context.Context) {
	if s.ch == nil || s.ch.IsClosed() {
		return
	}
	for !s.Settled() && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-s.done:
		case <-time.After(5 * time.Millisecond):
		}
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	s.Close(closing)
}

// within does something that amqp091-go gives no context to. When the time is
// over the broker does not answer, and the connection is of no more use.
func within(ctx context.Context, s *Session, do func()) {
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
func cutUnlessDone(ctx context.Context, s *Session) func() {
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

// Depth is how many messages of a queue are ready for delivery, over a channel of
// its own.
func (s *Session) Depth(ctx context.Context, queue string) (int, error) {
	defer cutUnlessDone(ctx, s)()
	ch, err := s.Channel()
	if err != nil {
		return 0, fmt.Errorf("open a channel: %w", err)
	}
	defer ch.Close()
	q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		return 0, fmt.Errorf("count the messages of queue %q: %w", queue, err)
	}
	return q.Messages, nil
}
