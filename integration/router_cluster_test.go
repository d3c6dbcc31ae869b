package integration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/rabbittest"
	"github.com/hopback/hopback/router"
)

// Three nodes, two routers and two plain consumers, every message failing three
// times. The node that leads hop.failed is killed under load and comes back, again
// and again; then every message is counted: none may be missing.
//
// With HOPBACK_SOAK=1 on any version, four times; else once, and on 4.3 alone, since
// the cluster takes a while to form on a small machine.
func TestRouterCluster(t *testing.T) {
	t.Parallel()
	const failures = 3
	n, kills := 6000, 4
	if !soaking() {
		n, kills = 900, 1
		if b, err := sharedBroker(); err != nil || !strings.HasPrefix(b.Version(), "4.3.") {
			t.Skip("without HOPBACK_SOAK=1 it runs on RabbitMQ 4.3 alone")
		}
	}
	c := rabbittest.StartCluster(t, 3)
	t.Logf("RabbitMQ %s", c.Nodes[0].Version())
	urls := c.URLs()
	declareOn(t, urls[0])

	var log logBuffer
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", &log)
		}
	})
	route := hopback.Route{Queue: "work", Policy: hopback.Policy{
		Name: "cluster", MaxRetries: 50, MaxRetryAfter: 2 * time.Second,
		Schedule: hopback.Schedule{Base: 300 * time.Millisecond, Max: 2 * time.Second},
	}}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for i := range 2 {
		r, err := router.New(router.Config{
			Client: hopback.Config{
				URL: urls[i], FailoverURLs: append(append([]string{}, urls[i+1:]...), urls[:i]...),
				Name: fmt.Sprint("router ", i), Logger: slog.New(slog.NewTextHandler(&log, nil)),
			},
			Routes: []router.Route{{Route: route}}, Prefetch: 100,
		})
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			if err := r.Run(ctx); err != nil && !errors.Is(err, router.ErrShutdownTimeout) {
				t.Errorf("run a router: %v", err)
			}
		})
		eventually(t, "the router is subscribed", r.Ready)
	}
	l := newLedger()
	for i := range 2 {
		all.Go(func() { l.consumeFrom(ctx, urls[i:], failures) })
	}
	for i := range kills {
		publishWork(t, urls[0], "work", l, i*n/kills, (i+1)*n/kills)
		killLeader(t, c, "hop.failed", l)
	}
	l.awaitHandled(n)
	cancel()
	all.Wait()
	l.noneMissing(t, c, "work", "work.parked", "hop.failed", "hop.failed.held", "hop.failed.quarantine", "hop.failed.parked", "hop.lost")
}

func declareOn(t *testing.T, url string) {
	t.Helper()
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err == nil {
		_, err = ch.QueueDeclare("work", true, false, false, false, amqp.Table{
			"x-queue-type": "quorum", "x-dead-letter-exchange": "hop.failed",
			"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish", "x-delivery-limit": int64(1_000_000),
		})
	}
	if err != nil {
		t.Fatal(err)
	}
}

func publishWork(t *testing.T, url, queue string, l *ledger, from, to int) {
	t.Helper()
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err == nil {
		err = ch.Confirm(false)
	}
	if err != nil {
		t.Fatal(err)
	}
	var confirms []*amqp.DeferredConfirmation
	for i := from; i < to; i++ {
		id := fmt.Sprint("m", i)
		l.mu.Lock()
		l.sent[id] = true
		l.mu.Unlock()
		c, err := ch.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{MessageId: id, DeliveryMode: amqp.Persistent, Body: []byte(id)})
		if err != nil {
			t.Fatal(err)
		}
		confirms = append(confirms, c)
	}
	for _, c := range confirms {
		if !c.Wait() {
			t.Fatal("a publish was not confirmed")
		}
	}
}

// consumeFrom is a plain worker that dials again, on the next node.
func (l *ledger) consumeFrom(ctx context.Context, urls []string, failures int) {
	for i := 0; ctx.Err() == nil; i++ {
		session(ctx, urls[i%len(urls)], func(d amqp.Delivery) bool {
			n, _ := d.Headers[attempt.HeaderCount].(int32)
			if int(n) < failures {
				return false
			}
			l.mu.Lock()
			l.handled[d.MessageId]++
			l.mu.Unlock()
			return true
		})
		time.Sleep(time.Duration(100+rand.IntN(200)) * time.Millisecond)
	}
}

func session(ctx context.Context, url string, succeeds func(amqp.Delivery) bool) {
	conn, err := amqp.DialConfig(url, amqp.Config{Heartbeat: 5 * time.Second, Dial: amqp.DefaultDial(5 * time.Second)})
	if err != nil {
		return
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil || ch.Qos(50, 0, false) != nil {
		return
	}
	deliveries, err := ch.Consume("work", "", false, false, false, false, nil)
	if err != nil {
		return
	}
	for d := range deliveries {
		if succeeds(d) {
			d.Ack(false) //nolint:errcheck // the next session gets it
		} else {
			d.Reject(false) //nolint:errcheck
		}
	}
}
