package link

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
)

// What can become of a publish, other than that it is safe (a nil error).
var (
	// ErrReturned: no queue took the message.
	ErrReturned = errors.New("returned as unroutable")
	// ErrNacked: the broker refused the message.
	ErrNacked = errors.New("refused by the broker (basic.nack)")
	// ErrUnknown: the channel ended, or the confirm did not come in time. The
	// message may or may not be there.
	ErrUnknown = errors.New("unconfirmed")
	// ErrTimeout comes with ErrUnknown where it is this very message that was
	// not confirmed in time, as by a queue without a leader, and not another
	// one on the same channel.
	ErrTimeout = errors.New("no confirm in time")
	// ErrStale: the message was not sent, since its source is no longer ours.
	ErrStale = errors.New("not sent: its source was lost meanwhile")
	// ErrEncode: the message cannot be written as AMQP.
	ErrEncode = errors.New("not sent: cannot be encoded")
)

// Publication is one message on its way.
type Publication struct {
	Exchange, Key string
	Msg           amqp.Publishing

	// Optional is published without mandatory, so that a confirm does not say that
	// any queue has it. Only for the delayed-message plugin, which returns all that
	// is mandatory, and keeps it nevertheless.
	Optional bool

	// Stale tells, just before sending, that the source was lost and will be
	// delivered again: sending would only make a duplicate.
	Stale func() bool

	// Done is called once, from the publisher's goroutines, and must not block.
	// nil means confirmed and not returned: only then may the source be
	// settled. Anything else wraps one of the errors above.
	Done func(error)
}

// inFlight is how many publishes may be unconfirmed on one channel.
const inFlight = 4096

// Publisher publishes mandatory (unless Optional) and confirmed, without waiting between
// messages. One goroutine writes, one reads returns and confirms; both have
// their own channel, which no caller sees.
type Publisher struct {
	conn    *Conn
	timeout time.Duration // for a confirm
	cancel  context.CancelFunc
	ended   chan struct{}

	wake chan struct{}

	mu      sync.Mutex
	queue   []*Publication
	session *Session // of the current generation
	closed  bool
}

// NewPublisher publishes over conn. A confirm that takes longer than timeout,
// blocked time left out, ends the connection: on a broker whose majority
// returned, confirms can stay out for ever (seen on 4.0.5).
func NewPublisher(conn *Conn, timeout time.Duration) *Publisher {
	ctx, cancel := context.WithCancel(context.Background())
	p := &Publisher{conn: conn, timeout: timeout, cancel: cancel, ended: make(chan struct{}), wake: make(chan struct{}, 1)}
	go p.run(ctx)
	return p
}

// Publish takes the message on and returns at once. Callers bound what is on
// its way by what they took from the broker.
func (p *Publisher) Publish(pub *Publication) {
	p.mu.Lock()
	closed := p.closed
	if !closed {
		p.queue = append(p.queue, pub)
	}
	p.mu.Unlock()
	if closed {
		pub.Done(ErrStale)
		return
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Close ends the publisher when what it sent is confirmed, or ends the
// connection when ctx is over before that: a blocked broker never confirms.
// What is not confirmed then is reported as ErrUnknown, what was not sent as
// ErrStale.
func (p *Publisher) Close(ctx context.Context) {
	p.cancel()
	select {
	case <-p.ended:
	case <-ctx.Done():
		p.mu.Lock()
		s := p.session
		p.mu.Unlock()
		if s != nil {
			s.Cut()
		}
		<-p.ended
	}
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	for _, pub := range p.take(nil) {
		pub.Done(ErrStale)
	}
}

func (p *Publisher) run(ctx context.Context) {
	defer close(p.ended)
	for try := int64(1); ; try++ {
		s, err := p.conn.Session(ctx)
		if ctx.Err() != nil || errors.Is(err, ErrClosed) {
			return
		}
		if err == nil {
			var confirmed bool
			confirmed, err = p.generation(ctx, s)
			if confirmed {
				try = 0
			}
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			p.conn.cfg.Logger.Warn("lost the publishing channel", "error", err)
		}
		Sleep(ctx, redial.Delay(max(try, 1), 0, 0))
	}
}

// generation is one channel's life: it publishes until the channel or ctx ends,
// and returns when the fate of all it sent is reported.
func (p *Publisher) generation(ctx context.Context, s *Session) (confirmed bool, err error) {
	p.mu.Lock()
	p.session = s // before the first round trip, so that Close can end that too
	p.mu.Unlock()
	ch, err := s.Channel()
	if err != nil {
		return false, fmt.Errorf("open a channel: %w", err)
	}
	if err := ch.Confirm(false); err != nil {
		return false, fmt.Errorf("switch confirms on: %w", err)
	}
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	c := &confirmer{
		p: p, s: s, ch: ch,
		// Room for all that can be in flight: those in sent, the one that the
		// confirmer waits for and the one that the writer holds. A return that
		// finds none is thrown away by amqp091-go after a while, and its message
		// would pass for safe.
		returns: ch.NotifyReturn(make(chan amqp.Return, inFlight+2)),
		sent:    make(chan sent, inFlight),
		ended:   make(chan struct{}),
	}
	go c.run()

	err = p.write(ctx, s, ch, c.sent, closed)
	close(c.sent)
	<-c.ended
	if !ch.IsClosed() {
		go ch.Close() //nolint:errcheck // its confirms are in
	} else if reason := <-closed; reason != nil {
		err = reason // a write only knows that the channel is not open any more
	}
	return c.confirmed, err
}

func (p *Publisher) write(ctx context.Context, s *Session, ch *amqp.Channel, out chan<- sent, closed <-chan *amqp.Error) error {
	var batch []*Publication
	for {
		blocked, changed := p.conn.Blocked()
		wake := p.wake
		if blocked {
			// What is written now would fill the socket and then hang in it.
			wake = nil
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-closed:
			if err == nil {
				return errors.New("channel closed")
			}
			return err
		case <-changed:
			continue
		case <-wake:
		}
		batch = p.take(batch)
		for i, pub := range batch {
			if blocked, _ := p.conn.Blocked(); blocked {
				p.putBack(batch[i:])
				break
			}
			if pub.Stale != nil && pub.Stale() {
				pub.Done(ErrStale)
				continue
			}
			if err := writable(pub, s.Config.FrameSize); err != nil {
				pub.Done(fmt.Errorf("%w: %w", ErrEncode, err))
				continue
			}
			dc, err := ch.PublishWithDeferredConfirm(pub.Exchange, pub.Key, !pub.Optional, false, pub.Msg)
			if err != nil && pub.Msg.Headers.Validate() != nil { // which is looked at before a byte is written
				pub.Done(fmt.Errorf("%w: %w", ErrEncode, err))
				continue
			}
			if err != nil {
				// Half a message may have gone out: nothing can follow it.
				if !ch.IsClosed() {
					s.Cut()
				}
				pub.Done(fmt.Errorf("%w: %w", ErrUnknown, err))
				p.putBack(batch[i+1:])
				return err
			}
			out <- sent{pub, dc, time.Now()}
		}
		clear(batch)
	}
}

// writable finds what would cost the connection, and everybody's confirms with
// it: amqp091-go gives up the connection over a name that is too long, RabbitMQ
// over a content header that is larger than a frame.
func writable(pub *Publication, frame int) error {
	if len(pub.Exchange) > 255 || len(pub.Key) > 255 {
		return fmt.Errorf("exchange name and routing key are %d and %d bytes, at most 255 can be written", len(pub.Exchange), len(pub.Key))
	}
	if size := attempt.HeaderSize(&pub.Msg); frame > 0 && size > frame-8 {
		return fmt.Errorf("properties and headers take %d bytes, and a frame of this connection holds %d", size, frame-8)
	}
	return nil
}

// take empties the queue into a batch, whose memory it swaps for the queue's.
func (p *Publisher) take(batch []*Publication) []*Publication {
	p.mu.Lock()
	defer p.mu.Unlock()
	taken := p.queue
	p.queue = batch[:0]
	return taken
}

func (p *Publisher) putBack(rest []*Publication) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = append(append([]*Publication(nil), rest...), p.queue...)
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// sent is a publish that waits for its confirm.
type sent struct {
	pub *Publication
	dc  *amqp.DeferredConfirmation
	at  time.Time
}

// confirmer reads the fate of each publish of one channel, in order.
type confirmer struct {
	p         *Publisher
	s         *Session
	ch        *amqp.Channel
	returns   chan amqp.Return
	sent      chan sent
	ended     chan struct{}
	confirmed bool

	returned []amqp.Return // not matched yet
}

func (c *confirmer) run() {
	defer close(c.ended)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for m := range c.sent {
		c.await(m, tick.C)
		c.drainReturns()
		m.pub.Done(c.fate(m))
	}
}

// await waits for the confirm, and drops the connection when it stays out.
func (c *confirmer) await(m sent, tick <-chan time.Time) {
	for {
		select {
		case <-m.dc.Done():
			return
		default:
		}
		select {
		case <-m.dc.Done():
			return
		case <-tick:
			if c.late(m) {
				c.p.conn.Drop(c.s, fmt.Errorf("no confirm within %s", c.p.timeout))
			}
		}
	}
}

// late reports whether a confirm has been out for longer than it may, not
// counting the time that the broker was blocked.
func (c *confirmer) late(m sent) bool {
	since, flowing := c.p.conn.flowing(m.at)
	return flowing && time.Since(since) > c.p.timeout
}

// drainReturns picks up what came back. amqp091-go hands over a return before
// it handles the confirm behind it on the wire, so after a confirm was seen its
// return is in this channel already; select alone would not keep that order.
func (c *confirmer) drainReturns() {
	for {
		select {
		case r, ok := <-c.returns:
			if !ok {
				c.returns = nil
				return
			}
			c.returned = append(c.returned, r)
		default:
			return
		}
	}
}

func (c *confirmer) fate(m sent) error {
	if r, ok := c.takeReturn(m.pub); ok {
		return fmt.Errorf("%w from exchange %q: %s (%d)", ErrReturned, m.pub.Exchange, r.ReplyText, r.ReplyCode)
	}
	switch {
	case m.dc.Acked():
		c.confirmed = true
		return nil
	case c.ch.IsClosed() && c.late(m):
		return fmt.Errorf("%w: %w", ErrUnknown, ErrTimeout)
	case c.ch.IsClosed(): // amqp091-go reports a closed channel as a nack
		return fmt.Errorf("%w: channel closed", ErrUnknown)
	default:
		return ErrNacked
	}
}

// takeReturn finds the return of a publish. A return carries no delivery tag, so
// it is known by what was published. Retry id and count alone do not do:
// applications copy headers to the messages that they derive. Where everything
// is equal the two are the same message, and either may pass for the other.
func (c *confirmer) takeReturn(pub *Publication) (amqp.Return, bool) {
	for i, r := range c.returned {
		if r.Exchange == pub.Exchange && r.RoutingKey == pub.Key &&
			r.Headers[attempt.HeaderID] == pub.Msg.Headers[attempt.HeaderID] &&
			r.Headers[attempt.HeaderCount] == pub.Msg.Headers[attempt.HeaderCount] &&
			r.MessageId == pub.Msg.MessageId && bytes.Equal(r.Body, pub.Msg.Body) {
			c.returned = append(c.returned[:i], c.returned[i+1:]...)
			return r, true
		}
	}
	return amqp.Return{}, false
}
