// Package integration tests Hopback against a real broker: the version in
// $HOPBACK_TEST_BROKER, or the first that is installed. All tests of a process
// share one broker and have a virtual host each, so they run side by side. A
// test that stops the broker or raises its alarms starts one of its own.
package integration

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/rabbittest"
)

// patience is how long a test waits for what must happen sooner or later. It is
// no assertion about speed: a loaded machine may need most of it.
const patience = 90 * time.Second

func TestMain(m *testing.M) {
	// Most tests wait for delays: more of them than processors can run. A
	// -parallel on the command line wins, since flags are parsed later.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(tests{m})
}

// tests runs the tests and closes the shared broker before goroutines are
// counted.
type tests struct{ m *testing.M }

func (r tests) Run() int {
	code := r.m.Run()
	if shared.broker != nil {
		if err := shared.broker.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "closing the shared broker:", err)
			code = max(code, 1)
		}
	}
	return code
}

var shared struct {
	once   sync.Once
	broker *rabbittest.Broker
	err    error
}

// sharedBroker is the one broker of this process, started by the first who
// asks.
func sharedBroker() (*rabbittest.Broker, error) {
	shared.once.Do(func() {
		shared.broker, shared.err = rabbittest.Run(context.Background(), brokerOptions(rabbittest.Options{}))
	})
	return shared.broker, shared.err
}

// brokerOptions are those of a broker on which the tested mechanism works.
func brokerOptions(o rabbittest.Options) rabbittest.Options {
	if mechanism == hopback.Plugin {
		o.Home = os.Getenv(rabbittest.PluginBroker)
		o.Plugins = append(o.Plugins, rabbittest.DelayedExchange)
	}
	return o
}

// world is a test's own virtual host and what the test does in it.
type world struct {
	t      testing.TB
	broker *rabbittest.Broker
	url    string // of the virtual host
	vhost  string
	events *recorder  // told by every client of this world
	log    *logBuffer // of every client of this world; shown when the test fails

	mu      sync.Mutex
	conn    *amqp.Connection
	pub     *amqp.Channel // in confirm mode
	returns chan amqp.Return
	client  *hopback.Client
	parking map[string]bool
	prefix  map[string]bool
}

// newWorld makes a fresh virtual host on the shared broker.
func newWorld(t testing.TB) *world {
	t.Helper()
	b, err := sharedBroker()
	if missing := (*rabbittest.NotInstalledError)(nil); errors.As(err, &missing) && os.Getenv("HOPBACK_TEST_BROKER") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return newWorldOn(t, b)
}

// needsNative skips a test where the broker has no native delayed retry.
func needsNative(t testing.TB, b *rabbittest.Broker) {
	t.Helper()
	if caps := (hopback.Capabilities{Product: "RabbitMQ", Version: b.Version()}); !caps.AtLeast("4.3") {
		t.Skipf("native needs RabbitMQ 4.3, this is %s", b.Version())
	}
}

// newWorldOn makes a fresh virtual host on a broker of the test's own.
func newWorldOn(t testing.TB, b *rabbittest.Broker) *world {
	t.Helper()
	return newWorldIn(t, b, b.Vhost(t))
}

// newWorldIn is a world in a virtual host that the test made itself.
func newWorldIn(t testing.TB, b *rabbittest.Broker, amqpURL string) *world {
	t.Helper()
	w := &world{
		t: t, broker: b, url: amqpURL, events: &recorder{}, log: &logBuffer{},
		parking: map[string]bool{}, prefix: map[string]bool{},
	}
	uri, err := amqp.ParseURI(w.url)
	if err != nil {
		t.Fatal(err)
	}
	w.vhost = uri.Vhost
	t.Cleanup(func() {
		if w.conn != nil {
			w.conn.Close()
		}
		if t.Failed() {
			t.Logf("events:\n%s", w.events)
			t.Logf("log:\n%s", w.log)
		}
	})
	return w
}

// eachKind runs a test with a classic and with a quorum work queue, each in a
// world of its own with the queue "work" in it.
func eachKind(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	for _, kind := range []string{"classic", "quorum"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.declare("work", kind)
			f(t, w)
		})
	}
}

// channel opens a channel of the test's own connection, dialled again when it
// was lost.
func (w *world) channel() *amqp.Channel {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.channelLocked()
}

func (w *world) channelLocked() *amqp.Channel {
	w.t.Helper()
	var err error
	if w.conn == nil || w.conn.IsClosed() {
		if w.conn, err = amqp.Dial(w.url); err != nil {
			w.t.Fatalf("dial: %v", err)
		}
	}
	ch, err := w.conn.Channel()
	if err != nil {
		w.t.Fatalf("open a channel: %v", err)
	}
	return ch
}

// declare makes a work queue, "classic" or "quorum", with further arguments in
// pairs.
func (w *world) declare(name, kind string, args ...any) {
	w.t.Helper()
	table := amqp.Table{"x-queue-type": kind}
	for i := 0; i < len(args); i += 2 {
		table[args[i].(string)] = args[i+1]
	}
	ch := w.channel()
	defer ch.Close()
	if _, err := ch.QueueDeclare(name, true, false, false, false, table); err != nil {
		w.t.Fatalf("declare queue %q: %v", name, err)
	}
}

// exchange makes a durable exchange.
func (w *world) exchange(name, kind string) {
	w.t.Helper()
	ch := w.channel()
	defer ch.Close()
	if err := ch.ExchangeDeclare(name, kind, true, false, false, false, nil); err != nil {
		w.t.Fatalf("declare exchange %q: %v", name, err)
	}
}

func (w *world) bind(queue, key, exchange string, args amqp.Table) {
	w.t.Helper()
	ch := w.channel()
	defer ch.Close()
	if err := ch.QueueBind(queue, key, exchange, false, args); err != nil {
		w.t.Fatalf("bind queue %q to %q: %v", queue, exchange, err)
	}
}

// publish sends messages mandatory and confirmed; the test fails when the
// broker does not take one.
func (w *world) publish(exchange, key string, msgs ...amqp.Publishing) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pub == nil || w.pub.IsClosed() {
		w.pub = w.channelLocked()
		w.returns = w.pub.NotifyReturn(make(chan amqp.Return, 1<<16))
		if err := w.pub.Confirm(false); err != nil {
			w.t.Fatalf("switch confirms on: %v", err)
		}
	}
	var confirms []*amqp.DeferredConfirmation
	for _, p := range msgs {
		c, err := w.pub.PublishWithDeferredConfirmWithContext(ctx, exchange, key, true, false, p)
		if err != nil {
			w.t.Fatalf("publish: %v", err)
		}
		confirms = append(confirms, c)
	}
	for _, c := range confirms {
		if ok, err := c.WaitContext(ctx); err != nil || !ok {
			w.t.Fatalf("publish to exchange %q with key %q: confirmed %t, %v", exchange, key, ok, err)
		}
	}
	select {
	case r := <-w.returns:
		w.t.Fatalf("published to exchange %q with key %q: returned: %s", exchange, key, r.ReplyText)
	default:
	}
}

// send publishes persistent messages straight to a queue. The ids are their
// message ids and their bodies.
func (w *world) send(queue string, ids ...string) {
	w.t.Helper()
	var msgs []amqp.Publishing
	for _, id := range ids {
		msgs = append(msgs, amqp.Publishing{DeliveryMode: amqp.Persistent, MessageId: id, Body: []byte(id)})
	}
	w.publish("", queue, msgs...)
}

// depth is how many messages of a queue are ready for delivery.
func (w *world) depth(queue string) int {
	w.t.Helper()
	n, err := w.tryDepth(queue)
	if err != nil {
		w.t.Fatalf("depth of %q: %v", queue, err)
	}
	return n
}

func (w *world) tryDepth(queue string) (int, error) {
	w.t.Helper()
	ch := w.channel()
	defer ch.Close()
	q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	return q.Messages, err
}

// drain takes all messages that are ready out of a queue.
//
// It consumes. A basic.get that meets the moment of expiry takes messages out of
// a slot and does not wake the worker that is to send them on: they stay with it
// until the next publish into that slot (seen on 3.10.8 and 4.0.5, and in the
// source of 4.3).
func (w *world) drain(queue string) []amqp.Delivery {
	w.t.Helper()
	const tag = "drain"
	ch := w.channel()
	defer ch.Close()
	deliveries, err := ch.Consume(queue, tag, true, false, false, false, nil)
	for left := 1; err == nil && left > 0; {
		var q amqp.Queue
		q, err = ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		left = q.Messages
	}
	if err == nil {
		err = ch.Cancel(tag, false)
	}
	if err != nil {
		w.t.Fatalf("drain %q: %v", queue, err)
	}
	var all []amqp.Delivery
	for d := range deliveries {
		all = append(all, d)
	}
	return all
}

// awaitParked waits until n messages rest in a queue and takes them out.
func (w *world) awaitParked(queue string, n int) []amqp.Delivery {
	w.t.Helper()
	eventually(w.t, fmt.Sprintf("%d messages in %q", n, queue), func() bool { return w.depth(queue) >= n })
	all := w.drain(queue)
	if len(all) != n {
		w.t.Fatalf("%d messages in %q, want %d", len(all), queue, n)
	}
	return all
}

// queue is what the management API tells about a queue.
type queue struct {
	Name    string         `json:"name"`
	Type    string         `json:"type"`
	Durable bool           `json:"durable"`
	Private bool           `json:"exclusive"`
	Args    map[string]any `json:"arguments"`
}

// queues lists every queue of the virtual host but those of one connection alone.
func (w *world) queues() []queue {
	w.t.Helper()
	var all []queue
	if err := w.broker.Get(context.Background(), "/api/queues/"+url.PathEscape(w.vhost)+"?disable_stats=true", &all); err != nil {
		w.t.Fatalf("list the queues: %v", err)
	}
	return slices.DeleteFunc(all, func(q queue) bool { return q.Private })
}

// newClient makes a client of this world, closed when the test ends. Its
// configuration can be changed.
func (w *world) newClient(change ...func(*hopback.Config)) *hopback.Client {
	w.t.Helper()
	cfg := hopback.Config{
		URL: w.url, Observer: w.events,
		Logger: slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, f := range change {
		f(&cfg)
	}
	w.mu.Lock()
	w.prefix[cfg.WithDefaults().Prefix] = true
	w.mu.Unlock()
	client, err := hopback.New(cfg)
	if err != nil {
		w.t.Fatalf("make a client: %v", err)
	}
	w.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := client.Close(ctx); err != nil {
			w.t.Errorf("close the client: %v", err)
		}
	})
	return client
}

// running is a consumer whose Run is under way.
type running struct {
	*hopback.Consumer
	client *hopback.Client
	cancel context.CancelFunc
	ended  chan struct{}
	err    error // of Run; read after ended
}

// stop ends the consumer and returns what Run returned. It may be called again.
func (r *running) stop() error {
	r.cancel()
	<-r.ended
	return r.err
}

// runConsumer runs a consumer on the world's own client until the test ends,
// and returns when it is subscribed. The test fails when Run returns an error,
// unless the test stopped it itself.
func (w *world) runConsumer(cfg hopback.ConsumerConfig) *running {
	w.t.Helper()
	if w.client == nil {
		w.client = w.newClient()
	}
	return w.runConsumerOn(w.client, cfg)
}

// runConsumerOn is runConsumer on a client of the caller's.
func (w *world) runConsumerOn(client *hopback.Client, cfg hopback.ConsumerConfig) *running {
	w.t.Helper()
	c, err := client.NewConsumer(cfg)
	if err != nil {
		w.t.Fatalf("make a consumer: %v", err)
	}
	w.mu.Lock()
	w.parking[cfg.WithDefaults().Route.Parking] = true
	w.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{Consumer: c, client: client, cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(r.ended)
		r.err = c.Run(ctx)
	}()
	w.t.Cleanup(func() {
		asked := ctx.Err() != nil
		if err := r.stop(); err != nil && !asked {
			w.t.Errorf("run the consumer: %v", err)
		}
	})
	eventually(w.t, "the consumer is subscribed", func() bool {
		select {
		case <-r.ended:
			w.t.Fatalf("run the consumer: %v", r.err)
		default:
		}
		return c.Ready()
	})
	return r
}

// quick is a policy whose every retry waits 100 ms: nine slots, or one rung,
// serve it.
func quick(retries int) hopback.Policy {
	return hopback.Policy{
		Name: "quick", MaxRetries: retries, MaxRetryAfter: 900 * time.Millisecond,
		Schedule: hopback.Schedule{
			Backoff: hopback.Constant, Base: 100 * time.Millisecond, Max: 900 * time.Millisecond, Jitter: hopback.NoJitter,
		},
	}
}

// mechanism is what tests use in which the delay plays no part:
// HOPBACK_TEST_MECHANISM=native runs them over AMQP 1.0, where broker and queue
// have it, and HOPBACK_TEST_MECHANISM=plugin over the delayed-message plugin of the
// broker that HOPBACK_PLUGIN_BROKER names.
var mechanism = os.Getenv("HOPBACK_TEST_MECHANISM")

// aboutSlots skips a test of what native does not have.
func aboutSlots(t testing.TB) {
	t.Helper()
	if noSlots() {
		t.Skipf("%s has no slots", mechanism)
	}
}

// noSlots reports whether the tested mechanism holds any delay, to the ms, and no
// retry is a dead-lettering.
func noSlots() bool { return mechanism == hopback.Native || mechanism == hopback.Plugin }

// quickRoute is a ladder of one rung, or native or the plugin, for tests in which the delay
// plays no part.
func quickRoute(queue string, retries int) hopback.Route {
	switch mechanism {
	case hopback.Native:
		return hopback.Route{Queue: queue, Policy: quick(retries)}
	case hopback.Plugin:
		return hopback.Route{Queue: queue, Policy: quick(retries), Mechanism: hopback.Plugin}
	}
	return hopback.Route{
		Queue: queue, Policy: quick(retries), Mechanism: hopback.Ladder, Ladder: []time.Duration{100 * time.Millisecond},
	}
}

// eventually waits until something is so.
func eventually(t testing.TB, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !so(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

// calls remembers every run of a handler.
type calls struct {
	mu   sync.Mutex
	list []call
}

// call is one run of a handler.
type call struct {
	hopback.Message
	Began, Ended time.Time // Ended is zero while it runs
}

// handler records each message and does f with it.
func (c *calls) handler(f func(ctx context.Context, m *hopback.Message) error) hopback.Handler {
	return hopback.HandlerFunc(func(ctx context.Context, m *hopback.Message) error {
		c.mu.Lock()
		i := len(c.list)
		c.list = append(c.list, call{Message: *m, Began: time.Now()})
		c.mu.Unlock()
		defer func() {
			c.mu.Lock()
			c.list[i].Ended = time.Now()
			c.mu.Unlock()
		}()
		return f(ctx, m)
	})
}

// of lists the calls with a message id, in order; all of them without one.
func (c *calls) of(id ...string) []call {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(id) == 0 {
		return slices.Clone(c.list)
	}
	var some []call
	for _, k := range c.list {
		if k.MessageID == id[0] {
			some = append(some, k)
		}
	}
	return some
}

// event is one call of an Observer.
type event struct {
	What string // received, handled, retried, parked, discarded, reconnected, blocked
	At   time.Time
	hopback.Event
	Redelivered bool
	Reason      string
	Delay       time.Duration
	Took        time.Duration
	Err         error
	Connection  string
	Active      bool
}

// recorder is an Observer that remembers.
type recorder struct {
	mu   sync.Mutex
	list []event
}

var _ hopback.Observer = (*recorder)(nil)

func (r *recorder) add(e event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.At = time.Now()
	r.list = append(r.list, e)
}

func (r *recorder) Received(e hopback.Received) {
	r.add(event{What: "received", Event: e.Event, Redelivered: e.Redelivered})
}

func (r *recorder) Handled(e hopback.Handled) {
	r.add(event{What: "handled", Event: e.Event, Took: e.Took})
}

func (r *recorder) Retried(e hopback.Retried) {
	r.add(event{What: "retried", Event: e.Event, Reason: e.Reason, Delay: e.Delay, Err: e.Err, Took: e.Took})
}

func (r *recorder) Parked(e hopback.Parked) {
	r.add(event{What: "parked", Event: e.Event, Reason: e.Reason, Err: e.Err})
}

func (r *recorder) Discarded(e hopback.Discarded) {
	r.add(event{What: "discarded", Event: e.Event, Err: e.Err})
}

func (r *recorder) Reconnected(e hopback.Reconnected) {
	r.add(event{What: "reconnected", Connection: e.Connection})
}

func (r *recorder) Blocked(e hopback.Blocked) {
	r.add(event{What: "blocked", Active: e.Active, Reason: e.Reason})
}

// of lists the events of one kind; with an id, those of that message alone.
func (r *recorder) of(what string, id ...string) []event {
	r.mu.Lock()
	defer r.mu.Unlock()
	var some []event
	for _, e := range r.list {
		if e.What == what && (len(id) == 0 || e.MessageID == id[0]) {
			some = append(some, e)
		}
	}
	return some
}

// story lists what became of a message, attempt by attempt: "received 1,
// retried 1, received 2, handled 2". The order within an attempt is that of the
// events. Between attempts it is not, since a short delay can be over before
// the confirm of the slot is read.
func (r *recorder) story(id string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var words []string
	list := slices.Clone(r.list)
	slices.SortStableFunc(list, func(a, b event) int { return cmp.Compare(a.Attempt, b.Attempt) })
	for _, e := range list {
		if e.MessageID == id {
			words = append(words, fmt.Sprintf("%s %d", e.What, e.Attempt))
		}
	}
	return strings.Join(words, ", ")
}

// String shows the last events, for a test that failed.
func (r *recorder) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	for _, e := range r.list[max(0, len(r.list)-100):] {
		fmt.Fprintf(&b, "%s %s %s %s attempt %d %s %s %.100v\n",
			e.At.Format("05.000"), e.What, e.Queue, e.MessageID, e.Attempt, e.Reason, e.Delay, e.Err)
	}
	return b.String()
}

// logBuffer keeps what was logged.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}
