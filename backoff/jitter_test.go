package backoff_test

import (
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hopback/hopback/backoff"
)

// rng is a generator of its own for every test, with a fixed seed: a failure repeats.
func rng(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0x686f706261636b)) }

func TestBand(t *testing.T) {
	type band struct{ least, mean, most time.Duration }
	for _, test := range []struct {
		name string
		s    backoff.Schedule
		n    int64
		want band
	}{
		{"none", backoff.Schedule{Jitter: backoff.None}, 3, band{4 * sec, 4 * sec, 4 * sec}},
		{"none at the cap", backoff.Schedule{Jitter: backoff.None}, 9, band{60 * sec, 60 * sec, 60 * sec}},
		{"none under the floor", backoff.Schedule{Jitter: backoff.None, Base: 10 * ms}, 1, band{100 * ms, 100 * ms, 100 * ms}},
		{"full", backoff.Schedule{}, 4, band{100 * ms, 4050 * ms, 8 * sec}},
		{"full, tiny floor", backoff.Schedule{MinDelay: 1}, 4, band{ms, 4000*ms + ms/2, 8 * sec}},
		{"full at the cap", backoff.Schedule{}, 99, band{100 * ms, 30050 * ms, 60 * sec}},
		{"full under the floor", backoff.Schedule{Base: 10 * ms}, 2, band{100 * ms, 100 * ms, 100 * ms}},
		{"full just over the floor", backoff.Schedule{Base: 150 * ms}, 1, band{100 * ms, 125 * ms, 150 * ms}},
		{"equal", backoff.Schedule{Jitter: backoff.Equal}, 4, band{4 * sec, 6 * sec, 8 * sec}},
		{"equal, odd", backoff.Schedule{Jitter: backoff.Equal, Base: 1001 * ms}, 1, band{501 * ms, 751 * ms, 1001 * ms}},
		{"equal across the floor", backoff.Schedule{Jitter: backoff.Equal, Base: 150 * ms}, 1, band{100 * ms, 125 * ms, 150 * ms}},
		{"proportional", backoff.Schedule{Jitter: backoff.Proportional}, 4, band{6400 * ms, 8 * sec, 9600 * ms}},
		{"proportional at the cap", backoff.Schedule{Jitter: backoff.Proportional}, 7, band{48 * sec, 54 * sec, 60 * sec}},
		{"proportional near the cap", backoff.Schedule{Jitter: backoff.Proportional, Max: 35 * sec}, 6, band{25600 * ms, 30300 * ms, 35 * sec}},
		{"proportional, ratio 1", backoff.Schedule{Jitter: backoff.Proportional, JitterRatio: 1}, 1, band{100 * ms, 1050 * ms, 2 * sec}},
		{"proportional, 0.29 has no float64", backoff.Schedule{Jitter: backoff.Proportional, JitterRatio: 0.29, Base: 100 * ms, MinDelay: ms}, 1, band{71 * ms, 100 * ms, 129 * ms}},
		{"proportional, linear", backoff.Schedule{Backoff: backoff.Linear, Jitter: backoff.Proportional, JitterRatio: 0.1}, 3, band{2700 * ms, 3 * sec, 3300 * ms}},
		{"decorrelated 1", backoff.Schedule{Jitter: backoff.Decorrelated}, 1, band{1 * sec, 2 * sec, 3 * sec}},
		{"decorrelated 0", backoff.Schedule{Jitter: backoff.Decorrelated}, 0, band{1 * sec, 2 * sec, 3 * sec}},
		{"decorrelated 2", backoff.Schedule{Jitter: backoff.Decorrelated}, 2, band{1 * sec, 3500 * ms, 9 * sec}},
		{"decorrelated 3", backoff.Schedule{Jitter: backoff.Decorrelated}, 3, band{1 * sec, 5750 * ms, 27 * sec}},
		{"decorrelated, base is max", backoff.Schedule{Jitter: backoff.Decorrelated, Max: sec}, 5, band{sec, sec, sec}},
		{"decorrelated under the floor", backoff.Schedule{Jitter: backoff.Decorrelated, Base: 10 * ms}, 1, band{100 * ms, 100 * ms, 100 * ms}},
		{"decorrelated leaves the floor", backoff.Schedule{Jitter: backoff.Decorrelated, Base: 10 * ms}, 2, band{100 * ms, 200 * ms, 300 * ms}},
		{"floor between milliseconds goes up", backoff.Schedule{MinDelay: 1500 * time.Microsecond}, 1, band{2 * ms, 501 * ms, sec}},
		{"max between milliseconds goes down", backoff.Schedule{Jitter: backoff.None, Max: 2*sec + 1}, 9, band{2 * sec, 2 * sec, 2 * sec}},
	} {
		t.Run(test.name, func(t *testing.T) {
			least, mean, most := test.s.Band(test.n)
			if got := (band{least, mean, most}); got != test.want {
				t.Fatalf("%v, want %v", got, test.want)
			}
			if test.s.Jitter == backoff.Decorrelated {
				return // depends on the delay before: TestDecorrelated
			}
			if got := test.s.Delay(test.n, 0, 0); got != least {
				t.Errorf("the lowest draw is %v, want %v", got, least)
			}
			if got := test.s.Delay(test.n, 0, math.MaxUint64); got != most {
				t.Errorf("the highest draw is %v, want %v", got, most)
			}
			if got := test.s.Delay(test.n, 0, 1<<63); (got - mean).Abs() > ms {
				t.Errorf("the middle draw is %v, want %v", got, mean)
			}
		})
	}
}

func TestDecorrelated(t *testing.T) {
	s := backoff.Schedule{Jitter: backoff.Decorrelated}
	for _, test := range []struct{ previous, most time.Duration }{
		{0, 3 * sec},
		{-time.Hour, 3 * sec},
		{math.MinInt64, 3 * sec},
		{999 * ms, 3 * sec},
		{sec, 3 * sec},
		{1500 * ms, 4500 * ms},
		{20 * sec, 60 * sec},
		{21 * sec, 60 * sec},
		{time.Hour, 60 * sec}, // a delay that a handler chose
		{math.MaxInt64, 60 * sec},
	} {
		for _, n := range []int64{math.MinInt64, 1, 2, 50, math.MaxInt64} { // n plays no part
			if got := s.Delay(n, test.previous, 0); got != sec {
				t.Errorf("after %v: at least %v, want base", test.previous, got)
			}
			if got := s.Delay(n, test.previous, math.MaxUint64); got != test.most {
				t.Errorf("after %v: at most %v, want %v", test.previous, got, test.most)
			}
		}
	}
}

// Every millisecond of a band, both ends included, is hit equally often: r on a grid of 1000 points a millisecond
// gives each of them 1000 times, to within the one point that an edge of the grid can take or leave.
func TestDrawIsUniform(t *testing.T) {
	for _, s := range []backoff.Schedule{
		{Base: 107 * ms}, // 100 … 107 ms
		{Jitter: backoff.Equal, Base: 250 * ms},
		{Jitter: backoff.Proportional, Base: 150 * ms, Max: 155 * ms},
		{Jitter: backoff.Decorrelated, Base: 20 * ms, MinDelay: 7 * ms, Max: 50 * ms},
	} {
		least, _, most := s.Band(1)
		width := uint64((most-least)/ms) + 1
		hits := map[time.Duration]int{}
		points := width * 1000
		step, _ := bits.Div64(1, 0, points)
		for i := range points {
			hits[s.Delay(1, 0, i*step)]++
		}
		if uint64(len(hits)) != width {
			t.Errorf("%+v: %d delays drawn of %d", s, len(hits), width)
		}
		for d, count := range hits {
			if d < least || d > most || count < 999 || count > 1001 {
				t.Errorf("%+v: %v drawn %d times, want about 1000", s, d, count)
			}
		}
	}
}

// The mean of full jitter is d/2, where the floor is out of the way.
func TestMeanOfFullJitter(t *testing.T) {
	const draws = 40_000
	for _, kind := range []backoff.Kind{backoff.Exponential, backoff.Linear, backoff.Constant, backoff.Fibonacci} {
		s := backoff.Schedule{Backoff: kind, MinDelay: 1, Max: time.Hour}
		r := rng(1)
		for n := int64(1); n <= 12; n += 3 {
			sum := 0.0
			for range draws {
				sum += float64(s.Delay(n, 0, r.Uint64()))
			}
			d := float64(s.Ceiling(n))
			// U(0,d) has a deviation of d/sqrt(12): this is five of the mean's.
			tolerance := 5 * d / math.Sqrt(12*draws)
			if got := sum / draws; math.Abs(got-d/2) > tolerance+float64(ms) {
				t.Errorf("%s, retry %d: mean %v, want %v", kind, n, time.Duration(got), time.Duration(d/2))
			}
		}
	}
}

// Band's mean is the mean of the draws, for every jitter, at the floor and at the cap, and for decorrelated over
// whole histories.
func TestMeanOfBand(t *testing.T) {
	const draws, retries = 40_000, 14
	for _, s := range []backoff.Schedule{
		{},
		{Jitter: backoff.None},
		{Jitter: backoff.Equal, Base: 150 * ms},
		{Jitter: backoff.Proportional, JitterRatio: 0.7},
		{Jitter: backoff.Decorrelated},
		{Jitter: backoff.Decorrelated, Base: 20 * ms},
		{Jitter: backoff.Decorrelated, Base: 30 * sec},
		{Jitter: backoff.Decorrelated, Base: 200 * ms, Max: 24 * time.Hour},
	} {
		r := rng(2)
		var sum, squares [retries + 1]float64
		for range draws {
			d := time.Duration(0)
			for n := 1; n <= retries; n++ {
				d = s.Delay(int64(n), d, r.Uint64())
				sum[n] += d.Seconds()
				squares[n] += d.Seconds() * d.Seconds()
			}
		}
		for n := 1; n <= retries; n++ {
			_, mean, _ := s.Band(int64(n))
			got := sum[n] / draws
			deviation := math.Sqrt(max(0, squares[n]/draws-got*got))
			if tolerance := 5*deviation/math.Sqrt(draws) + 0.001; math.Abs(got-mean.Seconds()) > tolerance {
				t.Errorf("%+v, retry %d: drew %.4f s on average, Band says %.4f (± %.4f)", s, n, got, mean.Seconds(), tolerance)
			}
		}
	}
}

// What sets this package apart: at the cap, and at the floor, a crowd is still spread. With a draw that is clamped
// afterwards the share of the bound would be a half for proportional and two thirds for decorrelated.
func TestSpreadAtTheCap(t *testing.T) {
	const crowd = 20_000
	for _, jitter := range backoff.Jitters() {
		if jitter == backoff.None {
			continue
		}
		for _, s := range []backoff.Schedule{
			{Jitter: jitter},
			{Jitter: jitter, Max: time.Hour},
			{Jitter: jitter, Base: 60 * sec},
			{Jitter: jitter, Base: 150 * ms, Max: 200 * sec},
		} {
			r := rng(3)
			hits := map[time.Duration]int{}
			top := 0
			for range crowd {
				d := s.Delay(100, s.WithDefaults().Max, r.Uint64())
				hits[d]++
				top = max(top, hits[d])
			}
			if s.Base == 60*sec && jitter == backoff.Decorrelated {
				continue // base is max: there is one delay only
			}
			if len(hits) < crowd/4 {
				t.Errorf("%+v: %d delays among %d messages", s, len(hits), crowd)
			}
			if top > crowd/500 {
				t.Errorf("%+v: %d of %d messages come back in one millisecond", s, top, crowd)
			}
		}
	}
}

// At the floor too: of full jitter up to 1 s, a tenth would be clamped to 100 ms.
func TestSpreadAtTheFloor(t *testing.T) {
	const crowd = 20_000
	for _, s := range []backoff.Schedule{
		{},
		{Jitter: backoff.Proportional, JitterRatio: 1},
		{MinDelay: 500 * ms},
		{Jitter: backoff.Equal, MinDelay: 750 * ms},
	} {
		r := rng(4)
		hits := map[time.Duration]int{}
		for range crowd {
			hits[s.Delay(1, 0, r.Uint64())]++
		}
		floor := s.WithDefaults().MinDelay
		if hits[floor] > crowd/100 {
			t.Errorf("%+v: %d of %d messages wait exactly %v", s, hits[floor], crowd, floor)
		}
	}
}

func ExampleSchedule_Delay() {
	s := backoff.Schedule{Base: time.Second, Max: time.Minute, Jitter: backoff.Full}
	if err := s.Validate(); err != nil {
		fmt.Println(err)
		return
	}
	var previous time.Duration
	for n := int64(1); n <= 5; n++ {
		previous = s.Delay(n, previous, backoff.Random())
		fmt.Println(previous <= s.Ceiling(n), previous >= 100*time.Millisecond)
	}
	// Output:
	// true true
	// true true
	// true true
	// true true
	// true true
}

func ExampleSchedule_Band() {
	s := backoff.Schedule{Jitter: backoff.Proportional, JitterRatio: 0.25}
	for _, n := range []int64{1, 4, 7} {
		least, mean, most := s.Band(n)
		fmt.Printf("retry %d: %v to %v, %v on average\n", n, least, most, mean)
	}
	// Output:
	// retry 1: 750ms to 1.25s, 1s on average
	// retry 4: 6s to 10s, 8s on average
	// retry 7: 45s to 1m0s, 52.5s on average
}
