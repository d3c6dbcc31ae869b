package backoff_test

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/hopback/hopback/backoff"
)

// fieldErrors takes an error of Validate apart.
func fieldErrors(t *testing.T, err error) []*backoff.FieldError {
	t.Helper()
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("%T is not a join of errors", err)
	}
	var all []*backoff.FieldError
	for _, e := range joined.Unwrap() {
		var f *backoff.FieldError
		if !errors.As(e, &f) {
			t.Fatalf("%T is not a *FieldError", e)
		}
		all = append(all, f)
	}
	return all
}

func TestWithDefaults(t *testing.T) {
	want := backoff.Schedule{
		Backoff: backoff.Exponential, Base: sec, Factor: 2, Max: 60 * sec, Jitter: backoff.Full, JitterRatio: 0.2, MinDelay: 100 * ms,
	}
	if got := (backoff.Schedule{}).WithDefaults(); !reflect.DeepEqual(got, want) {
		t.Errorf("the zero schedule: %+v, want %+v", got, want)
	}
	if got := want.WithDefaults(); !reflect.DeepEqual(got, want) {
		t.Errorf("a second time: %+v", got)
	}
	full := backoff.Schedule{
		Backoff: backoff.List, Base: 2, Factor: 3, Max: 4, Delays: []time.Duration{5}, Jitter: backoff.None, JitterRatio: 6, MinDelay: 7,
	}
	if got := full.WithDefaults(); !reflect.DeepEqual(got, full) {
		t.Errorf("a full schedule changed: %+v", got)
	}
	for _, test := range []struct {
		delays []time.Duration
		want   time.Duration
	}{
		{seconds(10, 600, 60), 600 * sec},
		{seconds(1), sec},
		{nil, 60 * sec},
		{seconds(-1), 60 * sec},
	} {
		if got := (backoff.Schedule{Backoff: backoff.List, Delays: test.delays}).WithDefaults().Max; got != test.want {
			t.Errorf("max of the list %v: %v, want %v", test.delays, got, test.want)
		}
	}
}

func TestValidateAccepts(t *testing.T) {
	for _, s := range []backoff.Schedule{
		{},
		backoff.Schedule{}.WithDefaults(),
		{Base: ms, MinDelay: ms, Max: ms},
		{Factor: 1},
		{Factor: 1.000001},
		{Factor: math.MaxFloat64},
		{Max: math.MaxInt64},
		{Base: 10 * ms}, // the floor lifts the first retries
		{Backoff: backoff.Linear},
		{Backoff: backoff.Constant, Base: 15 * sec, Jitter: backoff.None},
		{Backoff: backoff.Fibonacci, Jitter: backoff.Equal},
		{Backoff: backoff.List, Delays: seconds(10, 60, 600)},
		backoff.Schedule{Backoff: backoff.List, Delays: seconds(10, 60, 600)}.WithDefaults(),
		{Backoff: backoff.List, Delays: seconds(10, 60, 600), Max: 30 * sec},
		{Backoff: backoff.List, Delays: []time.Duration{ms, sec}},
		{Backoff: backoff.Linear, Factor: 2, JitterRatio: 0.2}, // the defaults, written out
		{Jitter: backoff.Proportional, JitterRatio: 1},
		{Jitter: backoff.Decorrelated, Factor: 2},
		{MinDelay: 60 * sec},
		{Delays: []time.Duration{}},
	} {
		if err := s.Validate(); err != nil {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

func TestValidateRefuses(t *testing.T) {
	list := backoff.Schedule{Backoff: backoff.List, Delays: seconds(10, 60, 600)}
	with := func(s backoff.Schedule, change func(*backoff.Schedule)) backoff.Schedule { change(&s); return s }
	for _, test := range []struct {
		s     backoff.Schedule
		field string
		value any
		fix   string
	}{
		{backoff.Schedule{Backoff: "expo"}, "backoff", backoff.Kind("expo"), "use one of exponential, linear, constant, fibonacci, list"},
		{backoff.Schedule{Backoff: "Exponential"}, "backoff", backoff.Kind("Exponential"), "use one of"},
		{backoff.Schedule{Jitter: "some"}, "jitter", backoff.Jitter("some"), "use one of none, full, equal, proportional, decorrelated"},
		{backoff.Schedule{Base: -sec}, "base", -sec, "use at least 1ms"},
		{backoff.Schedule{Base: 1}, "base", time.Duration(1), "use at least 1ms"},
		{backoff.Schedule{Base: 5 * time.Minute}, "base", 5 * time.Minute, "at most max, which is 1m0s unless set, or set max to at least 5m0s"},
		{backoff.Schedule{Base: 5 * sec, Max: 4 * sec}, "max", 4 * sec, "use at least base, which is 5s"},
		{backoff.Schedule{Backoff: backoff.Constant, Base: 2 * time.Hour}, "base", 2 * time.Hour, "set max to at least 2h0m0s"},
		{backoff.Schedule{Factor: 0.5}, "factor", 0.5, "use a finite number of at least 1"},
		{backoff.Schedule{Factor: -2}, "factor", -2.0, "use a finite number of at least 1"},
		{backoff.Schedule{Factor: math.Inf(1)}, "factor", math.Inf(1), "use a finite number"},
		{backoff.Schedule{Factor: math.Inf(-1)}, "factor", math.Inf(-1), "use a finite number"},
		{backoff.Schedule{Factor: math.Nextafter(1, 0)}, "factor", math.Nextafter(1, 0), "at least 1"},
		{backoff.Schedule{Factor: math.Nextafter(1, 2)}, "factor", math.Nextafter(1, 2), "or at least 1.000001"},
		{backoff.Schedule{Backoff: backoff.Linear, Factor: 3}, "factor", 3.0, "leave it out: backoff linear has no factor"},
		{with(list, func(s *backoff.Schedule) { s.Factor = 3 }), "factor", 3.0, "backoff list has no factor"},
		{backoff.Schedule{Jitter: backoff.Decorrelated, Factor: 3}, "factor", 3.0, "jitter decorrelated grows from base"},
		{backoff.Schedule{Max: -sec, MinDelay: ms}, "max", -sec, "use at least 1ms"},
		{backoff.Schedule{Backoff: backoff.List, Delays: seconds(1), Max: 1}, "max", time.Duration(1), "use at least 1ms"},
		{backoff.Schedule{Backoff: backoff.List}, "delays", []time.Duration(nil), "list at least one delay"},
		{backoff.Schedule{Backoff: backoff.List, Delays: seconds(1, 0)}, "delays", time.Duration(0), "use at least 1ms for delay 2 of the list"},
		{backoff.Schedule{Backoff: backoff.List, Delays: seconds(-1, 1)}, "delays", -sec, "delay 1 of the list"},
		{backoff.Schedule{Delays: seconds(1)}, "delays", seconds(1), "or set backoff to list"},
		{backoff.Schedule{Backoff: backoff.Constant, Delays: seconds(1)}, "delays", seconds(1), "or set backoff to list"},
		{with(list, func(s *backoff.Schedule) { s.Base = 2 * sec }), "base", 2 * sec, "leave it out: backoff list"},
		{backoff.Schedule{Jitter: backoff.Proportional, JitterRatio: -0.1}, "jitter_ratio", -0.1, "above 0 and at most 1: 0.2 spreads a delay by 20 %"},
		{backoff.Schedule{Jitter: backoff.Proportional, JitterRatio: 1.1}, "jitter_ratio", 1.1, "at most 1"},
		{backoff.Schedule{JitterRatio: 0.5}, "jitter_ratio", 0.5, "set jitter to proportional: full has no ratio"},
		{backoff.Schedule{Jitter: backoff.None, JitterRatio: -1}, "jitter_ratio", -1.0, "none has no ratio"},
		{backoff.Schedule{MinDelay: -1}, "min_delay", time.Duration(-1), "use at least 1ms, or leave it out for 100ms"},
		{backoff.Schedule{MinDelay: 2 * time.Minute}, "min_delay", 2 * time.Minute, "use at most max, which is 1m0s, or raise max"},
		{backoff.Schedule{MinDelay: 1300 * time.Microsecond, Base: ms, Max: 1600 * time.Microsecond}, "min_delay", 1300 * time.Microsecond, "use at most max"},
		{backoff.Schedule{Base: 10 * ms, Max: 50 * ms}, "max", 50 * ms, "which is 100ms unless set, or set min_delay to at most 50ms"},
		{backoff.Schedule{Backoff: backoff.List, Delays: []time.Duration{20 * ms, 50 * ms}}, "delays", []time.Duration{20 * ms, 50 * ms}, "set min_delay, which is 100ms unless set, to at most the longest delay, 50ms"},
		{backoff.Schedule{Backoff: backoff.Linear, Jitter: backoff.Decorrelated}, "jitter", backoff.Decorrelated, "use another jitter with backoff linear"},
		{with(list, func(s *backoff.Schedule) { s.Jitter = backoff.Decorrelated }), "jitter", backoff.Decorrelated, "use another jitter with backoff list"},
	} {
		err := test.s.Validate()
		all := fieldErrors(t, err)
		if len(all) != 1 {
			t.Errorf("%+v: %d errors, want one: %v", test.s, len(all), err)
			continue
		}
		e := all[0]
		if e.Field != test.field || !reflect.DeepEqual(e.Value, test.value) || !strings.Contains(e.Fix, test.fix) {
			t.Errorf("%+v:\n  %s %#v: %s\nwant\n  %s %#v: …%s…", test.s, e.Field, e.Value, e.Fix, test.field, test.value, test.fix)
		}
		if text := e.Error(); !strings.Contains(text, e.Field) || !strings.Contains(text, e.Fix) || !strings.Contains(text, strings.Trim(fmt.Sprint(e.Value), `"`)) {
			t.Errorf("the text lacks the field, the value or the fix: %s", text)
		}
	}
}

// NaN is not equal to itself, so it has no place in the table.
func TestValidateRefusesNaN(t *testing.T) {
	for _, s := range []backoff.Schedule{
		{Factor: math.NaN()},
		{Backoff: backoff.Linear, Factor: math.NaN()},
		{JitterRatio: math.NaN()},
		{Jitter: backoff.Proportional, JitterRatio: math.NaN()},
	} {
		all := fieldErrors(t, s.Validate())
		if len(all) != 1 || !strings.Contains(all[0].Error(), "is NaN: ") {
			t.Errorf("%+v: %v", s, s.Validate())
		}
	}
}

// One look finds everything: in the order of the fields' checks, each field once.
func TestValidateJoins(t *testing.T) {
	s := backoff.Schedule{Backoff: "x", Jitter: "y", Base: -1, Max: -1, MinDelay: -1, Delays: seconds(1)}
	var got []string
	for _, e := range fieldErrors(t, s.Validate()) {
		got = append(got, e.Field)
	}
	if want := []string{"backoff", "jitter", "base", "delays", "max", "min_delay"}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if s := (backoff.Schedule{Backoff: backoff.List, Delays: seconds(-1, 1, 0)}); len(fieldErrors(t, s.Validate())) != 2 {
		t.Errorf("two bad delays: %v", s.Validate())
	}
}

// Fixes work: what Validate names as the bound is accepted.
func TestFixesWork(t *testing.T) {
	for _, s := range []backoff.Schedule{
		{Base: 5 * time.Minute, Max: 5 * time.Minute},
		{Base: 10 * ms, Max: 50 * ms, MinDelay: 50 * ms},
		{Backoff: backoff.List, Delays: []time.Duration{20 * ms, 50 * ms}, MinDelay: 50 * ms},
		{Base: ms},
	} {
		if err := s.Validate(); err != nil {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

// The keys that FieldError speaks of are those of the YAML and JSON tags, and both are there for every field.
func TestTags(t *testing.T) {
	want := []string{"backoff", "base", "factor", "max", "delays", "jitter", "jitter_ratio", "min_delay"}
	typ := reflect.TypeFor[backoff.Schedule]()
	if typ.NumField() != len(want) {
		t.Fatalf("%d fields, want %d", typ.NumField(), len(want))
	}
	for i, key := range want {
		for _, tag := range []string{"yaml", "json"} {
			if got := typ.Field(i).Tag.Get(tag); got != key+",omitempty" {
				t.Errorf("%s tag of %s: %q", tag, typ.Field(i).Name, got)
			}
		}
	}
}

func ExampleSchedule_Validate() {
	s := backoff.Schedule{Factor: 0.5, Jitter: "ful", Max: 500 * time.Millisecond}
	err := s.Validate()
	fmt.Println(err)

	var field *backoff.FieldError
	if errors.As(err, &field) {
		fmt.Printf("first: %s\n", field.Field)
	}
	// Output:
	// schedule field jitter is "ful": use one of none, full, equal, proportional, decorrelated
	// schedule field factor is 0.5: use a finite number of at least 1: 2 doubles the delay at every retry, 1 keeps it
	// schedule field max is 500ms: use at least base, which is 1s, or lower base
	// first: jitter
}

func ExampleSchedule_WithDefaults() {
	s := backoff.Schedule{Backoff: backoff.List, Delays: []time.Duration{10 * time.Second, time.Minute}}.WithDefaults()
	fmt.Println(s.Backoff, s.Max, s.Jitter, s.MinDelay)
	// Output: list 1m0s full 100ms
}
