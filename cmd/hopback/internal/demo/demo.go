// Package demo is `hopback demo`: the whole of Hopback in half a minute, on a
// private broker that it starts and stops.
//
// Two routes run side by side, the same but for their jitter, each with the
// same orders and a payment service of its own that goes down and comes back
// with room for few. A ledger follows every message by its id.
//
// The parts: load.go makes the messages, dependency.go is the payment service,
// handler.go the consumer's code, story.go the order of events, ledger.go and
// series.go what is counted as it happens, look.go what is left on the broker,
// result.go the outcome, and bars.go, view.go and table.go what is shown.
package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/backoff"
	"github.com/hopback/hopback/rabbittest"
)

// Options says which story to tell.
type Options struct {
	// Messages is how many fail together on each route when the payment service
	// goes down. Half as many more are handled before.
	Messages int

	// Outage is how long the payment service is down.
	Outage time.Duration

	// Version picks an installed broker, as in rabbittest.Options.
	Version string

	// Seed orders the load. The delays are drawn by the library, and differ
	// from run to run.
	Seed uint64

	// View is shown what happens. nil means nobody looks.
	View View

	// Keep, where set, is called at the end of a story that was told in full, while
	// the broker still runs, with the broker's URL. The broker is stopped when it
	// returns.
	Keep func(url string, res *Result)
}

// DefaultOptions are those of the story that docs/demo.md tells.
func DefaultOptions() Options { return Options{Messages: 100, Outage: 5 * time.Second, Seed: 1} }

// The bounds of the options: more orders than a quorum queue's prefetch allows
// could not fail together, and a longer outage would not be a demo.
const (
	minMessages, maxMessages = 10, 1000
	minOutage, maxOutage     = time.Second, 30 * time.Second
)

// Validate names the option that cannot work, its value and the fix.
func (o Options) Validate() error {
	var errs []error
	if o.Messages < minMessages || o.Messages > maxMessages {
		errs = append(errs, fmt.Errorf("messages: %d cannot work: use %d to %d", o.Messages, minMessages, maxMessages))
	}
	if o.Outage < minOutage || o.Outage > maxOutage {
		errs = append(errs, fmt.Errorf("outage: %s cannot work: use %s to %s", o.Outage, minOutage, maxOutage))
	}
	return errors.Join(errs...)
}

// policy is what both routes share. Two numbers are chosen for the picture: a
// base of 3 s, because what returns within one second looks the same in a chart
// of seconds, with jitter or without, and a floor of 1 s, so that five retries
// with full jitter cannot all be spent within the outage.
func (o Options) policy(jitter backoff.Jitter) hopback.Policy {
	p := hopback.Policy{
		Name: "demo-" + string(jitter),
		Schedule: hopback.Schedule{
			Backoff: hopback.Exponential, Base: 3 * time.Second, Factor: 2, Max: 6 * time.Second,
			MinDelay: time.Second, Jitter: jitter,
		},
		// Nobody asks for more, and every decade more is nine more queues.
		MaxRetryAfter: 30 * time.Second,
	}
	// Enough to outlast the outage without jitter, and four times more: the
	// service takes 30 % of the herd at a time.
	var at time.Duration
	n := int64(0)
	for at <= o.Outage {
		n++
		at += p.Ceiling(n)
	}
	p.MaxRetries = int(n-1) + 4
	return p
}

// longest is how long a message of the policy lives that fails every time.
func longest(p hopback.Policy) time.Duration {
	var sum time.Duration
	for n := range int64(p.MaxRetries) {
		sum += p.Ceiling(n + 1)
	}
	return sum
}

// ErrInterrupted is the cause of a demo whose context ended. The Result that
// comes with it holds what was counted so far.
var ErrInterrupted = errors.New("interrupted")

// Run tells the story and returns what was counted. The broker that it starts
// is stopped when it returns, whatever happens.
//
// When ctx ends the error is ErrInterrupted. A Result that does not balance is
// no error: see Result.OK.
func Run(ctx context.Context, o Options) (res *Result, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.View == nil {
		o.View = noView{}
	}
	began := time.Now()
	o.View.Progress("starting a private RabbitMQ")
	// Nothing here needs the management plugin, which doubles the start.
	broker, err := rabbittest.Run(ctx, rabbittest.Options{Version: o.Version, NoManagement: true})
	if err != nil {
		o.View.Close()
		if ctx.Err() != nil {
			return nil, ErrInterrupted
		}
		return nil, fmt.Errorf("start a private broker: %w", err)
	}
	up := time.Since(began)
	defer func() {
		o.View.Progress("stopping RabbitMQ")
		cerr := broker.Close()
		o.View.Close()
		if cerr != nil {
			err = errors.Join(err, fmt.Errorf("stop the private broker: %w", cerr))
		}
		if res != nil {
			res.TookMS = time.Since(began).Milliseconds()
		}
	}()
	o.View.Event(fmt.Sprintf("RabbitMQ %s is up after %.1f s, private, on 127.0.0.1 alone", broker.Version(), up.Seconds()))

	s, err := newStory(o, broker.URL())
	if err != nil {
		return nil, err
	}
	err = s.run(ctx)
	res = s.result(broker.Version(), up)
	if ctx.Err() != nil {
		o.View.End("interrupted")
		res.Interrupted = true
		res.judge()
		return res, ErrInterrupted
	}
	if err != nil {
		res.Problems = append(res.Problems, err.Error())
		res.OK = false
		if log := s.log.String(); log != "" {
			err = fmt.Errorf("%w\nthe library's log ends with:\n%s", err, log)
		}
	}
	if err == nil && o.Keep != nil {
		o.View.Close()
		o.Keep(broker.URL(), res)
	}
	return res, err
}
