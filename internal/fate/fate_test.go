package fate

import (
	"testing"
	"time"

	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/backoff"
)

func TestDecide(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000).UTC()
	limits := Limits{
		Schedule:   backoff.Schedule{Base: time.Second, Max: time.Minute, Jitter: backoff.None}.WithDefaults(),
		MaxRetries: 5, MaxAge: time.Hour, MaxRetryAfter: 10 * time.Minute,
	}
	none := limits
	none.MaxRetries = 0
	ageless := limits
	ageless.MaxAge = -1
	for _, tt := range []struct {
		name   string
		limits Limits
		ask    Ask
		rec    attempt.Record
		delay  time.Duration
		exact  bool
		reason string
	}{
		{"first failure", limits, Ask{}, attempt.Record{}, time.Second, true, ""},
		{"third failure", limits, Ask{}, attempt.Record{Count: 2}, 4 * time.Second, true, ""},
		{"the last retry", limits, Ask{}, attempt.Record{Count: 4}, 16 * time.Second, true, ""},
		{"after the last", limits, Ask{}, attempt.Record{Count: 5}, 0, false, attempt.ReasonExhausted},
		{"no retries", none, Ask{}, attempt.Record{}, 0, false, attempt.ReasonExhausted},
		{"permanent", limits, Ask{Park: true}, attempt.Record{}, 0, false, attempt.ReasonPermanent},
		{"permanent after the last", limits, Ask{Park: true}, attempt.Record{Count: 9}, 0, false, attempt.ReasonPermanent},
		{"asked for", limits, Ask{Chosen: true, After: 90 * time.Second}, attempt.Record{}, 90 * time.Second, true, ""},
		{"asked for too much", limits, Ask{Chosen: true, After: 24 * time.Hour}, attempt.Record{}, 10 * time.Minute, true, ""},
		{"asked for too little", limits, Ask{Chosen: true}, attempt.Record{}, 100 * time.Millisecond, true, ""},
		{"asked for after the last", limits, Ask{Chosen: true, After: time.Second}, attempt.Record{Count: 5}, 0, false, attempt.ReasonExhausted},
		{"free after the last", limits, Ask{Free: true, Chosen: true, After: time.Second}, attempt.Record{Count: 5}, time.Second, true, ""},
		{"too old", limits, Ask{}, attempt.Record{Count: 1, FirstFailedAt: now.Add(-time.Hour)}, 0, false, attempt.ReasonExpired},
		{"old, without a limit", ageless, Ask{}, attempt.Record{Count: 1, FirstFailedAt: now.Add(-1000 * time.Hour)}, 2 * time.Second, true, ""},
		{"due after its deadline", limits, Ask{}, attempt.Record{Deadline: now.Add(time.Second)}, 0, false, attempt.ReasonExpired},
		{"due before its deadline", limits, Ask{}, attempt.Record{Deadline: now.Add(time.Second + 1)}, time.Second, true, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, reason := tt.limits.Decide(tt.ask, tt.rec, now, func() uint64 { return 7 })
			if got.Delay != tt.delay || got.Exact != tt.exact || reason != tt.reason {
				t.Errorf("got %v exact %t %q, want %v exact %t %q", got.Delay, got.Exact, reason, tt.delay, tt.exact, tt.reason)
			}
		})
	}
}

// With jitter the delay may be rounded either way, between the bounds.
func TestDecideWithJitter(t *testing.T) {
	l := Limits{Schedule: backoff.Schedule{}.WithDefaults(), MaxRetries: 100, MaxAge: -1}
	for n := range int32(100) {
		got, reason := l.Decide(Ask{}, attempt.Record{Count: n}, time.Now(), backoff.Random)
		if reason != "" || got.Exact || got.Delay < got.Min || got.Delay > got.Max || got.Min != l.Schedule.MinDelay || got.Max != l.Schedule.Max {
			t.Fatalf("retry %d: %+v %q", n+1, got, reason)
		}
	}
}
