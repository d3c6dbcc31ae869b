package native

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/rabbittest"
)

// version is the broker to ask for: the newest, unless the environment says.
func version() string {
	if os.Getenv("HOPBACK_TEST_BROKER") == "" {
		return "4.3"
	}
	return ""
}

// needs43 skips where the broker is older than what this package is for.
func needs43(t testing.TB, b *rabbittest.Broker) *rabbittest.Broker {
	t.Helper()
	major, rest, _ := strings.Cut(b.Version(), ".")
	minor, _, _ := strings.Cut(rest, ".")
	x, _ := strconv.Atoi(major)
	y, _ := strconv.Atoi(minor)
	if x < 4 || x == 4 && y < 3 {
		t.Skipf("RabbitMQ %s cannot deliver a message again at a time that is given: 4.3 or later is needed", b.Version())
	}
	return b
}

// old says, without starting a broker, that the one that is asked for is too old.
func old(t testing.TB) {
	t.Helper()
	for _, v := range []string{"3", "4.0", "4.1", "4.2"} {
		if asked := os.Getenv("HOPBACK_TEST_BROKER"); asked == v || strings.HasPrefix(asked, v+".") {
			t.Skipf("RabbitMQ %s cannot deliver a message again at a time that is given: 4.3 or later is needed", asked)
		}
	}
}

// shared is a virtual host on the broker of all tests, and its URL.
func shared(t testing.TB) string {
	t.Helper()
	old(t)
	return needs43(t, rabbittest.Shared(t, version())).Vhost(t)
}

// private is a broker of the test's own.
func private(t testing.TB) *rabbittest.Broker {
	t.Helper()
	old(t)
	return needs43(t, rabbittest.Start(t, rabbittest.Options{Version: version()}))
}

func ctx(t testing.TB) context.Context {
	t.Helper()
	c, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return c
}

// open connects over AMQP 1.0.
func open(t testing.TB, url string, set ...func(*Config)) *Conn {
	t.Helper()
	cfg := Config{
		URLs: []string{url}, Purpose: "consume", Name: "test", Heartbeat: 10 * time.Second,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	for _, f := range set {
		f(&cfg)
	}
	c := Open(cfg)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		c.Close(ctx)
	})
	return c
}

// receive consumes from a queue, with a connection of its own.
func receive(t testing.TB, c *Conn, queue string, credit int) *Receiver {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		s, err := c.Session(ctx(t))
		if err != nil {
			t.Fatal(err)
		}
		r, err := s.Receive(ctx(t), queue, credit)
		if err == nil {
			return r
		}
		// What could not be read ends the connection a moment after the session.
		if !errors.Is(err, ErrUnreadable) || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// next is the next delivery.
func next(t testing.TB, r *Receiver) *Delivery {
	t.Helper()
	select {
	case d, ok := <-r.Deliveries():
		if !ok {
			t.Fatalf("no more deliveries: %v", r.Err())
		}
		return d
	case <-time.After(30 * time.Second):
		t.Fatal("no delivery within 30 s")
	}
	return nil
}

// none says that nothing comes for a while.
func none(t testing.TB, r *Receiver, during time.Duration) {
	t.Helper()
	select {
	case d, ok := <-r.Deliveries():
		if ok {
			t.Fatalf("delivered: %q %v", d.Msg.Body, d.Msg.Headers)
		}
	case <-time.After(during):
	}
}

// stop closes a receiver in good order.
func stop(t testing.TB, r *Receiver) {
	t.Helper()
	if err := r.Close(ctx(t)); err != nil {
		t.Fatal(err)
	}
}

// old091 is a connection and channel over AMQP 0-9-1.
type old091 struct {
	t  testing.TB
	ch *amqp.Channel
}

func dial091(t testing.TB, url string) *old091 {
	t.Helper()
	c, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	ch, err := c.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	return &old091{t, ch}
}

// quorum declares a queue, with arguments in pairs.
func (o *old091) quorum(name string, args ...any) {
	o.t.Helper()
	table := amqp.Table{"x-queue-type": "quorum"}
	for i := 0; i < len(args); i += 2 {
		table[args[i].(string)] = args[i+1]
	}
	if _, err := o.ch.QueueDeclare(name, true, false, false, false, table); err != nil {
		o.t.Fatal(err)
	}
}

func (o *old091) publish(exchange, key string, messages ...amqp.Publishing) {
	o.t.Helper()
	var confirms []*amqp.DeferredConfirmation
	for _, p := range messages {
		dc, err := o.ch.PublishWithDeferredConfirm(exchange, key, true, false, p)
		if err != nil {
			o.t.Fatal(err)
		}
		confirms = append(confirms, dc)
	}
	for _, dc := range confirms {
		if ok, err := dc.WaitContext(ctx(o.t)); err != nil || !ok {
			o.t.Fatal("not confirmed: ", err)
		}
	}
}

// numbered are n messages with their number as body.
func numbered(n int) []amqp.Publishing {
	p := make([]amqp.Publishing, n)
	for i := range p {
		p[i] = amqp.Publishing{DeliveryMode: amqp.Persistent, MessageId: fmt.Sprint(i), Body: fmt.Append(nil, i)}
	}
	return p
}

// get takes one message, without settling it, and waits for it.
func (o *old091) get(queue string) amqp.Delivery {
	o.t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		d, ok, err := o.ch.Get(queue, false)
		if err != nil {
			o.t.Fatal(err)
		}
		if ok {
			return d
		}
	}
	o.t.Fatalf("nothing in %s within 30 s", queue)
	return amqp.Delivery{}
}

// depth is how many messages are ready.
func (o *old091) depth(queue string) int {
	o.t.Helper()
	q, err := o.ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		o.t.Fatal(err)
	}
	return q.Messages
}

func eventually(t testing.TB, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(40 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if so() {
			return
		}
	}
	t.Fatalf("it did not come about: %s", what)
}

// journal is a log that a test can read.
type journal struct {
	mu sync.Mutex
	b  strings.Builder
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.String()
}

func (j *journal) logger() *slog.Logger { return slog.New(slog.NewTextHandler(j, nil)) }
