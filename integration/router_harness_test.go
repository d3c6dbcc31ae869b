package integration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/router"
)

// runningRouter is a router whose Run is under way.
type runningRouter struct {
	*router.Router
	events *routerEvents
	cancel context.CancelFunc
	ended  chan struct{}
	err    error
}

func (r *runningRouter) stop() error {
	r.cancel()
	<-r.ended
	return r.err
}

// routerEvents is a recorder that hears of everything.
type routerEvents struct {
	recorder
	more sync.Mutex
	took map[string]int // messages handed off, by queue
	held int
	bad  int
}

var _ router.Observer = (*routerEvents)(nil)

func (e *routerEvents) HandedOff(h router.HandedOff) {
	e.more.Lock()
	defer e.more.Unlock()
	if e.took == nil {
		e.took = map[string]int{}
	}
	e.took[h.Queue]++
}

func (e *routerEvents) Held(router.Held) {
	e.more.Lock()
	defer e.more.Unlock()
	e.held++
}

func (e *routerEvents) Undecodable(router.Undecodable) {
	e.more.Lock()
	defer e.more.Unlock()
	e.bad++
}

func (e *routerEvents) count() (handedOff, held, undecodable int) {
	e.more.Lock()
	defer e.more.Unlock()
	for _, n := range e.took {
		handedOff += n
	}
	return handedOff, e.held, e.bad
}

// routerConfig is a router of this world for some routes.
func (w *world) routerConfig(routes ...hopback.Route) router.Config {
	cfg := router.Config{Client: hopback.Config{
		URL: w.url, Name: "router", Logger: slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}}
	for _, r := range routes {
		cfg.Routes = append(cfg.Routes, router.Route{Route: r})
	}
	return cfg
}

// runRouter runs a router until the test ends, and returns when it is subscribed.
func (w *world) runRouter(cfg router.Config) *runningRouter {
	w.t.Helper()
	events := &routerEvents{}
	cfg.Client.Observer = events
	rt, err := router.New(cfg)
	if err != nil {
		w.t.Fatalf("make a router: %v", err)
	}
	w.mu.Lock()
	w.prefix["hop"] = true
	w.parking["hop.failed.parked"] = true
	for _, r := range cfg.WithDefaults().Routes {
		w.parking[r.Parking] = true
	}
	w.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	r := &runningRouter{Router: rt, events: events, cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(r.ended)
		r.err = rt.Run(ctx)
	}()
	w.t.Cleanup(func() {
		asked := ctx.Err() != nil
		if err := r.stop(); err != nil && !asked {
			w.t.Errorf("run the router: %v", err)
		}
		if w.t.Failed() {
			w.t.Logf("events of the router:\n%s", &events.recorder)
		}
	})
	eventually(w.t, "the router is subscribed", func() bool {
		select {
		case <-r.ended:
			w.t.Fatalf("run the router: %v", r.err)
		default:
		}
		return rt.Ready()
	})
	return r
}

// attached makes a work queue whose rejections go to the router.
func (w *world) attached(name, kind string, args ...any) {
	w.t.Helper()
	// The exchange may come later than the queue that names it.
	w.declare(name, kind, append([]any{"x-dead-letter-exchange", "hop.failed"}, args...)...)
}

// What a plain worker does with a delivery.
var (
	errReject = errors.New("reject it")
	errLeave  = errors.New("leave it unsettled")
	errGiven  = errors.New("it was published to the router, and is acknowledged")
)

// worker is a consumer of another project: it knows nothing of Hopback but what
// stands in the headers, and rejects what fails.
type worker struct {
	w     *world
	queue string
	conn  *amqp.Connection
	ch    *amqp.Channel
	ended chan struct{}

	mu   sync.Mutex
	seen []amqp.Delivery
}

// work runs a worker until the test ends. do says what becomes of each delivery:
// nil acknowledges.
func (w *world) work(queue string, do func(ch *amqp.Channel, d amqp.Delivery) error) *worker {
	w.t.Helper()
	conn, err := amqp.Dial(w.url)
	if err != nil {
		w.t.Fatal(err)
	}
	ch, err := conn.Channel()
	if err == nil {
		err = ch.Qos(100, 0, false)
	}
	if err == nil {
		err = ch.Confirm(false)
	}
	var deliveries <-chan amqp.Delivery
	if err == nil {
		deliveries, err = ch.Consume(queue, "", false, false, false, false, nil)
	}
	if err != nil {
		w.t.Fatalf("consume from %q: %v", queue, err)
	}
	k := &worker{w: w, queue: queue, conn: conn, ch: ch, ended: make(chan struct{})}
	go func() {
		defer close(k.ended)
		for d := range deliveries {
			k.mu.Lock()
			k.seen = append(k.seen, d)
			k.mu.Unlock()
			switch do(ch, d) {
			case errReject:
				d.Reject(false) //nolint:errcheck // a lost channel is the test's own doing
			case errLeave:
			default:
				d.Ack(false) //nolint:errcheck
			}
		}
	}()
	w.t.Cleanup(k.stop)
	return k
}

func (k *worker) stop() {
	k.conn.Close()
	<-k.ended
}

// of lists the deliveries with a message id; all of them without one.
func (k *worker) of(id ...string) []amqp.Delivery {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(id) == 0 {
		return slices.Clone(k.seen)
	}
	var some []amqp.Delivery
	for _, d := range k.seen {
		if d.MessageId == id[0] {
			some = append(some, d)
		}
	}
	return some
}

// attemptOf is the number of the attempt by the contract, read as a stranger
// would.
func attemptOf(d amqp.Delivery) int {
	n, _ := d.Headers[attempt.HeaderCount].(int32)
	return int(n) + 1
}

// rejectUntil fails the first n attempts.
func rejectUntil(n int) func(*amqp.Channel, amqp.Delivery) error {
	return func(_ *amqp.Channel, d amqp.Delivery) error {
		if attemptOf(d) <= n {
			return errReject
		}
		return nil
	}
}

// give publishes a delivery to the router, with advice, as docs/rich-failures.md
// says, and waits for the confirm.
func give(ch *amqp.Channel, d amqp.Delivery, queue string, advice amqp.Table) error {
	p := attempt.FromDelivery(&d)
	h := amqp.Table{}
	for k, v := range d.Headers {
		if k != "x-death" {
			h[k] = v
		}
	}
	if h["x-retry-queue"] != queue {
		h["x-retry-queue"], h["x-retry-exchange"], h["x-retry-routing-key"] = queue, d.Exchange, d.RoutingKey
	}
	for k, v := range advice {
		h[k] = v
	}
	p.Headers, p.DeliveryMode = h, amqp.Persistent
	c, err := ch.PublishWithDeferredConfirm("hop.failed", d.RoutingKey, true, false, p)
	if err != nil {
		return errLeave
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if ok, err := c.WaitContext(ctx); err != nil || !ok {
		return errLeave
	}
	return errGiven
}

// count keeps a ledger of a worker's attempts and successes.
func (l *ledger) work(do func(*amqp.Channel, amqp.Delivery) error) func(*amqp.Channel, amqp.Delivery) error {
	return func(ch *amqp.Channel, d amqp.Delivery) error {
		l.mu.Lock()
		l.attempts[d.MessageId] = append(l.attempts[d.MessageId], attemptOf(d))
		l.mu.Unlock()
		err := do(ch, d)
		if err == nil {
			l.mu.Lock()
			l.handled[d.MessageId]++
			l.mu.Unlock()
		}
		return err
	}
}

// eachKindRouted is eachKind with work queues that are attached, and a router that
// serves them.
func eachKindRouted(t *testing.T, retries int, f func(t *testing.T, w *world, r *runningRouter)) {
	t.Helper()
	for _, kind := range []string{"classic", "quorum"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.attached("work", kind)
			f(t, w, w.runRouter(w.routerConfig(routedRoute("work", retries))))
		})
	}
}

// routedRoute is a ladder of one rung.
func routedRoute(queue string, retries int) hopback.Route {
	return hopback.Route{
		Queue: queue, Policy: quick(retries), Mechanism: hopback.Ladder, Ladder: []time.Duration{100 * time.Millisecond},
	}
}

// parkedBy waits until n messages rest in a queue, and returns them by their ids.
func (w *world) parkedBy(queue string, n int) map[string]amqp.Delivery {
	w.t.Helper()
	by := map[string]amqp.Delivery{}
	for _, d := range w.awaitParked(queue, n) {
		by[d.MessageId] = d
	}
	if len(by) != n {
		w.t.Fatalf("%d different messages in %q, want %d", len(by), queue, n)
	}
	return by
}

// checkHeaders compares some headers.
func checkHeaders(t *testing.T, what string, h amqp.Table, want amqp.Table) {
	t.Helper()
	for k, v := range want {
		if fmt.Sprintf("%T %v", h[k], h[k]) != fmt.Sprintf("%T %v", v, v) {
			t.Errorf("%s: %s is %T %[3]v, want %T %[4]v", what, k, h[k], v)
		}
	}
}
