package conformance_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/conformance"
	"github.com/hopback/hopback/rabbittest"
	"github.com/hopback/hopback/router"
)

// A queue of the user's is used as it is, and what is the user's stays: the queue,
// and what rests in its parking queue.
func TestQueueOfTheUser(t *testing.T) {
	b := rabbittest.Shared(t)
	t.Parallel()
	cfg := config(t, b, nil)
	withQueue(t, cfg.URL, "mine.parked", 2)
	withQueue(t, cfg.URL, "mine", 0)
	cfg.Queue, cfg.Prefix, cfg.Level = "mine", "hop", conformance.Rich
	report := run(t, cfg)
	for _, r := range report.Results {
		skipped := r.Case == "user-id" || r.Case == "returned" || r.Case == "refused" || r.Case == "crash-loop"
		if want := map[bool]string{true: conformance.Skipped, false: conformance.Passed}[skipped]; r.Status != want {
			t.Errorf("want %s: %s", want, describe(r))
		}
	}
	for queue, want := range map[string]int{"mine": 0, "mine.parked": 2} {
		if n, err := b.Depth(t.Context(), cfg.URL, queue); err != nil || n != want {
			t.Errorf("queue %q has %d messages (%v), want %d", queue, n, err, want)
		}
	}
}

// The router that runs can be used, with its policy. What it has is left to it.
func TestRouterThatRuns(t *testing.T) {
	b := rabbittest.Shared(t)
	t.Parallel()
	cfg := config(t, b, nil)
	cfg.RouterRuns, cfg.Level, cfg.Queue = true, conformance.Rich, "mine"
	cfg.Policy = hopback.Policy{
		Name: "theirs", MaxRetries: 3, MaxRetryAfter: time.Second,
		Schedule: hopback.Schedule{Base: 100 * time.Millisecond, Max: 300 * time.Millisecond},
	}
	withQueue(t, cfg.URL, "mine", 0)
	r, err := router.New(router.Config{
		Client: hopback.Config{URL: cfg.URL, Logger: slog.New(slog.DiscardHandler)}, Routes: []router.Route{{Route: hopback.Route{Queue: "mine", Policy: cfg.Policy}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	for deadline := time.Now().Add(90 * time.Second); !r.Ready(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the router is not ready: %v", r.Healthy())
		}
	}
	for _, result := range run(t, cfg).Results {
		if result.Status == conformance.Failed {
			t.Error(describe(result))
		}
	}
	conn, err := amqp.Dial(cfg.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, queue := range []string{"mine", "mine.parked", "hop.failed", "hop.failed.parked", "hop.delay.100ms"} {
		ch, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil); err != nil {
			t.Errorf("it has removed a queue of the router: %v", err)
		}
	}
}
