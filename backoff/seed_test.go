package backoff_test

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math/bits"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/hopback/hopback/backoff"
)

// vector is a golden vector: of seed.json the id, n and seed alone, of delays.json all of it. Strings hold what a
// float64 would round.
type vector struct {
	Schedule  scheduleMS `json:"schedule"`
	MessageID string     `json:"message_id"`
	N         string     `json:"n"`
	Previous  int64      `json:"previous"`
	Seed      string     `json:"seed"`
	Ceiling   int64      `json:"ceiling"`
	Lo        int64      `json:"lo"`
	Hi        int64      `json:"hi"`
	Delay     int64      `json:"delay"`
}

// scheduleMS is a Schedule in milliseconds.
type scheduleMS struct {
	Backoff     backoff.Kind   `json:"backoff"`
	Base        int64          `json:"base"`
	Factor      float64        `json:"factor"`
	Max         int64          `json:"max"`
	Delays      []int64        `json:"delays"`
	Jitter      backoff.Jitter `json:"jitter"`
	JitterRatio float64        `json:"jitter_ratio"`
	MinDelay    int64          `json:"min_delay"`
}

func (s scheduleMS) schedule() backoff.Schedule {
	out := backoff.Schedule{
		Backoff: s.Backoff, Base: time.Duration(s.Base) * ms, Factor: s.Factor, Max: time.Duration(s.Max) * ms,
		Jitter: s.Jitter, JitterRatio: s.JitterRatio, MinDelay: time.Duration(s.MinDelay) * ms,
	}
	for _, d := range s.Delays {
		out.Delays = append(out.Delays, time.Duration(d)*ms)
	}
	return out
}

func vectors(t *testing.T, file string) []vector {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var all struct{ Vectors []vector }
	if err := json.Unmarshal(raw, &all); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	if len(all.Vectors) < 30 {
		t.Fatalf("%s: only %d vectors", file, len(all.Vectors))
	}
	return all.Vectors
}

func (v vector) numbers(t *testing.T) (n int64, seed uint64) {
	t.Helper()
	n, err := strconv.ParseInt(v.N, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	seed, err = strconv.ParseUint(v.Seed, 0, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n, seed
}

func TestSeedVectors(t *testing.T) {
	for _, file := range []string{"testdata/seed.json", "testdata/delays.json"} {
		for _, v := range vectors(t, file) {
			n, want := v.numbers(t)
			if got := backoff.Seed(v.MessageID, n); got != want {
				t.Errorf("Seed(%q, %d) = %#x, want %#x", v.MessageID, n, got, want)
			}
		}
	}
}

func TestDelayVectors(t *testing.T) {
	for _, v := range vectors(t, "testdata/delays.json") {
		n, seed := v.numbers(t)
		s, previous := v.Schedule.schedule(), time.Duration(v.Previous)*ms
		if err := s.Validate(); err != nil {
			t.Errorf("%+v: %v", v, err)
		}
		if got := s.Ceiling(n).Milliseconds(); got != v.Ceiling {
			t.Errorf("%+v: ceiling %d", v, got)
		}
		if got := s.Delay(n, previous, 0).Milliseconds(); got != v.Lo {
			t.Errorf("%+v: lo %d", v, got)
		}
		if got := s.Delay(n, previous, 1<<64-1).Milliseconds(); got != v.Hi {
			t.Errorf("%+v: hi %d", v, got)
		}
		if got := s.Delay(n, previous, seed).Milliseconds(); got != v.Delay {
			t.Errorf("%+v: delay %d", v, got)
		}
	}
}

// The first half of the recipe is the standard library's FNV-1a: undoing the finaliser gives it back.
func TestSeedIsFNV1a(t *testing.T) {
	r := rng(20)
	for range 1000 {
		id, n := fmt.Sprint("id-", r.Uint64()), int64(r.Uint64())
		h := fnv.New64a()
		h.Write([]byte(id))
		var tail [8]byte
		for i := range tail {
			tail[i] = byte(uint64(n) >> (56 - 8*i))
		}
		h.Write(tail[:])
		z := h.Sum64()
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		if got, want := backoff.Seed(id, n), z^z>>31; got != want {
			t.Fatalf("Seed(%q, %d) = %#x, want %#x", id, n, got, want)
		}
	}
}

// Ids that differ in one character, and neighbouring retries, give unrelated seeds: about half of the bits differ,
// and the upper eight, those that matter most to a draw, are even.
func TestSeedIsMixed(t *testing.T) {
	const ids = 25_600
	var upper, lower [256]int
	byID, byRetry := 0, 0
	for i := range ids {
		id := fmt.Sprintf("order-%06d", i)
		seed := backoff.Seed(id, 1)
		upper[seed>>56]++
		lower[seed&0xff]++
		byID += bits.OnesCount64(seed ^ backoff.Seed(fmt.Sprintf("order-%06d", i+1), 1))
		byRetry += bits.OnesCount64(seed ^ backoff.Seed(id, 2))
	}
	for name, flips := range map[string]int{"id": byID, "retry": byRetry} {
		if mean := float64(flips) / ids; mean < 31.5 || mean > 32.5 {
			t.Errorf("a new %s flips %.2f bits of 64 on average", name, mean)
		}
	}
	for name, hits := range map[string][256]int{"upper": upper, "lower": lower} {
		chi := 0.0
		for _, count := range hits {
			d := float64(count) - ids/256
			chi += d * d / (ids / 256)
		}
		// 255 degrees of freedom: mean 255, deviation 22.6. Four deviations either way; too even is wrong as well.
		if chi < 165 || chi > 345 {
			t.Errorf("chi square of the %s bits: %.0f", name, chi)
		}
	}
}

// A crowd with ids in sequence is as spread as one with random bits, and comes out the same every time.
func TestSeededCrowdIsSpreadAndReproducible(t *testing.T) {
	s := backoff.Schedule{}
	hits := map[time.Duration]int{}
	for i := range 20_000 {
		id := fmt.Sprintf("order-%06d", i)
		d := s.Delay(100, 0, backoff.Seed(id, 100))
		if again := s.Delay(100, 0, backoff.Seed(id, 100)); again != d {
			t.Fatalf("%s: %v, then %v", id, d, again)
		}
		hits[d]++
	}
	top := 0
	for _, count := range hits {
		top = max(top, count)
	}
	if len(hits) < 15_000 || top > 20 {
		t.Errorf("%d delays among 20000 messages, at most %d together", len(hits), top)
	}
}

func TestRandom(t *testing.T) {
	var or, and uint64 = 0, 1<<64 - 1
	seen := map[uint64]bool{}
	for range 1000 {
		r := backoff.Random()
		seen[r] = true
		or |= r
		and &= r
	}
	if len(seen) != 1000 || or != 1<<64-1 || and != 0 {
		t.Errorf("%d values of 1000, bits ever set %#x, always set %#x", len(seen), or, and)
	}
}

// A schedule is recomputed from the id that a log line shows.
func ExampleSeed() {
	s := backoff.Schedule{}
	for n := int64(1); n <= 5; n++ {
		fmt.Println(n, s.Delay(n, 0, backoff.Seed("order-4711", n)))
	}
	// Output:
	// 1 310ms
	// 2 999ms
	// 3 2.205s
	// 4 6.49s
	// 5 7.139s
}
