package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/rabbittest"
)

// A process under load, whose configuration changes twice, once for one that
// cannot be read, and which is then asked to end: every message is retried as often
// as the policy says and parked, and the process ends without an error.
func TestServe(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("needs a broker")
	}
	b := rabbittest.Shared(t)
	url := b.Vhost(t)
	file := filepath.Join(t.TempDir(), "hopback.yaml")
	write := func(routes string) {
		t.Helper()
		text := "version: 1\npolicies:\n  quick: {backoff: constant, base: 100ms, max: 900ms, jitter: none, max_retries: 2, max_retry_after: 900ms}\n" + routes
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch := open(t, conn)
	for _, q := range []string{"first", "second"} {
		if _, err := ch.QueueDeclare(q, true, false, false, false, amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "hop.failed"}); err != nil {
			t.Fatal(err)
		}
		rejectAll(t, open(t, conn), q)
	}

	write("routes:\n- {queue: first, policy: quick, mechanism: ladder, ladder: [100ms]}\n")
	p := startServe(t, url, "serve", "-c", file, "--listen", "127.0.0.1:0", "--log-format", "json", "--unrouted", "park")
	p.awaitReady(t)
	if body, status := p.get(t, "/healthz"); status != http.StatusOK {
		t.Errorf("/healthz: %d %s", status, body)
	}

	const n = 150
	sent := 0
	publish := func(queue string, n int) {
		t.Helper()
		for range n {
			sent++
			if err := ch.Publish("", queue, true, false, amqp.Publishing{MessageId: fmt.Sprintf("%s-%d", queue, sent), DeliveryMode: 2}); err != nil {
				t.Fatal(err)
			}
		}
	}
	publish("first", n)
	write("routes: [\n")
	p.signal(t, syscall.SIGHUP)
	p.awaitLog(t, "going on with the one before")
	publish("first", n)
	write("routes:\n- {queue: first, policy: quick, mechanism: ladder, ladder: [100ms]}\n- {queue: second, policy: quick, mechanism: ladder, ladder: [100ms]}\n")
	p.signal(t, syscall.SIGHUP)
	publish("first", n)
	p.awaitLog(t, "serving with the new configuration")
	publish("second", n)

	for queue, want := range map[string]int{"first.parked": 3 * n, "second.parked": n} {
		seen := map[string]int{}
		for d := range collect(t, open(t, conn), queue, want) {
			seen[d.MessageId]++
			if d.Headers[attempt.HeaderReason] != attempt.ReasonExhausted || d.Headers[attempt.HeaderCount] != int32(2) {
				t.Errorf("%s: parked with %v", d.MessageId, d.Headers)
			}
		}
		if len(seen) != want {
			t.Errorf("%s has %d different messages, want %d", queue, len(seen), want)
		}
	}
	metrics, _ := p.get(t, "/metrics")
	for _, want := range []string{
		`hopback_router_retried_total{queue="first",reason="error"} 900`, `hopback_router_retried_total{queue="second",reason="error"} 300`,
		`hopback_router_parked_total{queue="first",reason="exhausted"} 450`, `hopback_router_parked_total{queue="second",reason="exhausted"} 150`,
		`hopback_router_handoff_seconds_count{queue="first"} 1350`, `hopback_router_ready 1`, `hopback_router_in_flight 0`,
		`hopback_router_reloads_total{result="done"} 1`, `hopback_router_reloads_total{result="failed"} 1`, `hopback_router_trouble 0`,
	} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("/metrics has no line %s", want)
		}
	}
	if t.Failed() {
		t.Log(regexp.MustCompile(`(?m)^hopback_router_(retried|parked|handoff_seconds_count|re).*$`).FindAllString(metrics, -1))
	}

	p.signal(t, syscall.SIGTERM)
	if err := p.wait(t); err != nil {
		t.Errorf("it ended with %v", err)
	}
	if log := p.log.String(); strings.Contains(log, "guest:guest") {
		t.Error("the log has the password in it")
	}
}

// A broker that is not there yet is waited for: alive, and not ready. A password
// that is refused ends it.
func TestServeStarts(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("needs a broker")
	}
	b := rabbittest.Shared(t)
	file := filepath.Join(t.TempDir(), "hopback.yaml")
	if err := os.WriteFile(file, []byte("version: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := startServe(t, "amqp://guest:s3cret@127.0.0.1:1/", "serve", "-c", file, "--listen", "127.0.0.1:0")
	p.awaitLog(t, "cannot connect to the broker")
	if _, status := p.get(t, "/healthz"); status != http.StatusOK {
		t.Errorf("/healthz: %d", status)
	}
	if body, status := p.get(t, "/readyz"); status != http.StatusServiceUnavailable {
		t.Errorf("/readyz: %d %s", status, body)
	}
	p.signal(t, syscall.SIGTERM)
	if err := p.wait(t); err != nil {
		t.Errorf("it ended with %v", err)
	}
	refused := startServe(t, strings.Replace(b.Vhost(t), "guest:guest", "guest:s3cret", 1), "serve", "-c", file, "--listen", "")
	if err := refused.wait(t); err == nil {
		t.Error("a refused password is no error")
	}
	for _, p := range []*process{p, refused} {
		if strings.Contains(p.log.String(), "s3cret") {
			t.Errorf("the password is shown:\n%s", p.log)
		}
	}
}

// process is this test binary as the command.
type process struct {
	cmd  *exec.Cmd
	log  *lockedBuffer
	done chan error
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func startServe(t *testing.T, url string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(os.Args[0], args...), log: &lockedBuffer{}, done: make(chan error, 1)}
	p.cmd.Args[0] = "hopback" // by which TestMain knows that it is the command
	p.cmd.Env = append(os.Environ(), "HOPBACK_BROKER_URL="+url, "HOPBACK_MANAGEMENT_URL=")
	p.cmd.Stderr, p.cmd.Stdout = p.log, p.log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.done <- p.cmd.Wait() }()
	t.Cleanup(func() {
		p.cmd.Process.Kill() //nolint:errcheck // it may have ended
		if t.Failed() {
			t.Logf("the log of hopback serve:\n%s", p.log)
		}
	})
	return p
}

const servePatience = 90 * time.Second

func (p *process) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-p.done:
		return err
	case <-time.After(servePatience):
		t.Fatal("it does not end")
		return nil
	}
}

func (p *process) signal(t *testing.T, s os.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

func (p *process) await(t *testing.T, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(servePatience); !so(); time.Sleep(20 * time.Millisecond) {
		select {
		case err := <-p.done:
			t.Fatalf("it ended with %v before: %s", err, what)
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", servePatience, what)
		}
	}
}

func (p *process) awaitLog(t *testing.T, text string) {
	t.Helper()
	p.await(t, "the log says "+text, func() bool { return strings.Contains(p.log.String(), text) })
}

func (p *process) awaitReady(t *testing.T) {
	t.Helper()
	p.awaitLog(t, "/readyz")
	p.await(t, "it is ready", func() bool {
		_, status := p.get(t, "/readyz")
		return status == http.StatusOK
	})
}

var address = regexp.MustCompile(`address"?[=:]"?(127\.0\.0\.1:\d+)`)

// get asks the address that the log tells.
func (p *process) get(t *testing.T, path string) (string, int) {
	t.Helper()
	p.awaitLog(t, "address")
	found := address.FindStringSubmatch(p.log.String())
	if found == nil {
		t.Fatalf("no address in the log:\n%s", p.log)
	}
	ctx, cancel := context.WithTimeout(t.Context(), servePatience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+found[1]+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return string(body), resp.StatusCode
}

func open(t *testing.T, conn *amqp.Connection) *amqp.Channel {
	t.Helper()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

// rejectAll is a consumer that fails on everything.
func rejectAll(t *testing.T, ch *amqp.Channel, queue string) {
	t.Helper()
	deliveries, err := ch.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for d := range deliveries {
			d.Reject(false) //nolint:errcheck // ends with the channel
		}
	}()
}

// collect takes n messages out of a queue.
func collect(t *testing.T, ch *amqp.Channel, queue string, n int) func(func(amqp.Delivery) bool) {
	t.Helper()
	for deadline := time.Now().Add(servePatience); ; time.Sleep(50 * time.Millisecond) {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		if q.Messages >= n {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d messages in %s, want %d", q.Messages, queue, n)
		}
	}
	deliveries, err := ch.Consume(queue, "", true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	return func(yield func(amqp.Delivery) bool) {
		for range n {
			select {
			case d := <-deliveries:
				if !yield(d) {
					return
				}
			case <-time.After(servePatience):
				t.Errorf("fewer than %d messages in %s", n, queue)
				return
			}
		}
	}
}
