package simulate

import (
	"cmp"
	"slices"
	"time"
)

// Report is what became of a scenario under each contender.
type Report struct {
	Scenario Scenario // with its defaults
	Results  []Result // in the order of the contenders
}

// Result is what one contender did. Sent = Handled + Parked + Waiting, always.
type Result struct {
	Contender Contender

	Sent    int64
	Handled int64
	Parked  int64
	Waiting int64 // neither, when the simulation ended

	// ParkedNeedlessly are the parked that would have succeeded had they been
	// tried later: all that are not poison.
	ParkedNeedlessly int64

	// Calls to the dependency in all; Wasted did not succeed, and of those
	// WastedDown met an outage.
	Calls, Wasted, WastedDown int64

	// Peak and P99 are the load on the dependency while it was not down, in
	// multiples of its capacity: of the busiest window, and of 99 in 100 windows
	// with calls in them. 0 where its capacity has no limit. PeakCalls is the peak
	// as calls in a window, and PeakAt when that window began.
	Peak, P99 float64
	PeakCalls int64
	PeakAt    time.Duration

	// PeakDown is the busiest window of calls that met an outage.
	PeakDown float64

	// Recovery is the time from the end of the trouble until every message sent
	// before that is handled or parked, but for poison; Recovery99 until all but
	// one in a hundred of those that were open then are. Without a trouble that
	// ends they count from the last message sent. -1 where it did not come about.
	Recovery, Recovery99 time.Duration

	// Latency is the time from a message's being sent until it was handled.
	Latency Latency

	// WaitingMost is the most messages that were open at once, and HeldMost the
	// most in delay slots.
	WaitingMost, HeldMost int64

	// RetriesMost is the highest number of retries after which a message was
	// handled: fewer allowed retries would have parked it.
	RetriesMost int64

	Operations Operations

	Curve Curve

	// Ended is the simulated time at the end, and Complete is set where nothing
	// was left to do: not stopped by Until or by the caller.
	Ended    time.Duration
	Complete bool
}

// Latency is the distribution of a time, to better than 1 %.
type Latency struct{ P50, P95, P99, Max time.Duration }

// Operations are what the broker had to do.
type Operations struct {
	Published int64 // by producers, and by consumers that hand off or park
	Delivered int64
	Settled   int64 // acknowledged, or requeued
	Hops      int64 // from a slot to the next, or back to the queue
}

// Total is the sum of all operations.
func (o Operations) Total() int64 { return o.Published + o.Delivered + o.Settled + o.Hops }

// Load is the calls of a step in multiples of the capacity; 0 where that has no
// limit.
func (r *Report) Load(calls uint32) float64 {
	return float64(calls) / (r.Scenario.Dependency.Capacity * r.Scenario.Window.Seconds())
}

// summarize reads the peaks off the curve.
func (r *Result) summarize(s *Scenario) {
	room := s.Dependency.Capacity * s.Window.Seconds()
	var up []uint32
	down := uint32(0)
	for i, step := range r.Curve.Steps {
		down = max(down, step.Down)
		calls := step.Calls - step.Down
		if calls == 0 {
			continue
		}
		up = append(up, calls)
		if int64(calls) > r.PeakCalls {
			r.PeakCalls, r.PeakAt = int64(calls), time.Duration(i)*s.Window
		}
	}
	if room <= 0 {
		return
	}
	r.PeakDown = float64(down) / room
	if len(up) > 0 {
		slices.SortFunc(up, cmp.Compare)
		r.Peak = float64(up[len(up)-1]) / room
		r.P99 = float64(up[(len(up)*99+99)/100-1]) / room
	}
}
