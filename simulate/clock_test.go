package simulate

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// What is put into the clock comes out at its time, in order, and in the order in
// which it went in where that is the same; with jumps over all four rings.
func TestClockIsASort(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for round := range 60 {
		st := newStore()
		c := newClock(st)
		reach := uint32(1) << (1 + rng.UintN(26))
		type entry struct{ due, number uint32 }
		var want, got []entry
		put := func() {
			n := st.take()
			due := c.now + 1 + rng.Uint32N(reach)
			*st.at(n) = message{due: due, sent: n}
			c.put(n)
			want = append(want, entry{due, n})
		}
		for range 1 + rng.IntN(50) {
			put()
		}
		for !c.idle() {
			limit := c.now + rng.Uint32N(2*reach)
			before := c.now
			l := c.advance(limit)
			if c.now < before || c.now > limit {
				t.Fatalf("round %d: from %d to %d, limit %d", round, before, c.now, limit)
			}
			for !l.empty() {
				n := st.pop(&l)
				if due := st.at(n).due; due != c.now {
					t.Fatalf("round %d: due %d at %d", round, due, c.now)
				}
				got = append(got, entry{c.now, n})
			}
			for len(want) < 300 && c.now < 1<<30 && rng.IntN(3) == 0 {
				put()
			}
		}
		slices.SortStableFunc(want, func(a, b entry) int { return int(int64(a.due) - int64(b.due)) })
		if !slices.Equal(want, got) {
			t.Fatalf("round %d: %v, want %v", round, got, want)
		}
	}
}

func TestStoreUsesNumbersAgain(t *testing.T) {
	st := newStore()
	for i := range 3 * chunkSize {
		n := st.take()
		if i%3 != 0 {
			st.give(n)
		}
	}
	if most := uint32(chunkSize + 1); st.used > most {
		t.Errorf("%d numbers for at most %d messages at once", st.used, most)
	}
}

// Every value has a place whose upper end is at most 1/64 above it, and the
// places are in order.
func TestHistogramPlaces(t *testing.T) {
	for _, ms := range []uint32{0, 1, 127, 128, 129, 130, 255, 256, 1000, 65_535, 65_536, 1 << 30, ^uint32(0) - 1, ^uint32(0)} {
		p := place(ms)
		if p >= len(histogram{}.counts) {
			t.Fatalf("%d has place %d", ms, p)
		}
		if u := upper(p); u < ms || uint64(u) > uint64(ms)+uint64(ms)/64 {
			t.Errorf("%d is in the place up to %d", ms, u)
		}
	}
	for p := 1; p < len(histogram{}.counts); p++ {
		if upper(p) <= upper(p-1) || place(upper(p)) != p || place(upper(p-1)+1) != p {
			t.Fatalf("place %d ends at %d, %d at %d", p-1, upper(p-1), p, upper(p))
		}
	}
}

func TestQuantiles(t *testing.T) {
	var h histogram
	for ms := range uint32(100) {
		h.add(ms + 1)
	}
	for q, want := range map[float64]time.Duration{0.5: 50, 0.95: 95, 0.99: 99, 1: 100} {
		if got := h.quantile(q); got != want*time.Millisecond {
			t.Errorf("quantile %g is %s, want %d ms", q, got, want)
		}
	}
	var none histogram
	if none.quantile(0.5) != 0 {
		t.Error("a quantile of nothing")
	}
}
