package hopback

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/delay"
	"github.com/hopback/hopback/internal/link"
	"github.com/hopback/hopback/internal/native"
	"github.com/hopback/hopback/internal/sparse"
	"github.com/hopback/hopback/topology"
)

// ConsumerConfig is one consumer of one work queue.
type ConsumerConfig struct {
	Route   Route
	Handler Handler

	// Concurrency is how many handlers run at once. 0 means 10.
	Concurrency int

	// Prefetch is how many unsettled messages the broker hands out. More than
	// Concurrency keeps the handlers busy while hand-offs are confirmed; it is
	// also the most that one lost connection can deliver twice. 0 means four
	// times Concurrency, at least 50. Quorum queues allow 2000.
	Prefetch int

	// AttemptTimeout ends the handler's context; the attempt then counts as
	// failed when the handler returns an error; one that returns nil after
	// all has succeeded. 0 means none.
	AttemptTimeout time.Duration

	// ShutdownTimeout is how long Run waits for running handlers and their
	// confirms once its context has ended. What is not finished then stays
	// unacknowledged and is delivered again; closing the channel may take up to
	// 5 s more where the broker does not answer. 0 means 30 s.
	ShutdownTimeout time.Duration

	// CrashLimit is how many deliveries without a settlement a message may have
	// behind it, by the broker's x-delivery-count; one with more is parked as
	// crash-loop before the handler sees it again. Only quorum queues count.
	// 0 means 10; negative means never. Lost connections count too, and both
	// count for all that was handed out, also for what only waited in the
	// prefetch: the fewer of those, the fewer innocent messages are parked along
	// with one that kills. It must stay below the queue's own x-delivery-limit, which is
	// 20 by default from RabbitMQ 4.0.
	CrashLimit int
}

// WithDefaults returns the configuration with every zero field replaced by its
// default.
func (c ConsumerConfig) WithDefaults() ConsumerConfig {
	c.Route = c.Route.WithDefaults()
	if c.Concurrency == 0 {
		c.Concurrency = 10
	}
	if c.Prefetch == 0 {
		c.Prefetch = min(max(4*c.Concurrency, 50), maxPrefetch)
	}
	if c.ShutdownTimeout == 0 {
		c.ShutdownTimeout = 30 * time.Second
	}
	if c.CrashLimit == 0 {
		c.CrashLimit = 10
	}
	return c
}

// maxPrefetch is what quorum queues allow; the broker closes the channel above.
const maxPrefetch = 2000

// Validate reports every setting that cannot work.
func (c ConsumerConfig) Validate() error {
	c = c.WithDefaults()
	errs := []error{c.Route.Validate()}
	check := func(ok bool, field string, value any, fix string) {
		if !ok {
			errs = append(errs, &ConfigError{Field: field, Value: fmt.Sprint(value), Fix: fix})
		}
	}
	check(c.Route.Mechanism != NativeLinear, "mechanism", c.Route.Mechanism,
		"use auto or native: native-linear is for consumers that are not Hopback's, and is set by `hopback apply`")
	check(c.Handler != nil, "Handler", "nil", "give a Handler, such as hopback.HandlerFunc(f)")
	check(c.Concurrency > 0, "Concurrency", c.Concurrency, "use a positive number")
	check(c.Prefetch > 0 && c.Prefetch <= maxPrefetch, "Prefetch", c.Prefetch, "use 1 to 2000: quorum queues allow no more")
	check(c.AttemptTimeout >= 0, "AttemptTimeout", c.AttemptTimeout, "use a positive duration, or 0 for none")
	check(c.ShutdownTimeout > 0, "ShutdownTimeout", c.ShutdownTimeout, "use a positive duration")
	return errors.Join(errs...)
}

// Consumer runs a handler on the messages of one work queue. It keeps itself
// subscribed: over lost connections, over a queue that was deleted and came
// back, over exchanges and queues of ours that went missing.
type Consumer struct {
	client  *Client
	cfg     ConsumerConfig
	log     *slog.Logger
	name    string // in the history of a message: who failed
	asked   Route  // as configured; cfg.Route is as resolved
	running atomic.Bool

	publisher *link.Publisher // a channel of its own, from the first Run on
	native    *native.Conn    // over AMQP 1.0, where the mechanism needs it

	subs     []*subscription // of the current Run, with something to settle
	repairs  repairs
	way      way            // from the delayed-message plugin back
	refused  sparse.Limiter // hand-offs that were not confirmed
	unseen   sparse.Limiter // messages that were parked without a handler
	panicked sparse.Limiter // handlers

	mu     sync.Mutex
	state  error         // nil while subscribed
	sub    *subscription // then
	delays delay.Mechanism
	needs  topology.Topology
}

// ErrShutdownTimeout is returned by Run when handlers or confirms were not
// finished in time. Their messages were left unacknowledged; nothing is lost.
var ErrShutdownTimeout = errors.New("hopback: shut down before all was finished")

var (
	errNotRunning = errors.New("not running")
	errStarting   = errors.New("starting")
	errStopping   = errors.New("shutting down")
)

// NewConsumer checks the configuration. Nothing is declared before Run.
func (c *Client) NewConsumer(cfg ConsumerConfig) (*Consumer, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configure the consumer of %q: %w", cfg.Route.Queue, err)
	}
	host, _ := os.Hostname()
	consumer := &Consumer{
		client: c, cfg: cfg,
		log:   c.cfg.Logger.With("queue", cfg.Route.Queue),
		name:  fmt.Sprintf("%s@%s", c.cfg.Name, host),
		state: errNotRunning, asked: cfg.Route,
	}
	if err := consumer.route(cfg.Route); err != nil {
		return nil, err
	}
	return consumer, nil
}

// route settles on the mechanism of a route and on the topology it needs.
func (c *Consumer) route(r Route) error {
	needs, err := Topology(c.client.cfg.Prefix, r)
	if err != nil {
		return fmt.Errorf("configure the consumer of %q: %w", r.Queue, err)
	}
	c.cfg.Route = r
	c.wait(r.mechanism(c.client.cfg.Prefix, &c.client.load), needs)
	return nil
}

// wait sets the mechanism of the subscriptions to come, and mechanism reads it.
func (c *Consumer) wait(delays delay.Mechanism, needs topology.Topology) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.delays, c.needs = delays, needs
}

func (c *Consumer) mechanism() (delay.Mechanism, topology.Topology) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.delays, c.needs
}

// fallBack goes on with the wheel where the broker cannot show a message over
// AMQP 1.0. It ends the session at each attempt to deliver that one, so a native
// consumer would get nothing any more, while over AMQP 0-9-1 the message is like
// any other. The next Run begins with native again.
func (c *Consumer) fallBack(why error) error {
	r := c.cfg.Route
	r.Mechanism = Wheel
	needs, err := Topology(c.client.cfg.Prefix, r)
	if err != nil {
		return err
	}
	c.log.Error("going on with the mechanism wheel: the broker cannot show a message over AMQP 1.0", "error", why)
	c.wait(r.mechanism(c.client.cfg.Prefix, &c.client.load), needs)
	return nil
}

// resolve settles what the route left open, and logs what was chosen and why. A
// mechanism that the broker cannot honour ends here, before anything is declared.
func (c *Consumer) resolve(ctx context.Context) error {
	session, err := c.client.consume.Session(ctx)
	if err != nil {
		return err
	}
	v := View{Capabilities: ReadCapabilities(session.Connection), Management: c.client.cfg.Management, Connection: session}
	if c.asked.Mechanism == Plugin {
		if err := c.client.seeDelayedExchange(ctx, &v.Capabilities); err != nil {
			c.log.Warn("cannot see whether the broker has the delayed-message plugin", "error", err)
		}
	}
	limited, cancel := context.WithTimeout(ctx, topologyTimeout)
	defer cancel()
	routes, decisions, err := Resolve(limited, v, c.asked)
	var unusable *ConfigError
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &unusable):
		return err
	case err != nil:
		c.log.Warn("cannot see all of the work queue", "error", err)
	}
	d := decisions[0]
	c.log.Info("chose how to wait", "mechanism", d.Mechanism, "why", d.Why, "isolated", d.Isolated, "isolated_why", d.IsolatedWhy)
	return c.route(routes[0])
}

// Ready reports whether the consumer is subscribed to its queue right now.
func (c *Consumer) Ready() bool { return c.Healthy() == nil }

// Healthy is nil while the consumer is subscribed, and otherwise says why it is
// not.
func (c *Consumer) Healthy() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == nil {
		// What was delivered before may keep the handlers busy for long after
		// the broker has cancelled.
		select {
		case <-c.sub.Stopped():
			return c.sub.Why()
		default:
		}
	}
	return c.state
}

func (c *Consumer) setState(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state, c.sub = err, nil
}

func (c *Consumer) setSubscribed(sub *subscription) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state, c.sub = nil, sub
}

// Run consumes until ctx ends, then finishes what is running and returns nil.
//
// What cannot work from the start is returned at once: a refused password, a
// missing work queue, a slot that somebody declared with other arguments
// (topology.ErrMismatch), a missing permission (topology.ErrAccess). An
// unreachable broker is waited for. Once it has been subscribed, Run ends for
// ctx, or with ErrClosed when the client is closed under it, and comes back from
// everything else. It can be called again when it has returned.
func (c *Consumer) Run(ctx context.Context) error {
	if !c.running.CompareAndSwap(false, true) {
		return errors.New("run the consumer: it is running already")
	}
	defer c.running.Store(false)
	defer c.setState(errNotRunning)
	c.setState(errStarting)
	if err := c.client.connect(c); err != nil {
		return fmt.Errorf("run the consumer: %w", err)
	}

	switch err := c.resolve(ctx); {
	case ctx.Err() != nil:
		return nil
	case errors.Is(err, link.ErrClosed):
		return ErrClosed // the client was closed before its consumers
	case err != nil:
		return fmt.Errorf("run the consumer: %w", err)
	}

	// Handlers outlive ctx, by as much as the shutdown allows.
	work, giveUp := context.WithCancelCause(context.WithoutCancel(ctx))
	defer giveUp(errStopping)
	c.subs = nil
	workers := c.startWorkers(work)

	last, err := c.consume(ctx, workers.jobs)
	return errors.Join(err, c.shutdown(last, workers, giveUp))
}

// consume goes from one subscription to the next until ctx ends, and returns
// the last. Before the first, it returns an error that waiting does not mend
// instead of trying again.
func (c *Consumer) consume(ctx context.Context, jobs chan<- job) (*subscription, error) {
	first := true
	for try := int64(1); ; try++ {
		sub, err := c.subscribe(ctx)
		if err == nil {
			c.setSubscribed(sub)
			if !first {
				c.log.Info("subscribed again")
			}
			first, try = false, 0
			err = c.feed(ctx, sub, jobs)
			if ctx.Err() != nil {
				return sub, nil
			}
			go func() { // its hand-offs are finished meanwhile
				ending, cancel := context.WithTimeout(context.Background(), topologyTimeout)
				defer cancel()
				sub.end(ending)
			}()
		}
		switch {
		case ctx.Err() != nil:
			return c.nothing(), nil
		case errors.Is(err, link.ErrClosed):
			return c.nothing(), ErrClosed // the client was closed before its consumers
		case first && cannotWork(err):
			return c.nothing(), err
		case errors.Is(err, native.ErrUnreadable):
			if err := c.fallBack(err); err != nil {
				c.log.Error("cannot go on with the wheel", "error", err)
				break
			}
			continue
		}
		c.setState(err)
		wait := resubscribe.Delay(max(try, 1), 0, random())
		c.log.Warn("not subscribed", "error", err, "next_in", wait)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return c.nothing(), nil
		}
	}
}

// cannotWork tells the errors that waiting does not mend from those of a broker
// that is just away.
func cannotWork(err error) bool {
	if errors.Is(err, ErrClosed) || errors.Is(err, topology.ErrMismatch) ||
		errors.Is(err, topology.ErrAccess) || errors.Is(err, topology.ErrMissing) {
		return true
	}
	var e *amqp.Error
	return errors.As(err, &e) && slices.Contains([]int{
		amqp.AccessRefused, amqp.NotFound, amqp.ResourceLocked, amqp.PreconditionFailed, amqp.NotAllowed,
	}, e.Code)
}

// feed hands deliveries to the workers until the subscription or ctx ends.
func (c *Consumer) feed(ctx context.Context, sub *subscription, jobs chan<- job) error {
	for {
		if err := c.waitWhileBlocked(ctx, sub); err != nil {
			return err
		}
		var d delivery
		over091, over10 := sub.deliveries()
		select {
		case <-ctx.Done():
			return nil
		case m, ok := <-over091:
			if !ok {
				return sub.Why()
			}
			d = fromChannel(&m)
		case m, ok := <-over10:
			if !ok {
				return sub.Why()
			}
			d = fromReceiver(m)
		}
		sub.Begin()
		select {
		case jobs <- job{sub, d}:
		case <-sub.Done():
			sub.Finish()
			return sub.Why()
		case <-ctx.Done():
			sub.Finish()
			return nil
		}
	}
}

// waitWhileBlocked takes no new work while its failures could not be handed
// off.
func (c *Consumer) waitWhileBlocked(ctx context.Context, sub *subscription) error {
	for {
		blocked, changed := c.client.publish.Blocked()
		if !blocked {
			return nil
		}
		select {
		case <-changed:
		case <-sub.Stopped():
			return nil // feed sees it too
		case <-ctx.Done():
			return nil
		}
	}
}

// shutdown finishes what is running: handlers, then confirms, then
// acknowledgements, then the channel.
func (c *Consumer) shutdown(sub *subscription, workers *workers, giveUp context.CancelCauseFunc) error {
	c.setState(errStopping)
	deadline, cancel := context.WithTimeout(context.Background(), c.cfg.ShutdownTimeout)
	defer cancel()
	sub.cancel(deadline)
	// Not for hand-offs whose channel has ended: the broker has those messages
	// back, and may itself be away for long.
	finished := waitUntil(deadline, func() bool {
		return workers.busy.Load() == 0 && !slices.ContainsFunc(c.subs, func(s *subscription) bool { return !s.Settled() })
	})
	workers.stop()
	if finished {
		sub.close(deadline)
		workers.wait(deadline)
		return nil
	}
	left := int64(0)
	for _, s := range c.subs {
		left += s.InFlight()
		s.Abandon() // first, so that what fails by the end of its context is no failure
	}
	giveUp(errStopping)
	closing, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	sub.close(closing)
	return fmt.Errorf("%w: %d messages stay unacknowledged", ErrShutdownTimeout, left)
}
