package simulate

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

// Race is a scenario and the contenders that meet it.
type Race struct {
	Scenario   Scenario
	Contenders []Contender

	// Workers is how many contenders run at once. 0 means as many as there are
	// processors. Each may need 32 bytes for every message that is under way at
	// once.
	Workers int

	// Progress, where set, is told now and then how many messages of all
	// contenders together are handled or parked, of how many. It may be called
	// from several goroutines, one at a time.
	Progress func(settled, of int64)
}

// Run simulates the scenario under each contender. See [Race.Run].
func Run(ctx context.Context, s Scenario, contenders ...Contender) (*Report, error) {
	return Race{Scenario: s, Contenders: contenders}.Run(ctx)
}

// Run simulates. Every error of the scenario and of the contenders is reported
// at once, before anything is simulated. When ctx ends early it returns what is
// known by then together with the error of ctx: the results that were not
// finished have Complete unset, and those that had not begun sent nothing.
func (r Race) Run(ctx context.Context) (*Report, error) {
	s := r.Scenario.WithDefaults()
	errs := []error{s.Validate()}
	names := map[string]bool{}
	for _, c := range r.Contenders {
		errs = append(errs, c.Validate())
		if names[c.Name] {
			errs = append(errs, errors.New("policy "+c.Name+": two have this name; give each its own"))
		}
		names[c.Name] = true
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	report := &Report{Scenario: s, Results: make([]Result, len(r.Contenders))}
	workers := r.Workers
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	p := &progress{tell: r.Progress, each: make([]int64, len(r.Contenders)), of: s.Messages() * int64(len(r.Contenders))}
	var next atomic.Int64
	var all sync.WaitGroup
	for range min(workers, len(r.Contenders)) {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(r.Contenders); i = int(next.Add(1)) - 1 {
				if ctx.Err() != nil {
					report.Results[i] = Result{Contender: r.Contenders[i], Recovery: -1, Recovery99: -1}
					continue
				}
				result := newEngine(s, r.Contenders[i]).run(millis(s.Until), func(settled int64) bool {
					p.report(i, settled)
					return ctx.Err() != nil
				})
				result.summarize(&s)
				report.Results[i] = result
				if result.Complete {
					p.report(i, s.Messages())
				}
			}
		})
	}
	all.Wait()
	return report, ctx.Err()
}

// progress adds up what the contenders report.
type progress struct {
	mu   sync.Mutex
	tell func(settled, of int64)
	each []int64
	of   int64
}

func (p *progress) report(i int, settled int64) {
	if p.tell == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.each[i] = settled
	sum := int64(0)
	for _, n := range p.each {
		sum += n
	}
	p.tell(sum, p.of)
}

// Find is the result of a contender by its name, or nil.
func (r *Report) Find(name string) *Result {
	i := slices.IndexFunc(r.Results, func(one Result) bool { return one.Contender.Name == name })
	if i < 0 {
		return nil
	}
	return &r.Results[i]
}
