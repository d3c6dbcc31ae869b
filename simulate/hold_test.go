package simulate

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/delay"
)

// The table answers what the mechanism answers, for every delay to three seconds
// and a sample beyond, whatever the random number.
func TestTableIsTheMechanism(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	ladder := hopback.Route{Mechanism: hopback.Ladder, Ladder: []time.Duration{250 * time.Millisecond, time.Second, 4 * time.Second, time.Minute}}
	for name, r := range map[string]hopback.Route{
		"one":    {Mechanism: hopback.Wheel, Precision: hopback.PrecisionOne},
		"two":    {Mechanism: hopback.Wheel, Precision: hopback.PrecisionTwo},
		"ladder": ladder,
	} {
		t.Run(name, func(t *testing.T) {
			r.Queue = "queue"
			m := r.WithDefaults().DelayMechanism("hop")
			table := newTable(m)
			same := func(q delay.Request) {
				t.Helper()
				h := m.Hold(q)
				hops := uint8(1)
				if h.Then != "" {
					hops = 2
				}
				if ms, n := table.hold(0, 0, q); ms != millis(h.Delay) || n != hops {
					t.Fatalf("%+v: %d ms in %d, want %s in %d", q, ms, n, h.Delay, hops)
				}
			}
			for ms := range 3_000 {
				for _, random := range []uint64{0, ^uint64(0), 1 << 63, rng.Uint64(), rng.Uint64(), rng.Uint64()} {
					q := delay.Request{Delay: time.Duration(ms) * time.Millisecond, Min: 100 * time.Millisecond, Max: time.Minute, Random: random}
					same(q)
					q.Exact = true
					same(q)
				}
			}
			for _, bounds := range [][2]time.Duration{{100 * time.Millisecond, time.Minute}, {550 * time.Millisecond, 7777 * time.Millisecond}} {
				// With other bounds, what was remembered counts no more.
				for range 10_000 {
					same(delay.Request{
						Delay: time.Duration(rng.Int64N(200_000)) * time.Millisecond, Exact: rng.IntN(2) == 0,
						Min: bounds[0], Max: bounds[1], Random: rng.Uint64(),
					})
				}
			}
		})
	}
}

// The count of a busy consumer is delay.Load's: a herd of BusyRate keeps two
// digits, what goes on coming does not, and a quiet second is forgotten.
func TestLoadCounts(t *testing.T) {
	var l load
	for i := range delay.BusyRate {
		if l.busy(5000) {
			t.Fatalf("busy at the %dth message", i+1)
		}
	}
	if !l.busy(5999) {
		t.Error("not busy within the second")
	}
	if !l.busy(6000) {
		t.Error("not busy in the second after")
	}
	if l.busy(7000) {
		t.Error("busy after a second with one message")
	}
	for range delay.BusyRate {
		l.busy(7001)
	}
	if l.busy(9500) {
		t.Error("busy after a quiet second")
	}
}
