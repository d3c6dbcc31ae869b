package simulate

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/hopback/hopback/simulate"
)

// document is a report for programs. Times are in milliseconds, -1 for what did
// not come about; loads in multiples of the capacity, 0 where that has no limit.
type document struct {
	Scenario    string        `json:"scenario"`
	About       string        `json:"about"`
	Seed        uint64        `json:"seed"`
	Capacity    float64       `json:"capacity_per_second"`
	WindowMS    int64         `json:"window_ms"`
	Interrupted bool          `json:"interrupted"`
	Verdict     []string      `json:"verdict"`
	Ranking     []string      `json:"ranking"`
	Policies    []policyEntry `json:"policies"`
}

type policyEntry struct {
	Name             string  `json:"name"`
	About            string  `json:"about"`
	Source           string  `json:"source"`
	Complete         bool    `json:"complete"`
	EndedMS          int64   `json:"ended_ms"`
	Sent             int64   `json:"sent"`
	Handled          int64   `json:"handled"`
	Parked           int64   `json:"parked"`
	ParkedNeedlessly int64   `json:"parked_needlessly"`
	Waiting          int64   `json:"waiting"`
	Calls            int64   `json:"calls"`
	Wasted           int64   `json:"calls_wasted"`
	WastedDown       int64   `json:"calls_while_down"`
	Peak             float64 `json:"peak_load"`
	PeakAtMS         int64   `json:"peak_at_ms"`
	PeakCalls        int64   `json:"peak_calls"`
	PeakDown         float64 `json:"peak_load_while_down"`
	P99              float64 `json:"p99_load"`
	RecoveryMS       int64   `json:"backlog_gone_ms"`
	Recovery99MS     int64   `json:"backlog_gone_99_ms"`
	LatencyP50MS     int64   `json:"latency_p50_ms"`
	LatencyP95MS     int64   `json:"latency_p95_ms"`
	LatencyP99MS     int64   `json:"latency_p99_ms"`
	LatencyMaxMS     int64   `json:"latency_max_ms"`
	WaitingMost      int64   `json:"open_most"`
	HeldMost         int64   `json:"in_slots_most"`
	RetriesMost      int64   `json:"retries_most"`
	BrokerOps        int64   `json:"broker_operations"`
	Hops             int64   `json:"broker_hops"`
	StepMS           int64   `json:"step_ms"`
	Steps            []step  `json:"steps"`
}

type step struct {
	AtMS    int64  `json:"at_ms"`
	Calls   uint32 `json:"calls"`
	Retries uint32 `json:"retries"`
	Down    uint32 `json:"calls_while_down"`
	Handled uint32 `json:"handled"`
	Failed  uint32 `json:"failed"`
	Waiting uint32 `json:"open"`
}

// Data is a report for JSON.
func Data(r *simulate.Report, words []string, interrupted bool) any {
	d := document{
		Scenario: r.Scenario.Name, About: r.Scenario.About, Seed: r.Scenario.Seed, Capacity: r.Scenario.Dependency.Capacity,
		WindowMS: r.Scenario.Window.Milliseconds(), Interrupted: interrupted, Verdict: words,
		Ranking: []string{}, Policies: []policyEntry{},
	}
	for _, one := range r.Ranking() {
		d.Ranking = append(d.Ranking, one.Contender.Name)
	}
	for i := range r.Results {
		d.Policies = append(d.Policies, entry(&r.Results[i]))
	}
	return d
}

// mostSteps is how many steps of a curve are listed: longer ones are put
// together.
const mostSteps = 2000

func entry(r *simulate.Result) policyEntry {
	e := policyEntry{
		Name: r.Contender.Name, About: r.Contender.Describe(), Source: r.Contender.Source, Complete: r.Complete, EndedMS: r.Ended.Milliseconds(),
		Sent: r.Sent, Handled: r.Handled, Parked: r.Parked, ParkedNeedlessly: r.ParkedNeedlessly, Waiting: r.Waiting,
		Calls: r.Calls, Wasted: r.Wasted, WastedDown: r.WastedDown,
		Peak: round(r.Peak), PeakAtMS: r.PeakAt.Milliseconds(), PeakCalls: r.PeakCalls, PeakDown: round(r.PeakDown), P99: round(r.P99),
		RecoveryMS: millis(r.Recovery), Recovery99MS: millis(r.Recovery99),
		LatencyP50MS: r.Latency.P50.Milliseconds(), LatencyP95MS: r.Latency.P95.Milliseconds(),
		LatencyP99MS: r.Latency.P99.Milliseconds(), LatencyMaxMS: r.Latency.Max.Milliseconds(),
		WaitingMost: r.WaitingMost, HeldMost: r.HeldMost, RetriesMost: r.RetriesMost,
		BrokerOps: r.Operations.Total(), Hops: r.Operations.Hops, Steps: []step{},
	}
	group := (len(r.Curve.Steps) + mostSteps - 1) / mostSteps
	e.StepMS = int64(max(group, 1)) * r.Curve.Window.Milliseconds()
	for i, s := range r.Curve.Steps {
		if i%group == 0 {
			e.Steps = append(e.Steps, step{AtMS: int64(i) * r.Curve.Window.Milliseconds()})
		}
		last := &e.Steps[len(e.Steps)-1]
		last.Calls += s.Calls
		last.Retries += s.Retries
		last.Down += s.Down
		last.Handled += s.Handled
		last.Failed += s.Failed
		last.Waiting = max(last.Waiting, s.Waiting)
	}
	return e
}

func millis(d time.Duration) int64 {
	if d < 0 {
		return -1
	}
	return d.Milliseconds()
}

// round keeps four digits behind the point.
func round(f float64) float64 { return float64(int64(f*1e4+0.5)) / 1e4 }

// JSON writes a report for programs.
func JSON(out io.Writer, r *simulate.Report, words []string, interrupted bool) error {
	e := json.NewEncoder(out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(Data(r, words, interrupted))
}

// CSV writes the curves: a line for each step of each policy.
func CSV(out io.Writer, r *simulate.Report) error {
	w := csv.NewWriter(out)
	err := w.Write([]string{"policy", "at_ms", "calls", "retries", "calls_while_down", "handled", "failed", "open", "load"})
	for i := range r.Results {
		one := &r.Results[i]
		for n, s := range one.Curve.Steps {
			if err != nil {
				return err
			}
			loaded := ""
			if r.Scenario.Dependency.Capacity > 0 {
				loaded = fmt.Sprintf("%.4f", r.Load(s.Calls))
			}
			u := func(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
			err = w.Write([]string{
				one.Contender.Name, strconv.FormatInt(int64(n)*one.Curve.Window.Milliseconds(), 10),
				u(s.Calls), u(s.Retries), u(s.Down), u(s.Handled), u(s.Failed), u(s.Waiting), loaded,
			})
		}
	}
	w.Flush()
	if err == nil {
		err = w.Error()
	}
	return err
}
