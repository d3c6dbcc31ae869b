package native

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/rabbittest"
)

// A queue that is deleted ends its receiver, which says so, and nothing else.
func TestQueueDeleted(t *testing.T) {
	url := shared(t)
	o := dial091(t, url)
	o.quorum("work")
	o.publish("", "work", numbered(3)...)
	c := open(t, url)
	r := receive(t, c, "work", 2)
	d := next(t, r)
	if _, err := o.ch.QueueDelete("work", false, false, false); err != nil {
		t.Fatal(err)
	}
	select {
	case <-r.Done(): // although one delivery waits to be taken
	case <-time.After(30 * time.Second):
		t.Fatal("the end was not seen")
	}
	var e *amqp.Error
	if err := r.Err(); !errors.Is(err, ErrDeleted) || !errors.As(err, &e) || e.Code != amqp.NotFound {
		t.Error(err)
	}
	d.Accept()
	stop(t, r)
	if c.Err() != nil {
		t.Error("the connection went with it: ", c.Err())
	}
	o.quorum("work")
	o.publish("", "work", numbered(1)...)
	r = receive(t, c, "work", 2)
	next(t, r).Accept()
	stop(t, r)
}

// A message that cannot be shown over AMQP 1.0 ends its receiver, which says so,
// each time that it comes. Over AMQP 0-9-1 all are still there, and can be read.
func TestUnreadable(t *testing.T) {
	url := shared(t)
	o := dial091(t, url)
	for name, c := range map[string]struct {
		p amqp.Publishing
		// crashes: the broker counts what was handed out as crashed.
		crashes bool
	}{
		"a decimal":                             {amqp.Publishing{Headers: amqp.Table{"d": amqp.Decimal{Scale: 1, Value: 30}}}, true},
		"a decimal in an x- list":               {amqp.Publishing{Headers: amqp.Table{"x-d": []any{amqp.Decimal{Scale: 1, Value: 30}}}}, true},
		"a body that is not what its type says": {amqp.Publishing{Type: typeAMQP10, Body: []byte("plain")}, true},
		"a header of RabbitMQ's own":            {amqp.Publishing{Headers: amqp.Table{"x-amqp-1.0-properties": "text"}}, true},
		// A character, which go-amqp does not know.
		"a char": {amqp.Publishing{Type: typeAMQP10, Body: []byte{0, 0x53, 0x77, 0x73, 0, 0, 0, 'a'}}, false},
	} {
		queue := "work " + name
		o.quorum(queue)
		o.publish("", queue, numbered(1)[0], c.p)
		conn := open(t, url)
		for range 2 {
			r := receive(t, conn, queue, 10)
			for range r.Deliveries() { // perhaps the first
			}
			if !errors.Is(r.Err(), ErrUnreadable) {
				t.Errorf("%s: %v", name, r.Err())
			}
			eventually(t, "both are back", func() bool { return o.depth(queue) == 2 })
		}
		conn.Close(ctx(t))
		for range 2 {
			d := o.get(queue)
			count, _ := d.Headers["x-delivery-count"].(int64)
			if crashed := count > 0; crashed != c.crashes {
				t.Errorf("%s: %q counts %d crashes", name, d.Body, count)
			}
		}
	}
}

// counted handles messages until all were accepted: each fails twice first.
type counted struct {
	mu       sync.Mutex
	accepted map[string]int
	failed   map[string]int
}

func (k *counted) done() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.accepted)
}

// consume goes from one receiver to the next, as a consumer would.
func (k *counted) consume(ctx context.Context, c *Conn, queue string) {
	for ctx.Err() == nil {
		s, err := c.Session(ctx)
		if err != nil {
			continue
		}
		attach, cancel := context.WithTimeout(ctx, 10*time.Second)
		r, err := s.Receive(attach, queue, 100)
		cancel()
		if err != nil {
			time.Sleep(50 * time.Millisecond)
			continue
		}
		k.feed(ctx, r)
	}
}

func (k *counted) feed(ctx context.Context, r *Receiver) {
	for {
		select {
		case <-ctx.Done():
			return
		case d, ok := <-r.Deliveries():
			if !ok {
				return
			}
			n, _ := attempt.ParseCount(d.Msg.Headers[attempt.HeaderCount])
			k.mu.Lock()
			if n == 2 {
				k.accepted[d.Msg.MessageId]++
				d.Accept()
			} else {
				k.failed[d.Msg.MessageId]++
				d.Delay(time.Now().Add(200*time.Millisecond), amqp.Table{attempt.HeaderCount: n + 1}) //nolint:errcheck // it can be kept
			}
			k.mu.Unlock()
		}
	}
}

// Broker faults, on one broker: a start takes seconds.
func TestBrokerFaults(t *testing.T) {
	b := private(t)
	t.Run("restart", func(t *testing.T) { testRestart(t, b) })
	t.Run("all", func(t *testing.T) { testFaults(t, b) })
}

// testFaults: whatever happens to broker and connection, no message is lost, and
// few come twice.
func testFaults(t *testing.T, b *rabbittest.Broker) {
	o := dial091(t, b.URL())
	o.quorum("work", "x-delivery-limit", int64(1_000_000))
	const all = 3000
	k := &counted{accepted: map[string]int{}, failed: map[string]int{}}
	c := open(t, b.URL(), func(c *Config) { c.ClockQueue = "hop.clock" })
	running, halt := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	ended.Go(func() { k.consume(running, c, "work") })
	defer ended.Wait()
	defer halt()

	messages := numbered(all)
	at := 0
	publish := func(n int) {
		o.publish("", "work", messages[at:at+n]...)
		at += n
	}
	publish(1000)
	eventually(t, "some are done", func() bool { return k.done() > 100 })
	if err := b.CloseConnections(t.Context()); err != nil {
		t.Fatal(err)
	}
	o = dial091(t, b.URL())
	publish(1000)
	eventually(t, "more are done", func() bool { return k.done() > 1200 })
	// Settlements go through under an alarm.
	if err := b.MemoryAlarm(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all are done under the alarm", func() bool { return k.done() == 2000 })
	if err := b.MemoryAlarm(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	publish(1000)
	time.Sleep(100 * time.Millisecond)
	if err := b.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := b.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all are done", func() bool { return k.done() == all })
	halt()
	ended.Wait()
	c.Close(ctx(t))
	o = dial091(t, b.URL())
	twice, again := 0, 0
	for _, m := range messages {
		if k.accepted[m.MessageId] > 1 {
			twice++
		}
		if k.failed[m.MessageId] > 2 {
			again++
		}
	}
	t.Logf("%d of %d were accepted more than once, %d failed more often than twice", twice, all, again)
	// At most the credit for each lost connection.
	if twice > 300 {
		t.Errorf("%d of %d were accepted more than once", twice, all)
	}
	eventually(t, "the queue is empty", func() bool { return o.depth("work") == 0 })
}

// testRestart: what a settlement wrote, and the time of delivery, outlive the
// broker.
func testRestart(t *testing.T, b *rabbittest.Broker) {
	o := dial091(t, b.URL())
	o.quorum("delayed")
	o.publish("", "delayed", numbered(2)...)
	c := open(t, b.URL())
	r := receive(t, c, "delayed", 2)
	for range 2 {
		if err := next(t, r).Delay(time.Now().Add(2*time.Second), record); err != nil {
			t.Fatal(err)
		}
	}
	stop(t, r)
	if err := b.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	r = receive(t, c, "delayed", 2)
	for range 2 {
		d := next(t, r)
		for k, want := range record {
			if got := d.Msg.Headers[k]; got != want {
				t.Errorf("%s is %T %v, want %T %v", k, got, got, want, want)
			}
		}
		d.Accept()
	}
	stop(t, r)
}
