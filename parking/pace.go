package parking

import (
	"math"
	"time"
)

// pace says when the next message may go.
type pace struct {
	rate float64       // messages a second, 0 for no limit
	step time.Duration // of the ramp, 0 for none

	began, last time.Time
}

// at is the rate at a time: 1, 10, 100, … a second, a step long each, up to rate.
func (p *pace) at(now time.Time) float64 {
	if p.step <= 0 {
		return p.rate
	}
	r := 1.0
	if !p.began.IsZero() {
		r = math.Pow(10, math.Min(float64(now.Sub(p.began)/p.step), 6))
	}
	switch {
	case p.rate > 0:
		return math.Min(r, p.rate)
	case r >= 1e6:
		return 0
	}
	return r
}

// wait is how long the next message has to wait. It counts as sent then.
func (p *pace) wait(now time.Time) time.Duration {
	if p.began.IsZero() {
		p.began = now
	}
	r := p.at(now)
	if r <= 0 {
		return 0
	}
	due := p.last.Add(time.Duration(float64(time.Second) / r))
	// What was missed is not made up for, but for a moment: sleeping is coarse.
	if earliest := now.Add(-50 * time.Millisecond); due.Before(earliest) {
		due = earliest
	}
	p.last = due
	return max(due.Sub(now), 0)
}
