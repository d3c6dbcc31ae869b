package simulate

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/backoff"
)

func run(t *testing.T, s Scenario, c ...Contender) *Report {
	t.Helper()
	r, err := Run(context.Background(), s, c...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Without jitter, a herd that failed together comes back together: base 2 s and
// factor 2 put the spikes at 2 s, at 2 + 4 = 6 s and at 2 + 4 + 8 = 14 s after
// the failure, and in general at base × (2^n - 1). Between them there is nothing.
func TestSpikesWithoutJitter(t *testing.T) {
	const herd, call = 1000, 50 * time.Millisecond
	s := Scenario{
		Traffic:    []Traffic{{Messages: herd}},
		Consumers:  Consumers{Count: 100, Concurrency: 10, Prefetch: 10},
		Dependency: Dependency{Latency: call, Spells: []Spell{{For: time.Hour}}},
		Window:     10 * time.Millisecond, Until: time.Hour,
	}
	p := hopback.Policy{Schedule: hopback.Schedule{Base: 2 * time.Second, Jitter: hopback.NoJitter}, MaxRetries: 3}
	r := run(t, s, Policy("none", p)).Results[0]
	want := map[time.Duration]bool{0: true}
	for n := 1; n <= 3; n++ {
		// Each attempt fails call after it began.
		after := 2 * time.Second * time.Duration(1<<n-1)
		want[after+time.Duration(n)*call] = true
		if n == 1 && after != 2*time.Second || n == 2 && after != 6*time.Second || n == 3 && after != 14*time.Second {
			t.Fatalf("retry %d comes after %s", n, after)
		}
	}
	for i, step := range r.Curve.Steps {
		at := time.Duration(i) * s.Window
		switch {
		case want[at] && step.Calls != herd:
			t.Errorf("%d calls at %s, want all %d", step.Calls, at, herd)
		case !want[at] && step.Calls != 0:
			t.Errorf("%d calls at %s, want none", step.Calls, at)
		}
		delete(want, at)
	}
	if len(want) > 0 {
		t.Errorf("no calls at %v", want)
	}
	if r.Parked != herd || r.Calls != 4*herd {
		t.Errorf("%d parked after %d calls", r.Parked, r.Calls)
	}
}

// A broker that lets so many messages a second out of its slots turns a spike
// into a box of that height.
func TestRateOfTheSlots(t *testing.T) {
	s := Scenario{
		Traffic:    []Traffic{{Messages: 1000}},
		Consumers:  Consumers{Count: 100, Concurrency: 10, Prefetch: 10},
		Dependency: Dependency{Latency: time.Millisecond, Spells: []Spell{{For: time.Hour}}},
		Broker:     Broker{Rate: 500},
		Window:     100 * time.Millisecond, Until: time.Hour,
	}
	p := hopback.Policy{Schedule: hopback.Schedule{Base: 5 * time.Second, Jitter: hopback.NoJitter}, MaxRetries: 1}
	r := run(t, s, Policy("none", p)).Results[0]
	for i, step := range r.Curve.Steps[1:] {
		if in := i+1 >= 50 && i+1 < 70; in != (step.Retries > 40) || step.Retries > 52 {
			t.Errorf("%d retries at %d00 ms", step.Retries, i+1)
		}
	}
}

// Full jitter of a ceiling d waits d/2 in the mean, and is flat: the first retry
// of a herd, counted by tenths of its ceiling, is the same in each but for
// chance. MinDelay of 1 ms leaves the band whole, and a mechanism that holds to
// the millisecond adds nothing.
func TestMeanOfFullJitter(t *testing.T) {
	const herd = 100_000
	for name, c := range map[string]Contender{
		"precise": {Name: "precise", To: Precise()},
		"wheel":   {Name: "wheel", Route: hopback.Route{Precision: hopback.PrecisionTwo}},
	} {
		t.Run(name, func(t *testing.T) {
			c.Route.Policy = hopback.Policy{Schedule: hopback.Schedule{Base: 10 * time.Second, MinDelay: time.Millisecond}, MaxRetries: 1}
			s := Scenario{
				Traffic:    []Traffic{{Messages: herd}},
				Consumers:  Consumers{Count: 1000, Concurrency: 100, Prefetch: 100},
				Dependency: Dependency{Latency: time.Millisecond, Spells: []Spell{{For: time.Hour}}},
				Window:     time.Second,
			}
			r := run(t, s, c).Results[0]
			sum, calls := 0.0, 0.0
			for i, step := range r.Curve.Steps {
				sum += float64(step.Retries) * (float64(i) + 0.5)
				calls += float64(step.Retries)
				// Seven standard deviations of a binomial count. The wheel rounds what
				// is below 100 ms up, and to tenths of a second around the edges.
				if want, far := herd/10.0, 7*math.Sqrt(herd/10.0*0.9); i < 10 && math.Abs(float64(step.Retries)-want) > far+edge(name, herd) {
					t.Errorf("%d retries in second %d, want %.0f ± %.0f", step.Retries, i, want, far)
				}
			}
			if calls != herd {
				t.Fatalf("%g retries, want %d", calls, herd)
			}
			if mean := sum / calls; math.Abs(mean-5) > 0.06 {
				t.Errorf("mean of %.3f s, want 5", mean)
			}
		})
	}
}

// edge is what rounding moves between two seconds: half a step of the wheel, 50
// ms below 10 s, on either side.
func edge(mechanism string, herd float64) float64 {
	if mechanism == "precise" {
		return 0
	}
	return herd * 0.1 / 10
}

// The study of the AWS architecture blog, "Exponential Backoff And Jitter"
// (Brooker, 2015), has clients contend for one row with optimistic locking, base
// 5 ms, cap 2 s; its code begins at base × 2. It finds: no jitter needs by far
// the most calls and the most time of those that back off; of the jittered,
// equal jitter does more work than full and takes longer than full and
// decorrelated; full does the least work; decorrelated takes less time than
// equal.
func TestStudyOfContendingClients(t *testing.T) {
	contender := func(j backoff.Jitter) Contender {
		base := 10 * time.Millisecond
		if j == backoff.Decorrelated {
			base = 5 * time.Millisecond // the study's grows from there by itself
		}
		return Contender{Name: string(j), To: Precise(), Route: hopback.Route{Policy: hopback.Policy{
			Schedule:   hopback.Schedule{Base: base, Max: 2 * time.Second, MinDelay: time.Millisecond, Jitter: j},
			MaxRetries: 1_000_000,
		}}}
	}
	for _, clients := range []int64{50, 100} {
		calls, took := map[string]float64{}, map[string]float64{}
		const runs = 100
		for seed := range uint64(runs) {
			s := Scenario{
				Seed:    seed,
				Traffic: []Traffic{{Messages: clients}},
				// A handler for each client.
				Consumers: Consumers{Count: int(clients), Concurrency: 1, Prefetch: 1},
				// Of the study's four journeys of 10 ± 2 ms, two lie between the read
				// and the write, and two between the write and the next read.
				Dependency: Dependency{Latency: 20 * time.Millisecond, LatencySpread: 0.25, Contended: true},
				Broker:     Broker{Hop: 20 * time.Millisecond},
			}
			report := run(t, s, contender(backoff.None), contender(backoff.Full), contender(backoff.Equal), contender(backoff.Decorrelated))
			for _, r := range report.Results {
				if r.Handled != clients {
					t.Fatalf("%s: %d of %d clients wrote", r.Contender.Name, r.Handled, clients)
				}
				calls[r.Contender.Name] += float64(r.Calls) / runs
				took[r.Contender.Name] += r.Recovery.Seconds() / runs
			}
		}
		for _, j := range []backoff.Jitter{backoff.None, backoff.Full, backoff.Equal, backoff.Decorrelated} {
			t.Logf("%d clients, %s: %.0f calls, %.2f s", clients, j, calls[string(j)], took[string(j)])
		}
		order := func(what string, m map[string]float64, a, b backoff.Jitter, times float64) {
			if m[string(a)]*times >= m[string(b)] {
				t.Errorf("%d clients, %s: %s %.2f, %s %.2f", clients, what, a, m[string(a)], b, m[string(b)])
			}
		}
		for _, j := range []backoff.Jitter{backoff.Full, backoff.Equal, backoff.Decorrelated} {
			order("calls", calls, j, backoff.None, 1.5)
			order("time", took, j, backoff.None, 1)
		}
		order("calls", calls, backoff.Full, backoff.Equal, 1)
		order("calls", calls, backoff.Full, backoff.Decorrelated, 1)
		order("time", took, backoff.Full, backoff.Equal, 1)
		order("time", took, backoff.Decorrelated, backoff.Equal, 1)
	}
}

// A dependency asked for less than it can do answers everything; asked for more,
// it answers as much as it can do, whatever the policy.
func TestCapacityIsKept(t *testing.T) {
	for _, rate := range []float64{50, 99, 150, 400} {
		s := Scenario{
			Traffic:    []Traffic{{Rate: rate, For: time.Minute}},
			Dependency: Dependency{Capacity: 100, Line: 100 * time.Millisecond},
			Window:     time.Second, Until: time.Minute,
		}
		full, _ := Preset("full")
		r := run(t, s, full).Results[0]
		handled := float64(r.Handled) / 60
		if want := min(rate, 100); handled > want*1.001+1 || handled < want*0.95 {
			t.Errorf("%g a second: %.1f handled a second, want %g", rate, handled, want)
		}
		for i, step := range r.Curve.Steps {
			if step.Handled > 111 { // 100, and what stood in line before
				t.Errorf("%g a second: %d handled in second %d", rate, step.Handled, i)
			}
		}
		if rate < 100 && r.Wasted > 0 {
			t.Errorf("%g a second: %d calls failed", rate, r.Wasted)
		}
	}
}

// Asked for double, a dependency that collapses serves half; left alone it heals.
func TestCollapseAndRecovery(t *testing.T) {
	once := hopback.Policy{MaxRetries: hopback.NoRetries}
	s := Scenario{
		Traffic: []Traffic{{Rate: 200, For: time.Minute}, {At: 2 * time.Minute, Rate: 90, For: time.Minute}},
		Dependency: Dependency{
			Capacity: 100, Line: 10 * time.Millisecond, Collapse: 1, Recovery: 5 * time.Second, Latency: time.Millisecond,
		},
	}
	r := run(t, s, Policy("once", once)).Results[0]
	handled := func(from, to int) (n float64) {
		for _, step := range r.Curve.Steps[from:to] {
			n += float64(step.Handled) / float64(to-from)
		}
		return n
	}
	if got := handled(30, 60); got < 45 || got > 55 {
		t.Errorf("%.0f a second while asked for 200, want half of 100", got)
	}
	if got := handled(150, 180); got < 85 {
		t.Errorf("%.0f a second after a minute's rest, want 90", got)
	}
}

// A requeue loop asks as often as the handlers can, which is what keeps the
// dependency down; and prefetch bounds nothing of it.
func TestImmediateIsAHotLoop(t *testing.T) {
	c, _ := Preset("immediate")
	s := Scenario{
		Traffic:    []Traffic{{Messages: 1000}},
		Consumers:  Consumers{Count: 10, Concurrency: 10, Prefetch: 10},
		Dependency: Dependency{FailAfter: 10 * time.Millisecond, Spells: []Spell{{For: 10 * time.Second}}},
		Broker:     Broker{Confirm: time.Millisecond},
	}
	r := run(t, s, c).Results[0]
	// 100 handlers, a call each 10 ms and a requeue, of other messages meanwhile.
	if want := int64(100 * 1000); r.WastedDown < want*9/10 || r.WastedDown > want*11/10 {
		t.Errorf("%d calls in ten seconds, want about %d", r.WastedDown, want)
	}
	if r.Handled != 1000 {
		t.Errorf("%d handled", r.Handled)
	}
}

// Who sleeps in the handler blocks the messages behind: they fail for the first
// time only when the first have used up their retries.
func TestSleepingHoldsTheHandlers(t *testing.T) {
	c, _ := Preset("sleep")
	full, _ := Preset("full")
	s := Scenario{
		Traffic:    []Traffic{{Messages: 1000}},
		Consumers:  Consumers{Count: 10, Concurrency: 10},
		Dependency: Dependency{Spells: []Spell{{For: 10 * time.Second}}},
	}
	report := run(t, s, c, full)
	for _, r := range report.Results {
		first := r.Calls
		for _, step := range r.Curve.Steps {
			first -= int64(step.Retries)
		}
		tried := int64(0)
		for _, step := range r.Curve.Steps[:9] {
			tried += int64(step.Calls - step.Retries)
		}
		if r.Contender.Name == "sleep" && tried != 100 {
			t.Errorf("sleep: %d of 1000 tried in nine seconds, want those of the 100 handlers", tried)
		}
		if r.Contender.Name == "full" && tried != 1000 {
			t.Errorf("full: %d of 1000 tried in nine seconds, want all", tried)
		}
		if first != 1000 {
			t.Errorf("%s: %d first attempts", r.Contender.Name, first)
		}
	}
}
