package explain

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/delay"
)

func policies() map[string]hopback.Route {
	seconds := func(ss ...int) (ds []time.Duration) {
		for _, s := range ss {
			ds = append(ds, time.Duration(s)*time.Second)
		}
		return ds
	}
	with := func(s hopback.Schedule) hopback.Route {
		return hopback.Route{Queue: "q", Policy: hopback.Policy{Schedule: s, MaxRetries: 6}}
	}
	routes := map[string]hopback.Route{
		"default":      with(hopback.Schedule{}),
		"none":         with(hopback.Schedule{Jitter: hopback.NoJitter, Factor: 1.7}),
		"equal":        with(hopback.Schedule{Jitter: hopback.Equal, Base: 3330 * time.Millisecond}),
		"proportional": with(hopback.Schedule{Jitter: hopback.Proportional, Backoff: hopback.Linear, Base: 1234 * time.Millisecond}),
		"decorrelated": with(hopback.Schedule{Jitter: hopback.Decorrelated}),
		"list":         with(hopback.Schedule{Backoff: hopback.List, Delays: seconds(10, 60, 600)}),
		"short":        with(hopback.Schedule{Base: 20 * time.Millisecond, MinDelay: time.Millisecond, Max: 300 * time.Millisecond}),
	}
	for _, name := range []string{"default", "none", "equal", "list"} {
		r := routes[name]
		r.Mechanism, r.Ladder = hopback.Ladder, seconds(1, 5, 30)
		routes["ladder, "+name] = r
	}
	one := routes["equal"]
	one.Precision, one.Isolate = hopback.PrecisionOne, true
	routes["one digit, isolated"] = one
	return routes
}

// What is explained is what happens: a crowd of messages fails, each delay is
// drawn from the policy and rounded by the mechanism, and every wait and every
// slot of theirs must be among those that were told, with the mean that was told.
func TestWhatIsToldHappens(t *testing.T) {
	for name, r := range policies() {
		t.Run(name, func(t *testing.T) {
			e := Route(r, "hop", 100)
			if len(e.Retries) != 6 {
				t.Fatalf("%d retries, want 6", len(e.Retries))
			}
			full := e.Route
			if full.Precision == hopback.PrecisionAuto {
				full.Precision = hopback.PrecisionTwo // as with few messages
			}
			mech := full.DelayMechanism("hop")
			labels := newMechanism(full, "hop").names
			rnd := rand.New(rand.NewPCG(1, 2))
			const crowd = 40_000
			previous := make([]time.Duration, crowd)
			for i, told := range e.Retries {
				p, sum := full.Policy, 0.0
				for j := range crowd {
					d := p.Delay(int64(i)+1, previous[j], rnd.Uint64())
					h := mech.Hold(delay.Request{Delay: d, Exact: p.Jitter == hopback.NoJitter, Min: p.MinDelay, Max: p.Max, Random: rnd.Uint64()})
					previous[j] = h.Delay
					sum += float64(h.Delay) / crowd
					if h.Delay < told.Wait.Least || h.Delay > told.Wait.Most {
						t.Fatalf("retry %d waits %v, told %+v", i+1, h.Delay, told.Wait)
					}
					if !slices.Contains(told.Slots, labels[h.Exchange]) || (h.Then != "" && !slices.Contains(told.Then, labels[h.Then])) {
						t.Fatalf("retry %d waits in %s and %q, told %v and %v", i+1, h.Exchange, h.Then, told.Slots, told.Then)
					}
				}
				if mean := time.Duration(sum); (mean - told.Wait.Mean).Abs() > mean/33 {
					t.Errorf("retry %d waits %v in the mean, told %v", i+1, mean, told.Wait.Mean)
				}
			}
		})
	}
}

func TestSums(t *testing.T) {
	for name, r := range policies() {
		e := Route(r, "hop", 100)
		var sum Span
		for i, retry := range e.Retries {
			if w := retry.Wait; w.Least > w.Mean || w.Mean > w.Most {
				t.Errorf("%s: retry %d waits %+v", name, i+1, w)
			}
			sum = sum.plus(retry.Wait)
			if retry.Number != i+1 || retry.After != sum {
				t.Errorf("%s: retry %d is number %d after %+v, want %+v", name, i+1, retry.Number, retry.After, sum)
			}
		}
		if e.Total != sum || e.Omitted != 0 || e.Expires {
			t.Errorf("%s: %+v, want a total of %+v", name, e, sum)
		}
	}
}

func TestLimits(t *testing.T) {
	second := hopback.Schedule{Backoff: hopback.Constant, Jitter: hopback.NoJitter}
	for _, c := range []struct {
		name               string
		policy             hopback.Policy
		listed, omitted    int
		expires, mayExpire bool
		total              time.Duration
	}{
		{"no retries", hopback.Policy{MaxRetries: hopback.NoRetries, Schedule: second}, 0, 0, false, false, 0},
		{"as many as are shown", hopback.Policy{MaxRetries: 10, Schedule: second}, 10, 0, false, false, 10 * time.Second},
		{"one more", hopback.Policy{MaxRetries: 11, Schedule: second}, 11, 0, false, false, 11 * time.Second},
		{"many", hopback.Policy{MaxRetries: 1000, Schedule: second}, 11, 989, false, false, 1000 * time.Second},
		{"ends with max_age", hopback.Policy{MaxRetries: 1000, Schedule: second, MaxAge: 5500 * time.Millisecond}, 5, 0, true, false, 5 * time.Second},
		{"at max_age exactly", hopback.Policy{MaxRetries: 5, Schedule: second, MaxAge: 5 * time.Second}, 5, 0, false, false, 5 * time.Second},
		{"before its first retry", hopback.Policy{MaxRetries: 5, Schedule: second, MaxAge: time.Millisecond}, 0, 0, true, false, 0},
		{"may end with max_age", hopback.Policy{MaxRetries: 5, MaxAge: 20 * time.Second}, 5, 0, false, true, 20 * time.Second},
		{"longer than time", hopback.Policy{MaxRetries: 1_000_000, MaxAge: hopback.Unlimited, Schedule: hopback.Schedule{
			Backoff: hopback.Constant, Base: 25 * time.Hour, Max: 25 * time.Hour, Jitter: hopback.NoJitter,
		}}, 11, 999_989, false, false, 1<<63 - 1},
	} {
		e := Route(hopback.Route{Queue: "q", Policy: c.policy}, "hop", 10)
		got := fmt.Sprint(len(e.Retries), e.Omitted, e.Expires, e.MayExpire, e.Total.Most)
		if want := fmt.Sprint(c.listed, c.omitted, c.expires, c.mayExpire, c.total); got != want {
			t.Errorf("%s: got %s, want %s", c.name, got, want)
		}
	}
}

// A policy with many retries is explained soon, whatever it is.
func TestManyRetries(t *testing.T) {
	for name, r := range policies() {
		r.Policy.MaxRetries, r.Policy.MaxAge = 1_000_000, hopback.Unlimited
		e := Route(r, "hop", 25)
		if len(e.Retries) != 26 || e.Omitted != 1_000_000-26 || len(e.Retries[25].Slots) == 0 {
			t.Errorf("%s: %d listed, %d omitted", name, len(e.Retries), e.Omitted)
		}
	}
}
