package reading_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/internal/reading"
	"github.com/hopback/hopback/rabbittest"
)

// kinds are the queues that people park messages in.
var kinds = map[string]amqp.Table{
	"ours":    {"x-queue-type": "quorum", "x-delivery-limit": int64(1_000_000)},
	"quorum":  {"x-queue-type": "quorum"},
	"classic": {"x-queue-type": "classic"},
}

type world struct {
	*testing.T
	url  string
	conn *amqp.Connection
	ch   *amqp.Channel
	name string

	classic bool
}

func newWorld(t *testing.T, args amqp.Table) world {
	url := rabbittest.Shared(t).Vhost(t)
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	w := world{t, url, conn, ch, "parked", args["x-queue-type"] == "classic"}
	_, err = ch.QueueDeclare(w.name, true, false, false, false, args)
	w.must(err)
	w.must(ch.Confirm(false))
	return w
}

func (w world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// fill publishes messages whose bodies are from to to-1.
func (w world) fill(from, to int) {
	w.Helper()
	var last *amqp.DeferredConfirmation
	for i := from; i < to; i++ {
		var err error
		last, err = w.ch.PublishWithDeferredConfirm("", w.name, true, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: fmt.Append(nil, i)})
		w.must(err)
		if i%500 == 499 || i == to-1 {
			if !last.Wait() {
				w.Fatal("not confirmed")
			}
		}
	}
	w.wait(to - from)
}

// wait waits until the queue counts at least n messages.
func (w world) wait(n int) {
	w.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		q, err := w.ch.QueueDeclarePassive(w.name, true, false, false, false, nil)
		w.must(err)
		if q.Messages >= n {
			return
		}
		if time.Now().After(deadline) {
			w.Fatalf("%d messages, want %d", q.Messages, n)
		}
	}
}

func (w world) open(o reading.Options) *reading.Reader {
	w.Helper()
	o.Tag, o.Classic = "test", w.classic
	r, err := reading.Open(w.Context(), w.conn, w.name, o)
	w.must(err)
	return r
}

// all reads to the end and returns the items with their bodies.
func (w world) all(r *reading.Reader) (items []reading.Item, bodies []string) {
	w.Helper()
	for {
		it, ok, err := r.Next(w.Context())
		w.must(err)
		if !ok {
			return items, bodies
		}
		items, bodies = append(items, it), append(bodies, string(it.Body))
	}
}

// drain takes everything out of the queue and tells its bodies.
func (w world) drain() (all []string) {
	w.Helper()
	for {
		q, err := w.ch.QueueDeclarePassive(w.name, true, false, false, false, nil)
		w.must(err)
		if q.Messages == 0 {
			return all
		}
		// As many as there are, and acknowledged: a consumer without acknowledgements
		// that is cancelled too early leaves some behind.
		n := min(q.Messages, 50_000)
		ch, err := w.conn.Channel()
		w.must(err)
		w.must(ch.Qos(n, 0, false))
		deliveries, err := ch.Consume(w.name, "drain", false, false, false, false, nil)
		w.must(err)
		for i := range n {
			select {
			case d := <-deliveries:
				all = append(all, string(d.Body))
				if i == n-1 {
					w.must(d.Ack(true))
				}
			case <-time.After(time.Minute):
				w.Fatalf("%d messages of %d can be read", i, n)
			}
		}
		_, err = ch.QueueDeclarePassive(w.name, true, false, false, false, nil) // the acknowledgement is there
		w.must(err)
		w.must(ch.Close())
	}
}

func numbers(from, to int) []string {
	var s []string
	for i := from; i < to; i++ {
		s = append(s, fmt.Sprint(i))
	}
	return s
}

func (w world) same(what string, got, want []string) {
	w.Helper()
	if slices.Equal(got, want) {
		return
	}
	i := 0
	for i < min(len(got), len(want)) && got[i] == want[i] {
		i++
	}
	w.Errorf("%s: %d messages, want %d; they differ from number %d on: got %s, want %s", what,
		len(got), len(want), i, strings.Join(got[i:min(i+5, len(got))], " "), strings.Join(want[i:min(i+5, len(want))], " "))
}

// eachKind runs a test on every kind of queue.
func eachKind(t *testing.T, f func(w world)) {
	for name, args := range kinds {
		t.Run(name, func(t *testing.T) { f(newWorld(t, args)) })
	}
}

// More messages than any one consumer holds: looked at twice, each is in its
// place, once.
func TestLookingKeepsTheOrder(t *testing.T) {
	eachKind(t, func(w world) {
		const n = 5000
		w.fill(0, n)
		for i := range 3 {
			// As people look, with more consumers than that needs, and as what is taken out
			// is read.
			r := w.open([]reading.Options{{Look: true}, {Look: true, Chunk: 1100}, {}}[i])
			if r.Total() != n {
				w.Fatalf("total %d, want %d", r.Total(), n)
			}
			_, got := w.all(r)
			w.same("read", got, numbers(0, n))
			w.must(r.Close(w.Context()))
			w.wait(n)
		}
		w.same("left", w.drain(), numbers(0, n))
	})
}

// A reader that stops half-way gives back what it holds, behind nothing that was
// given back before it.
func TestStoppingHalfWayKeepsTheOrder(t *testing.T) {
	eachKind(t, func(w world) {
		const n = 3000
		w.fill(0, n)
		for k := range 4 {
			r := w.open(reading.Options{Chunk: []int{500, 2000}[k%2], Look: k < 2})
			for i := range n {
				it, ok, err := r.Next(w.Context())
				w.must(err)
				if !ok {
					w.Fatal("no more")
				}
				if want := fmt.Sprint(i); string(it.Body) != want {
					w.Fatalf("read %s, want %s", it.Body, want)
				}
				if i == 700+100*k {
					break
				}
			}
			w.must(r.Close(w.Context()))
			w.wait(n)
		}
		w.same("left", w.drain(), numbers(0, n))
	})
}

// A reader with a limit gives back what it holds before what is beyond it.
func TestALimitKeepsTheOrder(t *testing.T) {
	eachKind(t, func(w world) {
		const n = 1500
		w.fill(0, n)
		for range 3 {
			r := w.open(reading.Options{Limit: 400, Chunk: 150})
			_, got := w.all(r)
			w.same("read", got, numbers(0, 400))
			w.must(r.Close(w.Context()))
			w.wait(n)
		}
		w.same("left", w.drain(), numbers(0, n))
	})
}

// What is acknowledged is gone when Close returns, whatever is between, and what
// stays is in its order. 3.10 forgets acknowledgements that are still with the
// channel when that is closed.
func TestAcknowledgedIsGone(t *testing.T) {
	eachKind(t, func(w world) {
		const n = 4500
		w.fill(0, n)
		r := w.open(reading.Options{})
		var stay []string
		var batch []reading.Item
		items, _ := w.all(r)
		for i, it := range items {
			switch {
			case i < 300, i%3 == 0, i >= 4400: // a run at the front, many between, a run at the end
				batch = append(batch, it)
			default:
				stay = append(stay, string(it.Body))
			}
			if len(batch) == 700 {
				w.must(r.Ack(w.Context(), batch...))
				batch = nil
			}
		}
		w.must(r.Ack(w.Context(), batch...))
		if r.Held() != len(stay) {
			w.Errorf("holds %d, want %d", r.Held(), len(stay))
		}
		w.must(r.Close(w.Context()))
		w.wait(len(stay))
		w.same("left", w.drain(), stay)
	})
}

// What arrives meanwhile is not read, and is behind what was there.
func TestArrivalsMeanwhile(t *testing.T) {
	eachKind(t, func(w world) {
		const n = 2500
		w.fill(0, n)
		r := w.open(reading.Options{Chunk: 1000})
		var got []string
		var first reading.Item
		for i := 0; ; i++ {
			it, ok, err := r.Next(w.Context())
			w.must(err)
			if !ok {
				break
			}
			if i == 0 {
				first = it
			}
			if i == 100 {
				w.fill(n, n+50)
			}
			got = append(got, string(it.Body))
		}
		w.same("read", got, numbers(0, n))
		w.must(r.Ack(w.Context(), first))
		w.must(r.Close(w.Context()))
		w.wait(n + 49)
		w.same("left", w.drain(), numbers(1, n+50))
	})
}

// Two readers at once: each message is with one of them, and both end.
func TestTwoReaders(t *testing.T) {
	eachKind(t, func(w world) {
		const n = 1200
		w.fill(0, n)
		a, b := w.open(reading.Options{Chunk: 100}), w.open(reading.Options{Chunk: 100})
		seen := map[string]int{}
		for more := true; more; {
			more = false
			for _, r := range []*reading.Reader{a, b} {
				it, ok, err := r.Next(w.Context())
				w.must(err)
				if ok {
					more = true
					seen[string(it.Body)]++
				}
			}
		}
		w.must(a.Close(w.Context()))
		w.must(b.Close(w.Context()))
		w.wait(n)
		for body, times := range seen {
			if times != 1 {
				w.Errorf("message %s was read %d times", body, times)
			}
		}
		left := w.drain()
		if slices.Sort(left); len(seen) != n || len(left) != n || len(slices.Compact(left)) != n {
			w.Errorf("%d seen and %d left, want %d", len(seen), len(left), n)
		}
	})
}

// A reader that finds out that another one has the rest does so by what the broker
// says, and not by waiting for long.
func TestAnotherReaderHasTheRest(t *testing.T) {
	defer reading.Wait(time.Hour)()
	eachKind(t, func(w world) {
		w.fill(0, 30)
		late, quick := w.open(reading.Options{}), w.open(reading.Options{})
		_, got := w.all(quick)
		w.same("read by the first", got, numbers(0, 30))
		ctx, cancel := context.WithTimeout(w.Context(), 2*time.Minute)
		defer cancel()
		if it, ok, err := late.Next(ctx); ok || err != nil {
			w.Errorf("the second one has %v, %v", it.Delivery, err)
		}
		w.must(late.Close(w.Context()))
		w.must(quick.Close(w.Context()))
		w.wait(30)
		w.same("left", w.drain(), numbers(0, 30))
	})
}

func TestACancelledReader(t *testing.T) {
	w := newWorld(t, kinds["ours"])
	w.fill(0, 100)
	ctx, stop := context.WithCancel(t.Context())
	r := w.open(reading.Options{})
	_, _, err := r.Next(ctx)
	w.must(err)
	stop()
	if _, _, err := r.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	w.must(r.Close(w.Context()))
	w.wait(100)
	w.same("left", w.drain(), numbers(0, 100))
}

func TestNoQueue(t *testing.T) {
	w := newWorld(t, nil)
	_, err := reading.Open(t.Context(), w.conn, "other", reading.Options{})
	var e *amqp.Error
	if !errors.As(err, &e) || e.Code != amqp.NotFound {
		t.Errorf("got %v, want a 404", err)
	}
}
