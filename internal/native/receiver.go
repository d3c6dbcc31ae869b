package native

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	amqp10 "github.com/Azure/go-amqp"
	amqp "github.com/rabbitmq/amqp091-go"
)

// Receiver consumes from one queue. It is a generation: a settlement after its
// end is dropped, since the broker has the message back.
//
// It has an AMQP 1.0 session of its own, because some errors of one consumer,
// such as an annotation that the broker does not take, end the whole session.
type Receiver struct {
	s       *Session
	queue   string
	credit  int // the most deliveries that may be unsettled
	session *amqp10.Session
	link    *amqp10.Receiver

	deliveries chan *Delivery
	quit       chan struct{} // closed by Stop
	stop       func()
	done       chan struct{}
	err        error // why it ended; read after done

	wake    chan struct{}
	drained chan struct{} // closed when the settler has ended

	mu      sync.Mutex
	ready   []*Delivery // to be settled
	waiting int         // of what is settled, for the first comparison of the clocks
	closing bool
	issued  int // credit granted so far, less what was settled: at most credit
	coming  int // of that, what was not delivered yet
}

// Delivery is a message of a Receiver. It is settled once, by the first of the
// four calls; a later one does nothing.
type Delivery struct {
	// Msg is the message as AMQP 0-9-1 would have shown it; see docs/native.md
	// for where it differs.
	Msg                  amqp.Publishing
	Exchange, RoutingKey string
	// Redelivered: it was handed out before, and came back, in whatever way.
	Redelivered bool

	r       *Receiver
	m       *amqp10.Message
	seq     uint64
	settled bool // guarded by r.mu
	outcome outcome
	until   time.Time
	modify  *amqp10.ModifyMessageOptions
}

type outcome uint8

const (
	accepted outcome = iota
	released
	delayed
	deadLettered
)

// Receive starts to consume from a queue. At most credit deliveries are
// unsettled at a time.
//
// A queue that is missing, that may not be read, or that is another connection's
// own, is an *amqp091.Error with the code that it has over AMQP 0-9-1.
func (s *Session) Receive(ctx context.Context, queue string, credit int) (*Receiver, error) {
	if credit < 1 {
		return nil, fmt.Errorf("consume from queue %q: a credit of %d lets nothing in: use 1 or more", queue, credit)
	}
	r := &Receiver{
		s: s, queue: queue, credit: credit,
		// Room for all that can be delivered, so that the end is seen also while
		// nobody takes anything.
		deliveries: make(chan *Delivery, credit), quit: make(chan struct{}), done: make(chan struct{}),
		wake: make(chan struct{}, 1), drained: make(chan struct{}),
	}
	r.stop = sync.OnceFunc(func() {
		close(r.quit)
		r.giveBack()
	})
	var err error
	if r.session, err = s.conn.NewSession(ctx, nil); err != nil {
		return nil, fmt.Errorf("consume from queue %q over AMQP 1.0: open a session: %w", queue, translate(err))
	}
	first, unsettled := amqp10.ReceiverSettleModeFirst, amqp10.SenderSettleModeUnsettled
	r.link, err = r.session.NewReceiver(ctx, "/queues/"+escape(queue), &amqp10.ReceiverOptions{
		Credit:         -1, // granted here, so that Stop can stop it
		SettlementMode: &first, RequestedSenderSettleMode: &unsettled,
	})
	if err != nil {
		go s.end(r.session)
		return nil, fmt.Errorf("consume from queue %q over AMQP 1.0: %w", queue, missing(translate(err)))
	}
	s.mu.Lock()
	s.receivers[r] = struct{}{}
	s.mu.Unlock()
	r.grant(true)
	go r.pump()
	go r.settle()
	return r, nil
}

// missing gives a queue that is not there its own code. RabbitMQ 4.3 has no
// condition for it.
func missing(err error) error {
	var e *amqp.Error
	if errors.As(err, &e) && e.Code == amqp.InternalError && strings.Contains(e.Reason, "not_found") {
		return &amqp.Error{Code: amqp.NotFound, Reason: e.Reason, Server: true}
	}
	return err
}

// Deliveries gives the messages. It is closed at the end of the receiver, and
// gives nothing more after Stop.
func (r *Receiver) Deliveries() <-chan *Delivery { return r.deliveries }

// Done is closed when the receiver has ended: by Close, with its connection, or
// because the broker ended it. From then on nothing can be settled.
func (r *Receiver) Done() <-chan struct{} { return r.done }

// Err is why the receiver has ended, nil before; ErrClosed after Close.
// ErrDeleted and ErrUnreadable can be told from it.
func (r *Receiver) Err() error {
	select {
	case <-r.done:
		return r.err
	default:
		return nil
	}
}

// Stop takes no more messages. What was delivered and not taken yet goes back
// to the queue, as does what still comes: the broker is granted nothing more.
// Deliveries that were taken are settled as before.
func (r *Receiver) Stop() { r.stop() }

// Close stops, waits until the broker has processed the settlements so far, and
// ends the receiver. What is unsettled goes back to the queue, and does not count
// as crashed. When ctx ends first the broker does not answer, and its
// connection is cut.
func (r *Receiver) Close(ctx context.Context) error {
	r.Stop()
	r.mu.Lock()
	r.closing = true
	r.mu.Unlock()
	r.poke()
	select {
	case <-r.drained:
	case <-ctx.Done():
	}
	// The broker answers a detach when the queue has removed the consumer, which
	// comes behind the settlements in the queue's log (rabbit_fifo_client,
	// cancel_checkout).
	r.link.Close(ctx)    //nolint:errcheck // closed is closed
	r.session.Close(ctx) //nolint:errcheck // likewise
	if ctx.Err() != nil {
		r.s.Cut()
		<-r.done
		return fmt.Errorf("close the receiver of queue %q: %w", r.queue, context.Cause(ctx))
	}
	<-r.done
	return nil
}

// pump hands the messages over.
func (r *Receiver) pump() {
	defer close(r.deliveries)
	for seq := uint64(1); ; seq++ {
		m, err := r.link.Receive(context.Background(), nil)
		if err != nil {
			r.end(err)
			return
		}
		v, err := convert(m)
		if err != nil {
			r.end(fmt.Errorf("%w: %w", ErrUnreadable, err))
			return
		}
		r.mu.Lock()
		r.coming--
		r.mu.Unlock()
		r.deliveries <- &Delivery{
			Msg: v.msg, Exchange: v.exchange, RoutingKey: v.routingKey, Redelivered: v.redelivered,
			r: r, m: m, seq: seq,
		}
		select {
		case <-r.quit:
			r.giveBack()
		default:
		}
	}
}

// giveBack releases what nobody has taken.
func (r *Receiver) giveBack() {
	for {
		select {
		case d, ok := <-r.deliveries:
			if !ok {
				return
			}
			d.Release()
		default:
			return
		}
	}
}

// end notes why the receiver is over.
func (r *Receiver) end(err error) {
	r.mu.Lock()
	closing := r.closing
	r.mu.Unlock()
	var remote *amqp10.Error
	var link *amqp10.LinkError
	switch {
	case closing && !errors.As(err, &remote):
		err = ErrClosed
	case errors.As(err, &link) && link.Error() == (&amqp10.LinkError{}).Error():
		err = errors.New("the broker ended the link, and did not say why")
	}
	r.err = fmt.Errorf("consuming from queue %q over AMQP 1.0: %w", r.queue, translate(err))
	r.s.mu.Lock()
	delete(r.s.receivers, r)
	r.s.mu.Unlock()
	close(r.done)
	r.giveBack() // the broker has those back, and nobody need begin with them
	if !closing {
		go r.s.end(r.session)
	}
}

// end gives a session of AMQP 1.0 back.
func (s *Session) end(session *amqp10.Session) {
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	session.Close(ctx) //nolint:errcheck // closed is closed
	if ctx.Err() != nil {
		s.Cut()
	}
}

// endTimeout is how long the broker may take to end a session.
const endTimeout = 5 * time.Second

// grant tells the broker to send more, when enough was settled. Each grant is an
// entry in the log of a quorum queue, so they are not one for each message. It
// reports whether it left some for later.
func (r *Receiver) grant(all bool) (left bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	free := r.credit - r.issued
	if free == 0 || r.closing {
		return false
	}
	select {
	case <-r.quit:
		return false
	default:
	}
	if !all && free < (r.credit+3)/4 && r.coming+len(r.deliveries) > 0 {
		return true
	}
	r.issued += free
	r.coming += free
	r.link.IssueCredit(uint32(free)) //nolint:errcheck // only a drain stands against it
	return false
}

// escape percent-encodes a queue's name for an address.
func escape(name string) string {
	const hex = "0123456789ABCDEF"
	b := make([]byte, 0, len(name)+8)
	for _, c := range []byte(name) {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.' || c == '~' {
			b = append(b, c)
			continue
		}
		b = append(b, '%', hex[c>>4], hex[c&15])
	}
	return string(b)
}

// poke wakes the settler.
func (r *Receiver) poke() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// take empties what is ready into a batch, in the order of delivery, so that
// neighbours can go out as a range.
func (r *Receiver) take(batch []*Delivery) (taken []*Delivery, closing bool) {
	r.mu.Lock()
	taken, closing = r.ready, r.closing && r.waiting == 0
	r.ready = batch[:0]
	r.mu.Unlock()
	slices.SortFunc(taken, func(a, b *Delivery) int {
		if a.seq < b.seq {
			return -1
		}
		return 1
	})
	return taken, closing
}
