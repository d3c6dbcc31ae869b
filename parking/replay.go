package parking

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/internal/reading"
)

// Replay says which messages to send back, where to and how fast. The zero value
// sends all of them back to the queue that they failed in.
type Replay struct {
	Filter Filter

	// Limit is the most messages to send, the oldest. 0 means all.
	Limit int

	// ToQueue, or ToExchange with ToKey, sends them somewhere else than to the
	// queue that they failed in. An empty ToKey is the routing key that each message
	// was first published with, or that it came here with where nobody knows that.
	ToQueue, ToExchange, ToKey string

	// KeepCount lets them go on with the count that they have.
	KeepCount bool

	// Rate is the most messages a second. 0 means as many as the broker confirms.
	Rate float64
	// Ramp begins with 1 a second, then 10, 100, …, each for so long, up to Rate. 0
	// means none.
	Ramp time.Duration

	// StopRatio ends the replay when more than this part of the messages that were
	// sent are parked again, from 0 to 1; 0 means never. It needs Rate or Ramp: else
	// all are sent before the first of them has failed. It is looked at once ten
	// were sent, or all.
	StopRatio float64

	// Resume goes on with a replay that was interrupted: the Started of its report.
	// What it had sent and came back is not sent again, nor what was parked since.
	Resume time.Time

	// Paused, where set, is asked before each message: true pauses. While it lasts
	// nothing is held.
	Paused func() bool

	// Progress, where set, is called now and then, from the goroutine of the replay.
	Progress func(ReplayReport)
}

// Validate reports what in a replay cannot work.
func (o Replay) Validate() error {
	switch {
	case o.Rate < 0:
		return fmt.Errorf("replay: Rate: %g cannot work: use messages a second, or 0 for no limit", o.Rate)
	case o.Ramp < 0:
		return fmt.Errorf("replay: Ramp: %s cannot work: use the length of a step, such as 10s, or 0 for none", o.Ramp)
	case o.Limit < 0:
		return fmt.Errorf("replay: Limit: %d cannot work: use a number of messages, or 0 for all", o.Limit)
	case o.StopRatio < 0 || o.StopRatio >= 1:
		return fmt.Errorf("replay: StopRatio: %g cannot work: use a part such as 0.2, or 0 for never", o.StopRatio)
	case o.StopRatio > 0 && o.Rate == 0 && o.Ramp == 0:
		return errors.New("replay: StopRatio needs Rate or Ramp: without them all are sent before the first of them has failed")
	case o.ToQueue != "" && o.ToExchange != "":
		return errors.New("replay: ToQueue and ToExchange: name one of them")
	case o.ToKey != "" && o.ToExchange == "":
		return errors.New("replay: ToKey needs ToExchange")
	}
	return o.Filter.Validate()
}

// ReplayReport counts what Replay did.
type ReplayReport struct {
	// Started names the replay: all its messages have it in their history, and
	// Replay.Resume and Outcome take it. It is UTC, to the ms.
	Started time.Time

	// Total is how many messages were there when it began, Seen how many of them
	// were looked at so far.
	Total, Seen int

	// Replayed are those that were sent, confirmed, and taken out.
	Replayed int

	// The others stayed: NotPicked by the filter, or beyond the limit; Homeless,
	// since nobody knows their queue or it does not exist; Failed, since the broker
	// did not take or confirm them, of which some may be in their queue as well.
	NotPicked, Homeless, Failed int

	// Queues has the number of those that were sent, by work queue (or, with
	// ToExchange, by exchange), and Missing of those whose queue does not exist.
	Queues, Missing map[string]int

	// Why is why the first of those that Failed did: ErrReturned, ErrRefused,
	// ErrUnconfirmed or ErrUnsendable.
	Why error

	// Stopped says why it ended before all were sent: StopRatio was reached.
	Stopped string

	// Paused says that it pauses, Rate how many a second it sends at most.
	Paused bool
	Rate   float64
}

// maxHold is how long a replay that is slow on purpose holds messages, before it
// gives them back and begins again behind them: RabbitMQ ends a consumer that
// holds a message for 30 minutes.
const maxHold = 10 * time.Minute

// Replay sends messages back to the queue that they failed in, and to no other.
// A message leaves the parking queue only when the broker has confirmed it there
// and did not return it; where the process ends between the two, it is there
// twice, with the same x-retry-id.
//
// What is sent is fixed when it begins: what is parked later, or comes back, is
// not sent. What stays keeps its order. When ctx ends, what is on its way is
// finished, the rest stays, and the same Replay with Resume goes on.
//
// The report is right in any case.
func (q *Queue) Replay(ctx context.Context, o Replay) (ReplayReport, error) {
	p := &replayer{q: q, o: o, pace: pace{rate: o.Rate, step: o.Ramp}, to: newDirectory(q, o)}
	p.report = ReplayReport{Queues: map[string]int{}, Missing: map[string]int{}}
	fail := func(err error) (ReplayReport, error) {
		return p.report, fmt.Errorf("replay messages of %q: %w", q.name, err)
	}
	if err := o.Validate(); err != nil {
		return fail(err)
	}
	p.report.Started = o.Resume.UTC().Truncate(time.Millisecond)
	if o.Resume.IsZero() {
		p.report.Started = time.Now().UTC().Truncate(time.Millisecond)
	}
	var err error
	if p.report.Total, err = q.Depth(ctx); err != nil {
		return fail(err)
	}
	if err := p.to.check(ctx); err != nil {
		return fail(err)
	}
	if o.StopRatio > 0 && !o.Resume.IsZero() {
		if p.before, _, err = p.came(ctx); err != nil {
			return fail(err)
		}
	}
	for more := true; more; {
		if more, err = p.pass(ctx); err != nil {
			return fail(err)
		}
		if more && p.suspect {
			if more, err = p.judge(ctx); err != nil {
				return fail(err)
			}
		}
		if more {
			if err := p.pause(ctx); err != nil {
				return fail(err)
			}
		}
	}
	return p.report, nil
}

// Plan is what a replay would send.
type Plan struct {
	Total  int     // messages that are there
	Picked int     // that would be sent
	Bytes  int64   // of their bodies
	Groups []Group // of these, by fingerprint, the largest first

	// Queues has their number by work queue (or, with ToExchange, by exchange), and
	// Missing of those that match and would stay, since their queue does not exist
	// (or, under an empty name, since nobody knows it).
	Queues, Missing map[string]int
}

// Plan looks at what a replay would send, and changes nothing. progress may be
// nil: then it is that of the Options.
func (q *Queue) Plan(ctx context.Context, o Replay, progress func(seen, total int)) (Plan, error) {
	p := Plan{Queues: map[string]int{}, Missing: map[string]int{}}
	fail := func(err error) (Plan, error) { return p, fmt.Errorf("plan a replay of %q: %w", q.name, err) }
	if err := o.Validate(); err != nil {
		return fail(err)
	}
	d := newDirectory(q, o)
	d.dry = true
	if err := d.check(ctx); err != nil {
		return fail(err)
	}
	k, err := key("fingerprint")
	if err != nil {
		return fail(err)
	}
	c := newCounter(k)
	for m, err := range q.look(ctx, o.Filter, func(seen, total int) {
		p.Total = total
		if progress != nil {
			progress(seen, total)
		}
	}) {
		if err != nil {
			return p, err
		}
		if !o.Resume.IsZero() && later(m, o.Resume) {
			continue
		}
		addr, err := d.find(ctx, m)
		if err != nil {
			return fail(err)
		}
		if addr == nil {
			p.Missing[m.Queue]++
			continue
		}
		c.add(m)
		p.Bytes += int64(m.Size)
		p.Queues[addr.name]++
		if c.n == o.Limit {
			break
		}
	}
	p.Picked, p.Groups = c.n, c.sorted()
	return p, nil
}

// replayer runs a replay in passes, between which it holds nothing.
type replayer struct {
	q      *Queue
	o      Replay
	to     *directory
	pace   pace
	report ReplayReport

	began   time.Time // of the pass
	sent    int       // in the pass, safe or not yet
	looked  time.Time // for what came back
	suspect bool      // too many may have come back
	others  int       // messages that were parked meanwhile and are not ours
	before  int       // that had come back before this run, which resumes another
	told    time.Time
}

// pass goes through the messages from the oldest on. It reports whether another
// pass has to follow.
func (p *replayer) pass(ctx context.Context) (more bool, err error) {
	left := p.report.Total - p.report.Replayed
	if left <= 0 {
		return false, nil
	}
	m, err := p.q.mover(ctx, reading.Options{Limit: left, Chunk: p.chunk()})
	if err != nil {
		return false, err
	}
	defer func() {
		err = errors.Join(err, m.close(ctx))
		p.tell(true)
	}()
	p.began, p.sent = time.Now(), 0
	again := p.report.Replayed > 0 || !p.o.Resume.IsZero()
	p.report.Seen, p.report.NotPicked, p.report.Homeless, p.report.Failed = p.report.Replayed, 0, 0, 0
	p.report.Missing = map[string]int{}
	for {
		if p.o.Paused != nil && p.o.Paused() || p.sent > 0 && time.Since(p.began) > maxHold {
			return true, nil
		}
		if p.o.Limit > 0 && p.report.Replayed+p.sentNow(m) >= p.o.Limit {
			if err := m.settle(); err != nil {
				return false, err
			}
			if p.report.Replayed >= p.o.Limit {
				return false, nil
			}
		}
		it, msg, err := m.next(ctx)
		if err != nil || msg == nil {
			return false, err
		}
		p.report.Seen++
		p.tell(false)
		if !p.o.Filter.Match(msg) || again && later(msg, p.report.Started) {
			p.report.NotPicked++
			continue
		}
		addr, err := p.to.find(ctx, msg)
		if err != nil {
			return false, err
		}
		if addr == nil {
			p.report.Homeless++
			if msg.Queue != "" {
				p.report.Missing[msg.Queue]++
			}
			continue
		}
		if stop, err := p.hold(ctx, m); err != nil || stop {
			return err == nil, err
		}
		if err := p.send(ctx, m, it, msg, addr); err != nil {
			return false, err
		}
	}
}

// sentNow is how many of this pass are on their way.
func (p *replayer) sentNow(m *mover) int { return len(m.to.onTheWay) + len(m.safe) }

// later reports whether a message is not of the set of a replay that has begun
// before: it came back, or was parked since.
func later(m *Message, started time.Time) bool {
	if at := m.ReplayedAt(); !at.IsZero() && !at.Before(started) {
		return true
	}
	return m.ParkedAt.After(started)
}

// chunk keeps a slow replay from holding more than it sends within a while.
func (p *replayer) chunk() int {
	r := p.pace.at(time.Now())
	if r <= 0 || p.o.filtered() {
		return 0
	}
	return max(int(r*60), 16)
}

func (o *Replay) filtered() bool {
	f := o.Filter
	return len(f.IDs)+len(f.Headers)+len(f.BodyJSON) > 0 || f.Error != nil || !f.Since.IsZero() || !f.Until.IsZero() ||
		f.Queue+f.ErrorType+f.Reason+f.Policy+f.Exchange+f.RoutingKey+f.Fingerprint != ""
}

// hold waits for the next message's turn, with nothing on its way meanwhile. It
// reports whether the pass has to end.
func (p *replayer) hold(ctx context.Context, m *mover) (stop bool, err error) {
	p.report.Rate = p.pace.at(time.Now())
	for wait := p.pace.wait(time.Now()); ; {
		if p.o.StopRatio > 0 && time.Since(p.looked) > time.Second && p.report.Replayed >= 10 {
			p.looked = time.Now()
			if p.suspect, err = p.cameBack(ctx, m); err != nil || p.suspect {
				return true, err
			}
		}
		if wait <= 0 {
			return false, nil
		}
		if wait > 2*time.Millisecond {
			if err := m.settle(); err != nil {
				return false, err
			}
			p.tell(false)
		}
		if p.o.Paused != nil && p.o.Paused() {
			return true, nil
		}
		nap := min(wait, 200*time.Millisecond)
		wait -= nap
		if err := sleep(ctx, nap); err != nil {
			return false, err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// cameBack estimates, without reading, whether more of the messages are parked
// again than may be: what the queue counts behind those that are still to be
// read was parked since.
func (p *replayer) cameBack(ctx context.Context, m *mover) (bool, error) {
	ready, err := m.from.Ready(ctx)
	if err != nil {
		return false, err
	}
	came := ready - m.from.Unread() - p.others
	return float64(came) > p.o.StopRatio*float64(p.report.Replayed), nil
}

// judge reads what was parked since, and decides.
func (p *replayer) judge(ctx context.Context) (goOn bool, err error) {
	p.suspect = false
	came, all, err := p.came(ctx)
	if err != nil {
		return false, err
	}
	came = max(came-p.before, 0)
	p.others = max(all-came-(p.report.Total-p.report.Replayed), 0)
	if float64(came) > p.o.StopRatio*float64(p.report.Replayed) {
		p.report.Stopped = fmt.Sprintf("%d of %d are parked again", came, p.report.Replayed)
		return false, nil
	}
	return true, nil
}

// came counts the messages of this replay that are parked again, and all that
// there are.
func (p *replayer) came(ctx context.Context) (came, all int, err error) {
	for m, err := range p.q.Messages(ctx, Filter{}) {
		if err != nil {
			return 0, 0, err
		}
		all++
		if m.ReplayedAt().Equal(p.report.Started) {
			came++
		}
	}
	return came, all, nil
}

func (p *replayer) pause(ctx context.Context) error {
	for p.o.Paused != nil && p.o.Paused() {
		if !p.report.Paused {
			p.report.Paused = true
			p.tell(true)
		}
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	p.report.Paused = false
	return nil
}

func (p *replayer) tell(now bool) {
	if p.o.Progress != nil && (now || time.Since(p.told) > 100*time.Millisecond) {
		p.told = time.Now()
		p.o.Progress(p.report)
	}
}

func (p *replayer) send(ctx context.Context, m *mover, it reading.Item, msg *Message, to *address) error {
	src := attempt.FromDelivery(it.Delivery)
	rec := msg.record
	rec.ID = msg.ID
	if p.o.ToQueue != "" || p.o.ToExchange != "" {
		rec.Queue = p.o.ToQueue // it begins another life there
	}
	out := rec.Replay(&src, attempt.Replaying{At: p.report.Started, By: p.q.o.By, KeepCount: p.o.KeepCount}, m.to.headerLimit())
	p.sent++
	return m.send(ctx, it, to.exchange, to.keyOf(msg), out, func() {
		p.report.Replayed++
		p.report.Queues[to.name]++
	}, func(err error) {
		p.report.Failed++
		p.report.Why = cmp.Or(p.report.Why, err)
	})
}

// address is where a message goes.
type address struct {
	name     string // of the queue or exchange, for people
	exchange string
	key      string // empty: the one that the message was first published with
}

func (a *address) keyOf(m *Message) string {
	switch {
	case a.key != "":
		return a.key
	case m.OriginUnknown && a.exchange == a.name: // an exchange that was named
		return m.Delivery.RoutingKey
	case m.OriginUnknown:
		return a.name
	}
	return m.RoutingKey
}

// directory finds where messages go, and asks for each queue once.
type directory struct {
	q    *Queue
	o    Replay
	seen map[string]*address
	dry  bool // bind nothing
}

func newDirectory(q *Queue, o Replay) *directory {
	return &directory{q: q, o: o, seen: map[string]*address{}}
}

// check looks for the place that was named, where one was.
func (d *directory) check(ctx context.Context) error {
	_, err := onChannel(ctx, d.q.conn, func(ch *amqp.Channel) (struct{}, error) {
		switch {
		case d.o.ToQueue != "":
			_, err := ch.QueueDeclarePassive(d.o.ToQueue, true, false, false, false, nil)
			return struct{}{}, err
		case d.o.ToExchange != "":
			return struct{}{}, ch.ExchangeDeclarePassive(d.o.ToExchange, "", true, false, false, false, nil)
		}
		return struct{}{}, nil
	})
	if err != nil {
		return fmt.Errorf("look for %s: %w", d.o.ToQueue+d.o.ToExchange, err)
	}
	return nil
}

// find gives a message's address, nil where there is none.
func (d *directory) find(ctx context.Context, m *Message) (*address, error) {
	switch {
	case d.o.ToQueue != "":
		return &address{name: d.o.ToQueue, key: d.o.ToQueue}, nil
	case d.o.ToExchange != "":
		return &address{name: d.o.ToExchange, exchange: d.o.ToExchange, key: d.o.ToKey}, nil
	case m.Queue == "" || m.Queue == d.q.name: // it would be parked where it is
		return nil, nil
	}
	// A record of Hopback's is the sign of a route of ours.
	ours := m.Delivery.Headers[attempt.HeaderQueue] != nil
	name := fmt.Sprint(ours, m.Queue)
	if a, ok := d.seen[name]; ok {
		return a, nil
	}
	a, err := d.look(ctx, m.Queue, ours)
	if err != nil {
		return nil, err
	}
	d.seen[name] = a
	return a, nil
}

func (d *directory) look(ctx context.Context, queue string, ours bool) (*address, error) {
	_, err := onChannel(ctx, d.q.conn, func(ch *amqp.Channel) (amqp.Queue, error) {
		return ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	})
	var e *amqp.Error
	switch {
	case errors.As(err, &e) && e.Code == amqp.NotFound:
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("look for the work queue %q: %w", queue, err)
	}
	if ours && !d.dry {
		// The way back of a retry, which keeps the routing key. Its binding went with
		// the queue, if that was deleted meanwhile.
		way := d.q.o.Prefix + ".return"
		_, err := onChannel(ctx, d.q.conn, func(ch *amqp.Channel) (struct{}, error) {
			return struct{}{}, ch.QueueBind(queue, "", way, false, amqp.Table{"x-match": "all-with-x", attempt.HeaderQueue: queue})
		})
		if err == nil {
			return &address{name: queue, exchange: way}, nil
		}
		if !errors.As(err, &e) { // the connection
			return nil, fmt.Errorf("bind the work queue %q to %s: %w", queue, way, err)
		}
	}
	return &address{name: queue, key: queue}, nil
}
