package backoff_test

import (
	"fmt"
	"math"
	"math/big"
	"testing"
	"time"

	"github.com/hopback/hopback/backoff"
)

const (
	ms      = time.Millisecond
	sec     = time.Second
	longest = time.Duration(math.MaxInt64/int64(time.Millisecond)) * time.Millisecond // in whole milliseconds
)

func seconds(all ...float64) []time.Duration {
	out := make([]time.Duration, len(all))
	for i, s := range all {
		out[i] = time.Duration(math.Round(s*1000)) * ms
	}
	return out
}

func TestCeiling(t *testing.T) {
	for _, test := range []struct {
		name string
		s    backoff.Schedule
		want []time.Duration // of retries 1, 2, …
	}{
		{"zero schedule", backoff.Schedule{}, seconds(1, 2, 4, 8, 16, 32, 60, 60, 60)},
		{"factor 3", backoff.Schedule{Factor: 3}, seconds(1, 3, 9, 27, 60, 60)},
		{"factor 1.5", backoff.Schedule{Factor: 1.5}, seconds(1, 1.5, 2.25, 3.375, 5.063, 7.594, 11.391)},
		{"factor 1.2 has no float64", backoff.Schedule{Factor: 1.2}, seconds(1, 1.2, 1.44, 1.728, 2.074)},
		{"factor 1", backoff.Schedule{Factor: 1}, seconds(1, 1, 1, 1)},
		{"factor 10", backoff.Schedule{Factor: 10, Max: time.Hour}, seconds(1, 10, 100, 1000, 3600)},
		{"half a millisecond goes up", backoff.Schedule{Base: ms, Factor: 2.5}, []time.Duration{ms, 3 * ms, 6 * ms, 16 * ms}},
		{"max is not a power", backoff.Schedule{Max: 5 * sec}, seconds(1, 2, 4, 5, 5)},
		{"max is a power", backoff.Schedule{Max: 4 * sec}, seconds(1, 2, 4, 4)},
		{"base is max", backoff.Schedule{Base: sec, Max: sec}, seconds(1, 1)},
		{"linear", backoff.Schedule{Backoff: backoff.Linear, Base: 15 * sec}, seconds(15, 30, 45, 60, 60)},
		{"constant", backoff.Schedule{Backoff: backoff.Constant, Base: 15 * sec}, seconds(15, 15, 15)},
		{"fibonacci", backoff.Schedule{Backoff: backoff.Fibonacci}, seconds(1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 60, 60)},
		{
			"list",
			backoff.Schedule{Backoff: backoff.List, Delays: seconds(10, 60, 600)},
			seconds(10, 60, 600, 600, 600),
		},
		{
			"list under an explicit max",
			backoff.Schedule{Backoff: backoff.List, Delays: seconds(10, 60, 600), Max: 30 * sec},
			seconds(10, 30, 30, 30),
		},
		{"list that shrinks", backoff.Schedule{Backoff: backoff.List, Delays: seconds(60, 1)}, seconds(60, 1, 1)},
		{"list of one", backoff.Schedule{Backoff: backoff.List, Delays: seconds(15)}, seconds(15, 15)},
		{"jitter does not matter", backoff.Schedule{Jitter: backoff.Decorrelated}, seconds(1, 2, 4, 8)},
		{"the floor does not matter", backoff.Schedule{Base: 10 * ms}, []time.Duration{10 * ms, 20 * ms, 40 * ms}},
		{"fractions of a millisecond are dropped", backoff.Schedule{Base: sec + 999*time.Microsecond}, seconds(1, 2, 4)},
	} {
		t.Run(test.name, func(t *testing.T) {
			for i, want := range test.want {
				if got := test.s.Ceiling(int64(i + 1)); got != want {
					t.Errorf("retry %d: %v, want %v", i+1, got, want)
				}
			}
			for _, n := range []int64{0, -1, math.MinInt64} {
				if got := test.s.Ceiling(n); got != test.want[0] {
					t.Errorf("retry %d: %v, want that of retry 1, %v", n, got, test.want[0])
				}
			}
		})
	}
}

// The last retry that an int64 can number gives the cap, and so does the first one that reaches it.
func TestCeilingSaturates(t *testing.T) {
	for _, kind := range []backoff.Kind{backoff.Exponential, backoff.Linear, backoff.Fibonacci} {
		for _, limit := range []time.Duration{sec, time.Minute, 24 * time.Hour, longest, math.MaxInt64} {
			s := backoff.Schedule{Backoff: kind, Max: limit}
			for _, n := range []int64{math.MaxInt64, math.MaxInt64 - 1, 1 << 62, 1 << 53, 1 << 52} {
				if got, want := s.Ceiling(n), limit.Truncate(ms); got != want {
					t.Errorf("%s, max %v, retry %d: %v", kind, limit, n, got)
				}
			}
		}
	}
	for _, factor := range []float64{1.000001, 1.1, 2, 3, 1e9, math.MaxFloat64} {
		s := backoff.Schedule{Factor: factor, Max: math.MaxInt64}
		if got := s.Ceiling(math.MaxInt64); got != longest {
			t.Errorf("factor %v: %v, want %v", factor, got, longest)
		}
	}
	if got := (backoff.Schedule{Factor: 1}).Ceiling(math.MaxInt64); got != sec {
		t.Errorf("factor 1 never grows, got %v", got)
	}
	if got := (backoff.Schedule{Backoff: backoff.Constant}).Ceiling(math.MaxInt64); got != sec {
		t.Errorf("constant never grows, got %v", got)
	}
}

// Against rational arithmetic: for factors with exact powers each ceiling is the true one, for others the nearest
// millisecond. 1.1 as a float64 is not 11/10, so a true value next to a half may round the other way: 1 ms is allowed.
func TestCeilingAgainstRationals(t *testing.T) {
	for _, test := range []struct {
		num, den  int64
		tolerance int64
	}{
		{2, 1, 0},
		{3, 1, 0},
		{4, 1, 0},
		{7, 1, 0},
		{10, 1, 0},
		{3, 2, 0},
		{5, 2, 0},
		{5, 4, 0},
		{6, 5, 1},
		{11, 10, 1},
		{13, 10, 1},
		{101, 100, 1},
	} {
		f := float64(test.num) / float64(test.den)
		num, den := big.NewInt(test.num), big.NewInt(test.den)
		for _, base := range []time.Duration{ms, 7 * ms, sec, 90 * sec} {
			s := backoff.Schedule{Base: base, Factor: f, Max: 24 * time.Hour}
			// The ceiling is p/q. Fractions are not reduced, since that would be most of the work.
			p, q := big.NewInt(base.Milliseconds()), big.NewInt(1)
			for n, capped := int64(1), false; !capped; n++ {
				// floor(p/q + 1/2)
				twice := new(big.Int).Lsh(q, 1)
				want := new(big.Int).Lsh(p, 1)
				want.Add(want, q).Quo(want, twice)
				if limit := big.NewInt(s.Max.Milliseconds()); want.Cmp(limit) >= 0 {
					want, capped = limit, true
				}
				got := s.Ceiling(n).Milliseconds()
				if d := got - want.Int64(); d < -test.tolerance || d > test.tolerance {
					t.Fatalf("factor %v, base %v, retry %d: %d ms, want %d", f, base, n, got, want)
				}
				p.Mul(p, num)
				q.Mul(q, den)
			}
		}
	}
}

// Fibonacci numbers past the table are past the longest Duration too.
func TestFibonacciTable(t *testing.T) {
	s := backoff.Schedule{Backoff: backoff.Fibonacci, Base: ms, Max: math.MaxInt64}
	a, b := int64(1), int64(1)
	for n := int64(1); n <= 100; n++ {
		want := min(a, longest.Milliseconds())
		if got := s.Ceiling(n).Milliseconds(); got != want {
			t.Fatalf("retry %d: %d ms, want %d", n, got, want)
		}
		if a <= longest.Milliseconds() {
			a, b = b, a+b
		}
	}
}

func ExampleSchedule_Ceiling() {
	s := backoff.Schedule{Backoff: backoff.Exponential, Base: time.Second, Factor: 2, Max: time.Minute}
	for n := int64(1); n <= 8; n++ {
		fmt.Print(s.Ceiling(n), " ")
	}
	fmt.Println(s.Ceiling(math.MaxInt64))
	// Output: 1s 2s 4s 8s 16s 32s 1m0s 1m0s 1m0s
}
