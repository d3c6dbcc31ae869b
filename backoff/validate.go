package backoff

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// minGrowth is the least factor that is not 1. Down to about 1 + 1e-7 the rounding errors of a power are smaller
// than the growth from one retry to the next, so that the ceilings never shrink; nobody means a factor that
// close to 1, which would need 700,000 retries to double a delay even at this bound.
const minGrowth = 1.000001

// FieldError says which field of a [Schedule] cannot be used, what it holds, and what to write instead. Find it
// with errors.As, or walk the errors that [Schedule.Validate] joined.
type FieldError struct {
	Field string // the key in YAML and JSON, such as "jitter_ratio"
	Value any    // what the field holds, in its own type; a default where the field was left out
	Fix   string // what to do, as a sentence without a full stop: "use at least 1ms"
}

// Error names the field, the value and the fix.
func (e *FieldError) Error() string {
	switch v := e.Value.(type) {
	case Kind, Jitter:
		return fmt.Sprintf("schedule field %s is %q: %s", e.Field, v, e.Fix)
	default:
		return fmt.Sprintf("schedule field %s is %v: %s", e.Field, v, e.Fix)
	}
}

// Validate returns nil, or every field that cannot be used, as [*FieldError] values joined by [errors.Join].
//
// It looks at the schedule with its defaults, so a zero field is never wrong by itself. Refused are values outside
// the ranges that the fields of [Schedule] document; a Base above Max, or a MinDelay above Max; and a field that
// would have no effect, unless it is zero or holds the default: Delays without List, Factor without Exponential,
// Base with List, JitterRatio without Proportional, and with Decorrelated, which grows from Base and the previous
// delay alone, any Factor and any kind but Exponential. A setting that is silently ignored is a surprise later.
//
// Whether a mechanism can hold the longest delay is not asked here: that is the mechanism's to say.
func (s Schedule) Validate() error {
	written := s
	s = s.WithDefaults()
	var v validation
	v.names(s)
	v.growth(s)
	v.delays(s)
	v.limits(s, written)
	v.jitter(s)
	return errors.Join(v...)
}

// validation collects what Validate finds, in the order of the fields.
type validation []error

func (v *validation) refuse(field string, value any, fix string, args ...any) {
	*v = append(*v, &FieldError{Field: field, Value: value, Fix: fmt.Sprintf(fix, args...)})
}

func (v *validation) names(s Schedule) {
	if !slices.Contains(Kinds(), s.Backoff) {
		v.refuse("backoff", s.Backoff, "use one of %s", join(Kinds()))
	}
	if !slices.Contains(Jitters(), s.Jitter) {
		v.refuse("jitter", s.Jitter, "use one of %s", join(Jitters()))
	}
}

// growth checks base and factor.
func (v *validation) growth(s Schedule) {
	switch {
	case s.Backoff == List:
		if s.Base != defaultBase {
			v.refuse("base", s.Base, "leave it out: backoff list takes its delays from delays alone")
		}
	case s.Base < time.Millisecond:
		v.refuse("base", s.Base, "use at least 1ms")
	}
	switch {
	case s.Backoff != Exponential:
		if s.Factor != defaultFactor && slices.Contains(Kinds(), s.Backoff) {
			v.refuse("factor", s.Factor, "leave it out: backoff %s has no factor, only exponential does", s.Backoff)
		}
	case s.Jitter == Decorrelated:
		if s.Factor != defaultFactor {
			v.refuse("factor", s.Factor, "leave it out: jitter decorrelated grows from base and the previous delay alone")
		}
	case !(s.Factor >= 1) || math.IsInf(s.Factor, 1):
		v.refuse("factor", s.Factor, "use a finite number of at least 1: 2 doubles the delay at every retry, 1 keeps it")
	case s.Factor != 1 && s.Factor < minGrowth:
		v.refuse("factor", s.Factor, "use 1 for a delay that does not grow, or at least %v", minGrowth)
	}
}

func (v *validation) delays(s Schedule) {
	switch {
	case s.Backoff != List:
		if len(s.Delays) > 0 {
			v.refuse("delays", s.Delays, "leave it out, or set backoff to list, the only kind that takes delays")
		}
	case len(s.Delays) == 0:
		v.refuse("delays", s.Delays, "list at least one delay, such as [10s, 1m, 10m]")
	}
	if s.Backoff == List {
		for i, d := range s.Delays {
			if d < time.Millisecond {
				v.refuse("delays", d, "use at least 1ms for delay %d of the list", i+1)
			}
		}
	}
}

// limits checks max and min_delay, alone and against what they bound. It names the field that was written, not
// the default that it collides with.
func (v *validation) limits(s, written Schedule) {
	if s.Max < time.Millisecond {
		v.refuse("max", s.Max, "use at least 1ms")
	} else if s.Backoff != List && s.Base > s.Max {
		if written.Max != 0 {
			v.refuse("max", s.Max, "use at least base, which is %v, or lower base", s.Base)
		} else {
			v.refuse("base", s.Base, "use at most max, which is %v unless set, or set max to at least %v", s.Max, s.Base)
		}
	}
	if s.MinDelay < 0 {
		v.refuse("min_delay", s.MinDelay, "use at least 1ms, or leave it out for %v", defaultMinDelay)
		return
	}
	// In milliseconds as Delay rounds them, so that no fraction of one hides an empty range.
	if longest := millis(s.Max); longest < 1 || (s.MinDelay <= s.Max && duration(longest) >= s.MinDelay) {
		return
	}
	switch {
	case written.MinDelay != 0:
		v.refuse("min_delay", s.MinDelay, "use at most max, which is %v, or raise max", s.Max)
	case written.Max != 0:
		v.refuse("max", s.Max, "use at least min_delay, which is %v unless set, or set min_delay to at most %v", s.MinDelay, s.Max)
	default:
		v.refuse("delays", s.Delays, "set min_delay, which is %v unless set, to at most the longest delay, %v", s.MinDelay, s.Max)
	}
}

func (v *validation) jitter(s Schedule) {
	switch {
	case s.Jitter == Proportional:
		if !(s.JitterRatio > 0 && s.JitterRatio <= 1) {
			v.refuse("jitter_ratio", s.JitterRatio, "use a number above 0 and at most 1: 0.2 spreads a delay by 20 %% either way")
		}
	case s.JitterRatio != defaultRatio && slices.Contains(Jitters(), s.Jitter):
		v.refuse("jitter_ratio", s.JitterRatio, "leave it out, or set jitter to proportional: %s has no ratio", s.Jitter)
	}
	if s.Jitter == Decorrelated && s.Backoff != Exponential && slices.Contains(Kinds(), s.Backoff) {
		v.refuse("jitter", s.Jitter, "use another jitter with backoff %s, or leave backoff out: "+
			"decorrelated grows from base and the previous delay alone", s.Backoff)
	}
}

func join[T ~string](all []T) string {
	var b strings.Builder
	for i, a := range all {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(string(a))
	}
	return b.String()
}
