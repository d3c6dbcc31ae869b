package simulate

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/backoff"
)

// Goal is what a policy must achieve in a scenario to be advised. Whatever else
// it does, it parks nothing that would succeed later.
type Goal struct {
	// Peak is the highest load on the dependency while it is not down, in
	// multiples of its capacity. 0 means 2.
	Peak float64

	// Retries is the most that a policy may need. 0 means 50.
	Retries int
}

// Advice is what [Advise] found.
type Advice struct {
	// Best is the policy, and Result what it does in the scenario, or in its
	// smaller copy where that is larger than Scaled messages.
	Best   hopback.Policy
	Result Result

	// Met is set where it achieves the goal; otherwise it is the nearest to it.
	Met bool

	// Tried is how many policies were simulated.
	Tried int

	// Scenario is what they were simulated in.
	Scenario Scenario
}

// Scaled is the number of messages from which on [Advise] and [Nudge] look at a
// smaller copy of a scenario: as many times fewer messages, a rate and a
// capacity as many times lower, and fewer consumers. Ratios to the capacity,
// and times, stay what they were.
const Scaled = 20_000

// smaller is that copy.
func (s Scenario) smaller() Scenario {
	n := s.Messages()
	if n <= Scaled {
		return s
	}
	s = s.WithDefaults()
	k := float64(Scaled) / float64(n)
	for i, t := range s.Traffic {
		s.Traffic[i].Messages, s.Traffic[i].Rate = max(1, int64(float64(t.messages())*k)), 0
	}
	s.Dependency.Capacity *= k
	s.Consumers.Count = max(1, int(float64(s.Consumers.Count)*k+0.5))
	return s
}

// The grid that Advise searches. Small steps matter less than they seem: with
// jitter, a base of 1 s and one of 1.2 s spread a crowd alike.
var (
	bases   = []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second}
	factors = []float64{1.5, 2, 3}
	caps    = []time.Duration{10 * time.Second, 30 * time.Second, time.Minute, 5 * time.Minute}
	spreads = []backoff.Jitter{backoff.Full, backoff.Equal, backoff.Decorrelated}
)

// Advise searches base, factor, cap, retries and jitter for a policy that parks
// nothing that would have succeeded, keeps to the goal, and recovers fastest.
// The retries are as many as the message needed that needed most, and a fifth
// more, since another day draws other delays. It takes seconds.
//
// The time until 99 in 100 of the backlog are gone decides, in steps of a tenth;
// then the retries, then the calls.
func Advise(ctx context.Context, s Scenario, g Goal, told func(done, of int)) (*Advice, error) {
	if g.Peak == 0 {
		g.Peak = 2
	}
	if g.Retries == 0 {
		g.Retries = 50
	}
	s = s.smaller()
	race := Race{Scenario: s}
	for _, p := range candidates(g.Retries) {
		race.Contenders = append(race.Contenders, Policy(fmt.Sprintf("%d", len(race.Contenders)), p))
	}
	if told != nil {
		of := len(race.Contenders)
		race.Progress = func(settled, all int64) { told(int(settled*int64(of)/max(all, 1)), of) }
	}
	report, err := race.Run(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]*Result, len(report.Results))
	for i := range report.Results {
		all[i] = &report.Results[i]
	}
	misses := func(r *Result) int {
		switch {
		case r.ParkedNeedlessly+r.Waiting > 0:
			return 2
		case r.Peak > g.Peak:
			return 1
		}
		return 0
	}
	slices.SortStableFunc(all, func(a, b *Result) int {
		worst := max(misses(a), misses(b))
		return cmp.Or(
			cmp.Compare(misses(a), misses(b)),
			cmp.Compare(boolean(worst == 2)*(a.ParkedNeedlessly+a.Waiting), boolean(worst == 2)*(b.ParkedNeedlessly+b.Waiting)),
			cmp.Compare(float64(boolean(worst == 1))*a.Peak, float64(boolean(worst == 1))*b.Peak),
			cmp.Compare(slowness(a), slowness(b)),
			cmp.Compare(a.RetriesMost, b.RetriesMost),
			cmp.Compare(a.Calls, b.Calls),
		)
	})
	best := all[0].Contender.Route.Policy
	if misses(all[0]) < 2 {
		needed := int(all[0].RetriesMost)
		best.MaxRetries = max(1, needed+(needed+4)/5)
	}
	final, err := Run(ctx, s, Policy("advised", best))
	if err != nil {
		return nil, err
	}
	r := final.Results[0]
	return &Advice{Best: best.WithDefaults(), Result: r, Met: misses(&r) == 0, Tried: len(all), Scenario: final.Scenario}, nil
}

func boolean(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// candidates is the grid, each policy with as many retries as allowed.
func candidates(retries int) []hopback.Policy {
	var all []hopback.Policy
	for _, j := range spreads {
		for _, base := range bases {
			for _, most := range caps {
				for _, factor := range factors {
					if j == backoff.Decorrelated && factor != 2 || base > most {
						continue // decorrelated has no factor
					}
					all = append(all, hopback.Policy{
						Schedule:   hopback.Schedule{Base: base, Factor: factor, Max: most, Jitter: j},
						MaxRetries: retries,
					})
				}
			}
		}
	}
	return all
}

// Change is a small change of a policy, and what it does.
type Change struct {
	What   string // "one retry fewer"
	Result Result
}

// Nudge simulates what small changes of a contender would do: one retry more or
// fewer, half or double the base, half or double the cap, no jitter or full
// jitter. The first result is that of the contender unchanged, in the scenario
// or its smaller copy. A contender that is not one of Hopback's own policies has
// no changes.
func Nudge(ctx context.Context, s Scenario, c Contender) ([]Change, error) {
	s = s.smaller()
	race := Race{Scenario: s}
	add := func(what string, change func(p *hopback.Policy)) {
		one := c
		one.Name = what
		one.Route.Policy = one.Route.Policy.WithDefaults()
		change(&one.Route.Policy)
		if one.Validate() == nil {
			race.Contenders = append(race.Contenders, one)
		}
	}
	add("unchanged", func(*hopback.Policy) {})
	if c.Delay == nil && c.To == nil && c.Way == InBroker && !c.Forever {
		retries := max(c.Route.Policy.WithDefaults().MaxRetries, 0)
		if retries > 1 {
			add("one retry fewer", func(p *hopback.Policy) { p.MaxRetries = retries - 1 })
		}
		add("one retry more", func(p *hopback.Policy) { p.MaxRetries = retries + 1 })
		if c.Route.Policy.Backoff != backoff.List {
			add("half the base", func(p *hopback.Policy) { p.Base /= 2 })
			add("double the base", func(p *hopback.Policy) { p.Base *= 2 })
		}
		add("half the cap", func(p *hopback.Policy) { p.Max /= 2 })
		add("double the cap", func(p *hopback.Policy) { p.Max *= 2 })
		if j := c.Route.Policy.WithDefaults().Jitter; j != backoff.None {
			add("no jitter", func(p *hopback.Policy) { p.Jitter, p.JitterRatio = backoff.None, 0 })
		}
		if j := c.Route.Policy.WithDefaults().Jitter; j != backoff.Full {
			add("full jitter", func(p *hopback.Policy) { p.Jitter, p.JitterRatio = backoff.Full, 0 })
		}
	}
	report, err := race.Run(ctx)
	if err != nil {
		return nil, err
	}
	var changes []Change
	for _, r := range report.Results {
		changes = append(changes, Change{What: r.Contender.Name, Result: r})
	}
	return changes, nil
}

// Words is what a change does, against the result without it, or "" for nothing
// that matters.
func (c Change) Words(unchanged *Result) string {
	a, b := &c.Result, unchanged
	switch {
	case a.ParkedNeedlessly != b.ParkedNeedlessly:
		if a.ParkedNeedlessly == 0 {
			return fmt.Sprintf("%s: nothing would be parked any more", c.What)
		}
		return fmt.Sprintf("%s: %s would be parked instead of %s", c.What, Count(a.ParkedNeedlessly), Count(b.ParkedNeedlessly))
	case bucket(max(a.Peak, 0.1), 1.25) != bucket(max(b.Peak, 0.1), 1.25):
		return fmt.Sprintf("%s: the peak would be %s the capacity instead of %s%s", c.What, Times(a.Peak), Times(b.Peak), c.recovery(b))
	case slowness(a) != slowness(b):
		return fmt.Sprintf("%s: 99 in 100 of the backlog would be gone after %s instead of %s", c.What, Span(a.Recovery99), Span(b.Recovery99))
	}
	return ""
}

func (c Change) recovery(b *Result) string {
	if slowness(&c.Result) == slowness(b) {
		return ""
	}
	return fmt.Sprintf(", the backlog gone after %s instead of %s", Span(c.Result.Recovery99), Span(b.Recovery99))
}
