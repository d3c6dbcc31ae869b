package parking

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/internal/reading"
)

// What became of a message that was sent, other than that it is safe.
var (
	// ErrReturned: no queue took the message.
	ErrReturned = errors.New("no queue took it")
	// ErrRefused: the broker, or a queue that is full, refused the message.
	ErrRefused = errors.New("the broker refused it")
	// ErrUnconfirmed: the message may or may not be there.
	ErrUnconfirmed = errors.New("the broker did not confirm it")
	// ErrUnsendable: the message cannot be written as AMQP.
	ErrUnsendable = errors.New("it cannot be sent")
)

// window is how many messages are on their way at a time: so many may be there
// twice when the process is killed.
const window = 128

// alone is the size from which a message travels alone: the broker closes the
// channel over one that is larger than it takes, with all that is on its way.
const alone = 1 << 20

// publisher sends messages mandatory and confirmed.
type publisher struct {
	conn    Connection
	timeout time.Duration
	frame   int // bytes of a content header, 0 where unknown

	ch       *amqp.Channel
	returns  chan amqp.Return
	closed   chan *amqp.Error
	onTheWay []*flight
	bytes    int
}

// flight is a message on its way. err is nil once it is safe.
type flight struct {
	id   identity
	dc   *amqp.DeferredConfirmation
	err  error
	done func(error) // called by settle
}

// identity tells a returned message from the others on their way: a return
// carries no delivery tag. Where everything is equal they are copies, and what is
// said of one is said of all.
type identity struct{ exchange, key, id, messageID string }

func identify(exchange, key string, h amqp.Table, messageID string) identity {
	id, _ := h[attempt.HeaderID].(string)
	return identity{exchange, key, id, messageID}
}

func newPublisher(c Connection, timeout time.Duration) *publisher {
	p := &publisher{conn: c, timeout: timeout}
	if conn, ok := c.(*amqp.Connection); ok {
		p.frame = conn.Config.FrameSize
	}
	return p
}

// headerLimit is the most bytes of a successor's content header, see attempt.
func (p *publisher) headerLimit() int {
	if p.frame > 16<<10 {
		return p.frame - 8<<10
	}
	return 0
}

func (p *publisher) open(ctx context.Context) error {
	ch, err := reading.Within(ctx, func() (*amqp.Channel, error) {
		ch, err := p.conn.Channel()
		if err != nil {
			return nil, err
		}
		return ch, ch.Confirm(false)
	})
	if err != nil {
		return fmt.Errorf("open a channel that confirms: %w", err)
	}
	p.ch = ch
	// As long as the window: the client hands over a return before the confirm that
	// follows it, and must not wait for us to read it.
	p.returns = ch.NotifyReturn(make(chan amqp.Return, window+1))
	p.closed = ch.NotifyClose(make(chan *amqp.Error, 1))
	return nil
}

// send sends a message on its way. done is called later, by settle or by send
// itself, with nil when it is confirmed and was not returned. The error is one
// after which nothing can be sent.
func (p *publisher) send(ctx context.Context, exchange, key string, m amqp.Publishing, done func(error)) error {
	large := len(m.Body) > alone
	if len(p.onTheWay) >= window || p.bytes > 32<<20 || large && len(p.onTheWay) > 0 {
		if err := p.settle(); err != nil {
			return err
		}
	}
	if err := p.writable(exchange, key, &m); err != nil {
		done(fmt.Errorf("%w: %w", ErrUnsendable, err))
		return nil
	}
	if p.ch == nil {
		if err := p.open(ctx); err != nil {
			return err
		}
	}
	// Without the context: a publish that was given up half-way would leave the
	// channel in an unknown state.
	dc, err := p.ch.PublishWithDeferredConfirm(exchange, key, true, false, m)
	if err != nil && !p.ch.IsClosed() {
		done(fmt.Errorf("%w: %w", ErrUnsendable, err))
		return nil
	}
	f := &flight{id: identify(exchange, key, m.Headers, m.MessageId), dc: dc, done: done}
	p.onTheWay = append(p.onTheWay, f)
	p.bytes += len(m.Body)
	if large || err != nil {
		return p.settle()
	}
	return nil
}

// writable finds what would cost the connection.
func (p *publisher) writable(exchange, key string, m *amqp.Publishing) error {
	if len(exchange) > 255 || len(key) > 255 {
		return fmt.Errorf("exchange and routing key have %d and %d bytes, at most 255 can be written", len(exchange), len(key))
	}
	if size := attempt.HeaderSize(m); p.frame > 0 && size > p.frame-8 {
		return fmt.Errorf("properties and headers take %d bytes, and a frame of this connection holds %d", size, p.frame-8)
	}
	return m.Headers.Validate()
}

// settle waits for the confirms of what is on its way and tells each message's
// fate. The error is one after which nothing can be sent.
func (p *publisher) settle() error {
	flights := p.onTheWay
	p.onTheWay, p.bytes = nil, 0
	if len(flights) == 0 {
		return nil
	}
	var stop error
	deadline := time.Now().Add(p.timeout)
	for _, f := range flights {
		if f.dc == nil {
			f.err = ErrUnconfirmed
			continue
		}
		ctx, cancel := context.WithDeadline(context.Background(), deadline)
		acked, err := f.dc.WaitContext(ctx)
		cancel()
		switch {
		case err != nil:
			stop = fmt.Errorf("%w within %s", ErrUnconfirmed, p.timeout)
			f.err = stop
		case !acked && p.ch.IsClosed(): // amqp091-go tells a closed channel as a nack
			f.err = ErrUnconfirmed
		case !acked:
			f.err = ErrRefused
		default:
			deadline = time.Now().Add(p.timeout)
		}
	}
	// All returns that belong to these confirms are here by now.
	for more := true; more; {
		select {
		case r, ok := <-p.returns:
			if more = ok; !ok {
				break
			}
			id := identify(r.Exchange, r.RoutingKey, r.Headers, r.MessageId)
			for _, f := range flights {
				if f.id == id && f.err == nil {
					f.err = ErrReturned
				}
			}
		default:
			more = false
		}
	}
	if p.ch.IsClosed() {
		why := p.whyClosed()
		for _, f := range flights {
			if errors.Is(f.err, ErrUnconfirmed) {
				f.err = fmt.Errorf("%w: %w", ErrUnconfirmed, why)
			}
		}
		p.ch = nil
		// One message that the broker does not take, and that travelled alone, does not
		// stop the others.
		var e *amqp.Error
		if !(len(flights) == 1 && errors.As(why, &e) && e.Code == amqp.PreconditionFailed) {
			stop = errors.Join(stop, why)
		}
	}
	for _, f := range flights {
		f.done(f.err)
	}
	return stop
}

// whyClosed is why the broker closed the channel. The reason may be told a moment
// after the first publish has failed.
func (p *publisher) whyClosed() error {
	select {
	case err := <-p.closed:
		if err != nil {
			return fmt.Errorf("the broker closed the publishing channel: %w", err)
		}
	case <-time.After(time.Second):
	}
	return errors.New("the publishing channel is closed")
}

// close ends the publisher, when everything is settled.
func (p *publisher) close() error {
	if p.ch == nil {
		return nil
	}
	return reading.CloseSoon(p.ch)
}
