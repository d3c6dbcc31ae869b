package integration

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/rabbittest"
)

// Three nodes and two consumers of the library, every message failing three times.
// The node that leads the work queue is killed under load and comes back, again and
// again; then every message is counted: none may be missing, with any mechanism that
// waits in quorum queues.
//
// It runs with HOPBACK_SOAK=1 only: the cluster alone takes most of a minute to form
// on a small machine.
func TestClusterSoak(t *testing.T) {
	if !soaking() {
		t.Skip("set HOPBACK_SOAK=1: it takes minutes")
	}
	c := rabbittest.StartCluster(t, 3)
	t.Logf("RabbitMQ %s", c.Nodes[0].Version())
	for _, mechanism := range []string{hopback.Wheel, hopback.Native} {
		t.Run(mechanism, func(t *testing.T) {
			if mechanism == hopback.Native {
				needsNative(t, c.Nodes[0])
			}
			killLeaders(t, c, "work-"+mechanism, mechanism)
		})
	}
}

func killLeaders(t *testing.T, c *rabbittest.Cluster, queue, mechanism string) {
	const n, failures, kills = 6000, 3, 3
	urls := c.URLs()
	var log logBuffer
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", &log)
		}
	})
	route := hopback.Route{
		Queue: queue, Mechanism: mechanism,
		Declare: &hopback.Declare{Type: "quorum", Args: amqp.Table{"x-delivery-limit": int64(1_000_000)}},
		Policy: hopback.Policy{
			Name: "cluster", MaxRetries: 50, MaxRetryAfter: 2 * time.Second,
			Schedule: hopback.Schedule{Base: 300 * time.Millisecond, Max: 2 * time.Second},
		},
	}
	l := newLedger()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 2)
	for i := range 2 {
		client, err := hopback.New(hopback.Config{
			URL: urls[i], FailoverURLs: append(append([]string{}, urls[i+1:]...), urls[:i]...),
			Name: fmt.Sprint("consumer ", i), Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close(context.Background()) }) //nolint:errcheck // the nodes end with the test
		consumer, err := client.NewConsumer(hopback.ConsumerConfig{
			Route: route, Prefetch: 100, Handler: l.handler(hopback.HandlerFunc(func(_ context.Context, m *hopback.Message) error {
				if m.Attempt <= failures {
					return errBusy
				}
				return nil
			})),
		})
		if err != nil {
			t.Fatal(err)
		}
		go func() { ended <- consumer.Run(ctx) }()
		eventually(t, "the consumer is subscribed", consumer.Ready)
	}
	for i := range kills {
		publishWork(t, urls[0], queue, l, i*n/kills, (i+1)*n/kills)
		killLeader(t, c, queue, l)
	}
	l.awaitHandled(n)
	cancel()
	for range 2 {
		if err := <-ended; err != nil {
			t.Errorf("run a consumer: %v", err)
		}
	}
	l.noneMissing(t, c, queue, queue+".parked", "hop.lost")
}

// killLeader kills the node that leads a queue, lets the others go on without it for
// a while, and heals the cluster.
func killLeader(t *testing.T, c *rabbittest.Cluster, queue string, l *ledger) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	leader, err := c.Leader(ctx, "/", queue)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("killing %s at %d handled", leader.Node(), l.handledCount())
	if err := leader.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	time.Sleep(5 * time.Second)
	if err := c.Heal(ctx); err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * time.Second)
}

// awaitHandled waits until n messages are handled, or for very long. Three minutes are
// RabbitMQ's own time for what its dead-letter workers try again; what 4.3 had handed
// to a consumer on a dead node waits for one.
func (l *ledger) awaitHandled(n int) {
	for deadline := time.Now().Add(8 * time.Minute); l.handledCount() < n && time.Now().Before(deadline); {
		time.Sleep(200 * time.Millisecond)
	}
}

// noneMissing fails the test when something that was sent was not handled, and says
// what lies in some queues then.
func (l *ledger) noneMissing(t *testing.T, c *rabbittest.Cluster, queues ...string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	twice, missing := 0, 0
	for id := range l.sent {
		switch k := l.handled[id]; {
		case k == 0:
			missing++
		case k > 1:
			twice++
		}
	}
	t.Logf("sent %d, handled %d, missing %d, twice %d", len(l.sent), len(l.handled), missing, twice)
	if missing > 0 {
		for _, q := range queues {
			depth, err := c.Nodes[0].Depth(context.Background(), "/", q)
			t.Logf("%s: %d ready (%v)", q, depth, err)
		}
		t.Errorf("%d of %d messages are not handled", missing, len(l.sent))
	}
}
