package demo

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hopback/hopback"
)

func event(id string, retried bool) hopback.Event {
	e := hopback.Event{MessageID: id, Attempt: 1}
	if retried {
		e.RetryID, e.Attempt = "r-"+id, 2
	}
	return e
}

func TestLedgerPutsEveryMessageInOnePlace(t *testing.T) {
	l := newLedger()
	for _, id := range []string{"first", "later", "snoozed", "parked", "twice", "both", "open"} {
		l.send(id)
	}
	now := time.Now()
	l.handle(hopback.Handled{Event: event("first", false)}, now)
	l.handle(hopback.Handled{Event: event("later", true)}, now)
	l.handle(hopback.Handled{Event: hopback.Event{MessageID: "snoozed", RetryID: "r", Attempt: 1}}, now)
	l.park(hopback.Parked{Event: event("parked", true), Reason: "permanent", Err: fmt.Errorf("body: %w", &hopback.DecodeError{Err: errors.New("cut off")})})
	l.handle(hopback.Handled{Event: event("twice", true)}, now)
	l.handle(hopback.Handled{Event: event("twice", true)}, now)
	l.handle(hopback.Handled{Event: event("both", true)}, now)
	l.park(hopback.Parked{Event: event("both", true), Reason: "exhausted", Err: errors.New("x")})
	l.handle(hopback.Handled{Event: event("stranger", false)}, now)

	got := l.counts()
	want := counts{sent: 7, first: 1, afterRetries: 4, parked: 1, duplicates: 2, unknown: 1}
	if got != want {
		t.Errorf("counts:\n got %+v\nwant %+v", got, want)
	}
	if got.open() != 1 || got.handled() != 5 {
		t.Errorf("open %d, handled %d; want 1 and 5", got.open(), got.handled())
	}
	if l.parked["permanent"] != 1 || l.parked["exhausted"] != 1 || l.body != 1 {
		t.Errorf("parked by reason %v, undecodable %d", l.parked, l.body)
	}
}

func TestPercentileIsTheNearestRank(t *testing.T) {
	var hundred []time.Duration
	for i := range 100 {
		hundred = append(hundred, time.Duration(i+1))
	}
	for _, tc := range []struct {
		sorted []time.Duration
		p      int
		want   time.Duration
	}{
		{nil, 50, 0},
		{[]time.Duration{7}, 50, 7},
		{[]time.Duration{7}, 99, 7},
		{[]time.Duration{1, 2}, 50, 1},
		{[]time.Duration{1, 2}, 99, 2},
		{[]time.Duration{1, 2, 3}, 50, 2},
		{hundred, 50, 50},
		{hundred, 99, 99},
		{hundred, 100, 100},
		{hundred, 0, 1},
	} {
		if got := percentile(tc.sorted, tc.p); got != tc.want {
			t.Errorf("percentile %d of %d values: got %d, want %d", tc.p, len(tc.sorted), got, tc.want)
		}
	}
}

func TestLatenessIsInMilliseconds(t *testing.T) {
	l := newLedger()
	if got := l.lateness(); got != (lateness{}) {
		t.Errorf("of nothing: %+v", got)
	}
	for _, d := range []time.Duration{20 * time.Millisecond, -time.Millisecond, 3260 * time.Microsecond} {
		l.late(d)
	}
	if got, want := l.lateness(), (lateness{Count: 3, Min: -1, P50: 3.3, P99: 20, Max: 20}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestSeriesFindsASpikeWhereverItLies(t *testing.T) {
	var s series
	start := time.Now()
	s.begin(start)
	after := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	s.add(after(-300), failed) // before the start: counts as of the start
	for range 60 {
		s.add(after(2950), failed)
		s.add(after(3050), refused)
	}
	s.add(after(4500), handled)

	got := s.seconds()
	want := []tally{{failed: 1}, {}, {failed: 60}, {refused: 60}, {handled: 1}}
	if len(got) != len(want) {
		t.Fatalf("%d seconds, want %d: %v", len(got), len(want), got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("second %d: got %v, want %v", i, got[i], want[i])
		}
	}
	if n := s.busiest(binsPerSecond); n != 120 {
		t.Errorf("busiest second: %d, want 120, which lie across two seconds of the chart", n)
	}
	if n := s.busiest(1); n != 60 {
		t.Errorf("busiest tenth: %d, want 60", n)
	}
	if n := new(series).busiest(1); n != 0 {
		t.Errorf("busiest of nothing: %d", n)
	}
}
