package simulate

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// calm is a peak that a dependency survives: half as much again as it can do for
// a window. Below it a policy is not preferred for an even lower peak.
const calm = 1.5

// Ranking is the results from the best to the worst:
//
//  1. fewest messages parked though they would have succeeded, or left waiting
//     when the simulation ended;
//  2. a peak load of at most 1.5 × the capacity, or else the lower one, in steps
//     of a quarter;
//  3. the shortest time until 99 in 100 of the backlog are gone, in steps of a
//     tenth;
//  4. fewest calls.
func (r *Report) Ranking() []*Result {
	var all []*Result
	for i := range r.Results {
		all = append(all, &r.Results[i])
	}
	slices.SortStableFunc(all, compare)
	return all
}

func compare(a, b *Result) int {
	return cmp.Or(
		cmp.Compare(boolean(a.Sent == 0), boolean(b.Sent == 0)), // interrupted before it began
		cmp.Compare(a.ParkedNeedlessly+a.Waiting, b.ParkedNeedlessly+b.Waiting),
		cmp.Compare(bucket(max(a.Peak, calm), 1.25), bucket(max(b.Peak, calm), 1.25)),
		cmp.Compare(slowness(a), slowness(b)),
		cmp.Compare(a.Calls, b.Calls),
	)
}

// bucket puts values that differ by less than a step together.
func bucket(v, step float64) int { return int(math.Round(math.Log(v) / math.Log(step))) }

func slowness(r *Result) int {
	if r.Recovery99 < 0 {
		return math.MaxInt
	}
	return bucket(max(r.Recovery99.Seconds(), 0.1), 1.1)
}

// Verdict says in words, a sentence each, which contender wins and why the
// others do not.
func (r *Report) Verdict() []string {
	ranking := r.Ranking()
	if len(ranking) == 0 {
		return nil
	}
	best := ranking[0]
	if best.Sent == 0 {
		return []string{"Nothing was simulated."}
	}
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	switch {
	case len(ranking) == 1:
		say("%s: %s.", best.Contender.Name, r.praise(best))
	case best.ParkedNeedlessly+best.Waiting > 0:
		say("None of them brings every message through. %s comes nearest: %s.", best.Contender.Name, r.praise(best))
	default:
		say("Ship %s: %s.", best.Contender.Name, r.praise(best))
	}
	for _, other := range ranking[1:] {
		if why := r.blame(other, best); why != "" {
			say("%s: %s.", other.Contender.Name, why)
		}
	}
	return out
}

// praise is what a result has to say for itself.
func (r *Report) praise(one *Result) string {
	var parts []string
	switch {
	case one.Waiting > 0:
		parts = append(parts, fmt.Sprintf("%s handled, %s parked, %s still waiting at the end",
			Count(one.Handled), Count(one.Parked), Count(one.Waiting)))
	case one.Parked == 0:
		parts = append(parts, "nothing is parked")
	case one.ParkedNeedlessly == 0:
		parts = append(parts, fmt.Sprintf("only the %s poison messages are parked", Count(one.Parked)))
	default:
		parts = append(parts, fmt.Sprintf("%s of %s are parked though they would have succeeded later",
			Count(one.ParkedNeedlessly), Count(one.Sent)))
	}
	if one.Peak > 0 {
		parts = append(parts, fmt.Sprintf("the dependency is asked for at most %s its capacity", Times(one.Peak)))
	}
	if _, trouble := r.Scenario.Over(); trouble && one.Recovery99 >= 0 {
		parts = append(parts, fmt.Sprintf("99 in 100 of the backlog are gone %s after the trouble, all of it after %s", Span(one.Recovery99), Span(one.Recovery)))
	} else if one.Recovery >= 0 {
		parts = append(parts, fmt.Sprintf("all is done %s after the last message was sent", Span(one.Recovery)))
	}
	return strings.Join(parts, "; ")
}

// blame is the first reason not to ship a result, or none.
func (r *Report) blame(one, best *Result) string {
	lost, least := one.ParkedNeedlessly+one.Waiting, best.ParkedNeedlessly+best.Waiting
	switch {
	case one.Sent == 0:
		return "not simulated"
	case one.ParkedNeedlessly > best.ParkedNeedlessly && lost > least:
		why := fmt.Sprintf("parks %s of %s though they would have succeeded later", Count(one.ParkedNeedlessly), Count(one.Sent))
		if one.Peak > calm*best.Peak && best.Peak > 0 {
			why += fmt.Sprintf(", and asks for %s the capacity at once", Times(one.Peak))
		}
		return why
	case one.Waiting > best.Waiting:
		return fmt.Sprintf("leaves %s of %s waiting at the end", Count(one.Waiting), Count(one.Sent))
	case bucket(max(one.Peak, calm), 1.25) > bucket(max(best.Peak, calm), 1.25):
		return fmt.Sprintf("asks for %s the capacity within %s, at %s", Times(one.Peak), Span(r.Scenario.Window), Span(one.PeakAt))
	case slowness(one) > slowness(best) && one.Recovery99 >= 0:
		return fmt.Sprintf("99 in 100 of the backlog are gone after %s, not after %s", Span(one.Recovery99), Span(best.Recovery99))
	case float64(one.Calls) > 1.05*float64(best.Calls):
		return fmt.Sprintf("needs %s calls, %.0f %% more", Count(one.Calls), 100*(float64(one.Calls)/float64(best.Calls)-1))
	}
	return "as good"
}

// Count writes a number with its thousands apart: 12,345.
func Count(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Times writes a multiple: 0.75 ×, 3.2 ×, 14 ×.
func Times(f float64) string {
	switch {
	case f >= 10:
		return fmt.Sprintf("%.0f ×", f)
	case f >= 1:
		return fmt.Sprintf("%.1f ×", f)
	}
	return fmt.Sprintf("%.2f ×", f)
}

// Span writes a duration as people say it, to three digits: 1m30s, 8.25s, 40ms;
// a dash for one that is negative.
func Span(d time.Duration) string {
	switch {
	case d < 0:
		return "–"
	case d >= 100*time.Second:
		d = d.Round(time.Second)
	case d >= 10*time.Second:
		d = d.Round(100 * time.Millisecond)
	case d >= time.Second:
		d = d.Round(10 * time.Millisecond)
	default:
		d = d.Round(time.Millisecond)
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
