package simulate

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hopback/hopback"
)

// Who gives up early gets what is known by then, together with the reason.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	full, _ := Preset("full")
	none, _ := Preset("none")
	race := Race{
		Scenario:   Scenario{Traffic: []Traffic{{Messages: 500_000, For: time.Minute}}, Consumers: Consumers{Count: 100}},
		Contenders: []Contender{full, none}, Workers: 1,
		Progress: func(settled, of int64) {
			if of != 1_000_000 {
				t.Errorf("of %d", of)
			}
			if settled > 10_000 {
				cancel()
			}
		},
	}
	report, err := race.Run(ctx)
	if !errors.Is(err, context.Canceled) || report == nil {
		t.Fatalf("report %v, error %v", report, err)
	}
	first, second := report.Results[0], report.Results[1]
	if first.Complete || first.Handled < 10_000 || first.Sent != first.Handled+first.Parked+first.Waiting {
		t.Errorf("%d sent, %d handled, %d parked, %d waiting, complete %t", first.Sent, first.Handled, first.Parked, first.Waiting, first.Complete)
	}
	if second.Sent != 0 || second.Complete || second.Contender.Name != "none" {
		t.Errorf("the second had begun: %d sent", second.Sent)
	}
	if v := report.Verdict(); len(v) != 2 || report.Ranking()[0].Contender.Name != "full" {
		t.Errorf("verdict %q", v)
	}
}

// Everything that is wrong is said at once, before anything is simulated.
func TestMistakesAreNamed(t *testing.T) {
	s := Scenario{Traffic: []Traffic{{Messages: -1}}, Consumers: Consumers{Prefetch: 5000}, Dependency: Dependency{Errors: 2}}
	bad := Policy("", hopback.Policy{Schedule: hopback.Schedule{Factor: 0.5}})
	_, err := Run(context.Background(), s, bad)
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"traffic[0].messages", "consumers.prefetch", "dependency.errors", "name the policy", "factor"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	if _, err := Run(context.Background(), Outage(time.Second), Policy("a", hopback.Policy{}), Policy("a", hopback.Policy{})); err == nil {
		t.Error("two policies of one name")
	}
}

// What is advised achieves what was asked for.
func TestAdvice(t *testing.T) {
	if testing.Short() {
		t.Skip("simulates some 170 policies")
	}
	s := Outage(20 * time.Second)
	a, err := Advise(context.Background(), s, Goal{Peak: 3}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !a.Met || a.Tried < 100 {
		t.Fatalf("met %t, of %d policies", a.Met, a.Tried)
	}
	if err := a.Best.Validate(); err != nil {
		t.Error(err)
	}
	for seed := range uint64(5) {
		s.Seed = seed + 1
		report, err := Run(context.Background(), s, Policy("advised", a.Best))
		if err != nil {
			t.Fatal(err)
		}
		r := report.Results[0]
		if seed == 0 && (r.ParkedNeedlessly > 0 || r.Peak > 3) {
			t.Errorf("%d parked, peak %.1f", r.ParkedNeedlessly, r.Peak)
		}
		// The reserve of retries is for other days.
		if r.ParkedNeedlessly*1000 > r.Sent {
			t.Errorf("seed %d: %d of %d parked", s.Seed, r.ParkedNeedlessly, r.Sent)
		}
	}
	changes, err := Nudge(context.Background(), s, Policy("advised", a.Best))
	if err != nil || len(changes) < 6 || changes[0].What != "unchanged" {
		t.Errorf("%d changes, %v", len(changes), err)
	}
}
