package native

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	amqp10 "github.com/Azure/go-amqp"

	"github.com/hopback/hopback/internal/link"
)

// clock is what is known of the broker's clock: what it showed at a moment of
// ours. From there on our monotonic clock counts, so that neither a step of our
// wall clock nor its drift since then matters.
type clock struct {
	mu     sync.Mutex
	known  bool
	ours   time.Time
	theirs time.Time
	within time.Duration

	once  sync.Once
	first chan struct{} // closed when the first comparison has come to something
}

// Skew is how far the broker's clock is ahead of ours, and within what the true
// value lies around it. It is unknown until the clocks were compared, and where
// that is not possible: then delivery times are sent as they are.
//
// The clock is that of the node that we are connected to. A queue's delivery
// times go by the node that leads it; within a cluster the clocks are taken to
// agree.
func (c *Conn) Skew() (ahead, within time.Duration, known bool) {
	c.clock.mu.Lock()
	defer c.clock.mu.Unlock()
	// Round strips the monotonic reading: two walls are compared.
	return c.clock.theirs.Sub(c.clock.ours.Round(0)), c.clock.within, c.clock.known
}

// neverEarly is added to a time of delivery. The comparison knows the time of the
// node to within half a round trip; the queue goes by another clock of the same
// node (Erlang's, which follows the system's by small corrections), and a retry that
// is a few ms late is no fault, where one that is early is.
const neverEarly = 5 * time.Millisecond

// ofBroker is a moment of ours in epoch ms of the broker's.
func (k *clock) ofBroker(until, now time.Time) int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.known {
		return millis(until)
	}
	return millis(k.theirs.Add(now.Sub(k.ours) + until.Sub(now) + max(k.within, neverEarly)))
}

func (k *clock) ready() chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.first == nil {
		k.first = make(chan struct{})
	}
	return k.first
}

// settled ends the wait for the first comparison.
func (k *clock) settled() {
	first := k.ready()
	k.once.Do(func() { close(first) })
}

// compared reports whether there is nothing to wait for.
func (k *clock) compared() bool {
	select {
	case <-k.ready():
		return true
	default:
		return false
	}
}

// await waits for the first comparison, once and not for long, so that the first
// delays of a program are right too.
func (k *clock) await(done <-chan struct{}) {
	first := k.ready()
	t := time.NewTimer(firstComparison)
	defer t.Stop()
	select {
	case <-first:
	case <-done:
	case <-t.C:
		k.settled()
	}
}

const firstComparison = 3 * time.Second

// compareClocks compares the clocks while the session lives.
func (c *Conn) compareClocks(s *Session) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		<-s.done
		cancel()
	}()
	for try := int64(1); ; try++ {
		err := c.readClock(ctx, s)
		if ctx.Err() != nil {
			return
		}
		refused := link.Refused(err)
		if refused || try == 3 {
			c.clock.settled()
			c.cfg.Logger.Warn("cannot compare clocks with the broker; delays go by our own clock",
				"connection", c.cfg.Purpose, "again", !refused, "error", err)
		}
		if refused {
			return // until the next connection
		}
		link.Sleep(ctx, min(time.Duration(try)*200*time.Millisecond, c.cfg.ClockEvery))
	}
}

// probeTimeout bounds each step. A memory alarm holds up the one publish.
const probeTimeout = 30 * time.Second

// rounds is how often the message dies each time. The quickest bounds the
// result; the others are there because any can be held up.
const rounds = 4

// readClock keeps a message dying, now and then, until ctx or the link ends.
//
// RabbitMQ writes into a message that it dead-letters when that was, by the
// clock of its node, in ms. A queue that dead-letters into itself so tells the
// time on request: between our reject and the delivery that follows lies the
// moment that it names. (A message that is rejected on its way around may pass
// its own queue again; only automatic cycles are broken.)
func (c *Conn) readClock(ctx context.Context, s *Session) error {
	setup, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	session, err := s.conn.NewSession(setup, nil)
	if err != nil {
		return fmt.Errorf("open a session: %w", translate(err))
	}
	defer s.end(session)
	queue := fmt.Sprintf("%s.%016x", c.cfg.ClockQueue, rand.Uint64())
	if err := declareClock(setup, session, queue); err != nil {
		return err
	}
	address := "/queues/" + escape(queue)
	sender, err := session.NewSender(setup, address, nil)
	if err != nil {
		return fmt.Errorf("publish to queue %q: %w", queue, translate(err))
	}
	if err := sender.Send(setup, amqp10.NewMessage([]byte("the time, please")), nil); err != nil {
		return fmt.Errorf("publish to queue %q: %w", queue, translate(err))
	}
	sender.Close(setup) //nolint:errcheck // it is not used again
	receiver, err := session.NewReceiver(setup, address, &amqp10.ReceiverOptions{Credit: 10})
	if err != nil {
		return fmt.Errorf("consume from queue %q: %w", queue, translate(err))
	}
	m, err := receiver.Receive(setup, nil)
	for {
		if err != nil {
			return fmt.Errorf("consume from queue %q: %w", queue, translate(err))
		}
		var o offset
		for range rounds {
			if m, err = c.ask(ctx, receiver, m, &o); err != nil {
				return err
			}
		}
		c.clock.set(c.cfg.Now(), o)
		c.clock.settled()
		link.Sleep(ctx, c.cfg.ClockEvery)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// ask lets the message die once.
func (c *Conn) ask(ctx context.Context, r *amqp10.Receiver, m *amqp10.Message, o *offset) (*amqp10.Message, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	before := c.cfg.Now()
	if err := r.RejectMessage(ctx, m, nil); err != nil {
		return nil, fmt.Errorf("read the broker's clock: %w", translate(err))
	}
	m, err := r.Receive(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("read the broker's clock: %w", translate(err))
	}
	after := c.cfg.Now()
	died, err := timeOfDeath(m)
	if err != nil {
		return nil, err
	}
	o.narrow(before, after, died)
	return m, nil
}

// timeOfDeath is when the message was last dead-lettered, in whole ms.
func timeOfDeath(m *amqp10.Message) (time.Time, error) {
	deaths, _ := m.Annotations[annDeaths].([]map[any]any)
	for _, d := range deaths {
		for k, v := range d {
			if t, ok := v.(time.Time); ok && fmt.Sprint(k) == "last-time" {
				return t, nil
			}
		}
	}
	return time.Time{}, fmt.Errorf("read the broker's clock: no time of death in %v", m.Annotations)
}

// offset is between what bounds theirs minus ours lies.
type offset struct {
	known    bool
	low, top time.Duration
}

// narrow takes up that the broker's clock showed died, cut to a ms, at a moment
// between before and after. Bounds that exclude each other come of a clock that
// was set meanwhile: the later ones count.
func (o *offset) narrow(before, after, died time.Time) {
	low := died.Sub(after.Round(0))
	top := died.Add(time.Millisecond).Sub(before.Round(0))
	if o.known && low <= o.top && top >= o.low {
		low, top = max(low, o.low), min(top, o.top)
	}
	o.known, o.low, o.top = true, low, top
}

func (k *clock) set(now time.Time, o offset) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.known = true
	k.ours, k.theirs = now, now.Round(0).Add((o.low+o.top)/2)
	k.within = (o.top - o.low) / 2
}
