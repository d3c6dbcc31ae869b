package conformance

import (
	"time"
)

// What a case can end as.
const (
	Passed  = "passed"
	Failed  = "failed"
	Skipped = "skipped"
)

// Report is what a run found.
type Report struct {
	Broker    string   `json:"broker"` // product and version
	Queue     string   `json:"queue"`
	QueueType string   `json:"queue_type"` // of the queue that was made; empty for one that was there
	Level     string   `json:"level"`
	Passed    int      `json:"passed"`
	Failed    int      `json:"failed"`
	Skipped   int      `json:"skipped"`
	Results   []Result `json:"results"`
	// Notes are what is worth knowing and no case's failure.
	Notes []string `json:"notes,omitempty"`
}

// Result is how one case ended.
type Result struct {
	Case     string        `json:"case"`
	Level    string        `json:"level"`
	About    string        `json:"about"`
	Status   string        `json:"status"` // Passed, Failed or Skipped
	Skipped  string        `json:"why_skipped,omitempty"`
	Failures []Failure     `json:"failures,omitempty"`
	Took     time.Duration `json:"-"`
}

// Failure is one thing that is not as it must be.
type Failure struct {
	// Attempt is which one of the message it was, from 1; 0 where it is about
	// the message as a whole.
	Attempt  int    `json:"attempt,omitempty"`
	What     string `json:"what"` // is wrong
	Expected string `json:"expected"`
	Actual   string `json:"actual"`
	Fix      string `json:"fix"` // what to change in the consumer
}

// CaseInfo describes a case.
type CaseInfo struct {
	Name  string `json:"name"`
	Level string `json:"level"`
	About string `json:"about"`
}

// Cases lists all cases, in the order in which they run.
func Cases() []CaseInfo {
	var all []CaseInfo
	for _, t := range allCases {
		all = append(all, CaseInfo{t.name, t.level, t.about})
	}
	return all
}

func (r *Report) add(res Result) {
	r.Results = append(r.Results, res)
	switch res.Status {
	case Passed:
		r.Passed++
	case Failed:
		r.Failed++
	case Skipped:
		r.Skipped++
	}
}
