package demo

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/hopback/hopback"
)

func TestDependencyHasRoomForSoMany(t *testing.T) {
	d := newDependency(30)
	now := time.Unix(1000, 0)
	d.now = func() time.Time { return now }
	take := func(n int) (ok int) {
		for range n {
			if err := d.call(t.Context()); err == nil {
				ok++
			} else if !errors.Is(err, errOverloaded) {
				t.Fatal(err)
			}
		}
		return ok
	}
	if got := take(100); got != 100 {
		t.Errorf("while all is well: %d of 100 succeeded", got)
	}
	d.become(limited)
	for _, step := range []struct {
		wait time.Duration
		want int
	}{
		{0, 30},
		{0, 0},
		{500 * time.Millisecond, 15},
		{time.Hour, 30}, // no more than its room, however long it rested
	} {
		now = now.Add(step.wait)
		if got := take(100); got != step.want {
			t.Errorf("after %s: %d of 100 succeeded, want %d", step.wait, got, step.want)
		}
	}
	if down, refused := d.counts(); down != 0 || refused != 70+100+85+70 {
		t.Errorf("counted %d down and %d refused, want 0 and 325", down, refused)
	}
}

func TestCallsInFlightFailTogether(t *testing.T) {
	d := newDependency(1)
	d.become(silent)
	errs := make(chan error)
	for range 5 {
		go func() { errs <- d.call(context.Background()) }()
	}
	if err := d.waitHanging(t.Context(), 5); err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.call(gone); !errors.Is(err, context.Canceled) {
		t.Errorf("a call whose caller gave up: %v", err)
	}
	if err := d.waitHanging(gone, 6); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting for more than there are: %v", err)
	}
	select {
	case err := <-errs:
		t.Fatalf("answered during the silence: %v", err)
	default:
	}
	d.become(down)
	for range 5 {
		if err := <-errs; !errors.Is(err, errDown) {
			t.Errorf("a call in flight ended with %v, want %v", err, errDown)
		}
	}
	if err := d.call(t.Context()); !errors.Is(err, errDown) {
		t.Errorf("while it is down: %v", err)
	}
	if down, _ := d.counts(); down != 7 {
		t.Errorf("counted %d failures, want 7", down)
	}
}

func TestLoadIsTheSameForASeed(t *testing.T) {
	a, b, other := newLoad(100, 1), newLoad(100, 1), newLoad(100, 2)
	if !reflect.DeepEqual(a, b) {
		t.Error("two loads of one seed differ")
	}
	if reflect.DeepEqual(a, other) {
		t.Error("the loads of two seeds are the same")
	}
	if len(a.before) != 50 || len(a.herd) != 100 || len(a.odd) != oddOrders || a.size() != 150+oddOrders {
		t.Errorf("sizes %d, %d, %d, in all %d", len(a.before), len(a.herd), len(a.odd), a.size())
	}
	ids := map[string]bool{}
	kinds := map[string]int{}
	for _, part := range [][]message{a.before, a.herd, a.odd} {
		for _, m := range part {
			ids[m.id] = true
			var o order
			switch err := json.Unmarshal(m.body, &o); {
			case err != nil:
				kinds["poison"]++
			case o.Amount <= 0:
				kinds["invalid"]++
			default:
				kinds[o.Bank]++
			}
		}
	}
	want := map[string]int{"poison": poison, "invalid": invalid, bankGone: hopeless, bankBusy: 1, bankNotDue: 1, bankCrashes: 1, bankFine: 150}
	if len(ids) != a.size() || !reflect.DeepEqual(kinds, want) {
		t.Errorf("%d ids of %d messages; kinds %v, want %v", len(ids), a.size(), kinds, want)
	}
}

func TestHandlerGivesEveryVerdict(t *testing.T) {
	s := &side{payments: newDependency(1), ledger: newLedger()}
	h := s.handler()
	run := func(body, retryID string) (err error, panicked bool) {
		defer func() { panicked = recover() != nil }()
		return h.Handle(t.Context(), &hopback.Message{Body: []byte(body), RetryID: retryID}), false
	}
	for _, tc := range []struct {
		name, body string
		first      func(error) bool
		later      func(error) bool
	}{
		{"fine", `{"amount":1,"bank":"fine"}`, isNil, isNil},
		{"poison", `{"amount":`, is[*hopback.PermanentError], is[*hopback.PermanentError]},
		{"a rule", `{"amount":-1}`, is[*hopback.PermanentError], is[*hopback.PermanentError]},
		{"no bank", `{"amount":1,"bank":"gone"}`, isPlain, isPlain},
		{"429", `{"amount":1,"bank":"busy"}`, is[*hopback.RetryAfterError], isNil},
		{"not due", `{"amount":1,"bank":"not-due"}`, is[*hopback.SnoozeError], isNil},
	} {
		if err, _ := run(tc.body, ""); !tc.first(err) {
			t.Errorf("%s, first: %v", tc.name, err)
		}
		if err, _ := run(tc.body, "r-1"); !tc.later(err) {
			t.Errorf("%s, later: %v", tc.name, err)
		}
	}
	if _, panicked := run(`{"amount":1,"bank":"crashes"}`, ""); !panicked {
		t.Error("the crash did not panic")
	}
	if err, panicked := run(`{"amount":1,"bank":"crashes"}`, "r-1"); err != nil || panicked {
		t.Errorf("the crash, later: %v, panicked %t", err, panicked)
	}
	// Retries alone are in the bars.
	if got, want := s.retries.seconds()[0], (tally{handled: 4, failed: 3}); got != want {
		t.Errorf("retries %v, want %v", got, want)
	}
}

func isNil(err error) bool { return err == nil }

func is[E error](err error) bool {
	var e E
	return errors.As(err, &e)
}

func isPlain(err error) bool {
	return err != nil && !is[*hopback.PermanentError](err) && !is[*hopback.RetryAfterError](err) && !is[*hopback.SnoozeError](err)
}

func TestPolicyOutlastsTheOutage(t *testing.T) {
	for _, outage := range []time.Duration{minOutage, 5 * time.Second, 9 * time.Second, maxOutage} {
		o := DefaultOptions()
		o.Outage = outage
		p := o.policy(hopback.NoJitter)
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		// Without jitter the herd knocks at 3 s, 9 s, 15 s, …: four times after
		// the outage, with room for 30 % each time.
		at, after := time.Duration(0), 0
		for n := range int64(p.MaxRetries) {
			if at += p.Ceiling(n + 1); at > outage {
				after++
			}
		}
		if after != 4 || at != longest(p) {
			t.Errorf("outage %s: %d knocks after it, want 4; the last at %s, longest %s", outage, after, at, longest(p))
		}
	}
	if p := DefaultOptions().policy(hopback.Full); time.Duration(p.MaxRetries)*p.MinDelay < 5*time.Second {
		t.Errorf("%d retries of at least %s can all be spent within the outage", p.MaxRetries, p.MinDelay)
	}
}

func TestOptionsNameWhatCannotWork(t *testing.T) {
	if err := DefaultOptions().Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	for _, tc := range []struct {
		change func(*Options)
		want   string
	}{
		{func(o *Options) { o.Messages = 0 }, "messages: 0 cannot work: use 10 to 1000"},
		{func(o *Options) { o.Messages = 1001 }, "messages: 1001 cannot work"},
		{func(o *Options) { o.Outage = time.Millisecond }, "outage: 1ms cannot work: use 1s to 30s"},
		{func(o *Options) { o.Outage = time.Hour }, "outage: 1h0m0s cannot work"},
	} {
		o := DefaultOptions()
		tc.change(&o)
		if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: %v, want %q", o, err, tc.want)
		}
	}
}
