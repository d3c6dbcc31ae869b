package backoff

import "time"

// Ceiling returns the delay of retry n before jitter and before the floor, in whole milliseconds. It never
// exceeds Max, does not depend on Jitter, and saturates: n = 2^63-1 gives Max for every kind that grows. A retry
// below 1 counts as retry 1.
//
//	exponential  min(max, base × factor^(n-1))
//	linear       min(max, base × n)
//	constant     min(max, base)
//	fibonacci    min(max, base × F(n)), F = 1, 1, 2, 3, 5, …
//	list         min(max, delays[min(n, len(delays))-1])
//
// For every valid schedule but a List, the ceilings never shrink as n grows.
//
// Exponential ceilings are exact for the factors whose powers a float64 holds exactly (2, 3, 10, 1.5, 2.5, …) and
// rounded to the nearest millisecond, halves up, for others; a factor of 1.2 gives 1000, 1200, 1440, 1728 ms.
// The power is multiplied out by squaring, with nothing but IEEE 754 multiplications in a fixed order, so ports
// to other languages get the same milliseconds. docs/policy.md has the recipe.
func (s Schedule) Ceiling(n int64) time.Duration { return duration(s.ceiling(s.bounds(), n)) }

// ceiling is Ceiling in milliseconds: 0 ≤ ceiling ≤ b.cap.
func (s *Schedule) ceiling(b bounds, n int64) int64 {
	n = max(n, 1)
	switch s.Backoff {
	case Linear:
		if n > b.cap/b.base {
			return b.cap
		}
		return b.base * n
	case Constant:
		return min(b.base, b.cap)
	case Fibonacci:
		if n >= int64(len(fibonacci)) || fibonacci[n] > b.cap/b.base {
			return b.cap
		}
		return b.base * fibonacci[n]
	case List:
		if last := int64(len(s.Delays)); last > 0 {
			return min(max(1, millis(s.Delays[min(n, last)-1])), b.cap)
		}
	}
	return s.exponential(b, n)
}

func (s *Schedule) exponential(b bounds, n int64) int64 {
	factor := s.Factor
	if !(factor >= 1) { // also true for NaN
		factor = defaultFactor
	}
	if factor == 2 { // the common case, in integers; the loop below gives the same
		if b.base > b.cap>>(n-1) { // shifts of 64 and more give 0
			return b.cap
		}
		return b.base << (n - 1)
	}

	// Exponentiation by squaring. A naive loop would run n times, and math.Pow is slower and may differ in the last
	// bit from another language's. factor ≥ 1, so both numbers only grow, and once square is past the cap the
	// result will be: leaving then halves the time of a late retry.
	base, limit := float64(b.base), float64(b.cap)
	power, square := 1.0, factor
	for e := uint64(n - 1); e > 0; e >>= 1 {
		if square > limit { // base ≥ 1, and a bit of e is still to come
			return b.cap
		}
		if e&1 == 1 {
			power *= square
		}
		square *= square
	}
	product := base * power
	if product >= limit { // before the conversion: a float64 above 2^63 has no defined int64
		return b.cap
	}
	// float64() keeps the compiler from fusing the multiplication with the addition, which it may on arm64, ppc64
	// and s390x: a fused product is rounded once instead of twice, and could differ by a millisecond.
	return min(int64(float64(product)+0.5), b.cap)
}

// fibonacci holds F(1) … F(64) = 1, 1, 2, 3, 5, …, at its index. F(64) ms is 336 years: longer than a
// time.Duration can say, so what lies beyond is always capped.
var fibonacci = func() (f [65]int64) {
	f[1] = 1
	for i := 2; i < len(f); i++ {
		f[i] = f[i-1] + f[i-2]
	}
	return f
}()
