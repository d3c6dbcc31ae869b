package integration

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/router"
)

// What goes wrong around a router, and what must not be lost by it.

// stranger publishes as py-amqp does: it writes the value of the header "wide" with
// the tag L, which amqp091-go does not know. 3.10 hands it on as it is.
func (w *world) stranger(exchange, key string, p amqp.Publishing) {
	w.t.Helper()
	conn, err := amqp.DialConfig(w.url, amqp.Config{Dial: func(network, addr string) (net.Conn, error) {
		c, err := net.DialTimeout(network, addr, 10*time.Second)
		return &retagged{c}, err
	}})
	if err != nil {
		w.t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err == nil {
		err = ch.Confirm(false)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	c, err := ch.PublishWithDeferredConfirm(exchange, key, true, false, p)
	if err != nil || !c.Wait() {
		w.t.Fatalf("publish: %v", err)
	}
}

type retagged struct{ net.Conn }

func (c *retagged) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(bytes.ReplaceAll(p, []byte("\x04widel"), []byte("\x04wideL")))
	return min(n, len(p)), err
}

// What py-amqp writes is read: 3.10 hands the tag L on from a classic queue, and
// would end the router's connection with it, but a quorum queue writes its headers
// anew, to add x-delivery-count, and so does dead-lettering.
func TestRouterReadsWhatPyAMQPWrites(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.attached("work", "quorum")
	r := w.runRouter(w.routerConfig(routedRoute("work", hopback.NoRetries)))
	w.attached("rejecting", "classic", "x-message-ttl", int64(1)) // no Go client could read from it on 3.10
	headers := amqp.Table{"x-retry-queue": "work", "wide": int64(1)}
	w.stranger("hop.failed", "work", amqp.Publishing{MessageId: "published", DeliveryMode: 2, Headers: headers})
	w.stranger("", "rejecting", amqp.Publishing{MessageId: "dead-lettered", DeliveryMode: 2, Headers: amqp.Table{"wide": int64(1)}})
	for q, id := range map[string]string{"work.parked": "published", router.Parking(""): "dead-lettered"} {
		checkHeaders(t, id, w.parkedBy(q, 1)[id].Headers, amqp.Table{"wide": int64(1)})
	}
	if _, _, bad := r.events.count(); bad > 0 {
		t.Errorf("the router lost its connection %d times", bad)
	}
}

// A message that the router's client cannot read ends its connection again and
// again: the broker moves it to the quarantine, it alone, and all others go on. On
// every version it is a header that outgrew the frame when it was dead-lettered.
func TestRouterQuarantine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.attached("work", "quorum")
	cfg := w.routerConfig(routedRoute("work", 2))
	cfg.Prefetch = 30
	r := w.runRouter(cfg)
	const n = 60
	l := newLedger()
	w.work("work", l.work(rejectUntil(math.MaxInt)))
	l.send(w, "work", n)
	w.publish("", "work", amqp.Publishing{
		MessageId: "bad", DeliveryMode: 2, Headers: amqp.Table{"large": strings.Repeat("x", 128<<10-100)},
	})
	l.send(w, "work", n)
	eventually(t, "it is in the quarantine", func() bool { return w.depth(router.Quarantine("")) == 1 })
	eventually(t, "all others are parked", func() bool { return w.depth("work.parked") >= 2*n })
	eventually(t, "the router takes more than one again", func() bool {
		return strings.Contains(w.log.String(), "taking more than one message at a time again") && r.Ready()
	})
	_, _, bad := r.events.count()
	if bad < 1 || bad > 60 || !strings.Contains(w.log.String(), "quarantine=hop.failed.quarantine") {
		t.Errorf("told %d times of what could not be read", bad)
	}
	t.Logf("%d connections were lost by it", bad)
	eventually(t, "somebody is told what lies there", func() bool {
		return strings.Contains(w.log.String(), "1 messages wait for a person") && r.Depths()[router.Quarantine("")] == 1
	})
	if got := w.depth(router.Quarantine("")); got != 1 {
		t.Errorf("%d messages in the quarantine", got)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	w.deleteQueue(router.Quarantine("")) // this client cannot drain it
	// What had been handed off and not been acknowledged when the first connection
	// was lost is there twice.
	if s := l.check(w); len(s.Duplicates) > cfg.Prefetch {
		t.Errorf("%d are there twice, of a prefetch of %d", len(s.Duplicates), cfg.Prefetch)
	}
}

// What can be read and not be written again, since its headers leave no room for
// ours, does not stay in the router's hands for ever.
func TestRouterCannotWrite(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.attached("work", "quorum")
	cfg := w.routerConfig(routedRoute("work", 2))
	cfg.Prefetch = 3
	r := w.runRouter(cfg)
	w.work("work", rejectUntil(1))
	const n = 5 // more than it may have in hand
	for range n {
		w.publish("hop.failed", "k", amqp.Publishing{DeliveryMode: 2, Headers: amqp.Table{
			"x-retry-queue": "work", "large": strings.Repeat("x", 128<<10-200),
		}})
	}
	w.send("work", "m")
	eventually(t, "they are in the quarantine", func() bool { return w.depth(router.Quarantine("")) == n })
	eventually(t, "another one goes its way", func() bool { return len(r.events.of("retried", "m")) == 1 })
	if got := r.events.of("retried"); len(got) != 1 {
		t.Errorf("%d retries, want the one that can be written", len(got))
	}
}

// A parking queue that refuses stops its own route and no other, and nothing is
// lost: what it refused comes back from aside when it takes messages again.
func TestRouterFullParkingQueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.attached("stuck", "quorum")
	w.attached("well", "quorum")
	w.declare("full", "classic", "x-max-length", int64(1), "x-overflow", "reject-publish")
	stuck, well := routedRoute("stuck", hopback.NoRetries), routedRoute("well", 2)
	stuck.Parking = "full"
	cfg := w.routerConfig(stuck, well)
	cfg.Prefetch = 40
	r := w.runRouter(cfg)
	const n = 100
	l := newLedger()
	w.work("stuck", l.work(rejectUntil(math.MaxInt)))
	w.work("well", l.work(rejectUntil(1)))
	l.send(w, "stuck", n)
	eventually(t, "the parking queue refuses", func() bool { return strings.Contains(w.log.String(), "refused by the broker") })
	l.send(w, "well", n)
	eventually(t, "the other route goes on", func() bool { return l.handledCount() == n })
	if held := w.depth("full"); held > 1 {
		t.Errorf("%d messages in a queue for one", held)
	}
	eventually(t, "what is refused is moved aside", func() bool { _, held, _ := r.events.count(); return held > 0 })
	eventually(t, "somebody is told", func() bool {
		return strings.Contains(w.log.String(), "moved a message aside") && strings.Contains(w.log.String(), "queue=stuck")
	})

	// Somebody empties it.
	parked := map[string]int{}
	var mu sync.Mutex
	w.work("full", func(_ *amqp.Channel, d amqp.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		parked[d.MessageId]++
		if d.Headers[attempt.HeaderReason] != attempt.ReasonExhausted || d.Headers[attempt.HeaderCount] != int32(0) ||
			d.Headers[attempt.HeaderError] != "rejected by its consumer" {
			t.Errorf("%s is parked with %v", d.MessageId, d.Headers)
		}
		return nil
	})
	eventually(t, "all are parked", func() bool { mu.Lock(); defer mu.Unlock(); return len(parked) == n })
	for id, times := range parked {
		if times > 1 {
			t.Errorf("%s was parked %d times", id, times)
		}
	}
}

// Queues of ours that somebody deletes are there again, and their messages with
// them: those that the router had, and had not got rid of.
func TestRouterRepairs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.attached("work", "quorum")
	r := w.runRouter(w.routerConfig(routedRoute("work", 1)))
	l := newLedger()
	k := w.work("work", l.work(rejectUntil(math.MaxInt)))
	send := func() {
		t.Helper()
		l.send(w, "work", 5)
		want := len(l.sent)
		eventually(t, "all are parked", func() bool { return len(r.events.of("parked")) == want })
	}
	send()
	for _, d := range w.drain("work.parked") { // they would be lost with the queue
		l.handled[d.MessageId]++
	}
	// Not the exchange of the way back: what is in a slot then waits for three
	// minutes, as the library's own tests show.
	for _, gone := range []struct {
		what string
		do   func()
	}{
		{"the parking queue", func() { w.deleteQueue("work.parked") }},
		{"the exchange of the parking queues", func() { w.deleteExchange("hop.error") }},
		{"a slot", func() { w.deleteQueue("hop.delay.100ms") }},
		{"the exchange of a slot", func() { w.deleteExchange("hop.delay.100ms") }},
		{"the router's own queue", func() {
			w.deleteQueue("hop.failed")
			eventually(t, "it is subscribed again", func() bool {
				n, err := w.tryConsumers("hop.failed")
				return err == nil && n == 1 && r.Ready()
			})
		}},
	} {
		t.Log(gone.what)
		gone.do()
		send()
	}
	for id, attempts := range l.attempts {
		if fmt.Sprint(attempts) != "[1 2]" {
			t.Errorf("%s: attempts %v", id, attempts)
		}
	}
	k.stop()
	l.check(w)
}

// A work queue that is deleted while its messages wait: they rest in hop.lost.
func TestRouterWorkQueueDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.attached("work", "quorum")
	route := routedRoute("work", 5)
	route.Ladder, route.Policy.Base, route.Policy.Max = []time.Duration{3 * time.Second}, 3*time.Second, 3*time.Second
	route.Policy.MaxRetryAfter = 3 * time.Second
	r := w.runRouter(w.routerConfig(route))
	l := newLedger()
	k := w.work("work", l.work(rejectUntil(math.MaxInt)))
	l.send(w, "work", 10)
	eventually(t, "all wait", func() bool { return len(r.events.of("retried")) == 10 })
	k.stop()
	w.deleteQueue("work")
	eventually(t, "they are in hop.lost", func() bool { return w.depth("hop.lost") == 10 })
	if s := l.check(w); s.Lost != 10 || len(s.Duplicates) > 0 {
		t.Errorf("%v", s)
	}
}

// Routers that come and go in good order lose nothing.
func TestRouterRestarts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.attached("work", "quorum")
	cfg := w.routerConfig(routedRoute("work", 3))
	r := w.runRouter(cfg)
	const n = 600
	l := newLedger()
	k := w.work("work", l.work(rejectUntil(2)))
	for range 3 {
		l.send(w, "work", n/3)
		next := w.runRouter(cfg) // beside the old one
		if err := r.stop(); err != nil {
			t.Errorf("stop a router: %v", err)
		}
		r = next
	}
	eventually(t, "all are handled", func() bool { return l.handledCount() == n })
	k.stop()
	// A quorum queue forgets acknowledgements that came just before the channel was
	// closed, where the machine is busy (see link.Subscription): few, if any, and 63 on
	// 3.10.8 at a load of five.
	if s := l.check(w); len(s.Duplicates) > n/4 {
		t.Errorf("twice: %v", s.Duplicates)
	}
	for id, attempts := range l.attempts {
		seen := map[int]bool{}
		for _, a := range attempts {
			seen[a] = true
		}
		if len(seen) != 3 || !seen[1] || !seen[2] || !seen[3] {
			t.Errorf("%s: attempts %v, want each of 1, 2 and 3", id, attempts)
		}
	}
}

// routerChildURL makes this binary the router that TestRouterKilled kills.
const routerChildURL = "HOPBACK_FAULT_ROUTER"

func init() {
	url := os.Getenv(routerChildURL)
	if url == "" {
		return
	}
	r, err := router.New(router.Config{
		Client: hopback.Config{
			URL: url, Observer: childObserver{}, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)), Heartbeat: time.Minute, Name: "child",
		},
		Routes: []router.Route{{Route: routedRoute("work", 5)}},
	})
	if err == nil {
		err = r.Run(context.Background())
	}
	fmt.Println("the child ended:", err)
	os.Exit(1)
}

// B02: a router that is killed between the confirm and its acknowledgement leaves
// one duplicate of each message that it was handing off, recognisable by retry id
// and attempt, and loses none. Its acknowledgements are held back on their way, so
// that the moment is not left to chance.
func TestRouterKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.attached("work", "quorum")
	gate := newGate(t, w.url)
	said, kill := startRouterChild(t, gate.url(w.url))
	eventually(t, "the child is subscribed", func() bool {
		n, err := w.tryConsumers("hop.failed")
		return err == nil && n == 1
	})
	gate.hold("consume"+toBroker, true)
	const n = 40
	l := newLedger()
	k := w.work("work", l.work(func(_ *amqp.Channel, d amqp.Delivery) error {
		if attemptOf(d) == 1 {
			return errReject
		}
		return nil
	}))
	l.send(w, "work", n)
	retried := map[string]bool{}
	for timeout := time.After(patience); len(retried) < n; {
		select {
		case line := <-said:
			if id, ok := strings.CutPrefix(line, "retried "); ok {
				retried[id] = true
			} else {
				t.Fatalf("the child said: %s", line)
			}
		case <-timeout:
			t.Fatalf("%d of %d messages were handed off by the child", len(retried), n)
		}
	}
	kill()
	gate.close()

	w.runRouter(w.routerConfig(routedRoute("work", 5)))
	eventually(t, "both copies of each message", func() bool { return len(k.of()) >= 3*n })
	for id := range l.sent {
		seen := k.of(id)
		if len(seen) != 3 {
			t.Errorf("%s: %d deliveries, want the first and two copies of the second", id, len(seen))
			continue
		}
		for _, key := range []string{attempt.HeaderID, attempt.HeaderCount} {
			if a, b := seen[1].Headers[key], seen[2].Headers[key]; a != b || a == nil {
				t.Errorf("%s: its copies cannot be recognised: %s is %v and %v", id, key, a, b)
			}
		}
	}
	l.check(w)
}

// startRouterChild runs this binary as a router. It returns what the child says
// and how to kill it, which the test's end does too.
func startRouterChild(t *testing.T, url string) (said <-chan string, kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), routerChildURL+"="+url)
	var log logBuffer
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
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

// tryConsumers is consumers for a queue that may not be there yet.
func (w *world) tryConsumers(queue string) (int, error) {
	w.t.Helper()
	ch := w.channel()
	defer ch.Close()
	q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	return q.Consumers, err
}
