package conformance

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/router"
	"github.com/hopback/hopback/topology"
)

// DefaultPrefix begins the names of what a run makes for itself. It is not the
// prefix of anybody's router, so that a run and they do not meet.
const DefaultPrefix = "hop-conformance"

// Config is what shall be checked, and how the broker is reached.
type Config struct {
	// URL is the broker's AMQP URL.
	URL string

	// Worker is the consumer under test; see Command. nil means that it runs
	// elsewhere: then Run waits until it has come up on the queue.
	Worker Worker

	// WorkerURL is the URL that the worker connects with. Empty means URL. With
	// another user in it, the case "user-id" can be checked.
	WorkerURL string

	// Restarted says of a consumer that runs elsewhere that something starts it
	// again after a crash. Otherwise the cases that make it crash are skipped.
	Restarted bool

	// Level is Basic (the default), Rich or Exact.
	Level string

	// Cases are the names of the cases to run, in place of all of the level.
	Cases []string

	// QueueType is that of the queue which is made, "quorum" (the default) or
	// "classic".
	QueueType string

	// Queue is an existing work queue to use, whose failures go to the router. It
	// must be empty, unless Force is set. Empty means one that is made and
	// removed, DefaultPrefix + "." + QueueType. A queue of that name that does not exist is
	// made and removed as well.
	Queue string
	Force bool

	// Prefix begins the names of the router's exchanges and queues. Empty means
	// DefaultPrefix.
	Prefix string

	// RouterRuns says that a router of that Prefix runs already and serves the
	// queue, by Policy. Otherwise Run has one of its own, with a policy of its own.
	RouterRuns bool
	Policy     hopback.Policy

	// Patience is how long to wait for what must come. It is no measure of speed:
	// nothing waits for it when all is well. 0 means 20 s, or more where the
	// policy's delays are longer.
	Patience time.Duration

	// StartTimeout is how long to wait for a consumer on the queue. 0 means 30 s
	// with a Worker, and for ever without.
	StartTimeout time.Duration

	// Management is how to see whether a consumer that runs elsewhere has
	// acknowledged. Without it, and without a Worker, that is not checked.
	Management *topology.Management

	// Logger hears of the router that a run has of its own. nil is silent.
	Logger *slog.Logger

	// Progress is told what is going on, and each result once. It must not block.
	Progress func(Progress)
}

// Progress is one step of a run.
type Progress struct {
	Text   string  // for a person, one line; empty where Result is set
	Result *Result // of a case that is over
}

// own reports whether the names are the run's alone.
func (c Config) own() bool { return c.Prefix == DefaultPrefix && !c.RouterRuns }

// WithDefaults returns the configuration with every zero field replaced by its
// default.
func (c Config) WithDefaults() Config {
	set := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	set(&c.WorkerURL, c.URL)
	set(&c.Level, Basic)
	set(&c.QueueType, "quorum")
	if c.Prefix == "" && c.RouterRuns {
		c.Prefix = hopback.DefaultPrefix
	}
	set(&c.Prefix, DefaultPrefix)
	set(&c.Queue, DefaultPrefix+"."+c.QueueType)
	if c.RouterRuns {
		c.Policy = c.Policy.WithDefaults()
	} else {
		c.Policy = ownPolicy()
	}
	if c.Patience == 0 {
		c.Patience = max(20*time.Second, 2*c.longest())
	}
	if c.StartTimeout == 0 && c.Worker != nil {
		c.StartTimeout = 30 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Progress == nil {
		c.Progress = func(Progress) {}
	}
	return c
}

// The rungs of the router that a run has of its own.
const (
	shortDelay = 100 * time.Millisecond
	longDelay  = time.Second
)

// asked is what the cases ask for by x-retry-after: it waits in the long rung.
const asked = 600 * time.Millisecond

// ownPolicy retries twice.
func ownPolicy() hopback.Policy {
	return hopback.Policy{
		Name: "conformance", MaxRetries: 2, MaxRetryAfter: longDelay,
		Schedule: hopback.Schedule{
			Backoff: hopback.Constant, Base: shortDelay, Max: longDelay, Jitter: hopback.NoJitter,
		},
	}.WithDefaults()
}

// longest is how long the retries of one message can take together.
func (c Config) longest() time.Duration {
	p := c.Policy.Schedule
	each := p.Max
	if p.Backoff == hopback.Constant {
		each = p.Base
	}
	return time.Duration(max(c.Policy.MaxRetries, 0))*each + asked
}

// Validate reports every setting that cannot work.
func (c Config) Validate() error {
	c = c.WithDefaults()
	var errs []error
	check := func(ok bool, field string, value any, fix string) {
		if !ok {
			errs = append(errs, &hopback.ConfigError{Field: field, Value: fmt.Sprint(value), Fix: fix})
		}
	}
	errs = append(errs, hopback.Config{URL: c.URL, Prefix: c.Prefix}.Validate())
	if c.WorkerURL != c.URL {
		errs = append(errs, hopback.Config{URL: c.WorkerURL}.Validate())
	}
	check(levelNumber(c.Level) >= 0, "Level", c.Level, "use "+strings.Join(Levels(), ", "))
	check(c.QueueType == "quorum" || c.QueueType == "classic", "QueueType", c.QueueType, "use quorum or classic")
	check(c.Patience > 0, "Patience", c.Patience, "use a positive duration")
	check(c.StartTimeout >= 0, "StartTimeout", c.StartTimeout, "use a positive duration, or 0")
	for _, name := range c.Cases {
		known := slices.ContainsFunc(allCases, func(t *testCase) bool { return t.name == name })
		check(known, "Cases", name, "use names that Cases lists")
	}
	if c.RouterRuns {
		check(c.Policy.MaxRetries >= 2, "Policy.MaxRetries", c.Policy.MaxRetries, "use a policy with 2 retries or more: the cases need a third attempt")
		if err := c.Policy.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("the policy of the router that runs: %w", err))
		}
	}
	errs = append(errs, hopback.Route{Queue: c.Queue, Policy: c.Policy}.Validate())
	return errors.Join(errs...)
}

// selected lists the cases that the configuration asks for.
func (c Config) selected() []*testCase {
	var some []*testCase
	for _, t := range allCases {
		if len(c.Cases) > 0 && slices.Contains(c.Cases, t.name) ||
			len(c.Cases) == 0 && levelNumber(t.level) <= levelNumber(c.Level) {
			some = append(some, t)
		}
	}
	return some
}

// The names of what a run makes or watches.
func (c Config) failed() string  { return router.Exchange(c.Prefix) }
func (c Config) dead() string    { return DefaultPrefix + ".dead" }
func (c Config) shop() string    { return DefaultPrefix + ".shop" }
func (c Config) back() string    { return c.Prefix + ".return" }
func (c Config) parking() string { return hopback.Route{Queue: c.Queue}.WithDefaults().Parking }
