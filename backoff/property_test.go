package backoff_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hopback/hopback/backoff"
)

// pick returns one of its arguments.
func pick[T any](r *rand.Rand, all ...T) T { return all[r.IntN(len(all))] }

// logUniform returns a duration of whole milliseconds whose logarithm is uniform: every magnitude comes up.
func logUniform(r *rand.Rand, lo, hi time.Duration) time.Duration {
	a, b := math.Log(float64(lo/ms)), math.Log(float64(hi/ms))
	return max(lo, min(hi, time.Duration(math.Exp(a+r.Float64()*(b-a)))*ms))
}

// valid makes a schedule that Validate accepts.
func valid(r *rand.Rand) backoff.Schedule {
	s := backoff.Schedule{Jitter: pick(r, backoff.Jitters()...)}
	s.Max = logUniform(r, ms, pick(r, time.Minute, 25*time.Hour, longest))
	s.MinDelay = logUniform(r, ms, s.Max)
	if s.Jitter != backoff.Decorrelated {
		s.Backoff = pick(r, backoff.Kinds()...)
	}
	if s.Backoff == backoff.List {
		for range 1 + r.IntN(6) {
			s.Delays = append(s.Delays, logUniform(r, ms, 25*time.Hour))
		}
	} else {
		s.Base = logUniform(r, ms, s.Max)
	}
	if s.Jitter != backoff.Decorrelated && (s.Backoff == backoff.Exponential || s.Backoff == "") {
		s.Factor = pick(r, 1, 2, 3, 1.5, 1.1, 1.000001, 1e6, 1+math.Exp(-10*r.Float64()), 1+9*r.Float64())
	}
	if s.Jitter == backoff.Proportional {
		s.JitterRatio = pick(r, 0.2, 1, 0.001, 1-r.Float64())
	}
	return s
}

// wild makes a schedule of anything at all.
func wild(r *rand.Rand) backoff.Schedule {
	duration := func() time.Duration {
		return pick(r, 0, 1, -1, ms-1, ms, sec, time.Minute, -time.Hour, math.MaxInt64, math.MaxInt64-1, math.MinInt64,
			longest, time.Duration(r.Uint64()), time.Duration(r.Uint64()>>r.UintN(64)))
	}
	number := func() float64 {
		return pick(r, 0, 1, 2, 1.5, 0.2, -1, 1e-300, math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat64,
			math.SmallestNonzeroFloat64, math.Nextafter(1, 2), math.Nextafter(1, 0), math.Float64frombits(r.Uint64()))
	}
	s := backoff.Schedule{
		Backoff: pick(r, append(backoff.Kinds(), "", "nonsense")...), Base: duration(), Factor: number(), Max: duration(),
		Jitter: pick(r, append(backoff.Jitters(), "", "nonsense")...), JitterRatio: number(), MinDelay: duration(),
	}
	for range r.IntN(4) {
		s.Delays = append(s.Delays, duration())
	}
	return s
}

func anyRetry(r *rand.Rand) int64 {
	return pick(r, 0, 1, 2, 3, 7, 63, 64, 65, 100, -1, math.MaxInt64, math.MinInt64, int64(r.Uint64()), int64(r.Uint64()>>r.UintN(64)))
}

func TestGeneratorIsValid(t *testing.T) {
	r := rng(5)
	for range 5000 {
		if s := valid(r); s.Validate() != nil {
			t.Fatalf("%+v: %v", s, s.Validate())
		}
	}
}

// Whatever the schedule, the retry, the delay before and the bits: no panic, whole milliseconds, inside the band,
// inside what the schedule allows.
func TestBounds(t *testing.T) {
	r := rng(6)
	for i := range 20_000 {
		s := wild(r)
		if i%2 == 0 {
			s = valid(r)
		}
		checkBounds(t, s, anyRetry(r), pick(r, 0, sec, -sec, math.MaxInt64, math.MinInt64, time.Duration(r.Uint64())),
			pick(r, 0, 1, math.MaxUint64, 1<<63, r.Uint64()))
		if t.Failed() {
			return
		}
	}
}

// A field that Validate refuses counts as unset, as the doc comment of Schedule says, and so do names that nobody knows.
func TestRefusedFieldsCountAsUnset(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(-1)
	for _, test := range []struct{ refused, unset backoff.Schedule }{
		{backoff.Schedule{Backoff: "x"}, backoff.Schedule{}},
		{backoff.Schedule{Backoff: backoff.List}, backoff.Schedule{}},
		{backoff.Schedule{Base: -1}, backoff.Schedule{}},
		{backoff.Schedule{Base: 1}, backoff.Schedule{Base: ms}},
		{backoff.Schedule{Factor: 0.99}, backoff.Schedule{}},
		{backoff.Schedule{Factor: -3}, backoff.Schedule{}},
		{backoff.Schedule{Factor: nan}, backoff.Schedule{}},
		{backoff.Schedule{Factor: inf}, backoff.Schedule{}},
		{backoff.Schedule{Max: -1}, backoff.Schedule{}},
		{backoff.Schedule{Jitter: "x"}, backoff.Schedule{}},
		{backoff.Schedule{Jitter: backoff.Proportional, JitterRatio: -1}, backoff.Schedule{Jitter: backoff.Proportional}},
		{backoff.Schedule{Jitter: backoff.Proportional, JitterRatio: 1.01}, backoff.Schedule{Jitter: backoff.Proportional}},
		{backoff.Schedule{Jitter: backoff.Proportional, JitterRatio: nan}, backoff.Schedule{Jitter: backoff.Proportional}},
		{backoff.Schedule{MinDelay: -1}, backoff.Schedule{}},
		{backoff.Schedule{MinDelay: time.Hour}, backoff.Schedule{MinDelay: 60 * sec}},
		{backoff.Schedule{Backoff: backoff.List, Delays: seconds(-1, 5)}, backoff.Schedule{Backoff: backoff.List, Delays: []time.Duration{ms, 5 * sec}}},
	} {
		if test.refused.Validate() == nil {
			t.Errorf("%+v is valid", test.refused)
		}
		if err := test.unset.Validate(); err != nil {
			t.Errorf("%+v: %v", test.unset, err)
		}
		for _, n := range []int64{1, 2, 3, 5, 70} {
			if a, b := test.refused.Ceiling(n), test.unset.Ceiling(n); a != b {
				t.Errorf("%+v, retry %d: ceiling %v, want %v", test.refused, n, a, b)
			}
			al, am, ah := test.refused.Band(n)
			bl, bm, bh := test.unset.Band(n)
			if al != bl || am != bm || ah != bh {
				t.Errorf("%+v, retry %d: band %v %v %v, want %v %v %v", test.refused, n, al, am, ah, bl, bm, bh)
			}
		}
	}
}

// checkBounds is the property that TestBounds and FuzzDelay share.
func checkBounds(t *testing.T, s backoff.Schedule, n int64, previous time.Duration, bits uint64) {
	t.Helper()
	_ = s.Validate()
	d, ceiling := s.Delay(n, previous, bits), s.Ceiling(n)
	least, mean, most := s.Band(n)

	if d%ms != 0 || ceiling%ms != 0 || least%ms != 0 || most%ms != 0 {
		t.Errorf("%+v retry %d: not whole milliseconds: delay %d, ceiling %d, band %d to %d ns", s, n, d, ceiling, least, most)
	}
	if d < 0 || ceiling < 0 {
		t.Errorf("%+v retry %d: negative: delay %v, ceiling %v", s, n, d, ceiling)
	}
	if !(least <= mean && mean <= most) {
		t.Errorf("%+v retry %d: band %v, mean %v, %v", s, n, least, mean, most)
	}
	effective := s.WithDefaults()
	if effective.Max > 0 && (d > effective.Max || most > effective.Max || ceiling > effective.Max) {
		t.Errorf("%+v retry %d: delay %v, most %v, ceiling %v above max", s, n, d, most, ceiling)
	}
	if floor := min(effective.MinDelay, effective.Max.Truncate(ms)); d < floor || least < floor {
		t.Errorf("%+v retry %d: delay %v, least %v below min_delay", s, n, d, least)
	}
	if d < least {
		t.Errorf("%+v retry %d: delay %v below its band from %v", s, n, d, least)
	}
	// What decorrelated draws after a delay that the schedule never made, Band cannot know.
	if d > most && (s.Jitter != backoff.Decorrelated || previous <= 0) {
		t.Errorf("%+v retry %d: delay %v above its band to %v", s, n, d, most)
	}
	if s.Jitter == backoff.None && d != max(ceiling, least) {
		t.Errorf("%+v retry %d: jitter none gave %v for the ceiling %v", s, n, d, ceiling)
	}
	if again := s.Delay(n, previous, bits); again != d {
		t.Errorf("%+v retry %d: %v, then %v", s, n, d, again)
	}
	if with := effective.Delay(n, previous, bits); with != d {
		t.Errorf("%+v retry %d: %v, but %v with the defaults written out", s, n, d, with)
	}
}

// Ceilings never shrink, for any valid schedule but a list, between neighbours and across any distance.
func TestCeilingsAreMonotone(t *testing.T) {
	r := rng(7)
	for range 3000 {
		s := valid(r)
		if s.Backoff == backoff.List {
			continue
		}
		for range 30 {
			n := max(1, anyRetry(r))
			if n == math.MaxInt64 {
				n--
			}
			m := pick(r, n+1, max(n+1, anyRetry(r)))
			if a, b := s.Ceiling(n), s.Ceiling(m); a > b {
				t.Fatalf("%+v: ceiling %v at retry %d, %v at %d", s, a, n, b, m)
			}
		}
	}
	// Retry by retry where growth is slowest, up to the cap.
	for _, factor := range []float64{1.000001, 1.00001, 1.001, 1.1} {
		s := backoff.Schedule{Base: 997 * ms, Factor: factor, Max: time.Duration(998.5 * float64(ms))}
		if factor > 1.0001 {
			s.Max = 24 * time.Hour
		}
		last := s.Ceiling(1)
		for n := int64(2); last < s.Max.Truncate(ms); n++ {
			next := s.Ceiling(n)
			if next < last {
				t.Fatalf("factor %v: ceiling %v at retry %d after %v", factor, next, n, last)
			}
			last = next
		}
	}
}

// A band never moves down as retries go on, whatever the jitter.
func TestBandsAreMonotone(t *testing.T) {
	r := rng(8)
	for range 400 {
		s := valid(r)
		if s.Backoff == backoff.List {
			continue
		}
		least, mean, most := s.Band(1)
		for n := int64(2); n < 24; n++ {
			l, m, h := s.Band(n)
			// The mean of decorrelated is a sum of floats: a few parts in 2^53 of it may be lost.
			if l < least || m < mean-mean/1e12-1 || h < most {
				t.Fatalf("%+v: retry %d %v %v %v, after %v %v %v", s, n, l, m, h, least, mean, most)
			}
			least, mean, most = l, m, h
		}
	}
}

// A history of decorrelated delays never leaves the band of its retry.
func TestDecorrelatedHistoryStaysInBand(t *testing.T) {
	r := rng(9)
	for range 300 {
		s := valid(r)
		s.Backoff, s.Delays, s.Factor, s.Jitter, s.JitterRatio = "", nil, 0, backoff.Decorrelated, 0
		d := time.Duration(0)
		for n := int64(1); n <= 12; n++ {
			d = s.Delay(n, d, pick(r, 0, math.MaxUint64, math.MaxUint64, r.Uint64()))
			if least, _, most := s.Band(n); d < least || d > most {
				t.Fatalf("%+v retry %d: %v outside %v to %v", s, n, d, least, most)
			}
		}
	}
}

// The bits order the draws: more never gives less. So 0 and 2^64-1 give the ends.
func TestDelayGrowsWithItsBits(t *testing.T) {
	r := rng(10)
	for range 20_000 {
		s, n, previous := wild(r), anyRetry(r), time.Duration(r.Uint64())
		a, b := r.Uint64(), r.Uint64()
		if s.Delay(n, previous, min(a, b)) > s.Delay(n, previous, max(a, b)) {
			t.Fatalf("%+v retry %d: the draws of %d and %d are out of order", s, n, a, b)
		}
	}
}

func TestDelayDoesNotAllocate(t *testing.T) {
	for _, kind := range backoff.Kinds() {
		for _, jitter := range backoff.Jitters() {
			s := backoff.Schedule{Backoff: kind, Jitter: jitter, Delays: seconds(10, 60, 600), Factor: 1.5}
			n := int64(0)
			allocs := testing.AllocsPerRun(100, func() {
				n++
				_ = s.Delay(n, sec, backoff.Seed("order-1", n)^backoff.Random())
			})
			if allocs != 0 {
				t.Errorf("%s, %s: %v allocations", kind, jitter, allocs)
			}
		}
	}
}
