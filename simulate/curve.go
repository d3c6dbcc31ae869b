package simulate

import (
	"math/bits"
	"time"
)

// maxBins bounds the memory of a curve: 24 bytes each.
const maxBins = 1 << 22

// Curve is what happened over time, step by step from the start.
type Curve struct {
	Window time.Duration // the length of a step
	Steps  []Step
}

// Step is what happened within one window.
type Step struct {
	Calls   uint32 // begun
	Retries uint32 // of those, attempts after the first
	Down    uint32 // of those, begun in an outage
	Handled uint32 // calls that succeeded, counted when they ended
	Failed  uint32 // calls that did not
	Waiting uint32 // most messages that were sent and not yet handled or parked
}

// recorder fills a curve.
type recorder struct {
	window uint32 // ms
	steps  []Step
}

// at is the step of a moment. Moments never go back. waiting is how many
// messages have waited since the moment before.
func (r *recorder) at(t uint32, waiting int64) *Step {
	i := int(t / r.window)
	for len(r.steps) <= i {
		r.steps = append(r.steps, Step{Waiting: uint32(waiting)})
	}
	return &r.steps[i]
}

// histogram counts milliseconds, to better than 1 %: values below 128 each on
// their own, those above in 64 parts of every power of two.
type histogram struct {
	counts [128 + 25*64]int64
	total  int64
	most   uint32
}

func (h *histogram) add(ms uint32) {
	h.counts[place(ms)]++
	h.total++
	h.most = max(h.most, ms)
}

func place(ms uint32) int {
	if ms < 128 {
		return int(ms)
	}
	shift := bits.Len32(ms) - 7 // leaves 64 … 127
	return 64*shift + int(ms>>shift)
}

// upper is the largest value with a place.
func upper(place int) uint32 {
	if place < 128 {
		return uint32(place)
	}
	shift := place/64 - 1
	return uint32((uint64(place%64+64)+1)<<shift - 1)
}

// quantile is the least value, as far as the histogram can tell, that a share q
// of all values do not exceed; 0 where there are none.
func (h *histogram) quantile(q float64) time.Duration {
	if h.total == 0 {
		return 0
	}
	rank := max(1, int64(q*float64(h.total)+0.999999))
	for i, n := range h.counts {
		if rank -= n; rank <= 0 {
			return time.Duration(min(upper(i), h.most)) * time.Millisecond
		}
	}
	return time.Duration(h.most) * time.Millisecond
}
