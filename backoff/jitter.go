package backoff

import (
	"math"
	"math/bits"
	"time"
)

// Delay returns how long retry n waits, in whole milliseconds, never above Max and never below MinDelay.
//
// previous is the delay of retry n-1, as drawn or as the message reports it; only Decorrelated reads it, and
// 0 stands for none. r is 64 uniformly random bits, from [Random] or [Seed]: 0 gives the low end of the band,
// 2^64-1 the high end, and what lies between is hit with equal probability.
//
// A retry below 1 counts as retry 1, and a previous delay below Base as Base. Delay does not allocate.
func (s Schedule) Delay(n int64, previous time.Duration, r uint64) time.Duration {
	lo, hi := s.band(s.bounds(), n, previous)
	// Of the product of r and the number of milliseconds to choose from, the upper 64 bits are uniform in
	// [0, hi-lo]. A remainder (r % width) would favour the low end, and costs a division. The bias left, width in
	// 2^64, is below one in a million even for a band as wide as a time.Duration.
	offset, _ := bits.Mul64(r, uint64(hi-lo)+1)
	return duration(lo + int64(offset))
}

// band returns the ends of the clipped band in milliseconds: b.floor ≤ lo ≤ hi ≤ b.cap.
func (s *Schedule) band(b bounds, n int64, previous time.Duration) (lo, hi int64) {
	if s.Jitter == Decorrelated {
		return b.decorrelated(millis(previous))
	}
	d := s.ceiling(b, n)
	switch s.Jitter {
	case None:
		lo, hi = d, d
	case Equal:
		lo, hi = d-d/2, d
	case Proportional:
		w := s.halfWidth(d)
		lo, hi = d-w, d+w
	default: // Full, and what Validate would refuse
		lo, hi = 0, d
	}
	return b.clip(lo), b.clip(hi)
}

// halfWidth is d × JitterRatio to the nearest millisecond, and so at most d.
func (s *Schedule) halfWidth(d int64) int64 {
	p := s.JitterRatio
	if !(p > 0 && p <= 1) { // also true for NaN
		p = defaultRatio
	}
	// float64() forbids a fused multiply-add: see exponential.
	return min(int64(float64(float64(d)*p)+0.5), d)
}

// decorrelated is the clipped band that follows a previous delay in milliseconds.
func (b bounds) decorrelated(previous int64) (lo, hi int64) {
	return b.clip(b.base), b.clip(3 * max(previous, b.base))
}

// Band returns the least, the mean and the most that retry n can wait: after jitter, floor and cap. Least and
// most are whole milliseconds and are reached; the mean may lie between two milliseconds.
//
// For Decorrelated, whose delay depends on the one before, it speaks of all the histories that can lead to
// retry n. With every band clipped to [MinDelay, Max]:
//
//	least(n) = base
//	most(n)  = min(max, 3 × max(base, most(n-1))), most(0) = 0
//	mean(n)  = E[(base + min(max, 3 × max(base, X)))/2], X the delay of retry n-1
//
// Until the cap is within reach that is mean(n) = (base + 3 × mean(n-1))/2. Going on so would be simple and
// wrong, since the cap cuts the long histories only: from 1 s to 60 s the mean would settle at 30.5 s, where it
// is 20.3 s. So the distribution of X is carried along in 256 parts of equal probability, which takes some
// microseconds a retry. From retry 1000 on the mean is that of retry 1000.
func (s Schedule) Band(n int64) (least, mean, most time.Duration) {
	b := s.bounds()
	if s.Jitter == Decorrelated {
		return b.decorrelatedBand(n)
	}
	lo, hi := s.band(b, n, 0)
	return duration(lo), duration(lo) + duration(hi-lo)/2, duration(hi)
}

const (
	parts = 256
	// maxSteps bounds the work of Band. The longest climb there is, from 1 ms to 292 years at e^0.1 a retry (the
	// mean of ln(3U) is 0.0986), is over after some 300.
	maxSteps = 1000
)

func (b bounds) decorrelatedBand(n int64) (least, mean, most time.Duration) {
	lo := b.clip(b.base)
	hi, average := int64(0), 0.0
	var x [parts]float64 // the delay before: all histories begin at none
	for range max(1, min(n, maxSteps)) {
		_, hi = b.decorrelated(hi)
		last := average
		average = b.step(&x)
		if average-last <= average*1e-12 {
			break // a mean that no longer grows means a distribution that no longer does: each is above the one before
		}
	}
	// Milliseconds and the fraction apart: as nanoseconds, the float64 could round up past the longest Duration.
	whole, fraction := math.Modf(max(float64(lo), min(average, float64(hi))))
	mean = duration(int64(whole)) + time.Duration(math.Round(fraction*float64(time.Millisecond)))
	return duration(lo), mean, duration(hi)
}

// step replaces x, which describes the distribution of one delay, by that of the next, and returns the mean of
// the next. x[j] is the mean of the part of the distribution between the quantiles j/256 and (j+1)/256, so the
// mean of x is the mean of the delay, and nothing of a long tail is lost.
//
// After a delay x_i the next is uniform on [lo, h_i]. Over all i it has 256 × F(v) = sum of min(1, (v-lo)/(h_i-lo)):
// piecewise linear, with its corners at the h_i, which ascend as the x_i do. One sweep integrates its inverse.
func (b bounds) step(x *[parts]float64) (mean float64) {
	lo := float64(b.clip(b.base))
	var h [parts]float64
	var slope [parts + 1]float64 // slope[i] = sum over k ≥ i of 1/(h_k-lo), of 256 × F between h_(i-1) and h_i
	for i := parts - 1; i >= 0; i-- {
		h[i] = max(float64(b.floor), min(3*max(x[i], float64(b.base)), float64(b.cap)))
		mean += (lo + h[i]) / 2 / parts
		slope[i] = slope[i+1] + 1/(h[i]-lo)
	}
	if h[0] <= lo { // the floor or the cap leaves one delay, after every delay before: there is nothing to integrate
		for j := range x {
			x[j] = lo
		}
		return lo
	}

	v, t := lo, 0.0 // 256 × F(v) = t
	i := 0
	for j := range x {
		end, sum := float64(j+1), 0.0
		for t < end {
			if i == parts { // what rounding left beyond the last corner
				sum += v * (end - t)
				break
			}
			corner := float64(i) + (h[i]-lo)*slope[i]
			if corner <= t {
				i++
				continue
			}
			next := min(end, corner)
			to := lo + (next-float64(i))/slope[i]
			sum += (next - t) * (v + to) / 2
			v, t = to, next
		}
		x[j] = sum
	}
	return mean
}
