package simulate

import (
	"math"
	"slices"
	"time"

	"github.com/hopback/hopback/simulate"
)

// series is a load curve brought to a number of columns.
type series struct {
	name, about string
	columns     []column
	result      *simulate.Result
}

// column is the highest load within its time, in multiples of the capacity, or
// in calls where that has no limit.
type column struct{ up, down float64 }

// view is what all charts of a report share.
type view struct {
	report *simulate.Report
	span   time.Duration // from the start
	most   float64       // of the y axis
	unit   float64       // a calls-a-step of 1 in y
	limit  bool          // whether there is a capacity
}

// newView chooses the axes: the time in which the calls are, but no more than
// twice that in which something happens to the dependency, and a load that
// shows the peak while it is up and not much more.
func newView(r *simulate.Report) view {
	v := view{report: r, limit: r.Scenario.Dependency.Capacity > 0}
	busy := time.Duration(0)
	if over, ok := r.Scenario.Over(); ok {
		busy = over
	}
	for _, t := range r.Scenario.Traffic {
		busy = max(busy, t.At+t.For)
	}
	most := time.Duration(0)
	down := 0.0
	var peaks []float64
	for i := range r.Results {
		one := &r.Results[i]
		for n, s := range one.Curve.Steps {
			if s.Calls > 0 {
				most = max(most, time.Duration(n+1)*one.Curve.Window)
			}
		}
		peaks, down = append(peaks, float64(one.PeakCalls)), max(down, mostDown(one))
	}
	v.span = max(min(most, max(2*busy, time.Minute)), r.Scenario.Window)
	v.unit = 1
	if v.limit {
		v.unit = r.Load(1)
	}
	// One policy beyond all measure does not flatten the others.
	slices.Sort(peaks)
	peak := 1.0
	if n := len(peaks); n > 1 {
		peak = min(peaks[n-1], 1.5*max(peaks[n-2], 1))
	} else if n == 1 {
		peak = peaks[0]
	}
	v.most = max(peak, min(down, 1.5*peak), 1) * v.unit
	if v.limit {
		v.most = max(v.most, 1.2)
	}
	return v
}

func mostDown(r *simulate.Result) float64 {
	most := uint32(0)
	for _, s := range r.Curve.Steps {
		most = max(most, s.Down)
	}
	return float64(most)
}

// series makes at most so many columns of a result.
func (v view) series(r *simulate.Result, columns int) series {
	steps := max(1, int((v.span+v.report.Scenario.Window-1)/v.report.Scenario.Window))
	columns = min(columns, steps)
	s := series{name: r.Contender.Name, about: r.Contender.Describe(), result: r, columns: make([]column, columns)}
	for i, step := range r.Curve.Steps {
		if i >= steps {
			break
		}
		c := &s.columns[i*columns/steps]
		c.up = max(c.up, float64(step.Calls-step.Down)*v.unit)
		c.down = max(c.down, float64(step.Down)*v.unit)
	}
	return s
}

// troubles are the spells of the dependency as shares of the span, 0 to 1.
type trouble struct {
	from, to float64
	down     bool
}

func (v view) troubles() []trouble {
	var all []trouble
	for _, sp := range v.report.Scenario.Dependency.Spells {
		t := trouble{from: sp.At.Seconds() / v.span.Seconds(), to: 1, down: sp.Capacity == 0 && !sp.Ramp}
		if sp.For > 0 {
			t.to = min(1, (sp.At+sp.For).Seconds()/v.span.Seconds())
		}
		if t.from < 1 {
			all = append(all, t)
		}
	}
	return all
}

// ticks are round times for an axis with about so many of them.
func ticks(span time.Duration, about int) []time.Duration {
	steps := []time.Duration{
		100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second,
		10 * time.Second, 20 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute,
		20 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour, 6 * time.Hour, 12 * time.Hour, 24 * time.Hour, 7 * 24 * time.Hour,
	}
	step := steps[len(steps)-1]
	for _, s := range steps {
		if span <= time.Duration(about)*s {
			step = s
			break
		}
	}
	var all []time.Duration
	for t := time.Duration(0); t <= span; t += step {
		all = append(all, t)
	}
	return all
}

// levels are round loads for an axis up to most.
func levels(most float64) []float64 {
	step := math.Pow(10, math.Floor(math.Log10(most)))
	switch {
	case most/step >= 5:
		step *= 2
	case most/step < 2:
		step /= 2
	}
	var all []float64
	for n := 1; float64(n)*step <= most; n++ {
		all = append(all, float64(n)*step)
	}
	return all
}
