package demo

import (
	"sync"
	"time"
)

// outcome is how a retry ended.
type outcome int

const (
	handled outcome = iota
	refused         // the dependency had no room
	failed          // it was down, or something else was wrong
	outcomes
)

// tally counts retries by outcome.
type tally [outcomes]int

func (t tally) sum() int { return t[handled] + t[refused] + t[failed] }

// binWidth is the resolution of a series: fine enough to tell a spike from a
// second's worth of calls.
const binWidth = 100 * time.Millisecond

// binsPerSecond many bins make a bar.
const binsPerSecond = int(time.Second / binWidth)

// series counts retries over time, from start on.
type series struct {
	mu    sync.Mutex
	start time.Time
	bins  []tally
}

// begin sets the zero of time.
func (s *series) begin(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.start = at
}

// add counts a retry that reached the handler at a moment. One from before the
// start counts as of the start.
func (s *series) add(at time.Time, o outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := 0
	if !s.start.IsZero() {
		i = max(0, int(at.Sub(s.start)/binWidth))
	}
	for len(s.bins) <= i {
		s.bins = append(s.bins, tally{})
	}
	s.bins[i][o]++
}

// seconds are the tallies by whole seconds since the start.
func (s *series) seconds() []tally {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]tally, (len(s.bins)+binsPerSecond-1)/binsPerSecond)
	for i, b := range s.bins {
		for o := range b {
			out[i/binsPerSecond][o] += b[o]
		}
	}
	return out
}

// busiest is the most retries in any window of so many bins, wherever it
// begins: a spike is one even when it lies across two of the chart's seconds.
func (s *series) busiest(window int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	most, sum := 0, 0
	for i, b := range s.bins {
		sum += b.sum()
		if i >= window {
			sum -= s.bins[i-window].sum()
		}
		most = max(most, sum)
	}
	return most
}
