// Package explain works out what a policy does to a message that keeps failing:
// how long each retry waits, where, and when the message is parked.
package explain

import (
	"math"
	"slices"
	"time"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/delay"
)

// Policy is what a route does to a message that fails every time.
type Policy struct {
	Route   hopback.Route // with its defaults
	Retries []Retry

	// Omitted is how many retries follow the last of Retries and wait like it.
	Omitted int

	// Expires is set where max_age ends the message before its retries are used
	// up, however they are drawn; MayExpire where it can.
	Expires, MayExpire bool

	// Total is how long the message waits between its first failure and the
	// parking queue.
	Total Span
}

// Retry is one retry.
type Retry struct {
	Number int

	// Ceiling is the backoff, before jitter.
	Ceiling time.Duration

	// Wait is how long it waits: after jitter, as the mechanism holds it.
	Wait Span

	// Slots are the delay queues that it may wait in first, and Then those that
	// it may wait in after that, shortest first. Without jitter they are one each.
	Slots, Then []time.Duration

	// After is when it runs, counted from the first failure.
	After Span
}

// Span is the least, the mean and the most of a time.
type Span struct{ Least, Mean, Most time.Duration }

func (s Span) plus(o Span) Span {
	return Span{add(s.Least, o.Least), add(s.Mean, o.Mean), add(s.Most, o.Most)}
}

// add stays at the longest duration: a million retries of a day are longer.
func add(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

func (s Span) atMost(d time.Duration) Span {
	return Span{min(s.Least, d), min(s.Mean, d), min(s.Most, d)}
}

// Route explains a route, which must be valid. It lists the first retries, as
// many as shown says, and the last.
func Route(r hopback.Route, prefix string, shown int) Policy {
	r = r.WithDefaults()
	if r.Mechanism == hopback.Auto {
		r.Mechanism = hopback.Wheel
	}
	e := Policy{Route: r}
	m := newMechanism(r, prefix)
	limit, limited := r.Policy.MaxAge, r.Policy.MaxAge != hopback.Unlimited
	retries, last := max(r.Policy.MaxRetries, 0), Retry{}
	for n := 1; n <= retries; n++ {
		retry := last
		if n <= settles || r.Policy.Ceiling(int64(n)) != last.Ceiling {
			retry = m.retry(int64(n), n <= shown)
		}
		retry.Number = n
		retry.After = last.After.plus(retry.Wait)
		if limited && retry.After.Least > limit {
			e.Expires = true // this one would come too late
			break
		}
		e.MayExpire = e.MayExpire || limited && retry.After.Most > limit
		if n <= shown {
			e.Retries = append(e.Retries, retry)
		}
		last = retry
	}
	if last.Number > shown {
		last.Slots, last.Then = m.slots(int64(last.Number))
		e.Retries, e.Omitted = append(e.Retries, last), last.Number-shown-1
	}
	e.Total = last.After
	if limited {
		e.Total = e.Total.atMost(limit)
	}
	return e
}

// settles is the retry from which on a band that depends on the delays before
// no longer changes to speak of.
const settles = 100

// mechanism knows how a route holds delays while few messages are retried.
type mechanism struct {
	route  hopback.Route
	delays delay.Mechanism
	names  map[string]time.Duration // of the slots
	known  map[Span]held            // many retries have one band
}

type held struct {
	wait        Span
	slots, then []time.Duration
}

func newMechanism(r hopback.Route, prefix string) *mechanism {
	if r.Precision == hopback.PrecisionAuto {
		r.Precision = hopback.PrecisionTwo // as auto does while few are
	}
	m := &mechanism{route: r, delays: r.DelayMechanism(prefix), names: map[string]time.Duration{}, known: map[Span]held{}}
	n := delay.Names{Prefix: prefix}
	if r.Isolate {
		n.Owner = r.Queue
	}
	for _, d := range m.delays.Slots() {
		m.names[n.Slot(d)] = d
	}
	return m
}

// retry works out one retry. Exactly is for those that are shown: it costs a
// millisecond or two, which a million retries would make half an hour.
func (m *mechanism) retry(n int64, exactly bool) Retry {
	p := m.route.Policy
	var band Span
	band.Least, band.Mean, band.Most = p.Band(n)
	h, ok := m.known[band]
	switch {
	case ok:
	case exactly || p.Jitter == hopback.NoJitter:
		h = m.hold(band)
		m.known[band] = h
	default:
		slots := m.delays.Slots()
		if len(slots) == 0 { // any delay
			h.wait = band
			break
		}
		least, most := slots[0], slots[len(slots)-1]
		h.wait = Span{min(max(band.Least, least), most), min(max(band.Mean, least), most), min(max(band.Most, least), most)}
	}
	return Retry{Ceiling: p.Ceiling(n), Wait: h.wait, Slots: h.slots, Then: h.then}
}

// slots are those of one retry.
func (m *mechanism) slots(n int64) (first, then []time.Duration) {
	r := m.retry(n, true)
	return r.Slots, r.Then
}

// A band is looked at in so many places, and each with so many random numbers.
const (
	places = 200
	draws  = 32
)

// hold asks the mechanism itself where delays of a band wait, and for how long.
func (m *mechanism) hold(band Span) held {
	p := m.route.Policy
	first, then := map[time.Duration]bool{}, map[time.Duration]bool{}
	h := held{wait: Span{Least: math.MaxInt64}}
	ask := func(d time.Duration, random uint64) time.Duration {
		hold := m.delays.Hold(delay.Request{Delay: d, Exact: p.Jitter == hopback.NoJitter, Min: p.MinDelay, Max: p.Max, Random: random})
		h.wait.Least, h.wait.Most = min(h.wait.Least, hold.Delay), max(h.wait.Most, hold.Delay)
		if slot, ok := m.names[hold.Exchange]; ok {
			first[slot] = true
		}
		if hold.Then != "" {
			then[m.names[hold.Then]] = true
		}
		return hold.Delay
	}
	for _, end := range []time.Duration{band.Least, band.Most} {
		h.wait.Mean = ask(end, 0)
		ask(end, math.MaxUint64)
	}
	if p.Jitter != hopback.NoJitter {
		m.lookNear(band, func(d time.Duration) { ask(d, 0) })
		var sum float64
		for i := range places {
			d := band.Least + time.Duration(float64(band.Most-band.Least)*(float64(i)+0.5)/places)
			for j := range uint64(draws) {
				sum += float64(ask(d.Truncate(time.Millisecond), (2*j+1)<<58)) // the middles of 32 parts of 2^64
			}
		}
		h.wait.Mean = time.Duration(sum / (places * draws))
		if m.route.Mechanism == hopback.Wheel && band.Least >= delay.Shortest {
			h.wait.Mean = band.Mean // rounding at random keeps it
		}
	}
	h.slots, h.then = sorted(first), sorted(then)
	return h
}

// lookNear visits the slots in a band, and each with its second digits: a band
// of a minute has few places near 400 ms.
func (m *mechanism) lookNear(band Span, visit func(time.Duration)) {
	for _, slot := range m.delays.Slots() {
		unit := delay.Shortest
		for unit*10 <= slot {
			unit *= 10
		}
		for digit := range time.Duration(10) {
			if d := slot + digit*unit/10; d >= band.Least && d <= band.Most {
				visit(d)
			}
		}
	}
}

func sorted(set map[time.Duration]bool) []time.Duration {
	var ds []time.Duration
	for d := range set {
		ds = append(ds, d)
	}
	slices.Sort(ds)
	return ds
}
