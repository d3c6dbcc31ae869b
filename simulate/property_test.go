package simulate

import (
	"context"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/backoff"
)

// anyScenario is a small world with everything in it, now and then.
func anyScenario(rng *rand.Rand) Scenario {
	ms := func(most int64) time.Duration { return time.Duration(rng.Int64N(most)+1) * time.Millisecond }
	maybe := func(d time.Duration) time.Duration { return d * time.Duration(rng.IntN(2)) }
	s := Scenario{
		Seed: rng.Uint64(),
		Consumers: Consumers{
			Count: 1 + rng.IntN(20), Concurrency: 1 + rng.IntN(10), Prefetch: 1 + rng.IntN(30),
		},
		Dependency: Dependency{
			Capacity: float64(rng.IntN(3)) * 50, Line: ms(1000), Latency: ms(100), LatencySpread: rng.Float64(),
			FailAfter: ms(50), Errors: float64(rng.IntN(2)) * 0.2 * rng.Float64(), Contended: rng.IntN(8) == 0,
		},
		Broker: Broker{Confirm: maybe(ms(20)), Hop: maybe(ms(50)), Rate: float64(rng.IntN(3)) * 100},
		Window: ms(2000),
		Until:  time.Hour,
	}
	if s.Dependency.Capacity > 0 {
		s.Dependency.Collapse = rng.Float64()
	}
	for range 1 + rng.IntN(3) {
		s.Traffic = append(s.Traffic, Traffic{
			At: maybe(ms(5000)), For: maybe(ms(20_000)), Messages: 1 + rng.Int64N(300), Poison: float64(rng.IntN(2)) * rng.Float64(),
		})
	}
	at := time.Duration(0)
	for range rng.IntN(4) {
		sp := Spell{At: at + maybe(ms(5000)), For: ms(10_000), Capacity: float64(rng.IntN(3)) / 2, Latency: maybe(ms(500))}
		sp.Hang, sp.Ramp = sp.Capacity == 0 && rng.IntN(2) == 0, rng.IntN(4) == 0
		s.Dependency.Spells = append(s.Dependency.Spells, sp)
		at = sp.At + sp.For
	}
	return s
}

func anyContender(rng *rand.Rand) Contender {
	if rng.IntN(2) == 0 {
		all := Presets()
		c, _ := Preset(all[rng.IntN(len(all))])
		if c.Forever {
			c.Forever = false
			c.Route.Policy.MaxRetries = 50
		}
		return c
	}
	js := backoff.Jitters()
	c := Policy("any", hopback.Policy{
		Schedule:   hopback.Schedule{Base: time.Duration(1+rng.IntN(3000)) * time.Millisecond, Max: 10 * time.Second, Jitter: js[rng.IntN(len(js))]},
		MaxRetries: 1 + rng.IntN(8), MaxAge: time.Duration(1+rng.IntN(60)) * time.Second,
	})
	c.Way, c.Immediate = Way(rng.IntN(3)), rng.IntN(3)
	if rng.IntN(3) == 0 {
		c.To = Precise()
	}
	return c
}

// Whatever the world, at every moment that is looked at: every message is
// somewhere, once; no consumer has more than its prefetch, nor more at work than
// its handlers; and nobody is idle while there is work for them.
func TestNothingIsLostAtAnyTime(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	for round := range 60 {
		s := anyScenario(rng).WithDefaults()
		c := anyContender(rng)
		e := newEngine(s, c)
		for until := uint32(0); ; until += 1 + rng.Uint32N(3000) {
			r := e.run(until, func(int64) bool { return false })
			look(t, round, e, &r)
			if t.Failed() {
				t.Fatalf("round %d at %d ms: %+v\n%+v", round, until, s, c)
			}
			if r.Complete {
				if r.Waiting != 0 || r.Sent != s.Messages() {
					t.Fatalf("round %d: complete with %d of %d sent, %d waiting", round, r.Sent, s.Messages(), r.Waiting)
				}
				break
			}
			if until > 40*24*3600*1000 {
				t.Fatalf("round %d does not end: %+v\n%+v", round, s, c)
			}
			if until > 120_000 {
				until += until / 3 // late retries
			}
		}
	}
}

func look(t *testing.T, round int, e *engine, r *Result) {
	t.Helper()
	if r.Sent != r.Handled+r.Parked+r.Waiting {
		t.Errorf("%d sent, %d handled + %d parked + %d waiting", r.Sent, r.Handled, r.Parked, r.Waiting)
	}
	// Everything that is in a list, and in which state.
	seen := map[uint32]bool{}
	count := func(l list) (n int64) {
		for i := l.head; i != none; i = e.store.at(i).next {
			if seen[i] {
				t.Fatalf("round %d: message %d is in two places", round, i)
			}
			seen[i] = true
			n++
		}
		return n
	}
	ready, local, inSlots, parkings := count(e.ready), int64(0), int64(0), int64(0)
	for _, c := range e.consumers {
		local += count(c.local)
	}
	busy, unacked := make([]int32, len(e.consumers)), make([]int32, len(e.consumers))
	clocked := int64(0)
	for _, ring := range e.clock.rings {
		for _, l := range ring {
			clocked += count(l)
			for i := l.head; i != none; i = e.store.at(i).next {
				m := e.store.at(i)
				switch m.state &^ poisonous {
				case calling, sleeping:
					busy[m.consumer]++
					unacked[m.consumer]++
				case handingOff:
					unacked[m.consumer]++
				case parking:
					unacked[m.consumer]++
					parkings++
				case held, leaving:
					inSlots++
				}
			}
		}
	}
	if got := ready + local + clocked - parkings; got != r.Waiting {
		t.Errorf("%d messages are somewhere, %d are open", got, r.Waiting)
	}
	if inSlots != e.held || e.held > r.HeldMost {
		t.Errorf("%d are in slots, counted as %d, at most %d", inSlots, e.held, r.HeldMost)
	}
	for i := range e.consumers {
		c := &e.consumers[i]
		for n := c.local.head; n != none; n = e.store.at(n).next {
			unacked[i]++
		}
		if c.busy != busy[i] || c.unacked != unacked[i] {
			t.Errorf("consumer %d: %d at work and %d unsettled, counted as %d and %d", i, busy[i], unacked[i], c.busy, c.unacked)
		}
		if c.busy > e.concurrency || c.unacked > e.prefetch {
			t.Errorf("consumer %d: %d at work, %d unsettled", i, c.busy, c.unacked)
		}
		if !c.local.empty() && c.busy < e.concurrency {
			t.Errorf("consumer %d: idle handlers beside waiting messages", i)
		}
		if !e.ready.empty() && c.unacked < e.prefetch {
			t.Errorf("consumer %d: prefetch left beside a full queue", i)
		}
	}
	// The curve adds up to the totals.
	var calls, retries, handled, failed int64
	for _, s := range r.Curve.Steps {
		calls += int64(s.Calls)
		retries += int64(s.Retries)
		handled += int64(s.Handled)
		failed += int64(s.Failed)
		if s.Retries > s.Calls || s.Down > s.Calls || int64(s.Waiting) > r.WaitingMost {
			t.Errorf("a step of %+v", s)
		}
	}
	if calls != r.Calls || handled != r.Handled || failed != r.Wasted || calls-retries > r.Sent {
		t.Errorf("the curve has %d calls (%d retries), %d handled, %d failed; counted %d, %d, %d", calls, retries, handled, failed, r.Calls, r.Handled, r.Wasted)
	}
	running := int64(0)
	for _, n := range busy {
		running += int64(n)
	}
	if calls < handled+failed || calls > handled+failed+running {
		t.Errorf("%d calls, %d ended, %d under way", calls, handled+failed, running)
	}
	if limit := int64(e.retries+1) * int64(e.immediate+1); e.retries != never && r.Calls > limit*r.Sent {
		t.Errorf("%d calls for %d messages of at most %d attempts", r.Calls, r.Sent, limit)
	}
}

// Stopping on the way and going on changes nothing, and the same seed gives the
// same result, alone or beside others.
func TestSameSeedSameResult(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	for range 30 {
		s := anyScenario(rng)
		a, b := anyContender(rng), anyContender(rng)
		a.Name, b.Name = "a", "b"
		alone, err := Run(context.Background(), s, a)
		if err != nil {
			t.Fatal(err)
		}
		both, err := Run(context.Background(), s, b, a)
		if err != nil {
			t.Fatal(err)
		}
		plain := func(r Result) Result { r.Contender = Contender{}; return r }
		want := plain(alone.Results[0])
		if got := plain(both.Results[1]); !reflect.DeepEqual(got, want) {
			t.Fatalf("beside another: %+v\nalone: %+v", got, want)
		}
		e := newEngine(s.WithDefaults(), a)
		var parts Result
		for until := uint32(0); until <= millis(s.Until) && !parts.Complete; until += 700 {
			parts = e.run(until, func(int64) bool { return false })
		}
		defaults := s.WithDefaults()
		parts.PeakCalls, parts.PeakAt, parts.Peak, parts.P99, parts.PeakDown = 0, 0, 0, 0, 0
		parts.summarize(&defaults)
		if got := plain(parts); parts.Complete && !reflect.DeepEqual(got, want) {
			t.Fatalf("in parts: %+v\nat once: %+v", got, want)
		}
		other := s
		other.Seed++
		different, err := Run(context.Background(), other, a)
		if err != nil {
			t.Fatal(err)
		}
		if d := different.Results[0]; d.Sent != want.Sent {
			t.Fatalf("seed %d sends %d, seed %d sends %d", s.Seed, want.Sent, other.Seed, d.Sent)
		}
	}
}
