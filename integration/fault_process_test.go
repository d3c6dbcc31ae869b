package integration

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/attempt"
)

// childURL makes this binary the process that TestProcessKilled kills: a
// consumer of both queues whose handler always fails, and which says on its
// standard output what was retried.
const childURL = "HOPBACK_FAULT_CHILD"

func init() {
	if url := os.Getenv(childURL); url != "" {
		fmt.Println("the child ended:", childConsumer(url))
		os.Exit(1)
	}
}

func childConsumer(url string) error {
	client, err := hopback.New(hopback.Config{
		URL: url, Observer: childObserver{}, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)), Heartbeat: time.Minute,
	})
	if err != nil {
		return err
	}
	ended := make(chan error)
	for _, q := range []string{"classic", "quorum"} {
		consumer, err := client.NewConsumer(hopback.ConsumerConfig{
			Route: quickRoute(q, 5), Concurrency: 100, Prefetch: 200,
			Handler: hopback.HandlerFunc(func(_ context.Context, m *hopback.Message) error {
				if m.Attempt < lastAttempt(m.MessageID) {
					return errors.New("the child fails")
				}
				select {} // what it handed off is back already: not its business
			}),
		})
		if err != nil {
			return err
		}
		go func() { ended <- consumer.Run(context.Background()) }()
	}
	return <-ended
}

// lastAttempt is the one that succeeds.
func lastAttempt(id string) int {
	if strings.Contains(id, "second") {
		return 3
	}
	return 2
}

type childObserver struct{ hopback.NopObserver }

func (childObserver) Retried(e hopback.Retried) { fmt.Println("retried", e.MessageID) }

// A process that is killed between the broker's confirm and its own
// acknowledgement leaves one duplicate of each message that it was handing off,
// with the same retry id and the same attempt, and loses none. Its
// acknowledgements are held back on their way, so that the moment is not left
// to chance.
func TestProcessKilled(t *testing.T) {
	aboutSlots(t)
	t.Parallel()
	w := newWorld(t)
	queues := []string{"classic", "quorum"}
	for _, q := range queues {
		w.declare(q, q)
	}
	gate := newGate(t, w.url)
	said, kill := startChild(t, gate.url(w.url))
	eventually(t, "the child is subscribed to both queues", func() bool {
		return w.consumers("classic") == 1 && w.consumers("quorum") == 1
	})
	gate.hold("consume"+toBroker, true)

	// Half of them fail for the first time, half for the second.
	const n = 20
	l := newLedger()
	for _, q := range queues {
		l.send(w, q, n)
		for i := range n {
			id := fmt.Sprintf("%s-second-%d", q, i)
			l.sent[id] = true
			w.publish("", q, amqp.Publishing{
				MessageId: id, DeliveryMode: amqp.Persistent, Body: []byte(id),
				Headers: amqp.Table{attempt.HeaderQueue: q, attempt.HeaderCount: int32(1), attempt.HeaderID: "id of " + id},
			})
		}
	}
	retried := map[string]bool{}
	for timeout := time.After(patience); len(retried) < len(l.sent); {
		select {
		case line := <-said:
			if id, ok := strings.CutPrefix(line, "retried "); ok {
				retried[id] = true
			} else {
				t.Fatalf("the child said: %s", line)
			}
		case <-timeout:
			t.Fatalf("%d of %d messages were handed off by the child", len(retried), len(l.sent))
		}
	}
	kill()
	gate.close()

	var mu sync.Mutex
	type run struct {
		retryID string
		attempt int
	}
	successes := map[string][]run{}
	handler := l.handler(hopback.HandlerFunc(func(_ context.Context, m *hopback.Message) error {
		if m.Attempt < lastAttempt(m.MessageID) {
			return errCrowd // the one that was not acknowledged, again
		}
		mu.Lock()
		defer mu.Unlock()
		successes[m.MessageID] = append(successes[m.MessageID], run{m.RetryID, m.Attempt})
		return nil
	}))
	var consumers []*running
	for _, q := range queues {
		consumers = append(consumers, w.runConsumer(hopback.ConsumerConfig{Route: quickRoute(q, 5), Handler: handler}))
	}
	eventually(t, "both copies of each message", func() bool {
		mu.Lock()
		defer mu.Unlock()
		total := 0
		for _, s := range successes {
			total += len(s)
		}
		return total >= 2*len(l.sent)
	})
	for _, c := range consumers {
		if err := c.stop(); err != nil {
			t.Error(err)
		}
	}
	for id := range l.sent {
		s := successes[id]
		switch {
		case len(s) != 2:
			t.Errorf("%s: %d copies, want two: it was handed off and not acknowledged once", id, len(s))
		case s[0] != s[1]:
			t.Errorf("%s: its copies cannot be recognised: %v and %v", id, s[0], s[1])
		case strings.Contains(id, "second") && s[0].retryID != "id of "+id:
			t.Errorf("%s: its retry id became %q", id, s[0].retryID)
		}
	}
	l.check(w)
}

// startChild runs this binary as the consumer that is to be killed. It returns
// what the child says and how to kill it, which the test's end does too.
func startChild(t *testing.T, url string) (said <-chan string, kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childURL+"="+url)
	var log logBuffer
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 10_000)
	var all sync.WaitGroup
	all.Go(func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	})
	kill = sync.OnceFunc(func() {
		cmd.Process.Kill() //nolint:errcheck // SIGKILL; gone is gone
		all.Wait()
		cmd.Wait() //nolint:errcheck // killed
	})
	t.Cleanup(func() {
		kill()
		if t.Failed() {
			t.Logf("the child's log:\n%s", &log)
		}
	})
	return lines, kill
}

// consumers is how many consumers a queue has now.
func (w *world) consumers(queue string) int {
	w.t.Helper()
	ch := w.channel()
	defer ch.Close()
	q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		w.t.Fatalf("look at queue %q: %v", queue, err)
	}
	return q.Consumers
}
