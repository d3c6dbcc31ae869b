package simulate

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"time"
)

// Dependency is what the handlers call: a database, another service, a third
// party's API. The zero value answers everything, after 20 ms.
//
// Calls are answered in the order in which they come, Capacity of them a second.
// One that finds others before it stands in line, and its answer comes that much
// later. One that would stand in line for longer than Line is refused.
type Dependency struct {
	// Capacity is how many calls a second it answers. 0 means any number.
	Capacity float64 `yaml:"capacity"`

	// Line is how long a call may stand in line. 0 means 500 ms; to refuse
	// whatever does not fit at once write 1ms.
	Line time.Duration `yaml:"line"`

	// Latency is how long a call takes that does not stand in line. 0 means 20
	// ms. It varies evenly by LatencySpread, a share: 0.5 gives 10 to 30 ms.
	Latency       time.Duration `yaml:"latency"`
	LatencySpread float64       `yaml:"latency_spread"`

	// FailAfter is how long a call takes that is refused, or that meets an
	// outage. 0 means Latency.
	FailAfter time.Duration `yaml:"fail_after"`

	// Timeout is when a caller gives up on a call that hangs. 0 means 30 s.
	Timeout time.Duration `yaml:"timeout"`

	// Errors is the share of calls, 0 to 1, that fail for no reason of load.
	Errors float64 `yaml:"errors"`

	// Collapse makes it serve less the more it is asked for: asked for k times
	// its capacity within a second, it serves capacity ÷ (1 + Collapse × (k-1)).
	// 0 switches this off; with 1 it serves half when asked for double. Being
	// asked counts while it is down, too, against its full capacity.
	Collapse float64 `yaml:"collapse"`

	// Recovery is how slowly that heals: after so long without being asked for
	// too much, about two thirds of what was lost is back. 0 means 10 s.
	Recovery time.Duration `yaml:"recovery"`

	// Contended makes calls conflict, as optimistic locking does: of the calls
	// that overlap, the first to end succeeds and the others fail.
	Contended bool `yaml:"contended"`

	// Spells are its troubles. They may not overlap.
	Spells []Spell `yaml:"spells"`
}

// Spell is a time in which the dependency is not itself. The zero value, but
// for At and For, is an outage.
type Spell struct {
	// At is when it begins, and For how long it lasts; 0 lasts for ever.
	At  time.Duration `yaml:"at"`
	For time.Duration `yaml:"for"`

	// Capacity is the share of its capacity that is left, 0 to 1. At 0 it is
	// down, and every call fails.
	Capacity float64 `yaml:"capacity"`

	// Errors and Latency stand in the place of the dependency's own. 0 leaves
	// those.
	Errors  float64       `yaml:"errors"`
	Latency time.Duration `yaml:"latency"`

	// Hang makes the calls of an outage hang: they fail when the spell ends or
	// at the timeout, whichever is first.
	Hang bool `yaml:"hang"`

	// Ramp lets Capacity and Latency grow towards the spell's values over its
	// time, evenly, from those of the dependency: a slow leak.
	Ramp bool `yaml:"ramp"`
}

func (d Dependency) withDefaults() Dependency {
	set := func(v *time.Duration, to time.Duration) {
		if *v == 0 {
			*v = to
		}
	}
	set(&d.Line, defaultLine)
	set(&d.Latency, defaultLatency)
	set(&d.FailAfter, d.Latency)
	set(&d.Timeout, defaultTimeout)
	set(&d.Recovery, defaultRecovery)
	d.Spells = slices.Clone(d.Spells)
	slices.SortStableFunc(d.Spells, func(a, b Spell) int { return int(a.At/time.Millisecond - b.At/time.Millisecond) })
	return d
}

func (d Dependency) check(check func(ok bool, field string, value any, fix string)) {
	const at = "dependency."
	check(d.Capacity >= 0 && d.Capacity <= 1e6, at+"capacity", d.Capacity, "use calls a second, at most 1e6; 0 means any number")
	for _, v := range []struct {
		name string
		d    time.Duration
	}{{"line", d.Line}, {"latency", d.Latency}, {"fail_after", d.FailAfter}, {"timeout", d.Timeout}, {"recovery", d.Recovery}} {
		check(v.d >= time.Millisecond && v.d <= 24*time.Hour, at+v.name, v.d, "use 1ms to 24h")
	}
	check(share(d.LatencySpread), at+"latency_spread", d.LatencySpread, "use a share from 0 to 1")
	check(share(d.Errors), at+"errors", d.Errors, "use a share from 0 to 1")
	check(d.Collapse >= 0 && d.Collapse <= 1000, at+"collapse", d.Collapse, "use 0 to 1000; 1 halves the capacity when double is asked for")
	check(d.Collapse == 0 || d.Capacity > 0, at+"collapse", d.Collapse, "give it a capacity to collapse from")
	end := time.Duration(0)
	for i, s := range d.Spells {
		at := fmt.Sprintf("dependency.spells[%d].", i)
		check(s.At >= 0 && s.At <= longest, at+"at", s.At, "use 0s to 49 days")
		check(s.For >= 0 && s.For <= longest, at+"for", s.For, "use a positive duration, or 0s for one that does not end")
		check(i == 0 || d.Spells[i-1].For > 0 && s.At >= end, at+"at", s.At, "let one spell end before the next begins")
		check(share(s.Capacity), at+"capacity", s.Capacity, "use the share of its capacity that is left, 0 to 1")
		check(share(s.Errors), at+"errors", s.Errors, "use a share from 0 to 1")
		check(s.Latency >= 0 && s.Latency <= 24*time.Hour, at+"latency", s.Latency, "use at most 24h")
		check(!s.Hang || s.Capacity == 0, at+"hang", s.Hang, "calls hang in an outage only: leave capacity at 0")
		check(!s.Ramp || s.For > 0, at+"ramp", s.Ramp, "say for how long it grows worse")
		end = s.At + s.For
	}
}

// outcome is how a call ends.
type outcome uint8

const (
	succeeds outcome = iota
	fails            // an error, a conflict, a poison message
	refused          // no room
	down             // an outage
)

// never is a time after everything.
const never = ^uint32(0)

// spell is a Spell in milliseconds.
type spell struct {
	from, to uint32
	share    float64
	errors   float64
	latency  uint32
	hang     bool
	ramp     bool
}

// server is a Dependency at work.
type server struct {
	rng       *rand.Rand
	capacity  float64
	line      int64 // µs
	latency   uint32
	spread    float64
	failAfter uint32
	timeout   uint32
	errors    float64
	collapse  float64
	contended bool
	spells    []spell

	at      int    // the spell that is, or is next
	free    int64  // when it has answered all that stand in line, in µs
	version uint32 // of what is contended for

	asked  float64 // calls a second, smoothed over a second
	health float64 // what collapse has left of the capacity
	seen   uint32  // when those two were brought up to date
	fade   float64 // a millisecond's share of asked that is forgotten
	heal   float64 // a millisecond's share of the damage that stays
}

func newServer(d Dependency, rng *rand.Rand) *server {
	s := &server{
		rng: rng, capacity: d.Capacity, line: int64(millis(d.Line)) * 1000, latency: millis(d.Latency), spread: d.LatencySpread,
		failAfter: millis(d.FailAfter), timeout: millis(d.Timeout), errors: d.Errors, collapse: d.Collapse,
		contended: d.Contended, health: 1, fade: 1 - 1.0/1000, heal: 1 - 1/float64(millis(d.Recovery)),
	}
	for _, sp := range d.Spells {
		to := never
		if sp.For > 0 {
			to = millis(min(sp.At+sp.For, longest))
		}
		one := spell{from: millis(sp.At), to: to, share: sp.Capacity, errors: sp.Errors, latency: millis(sp.Latency), hang: sp.Hang, ramp: sp.Ramp}
		if one.errors == 0 {
			one.errors = d.Errors
		}
		if one.latency == 0 {
			one.latency = s.latency
		}
		s.spells = append(s.spells, one)
	}
	return s
}

// millis is a duration that is known to fit.
func millis(d time.Duration) uint32 { return uint32(d / time.Millisecond) }

// now is the spell of a moment. Moments never go back.
func (s *server) now(t uint32) *spell {
	for s.at < len(s.spells) && t >= s.spells[s.at].to {
		s.at++
		s.free = 0 // who stood in line when it was slow is answered at once
	}
	if s.at < len(s.spells) && t >= s.spells[s.at].from {
		return &s.spells[s.at]
	}
	return nil
}

// call begins a call and says how it will end, and after how many ms.
func (s *server) call(t uint32, poison bool) (outcome, uint32) {
	share, errors, latency := 1.0, s.errors, s.latency
	sp := s.now(t)
	if sp != nil {
		share, errors, latency = sp.share, sp.errors, sp.latency
		if sp.ramp {
			// float64() forbids a fused multiply-add, whose result differs between
			// processors.
			part := float64(t-sp.from) / float64(sp.to-sp.from)
			share = 1 - float64(part*(1-sp.share))
			latency = s.latency + uint32(float64(part*float64(int64(sp.latency)-int64(s.latency))))
		}
	}
	if s.collapse > 0 {
		s.strain(t, share)
	}
	if share == 0 {
		if sp.hang {
			return down, max(1, min(s.timeout, sp.to-t))
		}
		return down, s.failAfter
	}
	if s.spread > 0 {
		half := uint64(float64(float64(latency) * s.spread))
		latency += uint32(s.below(2*half+1)) - uint32(half)
	}
	if s.capacity > 0 {
		start := max(int64(t)*1000, s.free)
		wait := start - int64(t)*1000
		if wait > s.line {
			return refused, s.failAfter
		}
		s.free = start + min(int64(1e6/(s.capacity*share*s.health)), int64(s.timeout)*1000)
		latency += uint32(wait / 1000)
	}
	if latency > s.timeout {
		return fails, s.timeout
	}
	if poison || errors > 0 && s.rng.Float64() < errors {
		return fails, latency
	}
	return succeeds, latency
}

// below is uniform in [0, n).
func (s *server) below(n uint64) uint64 {
	hi, _ := bits.Mul64(s.rng.Uint64(), n)
	return hi
}

// strain counts a call and lets the dependency collapse, or heal.
func (s *server) strain(t uint32, share float64) {
	if passed := t - s.seen; passed > 0 {
		s.asked *= power(s.fade, passed)
		s.health = 1 - float64((1-s.health)*power(s.heal, passed))
		s.seen = t
	}
	s.asked++
	has := s.capacity * share
	if share == 0 {
		has = s.capacity
	}
	if over := s.asked/has - 1; over > 0 {
		// A hundredth is left: a dependency that answers nothing any more could
		// not be told from one that is down.
		s.health = min(s.health, max(0.01, 1/(1+float64(s.collapse*over))))
	}
}

// power is x^n by squaring: the same multiplications on every processor.
func power(x float64, n uint32) float64 {
	p := 1.0
	for ; n > 0; n >>= 1 {
		if n&1 == 1 {
			p *= x
		}
		x *= x
	}
	return p
}
