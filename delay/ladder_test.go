package delay

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func ladders() []mechanism {
	var all []mechanism
	for _, rungs := range [][]time.Duration{
		{time.Millisecond},
		{15 * time.Second},
		{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second},
		{10 * time.Second, time.Minute, 10 * time.Minute},
		{5 * time.Millisecond, 1500 * time.Millisecond, 25 * time.Hour},
	} {
		all = append(all, mechanism{NewLadder(Names{Prefix: "hop"}, rungs), fmt.Sprint(rungs), rungs[len(rungs)-1]})
	}
	return all
}

// Every hold is one rung that is declared; an exact delay gets the shortest that
// is not shorter, one with jitter a neighbour.
func TestLadderHolds(t *testing.T) {
	for _, m := range ladders() {
		t.Run(m.name, func(t *testing.T) {
			w := read(t, m.Topology(), "hop.return")
			r := rand.New(rand.NewPCG(1, uint64(m.longest)))
			rungs := m.Slots()
			for range 3000 {
				q := someRequest(r, 2*m.longest)
				h := m.Hold(q)
				total, hops, err := w.follow(h)
				if err != nil || hops != 1 || total != h.Delay {
					t.Fatalf("%+v gives %+v: %s in %d hops, %v", q, h, total, hops, err)
				}
				i := slices.Index(rungs, h.Delay)
				up := slices.IndexFunc(rungs, func(d time.Duration) bool { return d >= q.Delay })
				if up < 0 {
					up = len(rungs) - 1 // longer than the longest waits in that
				}
				switch {
				case q.Exact && i != up:
					t.Fatalf("%+v is exact and gives %s, want %s", q, h.Delay, rungs[up])
				case i != up && i != up-1:
					t.Fatalf("%+v gives %s, want a neighbour of the delay", q, h.Delay)
				case i < up && h.Delay < q.Min:
					t.Fatalf("%+v gives %s: below Min, and %s is above", q, h.Delay, rungs[up])
				case !q.Exact && i > 0 && q.Max > 0 && h.Delay > q.Max && rungs[i-1] >= q.Min && q.Delay > rungs[i-1] && q.Delay < rungs[i]:
					t.Fatalf("%+v gives %s: above Max, and %s would do", q, h.Delay, rungs[i-1])
				}
			}
		})
	}
}

// Rounding to a neighbour keeps the mean.
func TestLadderKeepsTheMean(t *testing.T) {
	l := NewLadder(Names{Prefix: "hop"}, []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second})
	r := rand.New(rand.NewPCG(1, 1))
	for _, d := range []time.Duration{1100 * time.Millisecond, 3 * time.Second, 7999 * time.Millisecond} {
		const n = 20_000
		sum := 0.0
		for range n {
			sum += l.Hold(Request{Delay: d, Random: r.Uint64()}).Delay.Seconds()
		}
		// The widest gap is 4 s: six standard errors of the mean.
		if mean, allowed := sum/n, 6*4.0/2/math.Sqrt(n); math.Abs(mean-d.Seconds()) > allowed {
			t.Errorf("delay %s: mean %.4fs, want within %.4fs", d, mean, allowed)
		}
	}
}

// A rung that refused is left for the next longer one; above the longest there
// is none.
func TestLadderAvoids(t *testing.T) {
	l := NewLadder(Names{Prefix: "hop"}, []time.Duration{time.Second, 10 * time.Second})
	for _, c := range []struct {
		avoid string
		delay time.Duration
		want  string
	}{
		{"", time.Second, "hop.delay.1s"},
		{"hop.delay.1s", time.Second, "hop.delay.10s"},
		{"hop.delay.10s", time.Second, "hop.delay.1s"},
		{"hop.delay.10s", 10 * time.Second, "hop.delay.10s"},
		{"something else", time.Second, "hop.delay.1s"},
	} {
		if h := l.Hold(Request{Delay: c.delay, Exact: true, Avoid: c.avoid}); h.Exchange != c.want {
			t.Errorf("%s, not %q: %+v, want %s", c.delay, c.avoid, h, c.want)
		}
	}
	// With jitter a shorter one will do where a longer one is above Max.
	three := NewLadder(Names{Prefix: "hop"}, []time.Duration{time.Second, 10 * time.Second, time.Minute})
	for most, want := range map[time.Duration]string{0: "hop.delay.60s", time.Minute: "hop.delay.60s", 30 * time.Second: "hop.delay.1s"} {
		if h := three.Hold(Request{Delay: 10 * time.Second, Max: most, Avoid: "hop.delay.10s"}); h.Exchange != want {
			t.Errorf("10s, at most %s, not hop.delay.10s: %+v, want %s", most, h, want)
		}
	}
	if h := l.Hold(Request{Delay: 10 * time.Second, Max: 10 * time.Second, Avoid: "hop.delay.10s"}); h.Exchange != "hop.delay.1s" {
		t.Errorf("10s, not hop.delay.10s, with jitter: %+v, want the shorter one", h)
	}
}

// A ladder whose rungs are slots of a wheel uses the same queues, so that a
// route can change between the two while messages wait.
func TestLadderSharesTheWheelsSlots(t *testing.T) {
	names := Names{Prefix: "hop"}
	wheel := NewWheel(names, time.Hour, Two, nil).Topology()
	both := wheel.Merge(NewLadder(names, []time.Duration{200 * time.Millisecond, time.Second, 20 * time.Second, 10 * time.Minute}).Topology())
	if err := both.Validate(); err != nil {
		t.Fatal(err)
	}
	if len(both.Queues) != len(wheel.Queues) || len(both.Bindings) != len(wheel.Bindings) || len(both.Exchanges) != len(wheel.Exchanges) {
		t.Errorf("the ladder adds to a wheel that has all its rungs")
	}
}

// The caller's list is its own.
func TestLadderKeepsItsRungs(t *testing.T) {
	rungs := []time.Duration{time.Second, 2 * time.Second}
	l := NewLadder(Names{Prefix: "hop"}, rungs)
	rungs[0] = time.Hour
	l.Slots()[1] = time.Hour
	if got := l.Slots(); got[0] != time.Second || got[1] != 2*time.Second {
		t.Errorf("rungs changed from outside: %v", got)
	}
}
