package simulate

import (
	"math/rand/v2"
	"time"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/backoff"
	"github.com/hopback/hopback/delay"
)

// engine runs one contender through a scenario.
type engine struct {
	store   *store
	clock   *clock
	source  *source
	server  *server
	rng     *rand.Rand
	holder  holder
	curve   recorder
	latency histogram

	// The contender.
	way       Way
	policy    hopback.Policy
	delay     func(int64, time.Duration, uint64) time.Duration
	immediate uint32
	retries   uint32 // never: without end
	maxAge    int64  // ms; -1 without
	exact     bool
	confirm   uint32
	hop       uint32
	gap       int64 // µs between two messages that leave a slot
	gate      int64 // when the next may leave, in µs

	// The work queue and its consumers.
	ready       list
	prefetch    int32
	concurrency int32
	consumers   []consumer
	turn        []uint16 // ring of the consumers with prefetch left, in their turn
	turnAt      int
	turns       int

	open, held int64
	result     Result

	// Recovery: of the messages sent before the trouble is over, those open.
	over       uint32
	isOver     bool
	old        int64
	oldAtFirst int64
}

type consumer struct {
	local   list // delivered, and waiting for a handler
	unacked int32
	busy    int32
	inTurn  bool
}

func newEngine(s Scenario, c Contender) *engine {
	route := c.route()
	st := newStore()
	e := &engine{
		store: st, clock: newClock(st), source: newSource(s),
		rng:       rand.New(rand.NewPCG(s.Seed, 2)),
		server:    newServer(s.Dependency, rand.New(rand.NewPCG(s.Seed, 3))),
		holder:    newHolder(c, s.Consumers.Count),
		curve:     recorder{window: millis(s.Window)},
		way:       c.Way,
		policy:    route.Policy,
		delay:     c.Delay,
		immediate: uint32(c.Immediate),
		retries:   uint32(max(route.Policy.MaxRetries, 0)),
		maxAge:    route.Policy.MaxAge.Milliseconds(),
		exact:     route.Policy.Jitter == backoff.None,
		confirm:   millis(s.Broker.Confirm),
		hop:       millis(s.Broker.Hop),
		ready:     list{head: none}, prefetch: int32(s.Consumers.Prefetch), concurrency: int32(s.Consumers.Concurrency),
		consumers: make([]consumer, s.Consumers.Count), turn: make([]uint16, s.Consumers.Count),
		result: Result{Contender: c, Recovery: -1, Recovery99: -1},
	}
	if c.Forever {
		e.retries = never
	}
	if route.Policy.MaxAge == hopback.Unlimited || c.Forever {
		e.maxAge = -1
	}
	if s.Broker.Rate > 0 {
		e.gap = int64(1e6 / s.Broker.Rate)
	}
	if e.delay == nil {
		e.delay = e.policy.Delay
	}
	for i := range e.consumers {
		e.consumers[i].local.head = none
		e.line(uint16(i))
	}
	over, ok := s.Over()
	if !ok {
		over = 0
		for _, t := range s.Traffic {
			over = max(over, t.At+t.For)
		}
	}
	e.over = millis(min(over, longest))
	return e
}

// run simulates until nothing is left, or until, or stop says so; that is asked
// every so many events, with how much is settled.
func (e *engine) run(until uint32, stop func(settled int64) bool) Result {
	const every = 1 << 14
	for budget := every; ; {
		limit, more := e.source.next()
		if !more || limit > until {
			limit = until
		}
		if !e.isOver && limit > e.over {
			limit = e.over
		}
		due := e.clock.advance(limit)
		now := e.clock.now
		for !due.empty() {
			n := e.store.pop(&due)
			e.event(n)
			budget--
		}
		for at, more := e.source.next(); more && at == now && now <= until; at, more = e.source.next() {
			e.arrive()
			budget--
		}
		e.dispatch()
		if !e.isOver && now >= e.over {
			e.isOver, e.oldAtFirst = true, e.old
			e.settledOld(0)
		}
		done := e.isOver && e.source.left == 0 && e.clock.idle()
		if done || now >= until || budget <= 0 && stop(e.result.Handled+e.result.Parked) {
			return e.finish(done)
		}
		if budget <= 0 {
			budget = every
		}
	}
}

func (e *engine) finish(complete bool) Result {
	r := &e.result
	r.Waiting, r.Complete = e.open, complete
	r.Ended = time.Duration(e.clock.now) * time.Millisecond
	r.Latency = Latency{e.latency.quantile(0.5), e.latency.quantile(0.95), e.latency.quantile(0.99), e.latency.quantile(1)}
	r.Curve = Curve{Window: time.Duration(e.curve.window) * time.Millisecond, Steps: e.curve.steps}
	return *r
}

// step is the present window of the curve.
func (e *engine) step() *Step { return e.curve.at(e.clock.now, e.open) }

// arrive takes the next message from its producer.
func (e *engine) arrive() {
	at, poison := e.source.take()
	step := e.step()
	n := e.store.take()
	*e.store.at(n) = message{sent: at, failed: never}
	if poison {
		e.store.at(n).state = poisonous
	} else if at <= e.over {
		e.old++
	}
	e.open++
	e.result.Sent++
	e.result.Operations.Published++
	e.result.WaitingMost = max(e.result.WaitingMost, e.open)
	step.Waiting = max(step.Waiting, uint32(e.open))
	e.store.push(&e.ready, n)
}

// event is the end of what a message was held for.
func (e *engine) event(n uint32) {
	m := e.store.at(n)
	switch m.state &^ poisonous {
	case calling:
		e.ended(n, m)
	case handingOff:
		e.credit(m.consumer)
		e.hold(n, m, m.due)
	case parking:
		e.credit(m.consumer)
		e.store.give(n)
	case held:
		e.release(n, m)
	case leaving:
		e.held--
		e.store.push(&e.ready, n)
	case requeued:
		e.store.pushFront(&e.ready, n)
	case sleeping:
		e.begin(n, m)
	}
}

// dispatch delivers what is ready to the consumers in turn.
func (e *engine) dispatch() {
	for e.turns > 0 && !e.ready.empty() {
		id := e.turn[e.turnAt]
		if e.turnAt++; e.turnAt == len(e.turn) {
			e.turnAt = 0
		}
		e.turns--
		c := &e.consumers[id]
		c.inTurn = false
		n := e.store.pop(&e.ready)
		m := e.store.at(n)
		m.consumer = id
		e.result.Operations.Delivered++
		if c.unacked++; c.unacked < e.prefetch {
			e.line(id)
		}
		if c.busy < e.concurrency {
			c.busy++
			e.begin(n, m)
		} else {
			e.store.push(&c.local, n)
		}
	}
}

// line puts a consumer at the end of the turn.
func (e *engine) line(id uint16) {
	at := e.turnAt + e.turns
	if at >= len(e.turn) {
		at -= len(e.turn)
	}
	e.turn[at] = id
	e.turns++
	e.consumers[id].inTurn = true
}

// credit gives a consumer the prefetch of one message back.
func (e *engine) credit(id uint16) {
	c := &e.consumers[id]
	c.unacked--
	if !c.inTurn {
		e.line(id)
	}
}

// idle gives a handler back, which takes the next message of its consumer.
func (e *engine) idle(id uint16) {
	c := &e.consumers[id]
	if c.local.empty() {
		c.busy--
		return
	}
	n := e.store.pop(&c.local)
	e.begin(n, e.store.at(n))
}

// begin begins an attempt.
func (e *engine) begin(n uint32, m *message) {
	now := e.clock.now
	ends, ms := e.server.call(now, m.state&poisonous != 0)
	m.ends, m.state = ends, calling|m.state&poisonous
	m.version = e.server.version
	m.due = now + max(ms, 1)
	step := e.step()
	step.Calls++
	if m.failures > 0 {
		step.Retries++
	}
	if ends == down {
		step.Down++
	}
	e.result.Calls++
	e.clock.put(n)
}

// ended is the end of an attempt.
func (e *engine) ended(n uint32, m *message) {
	if m.ends == succeeds && e.server.contended {
		if m.version != e.server.version {
			m.ends = fails
		} else {
			e.server.version++
		}
	}
	if m.ends != succeeds {
		e.failed(n, m)
		return
	}
	e.step().Handled++
	e.result.Handled++
	e.result.Operations.Settled++
	e.result.RetriesMost = max(e.result.RetriesMost, int64(m.failures/(e.immediate+1)))
	e.latency.add(e.clock.now - m.sent)
	e.settled(m)
	id := m.consumer
	e.credit(id)
	e.store.give(n)
	e.idle(id)
}

// failed decides what a failure means, as the consumer does.
func (e *engine) failed(n uint32, m *message) {
	now := e.clock.now
	e.step().Failed++
	e.result.Wasted++
	if m.ends == down {
		e.result.WastedDown++
	}
	if m.failed == never {
		m.failed = now
	}
	m.failures++
	if m.failures%(e.immediate+1) != 0 {
		e.begin(n, m) // again, by the same handler
		return
	}
	retry := m.failures / (e.immediate + 1)
	if e.way == Requeued {
		e.result.Operations.Settled++
		e.leave(m.consumer)
		if retry > e.retries {
			e.park(n, m)
			return
		}
		m.state, m.due = requeued|m.state&poisonous, now+max(1, e.confirm)
		e.clock.put(n)
		return
	}
	if retry > e.retries {
		e.handOff(n, m, parking)
		return
	}
	previous := time.Duration(m.previous) * time.Millisecond
	wait := min(max(e.delay(int64(retry), previous, e.rng.Uint64()), 0), longest)
	if e.maxAge >= 0 && int64(now)+wait.Milliseconds()-int64(m.failed) > e.maxAge {
		e.handOff(n, m, parking)
		return
	}
	if e.way == InHandler {
		m.previous = millis(wait)
		m.state, m.due = sleeping|m.state&poisonous, soon(now, uint64(m.previous))
		e.clock.put(n)
		return
	}
	ms, hops := e.holder.hold(now, m.consumer, delay.Request{
		Delay: wait, Exact: e.exact, Min: e.policy.MinDelay, Max: e.policy.Max, Random: e.rng.Uint64(),
	})
	m.previous = ms
	m.version = uint32(hops)
	e.handOff(n, m, handingOff)
}

// leave frees the handler and the prefetch of a message that goes back.
func (e *engine) leave(id uint16) {
	e.credit(id)
	e.idle(id)
}

// handOff publishes a message's successor. Its handler is free at once, its
// prefetch with the confirm.
func (e *engine) handOff(n uint32, m *message, to state) {
	id := m.consumer
	e.result.Operations.Published++
	e.result.Operations.Settled++
	if to == parking {
		e.parked(m)
	}
	switch {
	case e.confirm > 0:
		m.state, m.due = to|m.state&poisonous, e.clock.now+e.confirm
		e.clock.put(n)
	case to == parking:
		e.credit(id)
		e.store.give(n)
	default:
		e.credit(id)
		e.hold(n, m, e.clock.now)
	}
	e.idle(id)
}

// park ends a message that was requeued too often.
func (e *engine) park(n uint32, m *message) {
	e.parked(m)
	e.store.give(n)
}

// hold puts a message into its slot.
func (e *engine) hold(n uint32, m *message, now uint32) {
	e.result.Operations.Hops += int64(m.version)
	m.state, m.due = held|m.state&poisonous, soon(now, uint64(m.previous)+uint64(m.version)*uint64(e.hop))
	e.held++
	e.result.HeldMost = max(e.result.HeldMost, e.held)
	e.clock.put(n)
}

// release lets a message out of its slot, as soon as those are out whose time
// came before.
func (e *engine) release(n uint32, m *message) {
	now := e.clock.now
	if e.gap > 0 {
		e.gate = max(e.gate, int64(now)*1000) + e.gap
		if out := e.gate / 1000; out > int64(now) {
			m.state, m.due = leaving|m.state&poisonous, soon(now, uint64(out-int64(now)))
			e.clock.put(n)
			return
		}
	}
	e.held--
	e.store.push(&e.ready, n)
}

// soon is the moment so many ms after now, and at least one; or the end of time.
func soon(now uint32, ms uint64) uint32 {
	return uint32(min(uint64(now)+max(ms, 1), uint64(never-1)))
}

func (e *engine) parked(m *message) {
	e.result.Parked++
	if m.state&poisonous == 0 {
		e.result.ParkedNeedlessly++
	}
	e.settled(m)
}

// settled counts a message that is handled or parked.
func (e *engine) settled(m *message) {
	e.step() // before fewer are open
	e.open--
	if m.state&poisonous == 0 && m.sent <= e.over {
		e.settledOld(1)
	}
}

// settledOld looks whether the backlog is gone.
func (e *engine) settledOld(n int64) {
	e.old -= n
	if !e.isOver {
		return
	}
	since := time.Duration(e.clock.now-e.over) * time.Millisecond
	if e.result.Recovery99 < 0 && e.old*100 <= e.oldAtFirst {
		e.result.Recovery99 = since
	}
	if e.result.Recovery < 0 && e.old == 0 {
		e.result.Recovery = since
	}
}

// source makes the messages of all traffic in the order of their time.
type source struct {
	rng   *rand.Rand
	flows []flow
	left  int64
	at    int // the flow of the next message
}

type flow struct {
	at, span float64 // ms
	n, of    int64   // the next, of how many
	next     uint32
	poison   float64
}

func newSource(s Scenario) *source {
	src := &source{rng: rand.New(rand.NewPCG(s.Seed, 1)), left: s.Messages()}
	for _, t := range s.Traffic {
		f := flow{at: float64(millis(t.At)), span: float64(millis(t.For)), of: t.messages(), poison: t.Poison}
		f.draw(src.rng)
		src.flows = append(src.flows, f)
	}
	src.choose()
	return src
}

// draw chooses the moment of the next message within its own share of the span.
func (f *flow) draw(rng *rand.Rand) {
	u := 0.0
	if f.span > 0 {
		u = rng.Float64()
	}
	f.next = uint32(f.at) + uint32(f.span*(float64(f.n)+u)/float64(f.of))
}

func (s *source) choose() {
	s.at = -1
	for i := range s.flows {
		if f := &s.flows[i]; f.n < f.of && (s.at < 0 || f.next < s.flows[s.at].next) {
			s.at = i
		}
	}
}

// next is when the next message comes.
func (s *source) next() (uint32, bool) {
	if s.at < 0 {
		return 0, false
	}
	return s.flows[s.at].next, true
}

func (s *source) take() (at uint32, poison bool) {
	f := &s.flows[s.at]
	at = f.next
	poison = f.poison > 0 && s.rng.Float64() < f.poison
	s.left--
	if f.n++; f.n < f.of {
		f.draw(s.rng)
	}
	if len(s.flows) > 1 || f.n == f.of {
		s.choose()
	}
	return at, poison
}
