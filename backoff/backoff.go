// Package backoff computes how long a retry waits.
//
// It is pure and stateless: a delay is a function of the schedule, the number of the retry, the delay before
// it and 64 random bits, and of nothing else. The package keeps nothing between calls, reads no clock and
// allocates nothing, and all of it is safe for concurrent use. A backoff object that remembers, shared between
// messages, would let one message's failures lengthen another's delay.
//
// # From retry to delay
//
// Retry n = 1, 2, … passes three stages, each in whole milliseconds:
//
//  1. The ceiling d grows with n and stops at Max: min(max, base × factor^(n-1)) and its relatives. See [Kind].
//  2. The jitter turns d into a band [lo, hi]. See [Jitter].
//  3. The band is clipped to [MinDelay, Max], and the delay is drawn uniformly from what is left, both ends
//     included.
//
// The order of stage 3 is the point of this package. Drawing first and clamping afterwards puts every draw
// that fell outside on the bound itself: with d = Max and d×(1±p), half of a crowd waits exactly Max and comes
// back in the same millisecond, which is the herd that jitter was there to prevent. Here no delay is above Max
// or below MinDelay, and a crowd at the cap is as spread as the jitter allows.
//
// Integers saturate. Retry 2^63-1 waits Max, a retry below 1 counts as retry 1, and no input overflows or panics.
//
// # Randomness
//
// [Schedule.Delay] takes its 64 random bits as an argument. [Random] draws them; [Seed] derives them from a
// message id, by a recipe that any language can follow, so that a schedule can be recomputed afterwards.
package backoff

import "time"

// Kind says how the ceiling, the delay before jitter, grows from retry to retry.
type Kind string

// The kinds of backoff, with the ceiling of retry n = 1, 2, … before it is capped at Max.
const (
	Exponential Kind = "exponential" // base × factor^(n-1): 1s, 2s, 4s, 8s, …
	Linear      Kind = "linear"      // base × n: 1s, 2s, 3s, 4s, …
	Constant    Kind = "constant"    // base: 1s, 1s, 1s, …
	Fibonacci   Kind = "fibonacci"   // base × 1, 1, 2, 3, 5, 8, …
	List        Kind = "list"        // Delays, whose last entry repeats
)

// Kinds returns every kind of backoff, in the order of the documentation. The slice is the caller's own.
func Kinds() []Kind { return []Kind{Exponential, Linear, Constant, Fibonacci, List} }

// Jitter says how a ceiling d becomes a band to draw the delay from, so that messages that failed together do
// not come back together.
type Jitter string

// The kinds of jitter, with their bands before they are clipped to [MinDelay, Max].
const (
	None         Jitter = "none"         // d itself
	Full         Jitter = "full"         // [0, d]
	Equal        Jitter = "equal"        // [d/2, d], d/2 rounded up
	Proportional Jitter = "proportional" // [d - d×JitterRatio, d + d×JitterRatio], d×JitterRatio rounded to the nearest
	Decorrelated Jitter = "decorrelated" // [base, 3 × previous]; a previous delay below base counts as base
)

// Jitters returns every kind of jitter, in the order of the documentation. The slice is the caller's own.
func Jitters() []Jitter { return []Jitter{None, Full, Equal, Proportional, Decorrelated} }

// What a zero field means.
const (
	defaultBackoff  = Exponential
	defaultBase     = time.Second
	defaultFactor   = 2.0
	defaultMax      = time.Minute
	defaultJitter   = Full
	defaultRatio    = 0.2
	defaultMinDelay = 100 * time.Millisecond
)

// Schedule says how long retry n = 1, 2, … waits. It is a plain value: copy it, compare its fields, keep it in
// a configuration.
//
// A zero field takes its default, so the zero Schedule is usable: 1 s, 2 s, 4 s, … up to 60 s, with full jitter.
// The methods apply the defaults themselves; [Schedule.WithDefaults] shows them.
//
// Brokers count in milliseconds, and so does this package: Base, Max and Delays are rounded down to whole
// milliseconds, MinDelay is rounded up.
//
// [Schedule.Validate] says what is wrong with a schedule. The other methods never panic, whatever the fields
// hold: a field that Validate would refuse counts as unset, Base and Delays between 0 and 1 ms count as 1 ms,
// a delay of a list that is not positive counts as 1 ms, and where MinDelay is above Max, Max wins.
type Schedule struct {
	// Backoff is the kind of growth. Default: Exponential.
	Backoff Kind `yaml:"backoff,omitempty" json:"backoff,omitempty"`

	// Base is the unit of growth, and the ceiling of the first retry; at least 1 ms and at most Max. List does
	// not use it. Default: 1 s. Some texts start at base × factor: set Base to that product for their schedule.
	Base time.Duration `yaml:"base,omitempty" json:"base,omitempty"`

	// Factor is what each ceiling is multiplied by to give the next, for Exponential only: finite, and either 1,
	// which keeps the ceiling constant, or at least 1.000001. Default: 2.
	Factor float64 `yaml:"factor,omitempty" json:"factor,omitempty"`

	// Max caps every delay, after jitter, the explicit ones of a List too; at least 1 ms. Default: 60 s; for
	// List the longest of Delays, so that a list is capped only by a Max that was written down.
	Max time.Duration `yaml:"max,omitempty" json:"max,omitempty"`

	// Delays are the ceilings of List, in order, each at least 1 ms; the last repeats. No other kind takes them.
	Delays []time.Duration `yaml:"delays,omitempty" json:"delays,omitempty"`

	// Jitter is the kind of spread. Default: Full.
	Jitter Jitter `yaml:"jitter,omitempty" json:"jitter,omitempty"`

	// JitterRatio is the p of Proportional, whose band is d×(1-p) to d×(1+p): above 0 and at most 1. Default: 0.2.
	JitterRatio float64 `yaml:"jitter_ratio,omitempty" json:"jitter_ratio,omitempty"`

	// MinDelay is the floor of every delay, after jitter; at most Max. Default: 100 ms, the shortest slot of the
	// wheel. Zero means the default, so 1 ms is the way to write "practically none".
	MinDelay time.Duration `yaml:"min_delay,omitempty" json:"min_delay,omitempty"`
}

// WithDefaults returns the schedule with every zero field replaced by its default. It corrects nothing: a
// field that is wrong stays wrong for [Schedule.Validate] to name. The slice of delays is shared, not copied.
func (s Schedule) WithDefaults() Schedule {
	if s.Backoff == "" {
		s.Backoff = defaultBackoff
	}
	if s.Base == 0 {
		s.Base = defaultBase
	}
	if s.Factor == 0 {
		s.Factor = defaultFactor
	}
	if s.Max == 0 {
		s.Max = s.defaultMax()
	}
	if s.Jitter == "" {
		s.Jitter = defaultJitter
	}
	if s.JitterRatio == 0 {
		s.JitterRatio = defaultRatio
	}
	if s.MinDelay == 0 {
		s.MinDelay = defaultMinDelay
	}
	return s
}

// defaultMax is the longest of a list, or 60 s.
func (s *Schedule) defaultMax() time.Duration {
	if s.Backoff != List {
		return defaultMax
	}
	longest := time.Duration(0)
	for _, d := range s.Delays {
		longest = max(longest, d)
	}
	if longest < time.Millisecond {
		return defaultMax
	}
	return longest
}

// bounds are the limits of a schedule in whole milliseconds, made safe: 1 ≤ base, 0 ≤ floor ≤ cap.
// None is above 2^63/10^6 < 2^44, so sums and small multiples of them fit an int64, and each is exact as a float64.
type bounds struct{ base, floor, cap int64 }

func (s *Schedule) bounds() bounds {
	longest := s.Max
	if longest <= 0 {
		longest = s.defaultMax()
	}
	base := s.Base
	if base <= 0 {
		base = defaultBase
	}
	least := s.MinDelay
	if least <= 0 {
		least = defaultMinDelay
	}
	b := bounds{base: max(1, millis(base)), floor: millis(least), cap: millis(longest)}
	if least%time.Millisecond != 0 {
		b.floor++
	}
	b.floor = min(b.floor, b.cap)
	return b
}

// clip moves ms into [floor, cap].
func (b bounds) clip(ms int64) int64 { return max(b.floor, min(ms, b.cap)) }

func millis(d time.Duration) int64 { return int64(d / time.Millisecond) }

// duration is the inverse of millis. Its argument never exceeds a bound's cap, so it cannot overflow.
func duration(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }
