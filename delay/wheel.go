package delay

import (
	"math/bits"
	"time"

	"github.com/hopback/hopback/topology"
)

// Precision is how many significant digits of a delay the wheel keeps. Each
// digit is one slot to wait in.
type Precision string

// The precisions of the wheel.
const (
	// Auto keeps two digits, but one of a jittered delay while more than
	// BusyRate messages a second are being held.
	Auto Precision = "auto"
	One  Precision = "one"
	Two  Precision = "two"
)

// Wheel is a hierarchical timing wheel made of queues. Its slots hold
// d × 100 ms × 10^k, d = 1…9; a delay waits in the slot of its first digit and
// then, where it has one, in the slot of its second: 3.4 s in 3s, then in
// 400ms. At most two hops, whatever the delay, and never a short delay behind a
// long one.
type Wheel struct {
	names     Names
	longest   time.Duration
	precision Precision
	load      *Load
}

// NewWheel makes a wheel for delays up to longest. Only the decades that it
// needs are in its topology. Wheels that share a Load judge together whether
// the broker is busy; nil gives the wheel one of its own.
func NewWheel(names Names, longest time.Duration, precision Precision, load *Load) *Wheel {
	if load == nil {
		load = new(Load)
	}
	longest = min(max(longest, Shortest), Longest)
	return &Wheel{names: names, longest: longest, precision: precision, load: load}
}

// Name is "wheel".
func (w *Wheel) Name() string { return "wheel" }

// Hold rounds the delay to the wheel's digits and says in which slots they
// wait.
func (w *Wheel) Hold(r Request) Hold {
	busy := w.load.tick()
	unit := decade(clamp(r.Delay, w.longest)) // of the first digit
	if w.keepsTwo(r, busy) && unit > Shortest {
		unit /= 10
	}
	return w.place(round(clamp(r.Delay, w.longest), unit, r), r)
}

// keepsTwo: a second digit costs a second hop, and the broker's dead-letter
// workers are what gives way first under load. A crowd with jitter is spread by
// its own arrival, so one digit serves it then. A delay that was promised keeps
// both: rounding 11 s up to one digit would make it 20.
func (w *Wheel) keepsTwo(r Request, busy bool) bool {
	switch w.precision {
	case One:
		return false
	case Two:
		return true
	default:
		return r.Exact || !busy
	}
}

// place splits a rounded delay into its two digits.
func (w *Wheel) place(d time.Duration, r Request) Hold {
	unit := decade(d)
	first, second := d/unit*unit, d%unit
	if w.names.Slot(first) == r.Avoid {
		first, second = w.instead(first, r), 0
		d = first
	}
	h := Hold{Exchange: w.names.Slot(first), Delay: d}
	if second > 0 {
		h.Then = w.names.Slot(second)
	}
	return h
}

// instead is the slot to take in the place of one that refuses: the next longer
// one, since later than asked for is always allowed; the next shorter one where
// longer is above Max, or not there, and jitter may shorten. An exact delay in
// the longest slot has no other.
func (w *Wheel) instead(slot time.Duration, r Request) time.Duration {
	longer, shorter := slot+decade(slot), slot-decade(slot)
	if shorter == 0 {
		shorter = slot / 10 * 9 // 10s: 9s
	}
	there := longer <= w.top()
	mayShorten := !r.Exact && shorter >= max(r.Min, Shortest)
	switch {
	case there && (!mayShorten || r.Max == 0 || longer <= r.Max):
		return longer
	case mayShorten:
		return shorter
	}
	return slot
}

func clamp(d, longest time.Duration) time.Duration { return min(max(d, Shortest), longest) }

// round brings d to a multiple of unit: up if it must not be early, else up or
// down at random with the odds that keep the mean, within the bounds.
func round(d, unit time.Duration, r Request) time.Duration {
	down := d / unit * unit
	if down == d {
		return d
	}
	up := down + unit
	if up > Longest {
		return down
	}
	if r.Exact || down < r.Min || down < Shortest {
		return up
	}
	if r.Max > 0 && up > r.Max {
		return down
	}
	// Random × unit ÷ 2^64 is uniform below unit.
	if draw, _ := bits.Mul64(r.Random, uint64(unit)); time.Duration(draw) < d-down {
		return up
	}
	return down
}

// Slots lists every slot up to the longest that the wheel needs.
func (w *Wheel) Slots() []time.Duration {
	var slots []time.Duration
	for u := Shortest; u <= w.top(); u *= 10 {
		for d := u; d < 10*u && d <= w.top(); d += u {
			slots = append(slots, d)
		}
	}
	return slots
}

// top is the longest slot: where the longest delay lands when it is rounded up
// to one digit, which may be in the next decade, 9.96 s in 10s.
func (w *Wheel) top() time.Duration {
	return round(w.longest, decade(w.longest), Request{Exact: true})
}

// Topology is the slots, and the exchanges between the decades.
func (w *Wheel) Topology() topology.Topology {
	var t topology.Topology
	for _, d := range w.Slots() {
		if d > Shortest && d == decade(d) {
			t = t.Merge(w.names.thenTopology(d))
		}
		t = t.Merge(w.names.slotTopology(d))
		if above := 10 * decade(d); above <= w.top() {
			t.Bindings = append(t.Bindings, w.names.thenBinding(above, d))
		}
	}
	return t
}
