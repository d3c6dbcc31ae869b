package conformance

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// runner goes through the cases.
type runner struct {
	cfg    Config
	bench  *bench
	ledger *ledger
	worker *supervisor
	report *Report
	up     bool // the worker is meant to run
	id     string
	count  int

	complete bool // all that was last waited for has come
}

// Run checks a consumer, and removes what it has made. The error says that it could
// not be checked; a consumer that fails is in the report. When ctx ends, the report
// has what was found so far.
func Run(ctx context.Context, cfg Config) (report *Report, err error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configure the conformance run: %w", err)
	}
	cfg.Progress(Progress{Text: "setting up the queue " + cfg.Queue})
	b, err := setUp(ctx, cfg)
	defer func() {
		if terr := b.tearDown(); terr != nil {
			err = errors.Join(err, fmt.Errorf("clean up: %w", terr))
		}
	}()
	if err != nil {
		return nil, err
	}
	r := &runner{cfg: cfg, bench: b, ledger: b.ledger, id: strings.ToLower(rand.Text()[:8]), report: &Report{Level: cfg.Level, Queue: cfg.Queue, Results: []Result{}}}
	product, _ := b.conn.Properties["product"].(string)
	version, _ := b.conn.Properties["version"].(string)
	r.report.Broker = strings.TrimSpace(product + " " + version)
	if b.madeQueue {
		r.report.QueueType = cfg.QueueType
	}
	r.worker = &supervisor{worker: cfg.Worker, env: Env{URL: cfg.WorkerURL, Queue: cfg.Queue, Exchange: cfg.failed()}}
	defer r.worker.stop()
	return r.report, r.run(ctx)
}

func (r *runner) run(ctx context.Context) error {
	if err := r.startWorker(ctx); err != nil {
		return err
	}
	var together, apart []*testCase
	for _, t := range r.cfg.selected() {
		if t.apart {
			apart = append(apart, t)
		} else {
			together = append(together, t)
		}
	}
	if len(together) > 0 {
		if err := r.together(ctx, together); err != nil {
			return err
		}
	}
	for _, t := range apart {
		if err := r.apart(ctx, t); err != nil {
			return fmt.Errorf("case %s: %w", t.name, err)
		}
	}
	return r.stopWorker(ctx)
}

// startWorker starts the worker where it is ours, and waits until it consumes.
func (r *runner) startWorker(ctx context.Context) error {
	if r.up {
		return r.bench.awaitConsumers(ctx, true, r.cfg.Patience, r.fatal())
	}
	r.up = true
	if r.cfg.Worker == nil {
		r.cfg.Progress(Progress{Text: fmt.Sprintf("waiting for a consumer on the queue %s; it publishes rich failures to the exchange %s", r.cfg.Queue, r.cfg.failed())})
	} else {
		r.cfg.Progress(Progress{Text: "starting the worker"})
		r.worker.start(ctx)
	}
	return r.bench.awaitConsumers(ctx, true, r.cfg.StartTimeout, r.fatal())
}

// mostEnds of a worker before it has come up are enough to give up.
const mostEnds = 5

func (r *runner) fatal() func() error {
	before, _, _ := r.worker.ended()
	return func() error {
		times, last, fatal := r.worker.ended()
		switch {
		case fatal != nil:
			return fatal
		case times-before >= mostEnds:
			return fmt.Errorf("the worker ended %d times before it consumed from queue %q, the last time with: %w", times-before, r.cfg.Queue, last)
		}
		return nil
	}
}

// stopWorker ends the worker where it is ours, and returns when it consumes no more.
func (r *runner) stopWorker(ctx context.Context) error {
	if r.cfg.Worker == nil || !r.up {
		return nil
	}
	r.worker.stop()
	r.up = false
	never := func() error { return nil }
	return r.bench.awaitConsumers(ctx, false, max(r.cfg.Patience, brokerPatience), never)
}

// finish ends the worker where it is ours, once it has had the time to settle, and
// returns what it has left unsettled in spite of that. The queue is empty then.
func (r *runner) finish(ctx context.Context) ([]amqp.Delivery, error) {
	if r.cfg.Worker == nil {
		return nil, nil
	}
	for again := false; ; again = true {
		if r.complete && r.up {
			// What is last in the queue goes through all its attempts. What was
			// before it is handled then, but for a worker that is slow just now.
			last := newProbe(r.newID("last")(), Reject)
			if err := r.publishAndWait(ctx, []*probe{last}); err != nil {
				return nil, err
			}
		}
		if err := r.stopWorker(ctx); err != nil {
			return nil, err
		}
		n, err := r.bench.ready()
		switch {
		case err != nil || n == 0:
			return nil, err
		case again:
			return r.bench.drain()
		}
		// It is given them again. What it leaves a second time it does not settle.
		if err := r.startWorker(ctx); err != nil {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(settleTime):
		}
	}
}

// wait returns when all is so, or when patience ends.
func (r *runner) wait(ctx context.Context, so func() bool) error {
	r.complete = false
	patience := time.NewTimer(r.cfg.Patience)
	defer patience.Stop()
	for {
		next := r.ledger.next()
		if so() {
			r.complete = true
			return nil
		}
		select {
		case <-next:
		case <-patience.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (r *runner) publishAndWait(ctx context.Context, probes []*probe) error {
	for _, p := range probes {
		if err := r.bench.publish(ctx, p); err != nil {
			return err
		}
	}
	waiting := probes
	return r.wait(ctx, func() bool {
		for len(waiting) > 0 && waiting[0].fate(r.cfg).over(r.ledger.of(waiting[0].id)) {
			waiting = waiting[1:]
		}
		return len(waiting) == 0
	})
}

// newID is given to one message.
func (r *runner) newID(name string) func() string {
	return func() string {
		r.count++
		return fmt.Sprintf("%s%s-%s-%d", idPrefix, r.id, name, r.count)
	}
}

func (r *runner) skips(t *testCase) bool {
	if t.skip == nil {
		return false
	}
	why := t.skip(r.cfg, r.bench)
	if why != "" {
		r.result(t, &check{}, why, time.Now())
	}
	return why != ""
}

// together publishes the messages of many cases at once: they take the time of one.
func (r *runner) together(ctx context.Context, cases []*testCase) error {
	began := time.Now()
	probes := map[*testCase][]*probe{}
	var all []*probe
	for _, t := range cases {
		if t.probes != nil {
			probes[t] = t.probes(r.cfg, r.newID(t.name))
			all = append(all, probes[t]...)
		}
	}
	r.cfg.Progress(Progress{Text: fmt.Sprintf("%d messages for %d cases", len(all), len(cases))})
	if err := r.publishAndWait(ctx, all); err != nil {
		return err
	}
	if err := r.settled(ctx, all); err != nil {
		return err
	}
	for _, t := range cases {
		if !r.skips(t) {
			c := &check{cfg: r.cfg}
			r.judge(t, c, probes[t])
			r.result(t, c, "", began)
		}
	}
	if n := len(r.ledger.strays()); n > 0 {
		r.report.Notes = append(r.report.Notes, fmt.Sprintf("%d messages came out of which nothing says what they are: neither header, property nor body is left", n))
	}
	return nil
}

// settled finds out what was not acknowledged.
func (r *runner) settled(ctx context.Context, probes []*probe) error {
	left, err := r.finish(ctx)
	if err != nil {
		return err
	}
	for _, p := range probes {
		p.left = contains(left, p.id)
	}
	if r.cfg.Worker != nil {
		return nil
	}
	if r.cfg.Management == nil {
		r.report.Notes = append(r.report.Notes, "whether all is acknowledged was not checked: that takes --run, or the management API")
		return nil
	}
	r.cfg.Progress(Progress{Text: "asking the management API whether all is acknowledged"})
	held := 0
	for deadline := time.Now().Add(max(r.cfg.Patience, 3*statisticsAge)); time.Now().Before(deadline); {
		select { // first, since the API would still tell of before
		case <-time.After(statisticsAge):
		case <-ctx.Done():
			return ctx.Err()
		}
		if held, err = r.cfg.Management.Held(ctx, r.cfg.Queue); err != nil {
			return fmt.Errorf("ask whether all is acknowledged: %w", err)
		}
		if held == 0 {
			return nil
		}
	}
	for _, p := range probes { // which of them is not to be seen: the case "handle" tells
		p.left = p.words[0] == Handle
	}
	r.report.Notes = append(r.report.Notes, fmt.Sprintf("%d messages are left unacknowledged", held))
	return nil
}

// statisticsAge is how old the statistics of the management API can be: they are
// collected every five seconds.
const statisticsAge = 6 * time.Second

func (r *runner) apart(ctx context.Context, t *testCase) error {
	if r.skips(t) {
		return nil
	}
	began := time.Now()
	if err := r.startWorker(ctx); err != nil {
		return err
	}
	r.cfg.Progress(Progress{Text: "case " + t.name})
	c := &check{cfg: r.cfg}
	probes := t.probes(r.cfg, r.newID(t.name))
	var err error
	if t.during != nil {
		err = t.during(ctx, r, c, probes)
	} else {
		err = r.publishAndWait(ctx, probes)
	}
	if err != nil {
		return err
	}
	left, err := r.finish(ctx)
	if err != nil {
		return err
	}
	for _, p := range probes {
		p.left = contains(left, p.id)
	}
	r.judge(t, c, probes)
	r.result(t, c, "", began)
	return nil
}

func (r *runner) judge(t *testCase, c *check, probes []*probe) {
	if t.all != nil {
		t.all(c, r, probes)
		return
	}
	for _, p := range probes {
		events := r.ledger.of(p.id)
		if t.endOnly {
			c.survived(p, events)
			continue
		}
		c.came(p, events)
		if t.each != nil {
			t.each(c, p, events)
		}
	}
}

func (r *runner) result(t *testCase, c *check, skipped string, began time.Time) {
	res := Result{Case: t.name, Level: t.level, About: t.about, Status: Passed, Failures: c.failures, Skipped: skipped, Took: time.Since(began)}
	switch {
	case skipped != "":
		res.Status = Skipped
	case len(c.failures) > 0:
		res.Status = Failed
	}
	r.report.add(res)
	r.cfg.Progress(Progress{Result: &res})
}
