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

// Report counts what Return did.
type Report struct {
	// Total is how many messages were there when it began.
	Total int
	// Seen of these so far.
	Seen int

	Returned int // to their work queue
	Parked   int // in their parking queue

	// Stayed where they are, and why, in the fields below.
	Stayed int

	Skipped    int // belong to another work queue than the one asked for
	Missing    int // the work queue does not exist
	Refused    int // the broker did not confirm, or found no queue to put it in
	Unreadable int // without a work queue's name, or with a counter that is none

	// Queues tells the same for each work queue.
	Queues map[string]QueueReport
}

// QueueReport is Report for one work queue.
type QueueReport struct{ Returned, Parked, Stayed int }

// window is how many messages are on their way at a time.
const window = 128

// Return sends each lost message whose work queue exists back to it, and with
// Options.Park the others to their parking queue. The message is the same but
// for what a retry leaves out too: see package attempt.
//
// A message leaves the lost queue only after the broker has confirmed it in the
// other, so none is lost; one may be there twice if the connection ends between
// the two. When ctx ends, what is on its way is finished and the rest stays.
//
// An error of one work queue, such as a missing permission, leaves that queue's
// messages where they are and does not stop the others. The report is right in
// any case.
func Return(ctx context.Context, c Connection, o Options) (Report, error) {
	o = o.withDefaults()
	m, err := o.mover(ctx, c)
	if err != nil {
		return Report{}, fmt.Errorf("return lost messages: %w", err)
	}
	err = m.run(ctx)
	m.report.Stayed = m.report.Skipped + m.report.Missing + m.report.Refused + m.report.Unreadable
	if err != nil {
		return m.report, fmt.Errorf("return lost messages: %w", err)
	}
	return m.report, nil
}

// mover takes messages from the lost queue to where they belong.
type mover struct {
	o       Options
	from    *reader
	to      *amqp.Channel // in confirm mode
	returns chan amqp.Return
	closed  chan *amqp.Error
	work    *queues
	limit   int // of a message's headers

	onTheWay []moving
	report   Report
	failures []error
}

// moving is a message that waits for its confirm.
type moving struct {
	tag   uint64
	queue string
	park  bool
	id    identity
	dc    *amqp.DeferredConfirmation
}

// identity tells a returned message from the others that are on their way: a
// return carries no delivery tag.
type identity struct{ exchange, key, id, messageID string }

func (o Options) mover(ctx context.Context, c Connection) (*mover, error) {
	from, err := o.reader(ctx, c)
	if err != nil {
		return nil, err
	}
	m := &mover{
		o: o, from: from,
		work:   &queues{c: c, seen: map[string]state{}},
		report: Report{Total: from.total, Queues: map[string]QueueReport{}},
	}
	if conn, ok := c.(*amqp.Connection); ok && conn.Config.FrameSize > 16<<10 {
		m.limit = conn.Config.FrameSize - 8<<10
	}
	m.to, err = reading.Within(ctx, func() (*amqp.Channel, error) {
		ch, err := c.Channel()
		if err != nil {
			return nil, err
		}
		return ch, ch.Confirm(false)
	})
	if err != nil {
		_ = from.close()
		return nil, fmt.Errorf("open a channel that confirms: %w", err)
	}
	// As long as the window: the client hands over a return before the confirm
	// that follows it, and must not wait for us to read it.
	m.returns = m.to.NotifyReturn(make(chan amqp.Return, window))
	m.closed = m.to.NotifyClose(make(chan *amqp.Error, 1))
	return m, nil
}

// errClosed says that the publishing channel is closed; settle says why.
var errClosed = errors.New("the publishing channel is closed")

func (m *mover) run(ctx context.Context) error {
	err := m.takeAll(ctx)
	// What is on its way is finished even when ctx has ended.
	if why := m.settle(); why != nil && errors.Is(err, errClosed) {
		err = why
	} else {
		err = errors.Join(err, why)
	}
	err = errors.Join(err, m.from.close())
	if !m.to.IsClosed() {
		// For whoever counts next, which may be a second run.
		m.from.settled(m.to, m.report.Total-m.report.Returned-m.report.Parked)
		err = errors.Join(err, reading.CloseSoon(m.to))
	}
	return errors.Join(append([]error{err}, m.failures...)...)
}

func (m *mover) takeAll(ctx context.Context) error {
	for {
		d, ok, err := m.from.next(ctx)
		if err != nil || !ok {
			return err
		}
		m.report.Seen++
		if err := m.take(ctx, &d); err != nil {
			return err
		}
		// A full consumer gets no more until something has left it.
		if n := len(m.onTheWay); n == window || !m.from.full(0) && m.from.full(n) {
			if err := m.settle(); err != nil {
				return err
			}
		}
	}
}

// take decides about one message and sends it on its way.
func (m *mover) take(ctx context.Context, d *amqp.Delivery) error {
	p := attempt.FromDelivery(d)
	rec, err := attempt.Read(&p, source(d))
	switch {
	case m.o.Queue != "" && rec.Queue != m.o.Queue:
		m.stays(d.DeliveryTag, "", &m.report.Skipped)
		return nil
	case rec.Queue == "":
		m.stays(d.DeliveryTag, "", &m.report.Unreadable)
		return nil
	case err != nil && !m.o.Park:
		m.stays(d.DeliveryTag, rec.Queue, &m.report.Unreadable)
		return nil
	case err != nil:
		// A counter that is none must never begin again at 0.
		return m.park(ctx, d, &p, rec, attempt.ReasonBadCounter, err.Error())
	}
	s := m.find(ctx, rec.Queue)
	switch {
	case s.err != nil:
		m.stays(d.DeliveryTag, rec.Queue, &m.report.Refused)
		return nil
	case s.exists:
		rec.Then = "" // it has waited
		return m.publish(ctx, d, rec.Queue, m.o.Prefix+".return", d.RoutingKey, rec.Successor(&p, m.limit))
	case m.o.Park:
		return m.park(ctx, d, &p, rec, attempt.ReasonLostRoute, "")
	}
	m.stays(d.DeliveryTag, rec.Queue, &m.report.Missing)
	return nil
}

// stays leaves a message where it is. queue is empty where it is none of those
// that were asked for.
func (m *mover) stays(tag uint64, queue string, why *int) {
	m.from.keep(tag)
	*why++
	if queue == "" {
		return
	}
	q := m.report.Queues[queue]
	q.Stayed++
	m.report.Queues[queue] = q
}

// find looks for a work queue, and binds it to the way back: with the queue its
// binding has gone.
func (m *mover) find(ctx context.Context, queue string) state {
	if s, ok := m.work.seen[queue]; ok {
		return s
	}
	s := m.work.find(ctx, queue)
	if s.exists {
		err := m.work.do(ctx, func(ch *amqp.Channel) error {
			return ch.QueueBind(queue, "", m.o.Prefix+".return", false, returnArgs(queue))
		})
		if err != nil {
			s.err = fmt.Errorf("bind the work queue %q to %s.return: %w", queue, m.o.Prefix, err)
		}
	}
	if s.err != nil {
		m.failures = append(m.failures, s.err)
	}
	m.work.seen[queue] = s
	return s
}

// returnArgs is the binding of a route, as hopback.Topology has it.
func returnArgs(queue string) amqp.Table {
	return amqp.Table{"x-match": "all-with-x", attempt.HeaderQueue: queue}
}

func (m *mover) park(ctx context.Context, d *amqp.Delivery, p *amqp.Publishing, rec attempt.Record, reason, why string) error {
	parked := rec.Park(attempt.Failure{At: time.Now(), Error: why}, reason)
	return m.publish(ctx, d, rec.Queue, m.o.Prefix+".error", rec.Queue, parked.Successor(p, m.limit))
}

func (m *mover) publish(ctx context.Context, d *amqp.Delivery, queue, exchange, key string, p amqp.Publishing) error {
	// Without the context: a publish that was given up half-way would leave the
	// channel in an unknown state.
	dc, err := m.to.PublishWithDeferredConfirmWithContext(context.WithoutCancel(ctx), exchange, key, true, false, p)
	switch {
	case err != nil && !m.to.IsClosed(): // it cannot be written; others can
		m.failures = append(m.failures, fmt.Errorf("publish a message of %q: %w", queue, err))
		m.stays(d.DeliveryTag, queue, &m.report.Refused)
		return nil
	case err != nil:
		return errClosed
	}
	m.onTheWay = append(m.onTheWay, moving{
		tag: d.DeliveryTag, queue: queue, park: exchange == m.o.Prefix+".error", dc: dc,
		id: identify(exchange, key, p.Headers, p.MessageId),
	})
	return nil
}

func identify(exchange, key string, h amqp.Table, messageID string) identity {
	id, _ := h[attempt.HeaderID].(string)
	return identity{exchange, key, id, messageID}
}

// settle waits for the confirms of what is on its way, and takes what is safe
// out of the lost queue.
func (m *mover) settle() error {
	var failed error
	for i, w := range m.onTheWay {
		ctx, cancel := context.WithTimeout(context.Background(), m.o.ConfirmTimeout)
		_, err := w.dc.WaitContext(ctx)
		cancel()
		if err != nil {
			// Unknown: these stay, and may be in the other queue as well.
			failed = fmt.Errorf("no confirm within %s: %w", m.o.ConfirmTimeout, err)
			m.unconfirmed(m.onTheWay[i:])
			m.onTheWay = m.onTheWay[:i]
			break
		}
	}
	// All returns that belong to these confirms are here by now. Where messages
	// cannot be told apart, one's return counts for all of them.
	returned := map[identity]bool{}
	for more := true; more; {
		select {
		case r, ok := <-m.returns:
			if more = ok; ok {
				returned[identify(r.Exchange, r.RoutingKey, r.Headers, r.MessageId)] = true
			}
		default:
			more = false
		}
	}
	failed = errors.Join(failed, m.acknowledge(returned))
	m.onTheWay = m.onTheWay[:0]
	if why := m.whyClosed(); why != nil {
		failed = errors.Join(failed, why)
	}
	if m.o.Progress != nil {
		m.o.Progress(m.report)
	}
	return failed
}

// acknowledge takes what is safe in the other queue out of the lost queue.
func (m *mover) acknowledge(returned map[identity]bool) error {
	var safe []moving
	var tags []uint64
	for _, w := range m.onTheWay {
		if !w.dc.Acked() || returned[w.id] {
			m.stays(w.tag, w.queue, &m.report.Refused)
			continue
		}
		safe, tags = append(safe, w), append(tags, w.tag)
	}
	if err := m.from.ack(tags); err != nil {
		m.unconfirmed(safe)
		return err
	}
	for _, w := range safe {
		m.moved(w)
	}
	return nil
}

// whyClosed is why the broker closed the publishing channel, if it did. The
// reason may be told a moment after the first publish has failed.
func (m *mover) whyClosed() error {
	if !m.to.IsClosed() {
		return nil
	}
	select {
	case err := <-m.closed:
		if err != nil {
			return fmt.Errorf("the broker closed the publishing channel: %w", err)
		}
	case <-time.After(time.Second):
	}
	return nil
}

func (m *mover) unconfirmed(ws []moving) {
	for _, w := range ws {
		m.stays(w.tag, w.queue, &m.report.Refused)
	}
}

func (m *mover) moved(w moving) {
	q := m.report.Queues[w.queue]
	if w.park {
		m.report.Parked++
		q.Parked++
	} else {
		m.report.Returned++
		q.Returned++
	}
	m.report.Queues[w.queue] = q
}
