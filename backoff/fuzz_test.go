package backoff_test

import (
	"math"
	"testing"
	"time"

	"github.com/hopback/hopback/backoff"
)

// FuzzDelay looks for a schedule, retry, previous delay and bits that break a bound or panic. The delays of a
// list are d1 to d3, as many of them as count says.
func FuzzDelay(f *testing.F) {
	f.Add("", int64(0), 0.0, int64(0), "", 0.0, int64(0), uint8(0), int64(0), int64(0), int64(0), int64(1), int64(0), uint64(0))
	f.Add("exponential", int64(time.Second), 2.0, int64(time.Minute), "full", 0.2, int64(100*time.Millisecond), uint8(0),
		int64(0), int64(0), int64(0), int64(math.MaxInt64), int64(0), uint64(math.MaxUint64))
	f.Add("exponential", int64(math.MaxInt64), math.Inf(1), int64(math.MaxInt64), "proportional", math.NaN(), int64(math.MaxInt64), uint8(1),
		int64(-1), int64(0), int64(0), int64(math.MinInt64), int64(math.MinInt64), uint64(1))
	f.Add("linear", int64(math.MaxInt64), math.NaN(), int64(math.MaxInt64), "proportional", 1.0, int64(1), uint8(0),
		int64(0), int64(0), int64(0), int64(math.MaxInt64), int64(0), uint64(math.MaxUint64))
	f.Add("fibonacci", int64(1), 1.0, int64(math.MaxInt64), "equal", -1.0, int64(-1), uint8(0),
		int64(0), int64(0), int64(0), int64(64), int64(0), uint64(1)<<63)
	f.Add("constant", int64(time.Second), 0.5, int64(1), "decorrelated", 0.0, int64(time.Hour), uint8(0),
		int64(0), int64(0), int64(0), int64(2), int64(math.MaxInt64), uint64(math.MaxUint64))
	f.Add("list", int64(-1), 1e300, int64(0), "none", 0.0, int64(0), uint8(3),
		int64(10*time.Second), int64(math.MaxInt64), int64(math.MinInt64), int64(3), int64(0), uint64(7))
	f.Add("exponential", int64(time.Millisecond), 1.0000000001, int64(math.MaxInt64), "decorrelated", 0.0, int64(1), uint8(0),
		int64(0), int64(0), int64(0), int64(1)<<40, int64(time.Second), uint64(12345))

	f.Fuzz(func(t *testing.T, kind string, base int64, factor float64, longest int64, jitter string, ratio float64, least int64,
		count uint8, d1, d2, d3, n, previous int64, bits uint64,
	) {
		s := backoff.Schedule{
			Backoff: backoff.Kind(kind), Base: time.Duration(base), Factor: factor, Max: time.Duration(longest),
			Delays: []time.Duration{time.Duration(d1), time.Duration(d2), time.Duration(d3)}[:count%4],
			Jitter: backoff.Jitter(jitter), JitterRatio: ratio, MinDelay: time.Duration(least),
		}
		checkBounds(t, s, n, time.Duration(previous), bits)
		if s.Validate() == nil && s.Backoff != backoff.List && n > 0 && n < math.MaxInt64 && s.Ceiling(n) > s.Ceiling(n+1) {
			t.Errorf("%+v: ceiling %v at retry %d, %v at the next", s, s.Ceiling(n), n, s.Ceiling(n+1))
		}
	})
}
