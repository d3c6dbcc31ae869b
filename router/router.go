package router

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

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/backoff"
	"github.com/hopback/hopback/delay"
	"github.com/hopback/hopback/internal/link"
	"github.com/hopback/hopback/internal/sparse"
	"github.com/hopback/hopback/topology"
)

// Router hands failed messages off to their slots and parking queues. It keeps
// itself subscribed, over lost connections and over exchanges and queues of ours
// that went missing.
type Router struct {
	cfg   Config
	names names
	log   *slog.Logger
	name  string // in the history of a message
	load  delay.Load

	running  atomic.Bool
	inFlight atomic.Int64

	// Of the current Run.
	life             context.Context // ends when Run shall
	consume, publish *link.Conn
	self             *source              // what is the router's own
	subs             []*link.Subscription // with something to settle
	background       sync.WaitGroup
	careful          bool // one message at a time, since one cannot be read

	mu      sync.RWMutex
	sources map[string]*source // by work queue
	adopted int

	stateMu sync.Mutex
	state   error              // nil while subscribed
	sub     *link.Subscription // then
	trouble error              // with the topology of routes
	depths  map[string]int

	badAdvice, unrouted, stray sparse.Limiter
}

// ErrShutdownTimeout is returned by Run when hand-offs were not confirmed in time.
// Their messages were left unacknowledged; nothing is lost.
var ErrShutdownTimeout = errors.New("router: shut down before all was handed off")

var (
	errNotRunning = errors.New("not running")
	errStarting   = errors.New("starting")
	errStopping   = errors.New("shutting down")
	errWiden      = errors.New("the quarantine has what could not be read")
)

// New checks the configuration. Nothing is declared before Run.
func New(cfg Config) (*Router, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configure the router: %w", err)
	}
	host, _ := os.Hostname()
	n := names{cfg.Client.Prefix}
	return &Router{
		cfg: cfg, names: n, log: cfg.Client.Logger.With("router", n.failed()),
		name: fmt.Sprintf("%s@%s", cfg.Client.Name, host), state: errNotRunning,
	}, nil
}

// Ready reports whether the router is subscribed right now.
func (r *Router) Ready() bool { return r.Healthy() == nil }

// Healthy is nil while the router is subscribed, and otherwise says why it is not.
func (r *Router) Healthy() error {
	r.stateMu.Lock()
	defer r.stateMu.Unlock()
	if r.state == nil {
		select {
		case <-r.sub.Stopped():
			return r.sub.Why()
		default:
		}
	}
	return r.state
}

// Trouble is what the broker lacks of what the routes need, or has with other
// arguments, as of the last look; nil where all is in order. Routes in trouble are
// served as well as can be, and looked at again every half a minute.
func (r *Router) Trouble() error {
	r.stateMu.Lock()
	defer r.stateMu.Unlock()
	return r.trouble
}

// InFlight is how many messages are between their delivery and their
// acknowledgement.
func (r *Router) InFlight() int { return int(r.inFlight.Load()) }

// Depths is how many messages lie ready in the router's own queues, by their names,
// as of some seconds ago.
func (r *Router) Depths() map[string]int {
	r.stateMu.Lock()
	defer r.stateMu.Unlock()
	return r.depths
}

func (r *Router) setState(err error, sub *link.Subscription) {
	r.stateMu.Lock()
	defer r.stateMu.Unlock()
	r.state, r.sub = err, sub
}

// Run hands failed messages off until ctx ends, then finishes what is in flight
// and returns nil.
//
// What cannot work from the start is returned at once: a refused password, a queue
// of ours that somebody declared with other arguments. After that, Run goes on
// through everything and logs it. A route that cannot work stops no other: it is
// logged, and Trouble tells of it.
func (r *Router) Run(ctx context.Context) error {
	if !r.running.CompareAndSwap(false, true) {
		return errors.New("run the router: it is running already")
	}
	defer r.running.Store(false)
	defer r.setState(errNotRunning, nil)
	r.setState(errStarting, nil)
	r.subs, r.careful, r.adopted = nil, false, 0
	r.consume, r.publish = r.open("consume"), r.open("publish")
	defer r.disconnect()
	var stop context.CancelFunc
	r.life, stop = context.WithCancel(ctx)
	defer stop()
	if err := r.route(ctx); err != nil {
		return fmt.Errorf("run the router: %w", err)
	}
	r.background.Go(func() { r.watch(r.life) })
	last, err := r.work(ctx)
	stop()
	err = errors.Join(err, r.shutdown(last))
	r.background.Wait()
	return err
}

func (r *Router) open(purpose string) *link.Conn {
	c := r.cfg.Client
	return link.Open(link.Config{
		URLs: append([]string{c.URL}, c.FailoverURLs...), Purpose: purpose, Name: c.Name,
		TLS: c.TLS, Heartbeat: c.Heartbeat, Logger: c.Logger,
		OnReconnect: func(down time.Duration) {
			r.observe(func(o hopback.Observer) { o.Reconnected(hopback.Reconnected{Connection: purpose, Down: down}) })
		},
		OnBlocked: func(active bool, reason string) {
			c.Logger.Warn("the broker changed what it takes", "connection", purpose, "blocked", active, "reason", reason)
			r.observe(func(o hopback.Observer) { o.Blocked(hopback.Blocked{Active: active, Reason: reason}) })
		},
	})
}

// disconnect closes publishers and connections within a time of its own: what is
// not confirmed by now was given up.
func (r *Router) disconnect() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var all sync.WaitGroup
	r.mu.Lock()
	for _, s := range r.sources {
		all.Go(func() { s.publisher.Close(ctx) })
	}
	r.mu.Unlock()
	if r.self != nil {
		all.Go(func() { r.self.publisher.Close(ctx) })
	}
	all.Go(func() { r.consume.Close(ctx) })
	all.Wait()
	r.publish.Close(ctx)
}

const (
	closeTimeout    = 5 * time.Second
	topologyTimeout = time.Minute
)

// resubscribe is how long to wait before subscription attempt n.
var resubscribe = backoff.Schedule{
	Base: 200 * time.Millisecond, Max: 10 * time.Second, MinDelay: 100 * time.Millisecond, Jitter: backoff.Equal,
}.WithDefaults()

// work goes from one subscription to the next until ctx ends, and returns the
// last. Before the first, it returns an error that waiting does not mend.
func (r *Router) work(ctx context.Context) (*link.Subscription, error) {
	first := true
	for try := int64(1); ; try++ {
		sub, err := r.subscribe(ctx)
		if err == nil {
			r.setState(nil, sub)
			r.log.Info("subscribed", "queue", r.names.failed(), "again", !first, "one_at_a_time", r.careful)
			first, try = false, 0
			err = r.feed(ctx, sub)
			if ctx.Err() != nil {
				return sub, nil
			}
			r.background.Go(func() { // its hand-offs are finished meanwhile
				ending, cancel := context.WithTimeout(context.Background(), r.cfg.ShutdownTimeout)
				defer cancel()
				sub.Cancel(ending)
				sub.End(ending)
			})
		}
		switch {
		case ctx.Err() != nil:
			return link.NoSubscription(), nil
		case first && cannotWork(err):
			return link.NoSubscription(), fmt.Errorf("run the router: %w", err)
		case errors.Is(err, errWiden):
			r.careful = false
			r.log.Info("taking more than one message at a time again", "queue", r.names.failed())
			continue
		case undecodable(err):
			r.beCareful(err)
		}
		r.setState(err, nil)
		wait := resubscribe.Delay(max(try, 1), 0, backoff.Random())
		r.log.Warn("not subscribed", "queue", r.names.failed(), "error", err, "next_in", wait)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return link.NoSubscription(), nil
		}
	}
}

// cannotWork tells the errors that waiting does not mend from those of a broker
// that is just away.
func cannotWork(err error) bool {
	if errors.Is(err, topology.ErrMismatch) || errors.Is(err, topology.ErrAccess) {
		return true
	}
	var e *amqp.Error
	return errors.As(err, &e) && slices.Contains([]int{
		amqp.AccessRefused, amqp.NotFound, amqp.ResourceLocked, amqp.PreconditionFailed, amqp.NotAllowed,
	}, e.Code)
}

func (r *Router) subscribe(ctx context.Context) (*link.Subscription, error) {
	session, err := r.consume.Session(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.prepare(ctx, session); err != nil {
		return nil, err
	}
	prefetch := r.cfg.Prefetch
	if r.careful {
		prefetch = 1
	}
	s, err := link.Subscribe(ctx, session, r.names.failed(), prefetch)
	if err != nil {
		return nil, err
	}
	r.subs = append(slices.DeleteFunc(r.subs, (*link.Subscription).Settled), s)
	return s, nil
}

// feed takes deliveries until the subscription or ctx ends.
func (r *Router) feed(ctx context.Context, sub *link.Subscription) error {
	read := 0
	var look <-chan time.Time
	if r.careful {
		tick := time.NewTicker(quiet)
		defer tick.Stop()
		look = tick.C
	}
	for {
		if !r.waitWhileBlocked(ctx, sub) {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-look:
			if read == 0 && sub.InFlight() == 0 && sub.Live() {
				return errWiden
			}
			read = 0
		case d, ok := <-sub.Deliveries:
			if !ok {
				return sub.Why()
			}
			sub.Begin()
			r.inFlight.Add(1)
			r.process(sub, &d)
			if read++; r.careful && read >= r.cfg.Prefetch {
				return errWiden
			}
		}
	}
}

// quiet is how long nothing comes before a router that takes one message at a time
// takes that for the end of what it could not read.
const quiet = 3 * time.Second

// waitWhileBlocked takes no new work while it could not be handed off. It is false
// when ctx has ended.
func (r *Router) waitWhileBlocked(ctx context.Context, sub *link.Subscription) bool {
	for {
		blocked, changed := r.publish.Blocked()
		if !blocked {
			return ctx.Err() == nil
		}
		select {
		case <-changed:
		case <-sub.Stopped():
			return true // feed sees it too
		case <-ctx.Done():
			return false
		}
	}
}

// process takes one delivery from its headers to its hand-off.
func (r *Router) process(sub *link.Subscription, d *amqp.Delivery) {
	h := &handoff{r: r, sub: sub, tag: d.DeliveryTag, arrivedBy: d.RoutingKey, began: time.Now(), to: r.self}
	h.source = attempt.FromDelivery(d)
	o, found := r.names.originOf(h.source.Headers)
	h.origin = o
	if o.known {
		h.arrivedBy = o.key
	}
	if h.source.Expiration == "" {
		h.source.Expiration = o.expiration
	}
	var err error
	h.record, err = attempt.Read(&h.source, attempt.Source{
		Queue: o.queue, Exchange: o.exchange, RoutingKey: o.key, OriginUnknown: !o.known, At: h.began,
	})
	h.unfailed = h.record
	var unread error
	if h.advice, unread = attempt.ReadAdvice(h.source.Headers); unread != nil {
		if others, ok := r.badAdvice.May(); ok {
			r.log.Warn("a consumer's advice cannot be read and is left out", "queue", o.queue,
				"message_id", h.source.MessageId, "error", unread, "others", others)
		}
	}
	if !found {
		if others, ok := r.stray.May(); ok {
			r.log.Error("parked a message of unknown origin: it names no queue, and neither does x-death", "parking", r.names.parking(),
				"message_id", h.source.MessageId, "others", others)
		}
		h.park(attempt.ReasonUnknownOrigin, errUnknownOrigin)
		return
	}
	s := r.source(o.queue)
	if s == nil {
		if others, ok := r.unrouted.May(); ok {
			r.log.Error("parked a message of a queue that has no route", "queue", o.queue, "parking", r.names.parking(),
				"message_id", h.source.MessageId, "others", others)
		}
		h.park(attempt.ReasonNoRoute, errNoRoute)
		return
	}
	h.bad = err
	s.take(h)
}

var (
	errUnknownOrigin = errors.New("nothing tells which work queue it failed in: its headers were taken off on the way")
	errNoRoute       = errors.New("its work queue has no route")
)

// shutdown finishes what is in flight: confirms, then acknowledgements, then the
// channel.
func (r *Router) shutdown(sub *link.Subscription) error {
	r.setState(errStopping, nil)
	deadline, cancel := context.WithTimeout(context.Background(), r.cfg.ShutdownTimeout)
	defer cancel()
	sub.Cancel(deadline)
	unsettled := func() bool {
		return slices.ContainsFunc(r.subs, func(s *link.Subscription) bool { return !s.Settled() })
	}
	for unsettled() && deadline.Err() == nil {
		time.Sleep(2 * time.Millisecond)
	}
	left := int64(0)
	for _, s := range r.subs {
		if s.Live() {
			left += s.InFlight()
		}
	}
	if left == 0 {
		sub.Close(deadline)
		return nil
	}
	for _, s := range r.subs {
		s.Abandon()
	}
	closing, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	sub.Close(closing)
	return fmt.Errorf("%w: %d messages stay unacknowledged", ErrShutdownTimeout, left)
}

// observe calls the user's observer; its panics are its own.
func (r *Router) observe(tell func(hopback.Observer)) {
	defer func() {
		if p := recover(); p != nil {
			if others, ok := r.stray.May(); ok {
				r.log.Error("the observer panicked", "panic", p, "others", others)
			}
		}
	}()
	tell(r.cfg.Client.Observer)
}

// observeMore calls an observer that hears of everything.
func (r *Router) observeMore(tell func(Observer)) {
	if o, ok := r.cfg.Client.Observer.(Observer); ok {
		r.observe(func(hopback.Observer) { tell(o) })
	}
}
