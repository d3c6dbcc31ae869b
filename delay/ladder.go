package delay

import (
	"math/bits"
	"slices"
	"time"

	"github.com/hopback/hopback/topology"
)

// Rungs is a ladder: a fixed list of delays, one slot each, one hop each. Its
// slots are those of the wheel where the delays agree, so a route can change
// between the two and lose nothing.
type Rungs struct {
	names Names
	rungs []time.Duration
}

// NewLadder makes a ladder of the given delays, in rising order, each in whole
// milliseconds. There must be at least one.
func NewLadder(names Names, rungs []time.Duration) *Rungs {
	return &Rungs{names: names, rungs: slices.Clone(rungs)}
}

// Name is "ladder".
func (l *Rungs) Name() string { return "ladder" }

// Hold chooses a rung: for an exact delay the shortest that is not shorter, for
// a jittered one either neighbour with the odds that keep the mean. What is
// longer than the longest rung waits in that, and Hold.Delay says so.
func (l *Rungs) Hold(r Request) Hold {
	up, found := slices.BinarySearch(l.rungs, r.Delay)
	up = min(up, len(l.rungs)-1)
	at := up
	if !found && up > 0 && r.Delay < l.rungs[up] && !r.Exact {
		at = l.draw(up, r)
	}
	if l.names.Slot(l.rungs[at]) == r.Avoid {
		at = l.instead(at, r)
	}
	return Hold{Exchange: l.names.Slot(l.rungs[at]), Delay: l.rungs[at]}
}

// draw chooses between the rung up and the one below it.
func (l *Rungs) draw(up int, r Request) int {
	low, high := l.rungs[up-1], l.rungs[up]
	if low < r.Min {
		return up
	}
	if r.Max > 0 && high > r.Max {
		return up - 1
	}
	if draw, _ := bits.Mul64(r.Random, uint64(high-low)); time.Duration(draw) < r.Delay-low {
		return up
	}
	return up - 1
}

// instead is the rung to take in the place of one that refuses, by the same
// rule as the wheel's.
func (l *Rungs) instead(at int, r Request) int {
	there := at+1 < len(l.rungs)
	mayShorten := !r.Exact && at > 0 && l.rungs[at-1] >= r.Min
	switch {
	case there && (!mayShorten || r.Max == 0 || l.rungs[at+1] <= r.Max):
		return at + 1
	case mayShorten:
		return at - 1
	}
	return at
}

// Slots lists the rungs.
func (l *Rungs) Slots() []time.Duration { return slices.Clone(l.rungs) }

// Topology is the rungs and the exchanges behind them, which have no binding
// here and so send everything back.
func (l *Rungs) Topology() topology.Topology {
	var t topology.Topology
	for _, d := range l.rungs {
		if decade(d) > Shortest {
			t = t.Merge(l.names.thenTopology(d))
		}
		t = t.Merge(l.names.slotTopology(d))
	}
	return t
}
