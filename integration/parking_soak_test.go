package integration

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/parking"
)

// command builds the command hopback.
func command(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "hopback")
	build := exec.Command("go", "build", "-o", file, ".")
	build.Dir = "../cmd/hopback"
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the command: %v\n%s", err, out)
	}
	return file
}

// run runs the command and tells how long it took and how much memory it had.
func run(t *testing.T, w *world, hopback string, args ...string) (out string, took time.Duration, peak int64) {
	t.Helper()
	cmd := exec.Command(hopback, args...)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "HOPBACK_BROKER_URL="+w.url)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	began := time.Now()
	if err := cmd.Run(); err != nil {
		t.Fatalf("hopback %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	usage, _ := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	took, peak = time.Since(began), usage.Maxrss<<10
	t.Logf("hopback %s: %s, of which %s of its own, %d MB\n%s", strings.Join(args, " "), took.Round(10*time.Millisecond),
		(cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Round(10*time.Millisecond), peak>>20, stdout.String())
	return stdout.String(), took, peak
}

// readAll reads what is in a queue and leaves it there, unlike drain: that is too
// quick for a broker with so many messages.
func (w *world) readAll(queue string) []amqp.Delivery {
	w.t.Helper()
	var all []amqp.Delivery
	for left := w.depth(queue); left > 0; {
		n := min(left, 50_000)
		ch := w.channel()
		if err := ch.Qos(n, 0, false); err != nil {
			w.t.Fatal(err)
		}
		deliveries, err := ch.Consume(queue, "", false, false, false, false, nil)
		if err != nil {
			w.t.Fatal(err)
		}
		for range n {
			select {
			case d, ok := <-deliveries:
				if !ok {
					w.t.Fatalf("%s: the channel ended after %d messages", queue, len(all))
				}
				d.Body = nil
				all = append(all, d)
			case <-time.After(patience):
				w.t.Fatalf("%s: %d messages can be read, want %d more", queue, len(all), left)
			}
		}
		left -= n
	}
	return all
}

func causes(i int) (string, string) {
	switch {
	case i%100 == 0:
		return "NotFound", fmt.Sprintf("no customer %d", i)
	case i%2 == 0:
		return "TimeoutError", fmt.Sprintf("dial 10.0.%d.%d:5432: timeout after %d ms", i%200, i%250, i)
	}
	return "PaymentRefused", fmt.Sprintf("order %d: card refused", i)
}

// A hundred thousand parked messages of 2 KB: how long a look takes, how much
// memory, and that a part of them can be replayed without disturbing the rest.
func TestSoakParkingLarge(t *testing.T) {
	soak(t)
	w := newWorld(t)
	w.setUp()
	hopback := command(t)
	const n = 100_000
	w.parkMany(n, causes, bytes.Repeat([]byte("x"), 2048))

	out, took, peak := run(t, w, hopback, "parked", "list", "work", "--group-by", "fingerprint")
	if !strings.Contains(out, "100,000 of 100000 messages in work.parked, in 3 groups") {
		t.Errorf("got %s", out)
	}
	if peak > 300<<20 {
		t.Errorf("%d MB of memory, want at most 300", peak>>20)
	}
	t.Logf("a list took %s; the goal on an idle machine is 30 s", took)
	// Again: now RabbitMQ reads it from its disk, and message by message (3.10).
	if _, took, peak = run(t, w, hopback, "parked", "list", "work", "--group-by", "reason"); peak > 300<<20 {
		t.Errorf("%d MB of memory, want at most 300", peak>>20)
	}
	t.Logf("the second look took %s", took)
	out, _, peak = run(t, w, hopback, "parked", "replay", "work", "--type", "NotFound", "--yes", "--wait", "0s")
	if !strings.Contains(out, "1,000 of 100000 messages sent back") || peak > 300<<20 {
		t.Errorf("%d MB, got %s", peak>>20, out)
	}
	out, _, peak = run(t, w, hopback, "parked", "list", "work", "--limit", "3")
	if !strings.Contains(out, "3 shown of 99000") || peak > 300<<20 {
		t.Errorf("%d MB, got %s", peak>>20, out)
	}
	if got := w.depth("work"); got != 1000 {
		t.Errorf("%d messages went back, want 1000", got)
	}
	next := 0
	for _, d := range w.readAll("work.parked") {
		for next%100 == 0 {
			next++
		}
		if d.MessageId != fmt.Sprint(next) {
			t.Fatalf("message %s is where %d should be", d.MessageId, next)
		}
		next++
	}
	if next != n {
		t.Errorf("the last is %d, want %d", next-1, n-1)
	}
}

// A million: it works, with memory that does not grow with it.
func TestSoakParkingMillion(t *testing.T) {
	soak(t)
	w := newWorld(t)
	w.setUp()
	hopback := command(t)
	const n = 1_000_000
	w.parkMany(n, causes, []byte("x"))
	out, _, peak := run(t, w, hopback, "parked", "list", "work", "--group-by", "fingerprint")
	if !strings.Contains(out, "1,000,000 of 1000000 messages in work.parked, in 3 groups") || peak > 300<<20 {
		t.Errorf("%d MB, got %s", peak>>20, out)
	}
	run(t, w, hopback, "parked", "replay", "work", "--type", "NotFound", "--yes", "--wait", "0s")
	if back, left := w.depth("work"), w.depth("work.parked"); back != n/100 || left != n-n/100 {
		t.Errorf("%d went back and %d stay", back, left)
	}
}

// What the other tests of looking show on a few messages, on many, and on each
// kind of queue: two looks, a look that ends early, and everything is as it was.
func TestSoakParkingOrder(t *testing.T) {
	soak(t)
	for _, kind := range []string{"quorum", "classic"} {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t)
			if kind == "classic" {
				w.declare("dead", kind)
			} else {
				w.declare("dead", kind, "x-delivery-limit", int64(1_000_000))
			}
			const n = 100_000
			for i := 0; i < n; i += 500 {
				var msgs []amqp.Publishing
				for k := i; k < i+500; k++ {
					msgs = append(msgs, amqp.Publishing{MessageId: fmt.Sprint(k), DeliveryMode: amqp.Persistent})
				}
				w.publish("", "dead", msgs...)
			}
			conn, err := amqp.Dial(w.url)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			q, err := parking.Open(t.Context(), conn, "dead", parking.Options{})
			if err != nil {
				t.Fatal(err)
			}
			for _, stop := range []int{n, 70_000, n} {
				i := 0
				for m, err := range q.Messages(t.Context(), parking.Filter{}) {
					if err != nil {
						t.Fatal(err)
					}
					if m.MessageID != fmt.Sprint(i) {
						t.Fatalf("message %s is where %d should be", m.MessageID, i)
					}
					if i++; i == stop {
						break
					}
				}
				if got := w.depth("dead"); got != n {
					t.Errorf("%d messages after a look, want %d", got, n)
				}
			}
			for i, d := range w.readAll("dead") {
				if d.MessageId != fmt.Sprint(i) {
					t.Fatalf("message %s is where %d should be", d.MessageId, i)
				}
			}
		})
	}
}
