package demo

import (
	"fmt"
	"maps"
	"strings"
	"time"
)

// Result is what was counted, and what `--output json` prints. Every duration
// is in milliseconds; docs/demo.md explains the fields.
type Result struct {
	OK          bool     `json:"ok"`
	Problems    []string `json:"problems"`
	Interrupted bool     `json:"interrupted"`

	// Counted says that the broker could be asked what is left on it at the end.
	// Otherwise nothing is known of Waiting, Lost and ParkingDepth, which are 0.
	Counted bool `json:"broker_counted"`

	Broker   string `json:"broker_version"`
	BrokerMS int64  `json:"broker_start_ms"`
	TookMS   int64  `json:"took_ms"`

	Messages   int    `json:"messages"`
	OutageMS   int64  `json:"outage_ms"`
	Seed       uint64 `json:"seed"`
	Room       int    `json:"room_per_second"`
	MaxRetries int    `json:"max_retries"`

	Total  Totals        `json:"total"`
	Routes []RouteResult `json:"routes"`
}

// Totals is the ledger's balance: Sent = Handled + Parked + Waiting + Lost.
type Totals struct {
	Sent       int `json:"sent"`
	Handled    int `json:"handled"`
	Parked     int `json:"parked"`
	Waiting    int `json:"waiting"`
	Lost       int `json:"lost"`
	Duplicates int `json:"duplicates"`
}

// RouteResult is one side.
type RouteResult struct {
	Queue  string `json:"queue"`
	Jitter string `json:"jitter"`

	Totals
	HandledFirst int            `json:"handled_first_time"`
	HandledLater int            `json:"handled_after_retries"`
	ParkedBy     map[string]int `json:"parked_by_reason"`
	Undecodable  int            `json:"parked_undecodable"`
	ParkingDepth int            `json:"parking_depth"`
	Unknown      int            `json:"unknown"`

	Retries       int      `json:"retries"`
	FailedDown    int      `json:"calls_failed_down"`
	Refused       int      `json:"calls_refused_overloaded"`
	BusiestSecond int      `json:"busiest_second"`
	BusiestTenth  int      `json:"busiest_100ms"`
	LastHandledMS int64    `json:"last_handled_ms"`
	Lateness      lateness `json:"lateness"`
	PerSecond     []Second `json:"per_second"`
}

// Second is one bar.
type Second struct {
	Second  int `json:"second"`
	Retries int `json:"retries"`
	Handled int `json:"handled"`
	Refused int `json:"refused"`
	Failed  int `json:"failed"`
}

// result sums up. The story has ended.
func (s *story) result(version string, up time.Duration) *Result {
	r := &Result{
		Counted: s.counted, Broker: version, BrokerMS: up.Milliseconds(), Messages: s.o.Messages, OutageMS: s.o.Outage.Milliseconds(),
		Seed: s.o.Seed, Room: int(s.sides[0].payments.room), MaxRetries: s.sides[0].route.Policy.MaxRetries,
	}
	for _, sd := range s.sides {
		rr := sd.result(s.start)
		if !s.counted {
			rr.Waiting, rr.Lost, rr.ParkingDepth = 0, 0, 0
		}
		r.Routes = append(r.Routes, rr)
	}
	r.judge()
	return r
}

func (s *side) result(start time.Time) RouteResult {
	c := s.ledger.counts()
	rr := RouteResult{
		Queue: s.route.Queue, Jitter: string(s.route.Policy.Jitter),
		Totals: Totals{
			Sent: c.sent, Handled: c.handled(), Parked: c.parked, Waiting: s.waiting,
			Lost: max(0, c.open()-s.waiting), Duplicates: c.duplicates,
		},
		HandledFirst: c.first, HandledLater: c.afterRetries, ParkingDepth: s.parking, Unknown: c.unknown,
		BusiestSecond: s.retries.busiest(binsPerSecond), BusiestTenth: s.retries.busiest(1),
		Lateness: s.ledger.lateness(),
	}
	rr.FailedDown, rr.Refused = s.payments.counts()
	s.ledger.mu.Lock()
	rr.ParkedBy, rr.Undecodable, rr.Retries = maps.Clone(s.ledger.parked), s.ledger.body, s.ledger.retried
	if !s.ledger.last.IsZero() && !start.IsZero() {
		rr.LastHandledMS = max(0, s.ledger.last.Sub(start).Milliseconds())
	}
	s.ledger.mu.Unlock()
	rr.PerSecond = []Second{}
	for i, t := range s.retries.seconds() {
		rr.PerSecond = append(rr.PerSecond, Second{
			Second: i, Retries: t.sum(), Handled: t[handled], Refused: t[refused], Failed: t[failed],
		})
	}
	return rr
}

// judge adds up the routes and lists what does not balance.
func (r *Result) judge() {
	r.Total, r.Problems = Totals{}, []string{}
	problem := func(format string, args ...any) { r.Problems = append(r.Problems, fmt.Sprintf(format, args...)) }
	for _, rr := range r.Routes {
		t := &r.Total
		t.Sent += rr.Sent
		t.Handled += rr.Handled
		t.Parked += rr.Parked
		t.Waiting += rr.Waiting
		t.Lost += rr.Lost
		t.Duplicates += rr.Duplicates
		if rr.Sent != rr.Handled+rr.Parked {
			problem("%s: %d sent, but %d handled + %d parked", rr.Queue, rr.Sent, rr.Handled, rr.Parked)
		}
		if rr.Lost > 0 {
			problem("%s: %d lost", rr.Queue, rr.Lost)
		}
		if rr.Waiting > 0 {
			problem("%s: %d still waiting", rr.Queue, rr.Waiting)
		}
		if events := sum(rr.ParkedBy); r.Counted && rr.ParkingDepth != events {
			problem("%s: the parking queue holds %d, but %d were reported as parked", rr.Queue, rr.ParkingDepth, events)
		}
		if rr.Unknown > 0 {
			problem("%s: %d messages that nobody sent", rr.Queue, rr.Unknown)
		}
	}
	if r.Total.Sent == 0 {
		problem("nothing was sent")
	}
	if !r.Counted {
		problem("the broker could not be asked what is left on it")
	}
	r.OK = len(r.Problems) == 0 && !r.Interrupted
}

func sum(m map[string]int) (n int) {
	for _, v := range m {
		n += v
	}
	return n
}

// Err is what a Result that does not balance has as an error; nil if it does.
func (r *Result) Err() error {
	if r.OK || r.Interrupted {
		return nil
	}
	return fmt.Errorf("the ledger does not balance: %s", strings.Join(r.Problems, "; "))
}
