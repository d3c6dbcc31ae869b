// Package fate decides what becomes of a message that failed: how long it waits,
// or why it is parked. It is a value and a function, without a broker and without
// a clock, shared by whoever applies a policy.
package fate

import (
	"time"

	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/backoff"
	"github.com/hopback/hopback/delay"
)

// Limits are the schedule and the limits of a policy.
type Limits struct {
	Schedule      backoff.Schedule
	MaxRetries    int32         // 0 parks at the first failure
	MaxAge        time.Duration // since the first failure; negative for none
	MaxRetryAfter time.Duration // of delays that are asked for
}

// Ask is what whoever ran the attempt asks for. The zero value is a retry by the
// policy.
type Ask struct {
	Park bool // no retry can help
	// After is a delay that was asked for, where Chosen; the limits bound it.
	Chosen bool
	After  time.Duration
	Free   bool // does not use up a retry
}

// Decide gives the delay for which the message waits, or the reason for which it
// is parked; the reason is empty where it waits. random gives 64 uniformly random
// bits at each call.
func (l Limits) Decide(ask Ask, rec attempt.Record, now time.Time, random func() uint64) (delay.Request, string) {
	switch {
	case ask.Park:
		return delay.Request{}, attempt.ReasonPermanent
	case !ask.Free && rec.Count >= l.MaxRetries:
		return delay.Request{}, attempt.ReasonExhausted
	}
	r := delay.Request{Random: random(), Min: l.Schedule.MinDelay, Max: l.Schedule.Max}
	if ask.Chosen {
		r.Delay, r.Exact = min(max(ask.After, l.Schedule.MinDelay), l.MaxRetryAfter), true
	} else {
		r.Delay = l.Schedule.Delay(int64(rec.Count)+1, rec.Delay, random())
		r.Exact = l.Schedule.Jitter == backoff.None
	}
	due, first := now.Add(r.Delay), rec.FirstFailedAt
	if first.IsZero() {
		first = now
	}
	// A message that could not be handled in time any more is parked now: the
	// person who looks into the parking queue may as well know.
	if l.MaxAge >= 0 && due.Sub(first) > l.MaxAge || rec.Expired(due) {
		return delay.Request{}, attempt.ReasonExpired
	}
	return r, ""
}
