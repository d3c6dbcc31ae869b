package parking_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/parking"
	"github.com/hopback/hopback/rabbittest"
	"github.com/hopback/hopback/topology"
)

// world is a virtual host with Hopback set up for the work queue orders.
type world struct {
	*testing.T
	url  string
	conn *amqp.Connection
	ch   *amqp.Channel
}

func newWorld(t *testing.T) world {
	url := rabbittest.Shared(t).Vhost(t)
	w := world{T: t, url: url}
	w.conn = w.dial()
	var err error
	w.ch, err = w.conn.Channel()
	w.must(err)
	w.must(w.ch.Confirm(false))
	top, err := hopback.Topology("hop", hopback.Route{
		Queue: "orders", Mechanism: hopback.Ladder, Ladder: []time.Duration{100 * time.Millisecond}, Declare: &hopback.Declare{},
	})
	w.must(err)
	w.must(topology.Apply(t.Context(), w.conn, top))
	return w
}

func (w world) dial() *amqp.Connection {
	w.Helper()
	conn, err := amqp.Dial(w.url)
	w.must(err)
	w.Cleanup(func() { conn.Close() })
	return conn
}

func (w world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w world) declare(queue string, args amqp.Table) {
	w.Helper()
	_, err := w.ch.QueueDeclare(queue, true, false, false, false, args)
	w.must(err)
}

func (w world) publish(exchange, key string, ps ...amqp.Publishing) {
	w.Helper()
	var last []*amqp.DeferredConfirmation
	for _, p := range ps {
		dc, err := w.ch.PublishWithDeferredConfirm(exchange, key, true, false, p)
		w.must(err)
		last = append(last, dc)
	}
	for _, dc := range last {
		if !dc.Wait() {
			w.Fatal("not confirmed")
		}
	}
}

// parked is message number i, as Hopback parks it: every third with another
// error.
func parked(i int) amqp.Publishing {
	err, kind := fmt.Sprintf("timeout after %d ms", i), "TimeoutError"
	if i%3 == 2 {
		err, kind = fmt.Sprintf("no customer %d", i), "NotFound"
	}
	p := amqp.Publishing{
		MessageId: fmt.Sprint("m", i), Body: fmt.Appendf(nil, `{"n": %d}`, i), ContentType: "application/json",
		Headers: amqp.Table{"n": int16(i % 1000), "CC": []any{"audit"}}, Expiration: "3600000",
	}
	rec, rerr := attempt.Read(&p, attempt.Source{Queue: "orders", Exchange: "shop", RoutingKey: "order.create", At: time.Now()})
	if rerr != nil {
		panic(rerr)
	}
	at := time.Now().Add(-time.Hour)
	rec = rec.Identify(&p).Retry(attempt.Failure{At: at, Error: err, ErrorType: kind}, time.Second, time.Time{}, "standard")
	return rec.Park(attempt.Failure{At: at.Add(time.Minute), Error: err, ErrorType: kind, Consumer: "worker-1"}, attempt.ReasonExhausted).Successor(&p, 0)
}

// park parks messages from to to-1.
func (w world) park(from, to int) {
	w.Helper()
	var ps []amqp.Publishing
	for i := from; i < to; i++ {
		ps = append(ps, parked(i))
	}
	w.publish("hop.error", "orders", ps...)
	w.atLeast("orders.parked", to-from)
}

func (w world) depth(queue string) int {
	w.Helper()
	q, err := w.ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	w.must(err)
	return q.Messages
}

// atLeast waits for messages: what was published or given back is counted a
// moment later.
func (w world) atLeast(queue string, n int) {
	w.Helper()
	for deadline := time.Now().Add(time.Minute); w.depth(queue) < n; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.Fatalf("%s holds %d messages, want %d", queue, w.depth(queue), n)
		}
	}
}

func (w world) open(queue string, o parking.Options) *parking.Queue {
	w.Helper()
	q, err := parking.Open(w.Context(), w.conn, queue, o)
	w.must(err)
	return q
}

// drain takes everything out of a queue.
func (w world) drain(queue string) (all []amqp.Delivery) {
	w.Helper()
	for {
		q, err := w.ch.QueueDeclarePassive(queue, true, false, false, false, nil)
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
		deliveries, err := ch.Consume(queue, "drain", false, false, false, false, nil)
		w.must(err)
		for i := range n {
			select {
			case d := <-deliveries:
				all = append(all, d)
				if i == n-1 {
					w.must(d.Ack(true))
				}
			case <-time.After(time.Minute):
				w.Fatalf("%d messages of %d can be read", i, n)
			}
		}
		_, err = ch.QueueDeclarePassive(queue, true, false, false, false, nil) // the acknowledgement is there
		w.must(err)
		w.must(ch.Close())
	}
}

func ids(ds []amqp.Delivery) []string {
	var s []string
	for _, d := range ds {
		s = append(s, d.MessageId)
	}
	return s
}

func names(keep func(int) bool, to int) []string {
	var s []string
	for i := range to {
		if keep(i) {
			s = append(s, fmt.Sprint("m", i))
		}
	}
	return s
}

func every(int) bool        { return true }
func timeouts(i int) bool   { return i%3 != 2 }
func noCustomer(i int) bool { return i%3 == 2 }

func (w world) same(what string, got, want []string) {
	w.Helper()
	if !slices.Equal(got, want) {
		w.Errorf("%s: %d messages %.300q, want %d %.300q", what, len(got), got, len(want), want)
	}
}

// Fifty lists and fifty shows: P7. Where they would cost something, they are
// refused.
func TestLookingChangesNothing(t *testing.T) {
	const n = 12
	for name, args := range map[string]amqp.Table{
		"ours":    {"x-queue-type": "quorum", "x-delivery-limit": int64(1_000_000), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
		"quorum":  {"x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
		"classic": {"x-queue-type": "classic", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.declare("dead", nil)
			w.declare("their.dlq", args)
			for i := range n {
				w.publish("", "their.dlq", parked(i))
			}
			w.atLeast("their.dlq", n)
			q := w.open("their.dlq", parking.Options{})
			if q.Cost().Type != args["x-queue-type"] {
				t.Errorf("type %q, want %q", q.Cost().Type, args["x-queue-type"])
			}
			version, _ := w.conn.Properties["version"].(string)
			if name == "quorum" && (strings.HasPrefix(version, "4.0") || strings.HasPrefix(version, "4.1") || strings.HasPrefix(version, "4.2")) {
				var cost *parking.CostError
				if _, err := q.Find(t.Context(), "0000"); !errors.As(err, &cost) || cost.Cost.Limit != 20 {
					t.Errorf("got %v, want a *CostError", err)
				}
				q = w.open("their.dlq", parking.Options{Force: true})
				g, err := q.Groups(t.Context(), parking.Filter{}, "reason", nil)
				if err != nil || g.Seen != n {
					t.Errorf("forced: %+v, %v", g, err)
				}
				w.atLeast("their.dlq", n)
				w.same("left", ids(w.drain("their.dlq")), names(every, n))
				return
			}
			if !q.Cost().Free() {
				t.Fatalf("looking costs %v", q.Cost().Reasons)
			}
			id := ""
			for range 50 {
				seen := []string{}
				for m, err := range q.Messages(t.Context(), parking.Filter{}) {
					w.must(err)
					seen = append(seen, m.MessageID)
					if m.MessageID == "m7" {
						if id != "" && m.ID != id {
							t.Fatalf("the ID changes from %s to %s", id, m.ID)
						}
						id = m.ID
					}
				}
				w.same("list", seen, names(every, n))
				m, err := q.Find(t.Context(), id[:12])
				w.must(err)
				if m.MessageID != "m7" {
					t.Fatalf("shows %s", m.MessageID)
				}
				if d := w.depth("their.dlq"); d != n {
					t.Fatalf("%d messages after a look, want %d", d, n)
				}
			}
			w.same("left", ids(w.drain("their.dlq")), names(every, n))
			if d := w.depth("dead"); d != 0 {
				t.Errorf("%d messages were dead-lettered", d)
			}
		})
	}
}

func TestOpen(t *testing.T) {
	w := newWorld(t)
	if _, err := parking.Open(t.Context(), w.conn, "none", parking.Options{}); !errors.Is(err, parking.ErrNoQueue) {
		t.Errorf("got %v", err)
	}
	// What a queue is like is found out over AMQP, whatever it has been declared with.
	w.declare("odd", amqp.Table{
		"x-queue-type": "classic", "x-max-length": int32(9), "x-message-ttl": int64(3_600_000), "x-single-active-consumer": true,
		"x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": "7", "x-max-priority": int32(3),
	})
	c := w.open("odd", parking.Options{}).Cost()
	if c.Type != "classic" || len(c.Reasons) != 2 || !strings.Contains(strings.Join(c.Reasons, "; "), "max-length 9") || c.DeadLetters != "dlx" {
		t.Errorf("got %+v", c)
	}
	if c := w.open("orders.parked", parking.Options{}).Cost(); !c.Free() || c.Type != "quorum" {
		t.Errorf("ours: %+v", c)
	}
	// Somebody consumes.
	ch, err := w.conn.Channel()
	w.must(err)
	defer ch.Close()
	_, err = ch.Consume("orders.parked", "other", false, false, false, false, nil)
	w.must(err)
	if c := w.open("orders.parked", parking.Options{}).Cost(); c.Consumers != 1 || c.Free() {
		t.Errorf("with a consumer: %+v", c)
	}
}

func TestGroupsAndFind(t *testing.T) {
	w := newWorld(t)
	w.park(0, 30)
	seen, total := 0, 0
	q := w.open("orders.parked", parking.Options{Progress: func(s, t int) { seen, total = s, t }})
	g, err := q.Groups(t.Context(), parking.Filter{}, "fingerprint", nil)
	w.must(err)
	if g.Seen != 30 {
		t.Errorf("seen %d", g.Seen)
	}
	if _, err := q.Find(t.Context(), "eeeeeeeeeeee"); !errors.Is(err, parking.ErrNotFound) || seen != 30 || total != 30 {
		t.Errorf("progress up to %d of %d, %v", seen, total, err)
	}
	if g.Seen != 30 || g.Picked != 30 || len(g.Groups) != 2 || g.Groups[0].Key != "TimeoutError: timeout after <n> ms" || g.Groups[0].Count != 20 ||
		g.Groups[1].Count != 10 || g.Groups[0].Sample.MessageID != "m0" || g.Groups[0].FirstParked.IsZero() || g.Groups[0].LastParked.Before(g.Groups[0].FirstParked) {
		t.Errorf("got %+v", g)
	}
	g, err = q.Groups(t.Context(), parking.Filter{Fingerprint: g.Groups[1].ID}, "header:n", nil)
	w.must(err)
	if g.Seen != 30 || g.Picked != 10 || len(g.Groups) != 10 {
		t.Errorf("got %+v", g)
	}
	if _, err := q.Groups(t.Context(), parking.Filter{}, "colour", nil); err == nil {
		t.Error("grouped by a colour")
	}
	if _, err := q.Find(t.Context(), "ffffffffffff"); !errors.Is(err, parking.ErrNotFound) {
		t.Errorf("got %v", err)
	}

	// What is to be taken out by the beginning of an ID must be that of one alone.
	same := func(id, messageID string) amqp.Publishing {
		return amqp.Publishing{MessageId: messageID, Headers: amqp.Table{attempt.HeaderQueue: "orders", attempt.HeaderID: id}}
	}
	w.publish("hop.error", "orders", same("abcd"+strings.Repeat("0", 28), "a"), same("abcd"+strings.Repeat("1", 28), "b"), same("abcd"+strings.Repeat("1", 28), "b"))
	w.atLeast("orders.parked", 33)
	var ambiguous *parking.AmbiguousError
	if _, err := q.Exact(t.Context(), parking.Filter{IDs: []string{"abcd"}}); !errors.As(err, &ambiguous) || len(ambiguous.IDs) != 2 {
		t.Errorf("got %v", err)
	}
	f, err := q.Exact(t.Context(), parking.Filter{IDs: []string{"abcd1", "ffffffffffff"}}) // copies of one message are one
	w.must(err)
	w.same("exact", f.IDs, []string{"abcd" + strings.Repeat("1", 28), "ffffffffffff"})
}

// A part of the messages goes back: to its queue alone, as it was, and the rest
// keeps its order.
func TestReplay(t *testing.T) {
	w := newWorld(t)
	const n = 2500 // more than one consumer holds
	w.park(0, n)
	w.declare("audit", nil) // a copy would go here
	q := w.open("orders.parked", parking.Options{By: "maria"})
	r, err := q.Replay(t.Context(), parking.Replay{Filter: parking.Filter{ErrorType: "NotFound"}})
	w.must(err)
	back := names(noCustomer, n)
	if r.Total != n || r.Seen != n || r.Replayed != len(back) || r.NotPicked != n-len(back) || r.Queues["orders"] != len(back) || r.Failed+r.Homeless != 0 {
		t.Errorf("got %+v", r)
	}
	w.atLeast("orders", len(back))
	got := w.drain("orders")
	w.same("replayed", ids(got), back)
	w.atLeast("orders.parked", n-len(back))
	w.same("left", ids(w.drain("orders.parked")), names(timeouts, n))
	if w.depth("audit") != 0 {
		t.Error("a copy went to audit")
	}
	d := got[0]
	p := attempt.FromDelivery(&d)
	rec, err := attempt.Read(&p, attempt.Source{Queue: "orders"})
	w.must(err)
	h := rec.History()
	if d.RoutingKey != "order.create" || string(d.Body) != `{"n": 2}` || d.Headers["n"] != int16(2) || d.Expiration != "" || d.ContentType != "application/json" {
		t.Errorf("not the same message: %+v", d)
	}
	if rec.Count != 0 || rec.ID == "" || rec.Exchange != "shop" || rec.Reason != "" || rec.Error != "" || !rec.FirstFailedAt.IsZero() ||
		len(h) != 3 || !h[2].Replay() || h[2].Consumer != "maria" || !h[2].At.Equal(r.Started) || h[1].N != 2 {
		t.Errorf("record %+v, history %+v", rec, h)
	}
}

func TestReplayElsewhere(t *testing.T) {
	w := newWorld(t)
	w.park(0, 4)
	w.publish("", "orders.parked", amqp.Publishing{MessageId: "stranger"}) // says nothing of a queue
	w.publish("", "orders.parked", amqp.Publishing{MessageId: "gone", Headers: amqp.Table{attempt.HeaderQueue: "gone"}})
	w.atLeast("orders.parked", 6)
	q := w.open("orders.parked", parking.Options{})
	r, err := q.Replay(t.Context(), parking.Replay{Filter: parking.Filter{Reason: "none"}})
	if err != nil || r.Replayed != 0 || r.NotPicked != 6 {
		t.Errorf("an empty set: %+v, %v", r, err)
	}
	w.atLeast("orders.parked", 6)
	r, err = q.Replay(t.Context(), parking.Replay{Limit: 3, KeepCount: true})
	if err != nil || r.Replayed != 3 {
		t.Errorf("a limit: %+v, %v", r, err)
	}
	w.atLeast("orders", 3)
	if d := w.drain("orders"); len(d) != 3 || d[0].Headers[attempt.HeaderCount] != int32(1) {
		t.Errorf("kept no count: %+v", d)
	}
	w.atLeast("orders.parked", 3)
	r, err = q.Replay(t.Context(), parking.Replay{})
	if err != nil || r.Replayed != 1 || r.Homeless != 2 || r.Missing["gone"] != 1 {
		t.Errorf("without a home: %+v, %v", r, err)
	}
	w.atLeast("orders.parked", 2)
	w.declare("other", nil)
	r, err = q.Replay(t.Context(), parking.Replay{ToQueue: "other"})
	if err != nil || r.Replayed != 2 || r.Queues["other"] != 2 {
		t.Errorf("to a queue: %+v, %v", r, err)
	}
	w.atLeast("other", 2)
	d := w.drain("other")
	w.same("to a queue", ids(d), []string{"stranger", "gone"})
	if d[1].Headers[attempt.HeaderQueue] != "other" {
		t.Errorf("its record is of %v", d[1].Headers[attempt.HeaderQueue])
	}
	w.park(4, 5)
	w.must(w.ch.ExchangeDeclare("shop", "topic", true, false, false, false, nil))
	w.must(w.ch.QueueBind("other", "order.*", "shop", false, nil))
	r, err = q.Replay(t.Context(), parking.Replay{ToExchange: "shop"})
	if err != nil || r.Replayed != 1 {
		t.Errorf("to an exchange: %+v, %v", r, err)
	}
	if _, err = q.Replay(t.Context(), parking.Replay{ToQueue: "none"}); err == nil {
		t.Error("to a queue that is none: no error")
	}
}

// A queue that refuses, and an exchange without a way: what was not taken stays.
func TestReplayIsNotTaken(t *testing.T) {
	w := newWorld(t)
	w.declare("full", amqp.Table{"x-queue-type": "classic", "x-max-length": int64(1), "x-overflow": "reject-publish"})
	w.must(w.ch.ExchangeDeclare("nowhere", "direct", true, false, false, false, nil))
	w.park(0, 40)
	q := w.open("orders.parked", parking.Options{})
	r, err := q.Replay(t.Context(), parking.Replay{ToExchange: "nowhere"})
	w.must(err)
	if r.Replayed != 0 || r.Failed != 40 || !errors.Is(r.Why, parking.ErrReturned) {
		t.Errorf("got %+v", r)
	}
	w.atLeast("orders.parked", 40)
	r, err = q.Replay(t.Context(), parking.Replay{ToQueue: "full"})
	w.must(err)
	if r.Replayed != 1 || r.Failed != 39 || !errors.Is(r.Why, parking.ErrRefused) {
		t.Errorf("got %+v", r)
	}
	w.atLeast("orders.parked", 39)
	w.same("left", ids(w.drain("orders.parked")), names(every, 40)[1:])
}

// Stopped half-way, the rest stays in its order; resumed, it goes, and what came
// back or was parked meanwhile does not.
func TestReplayResumes(t *testing.T) {
	w := newWorld(t)
	const n = 700
	w.park(0, n)
	q := w.open("orders.parked", parking.Options{})
	for m, err := range q.Messages(t.Context(), parking.Filter{}) { // looked at before, as a person would
		_, _ = m, err
	}
	w.atLeast("orders.parked", n)
	ctx, stop := context.WithCancel(t.Context())
	first, err := q.Replay(ctx, parking.Replay{Rate: 300, Filter: parking.Filter{ErrorType: "TimeoutError"}, Progress: func(r parking.ReplayReport) {
		if r.Replayed > 100 {
			stop()
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want it cancelled", err)
	}
	if first.Replayed == 0 || first.Replayed >= len(names(timeouts, n)) {
		t.Fatalf("got %+v, want a part", first)
	}
	w.atLeast("orders", first.Replayed)
	sent := w.drain("orders")
	w.atLeast("orders.parked", n-first.Replayed)

	// One comes back, another one is parked anew.
	d := sent[0]
	p := attempt.FromDelivery(&d)
	rec, err := attempt.Read(&p, attempt.Source{Queue: "orders"})
	w.must(err)
	w.publish("hop.error", "orders", rec.Park(attempt.Failure{Error: "again", ErrorType: "TimeoutError"}, attempt.ReasonPermanent).Successor(&p, 0))
	fresh := attempt.Record{Queue: "orders"}.Park(attempt.Failure{Error: "new", ErrorType: "TimeoutError"}, attempt.ReasonPermanent)
	w.publish("hop.error", "orders", fresh.Successor(&amqp.Publishing{MessageId: "new"}, 0))
	w.atLeast("orders.parked", n-first.Replayed+2)

	o, err := q.Outcome(t.Context(), parking.OutcomeQuery{Started: first.Started, Replayed: first.Replayed, Waiting: []string{"orders", "none"}})
	if w.must(err); o.ParkedAgain != 1 || o.Waiting != 0 || o.Handled != first.Replayed-1 {
		t.Errorf("outcome %+v of %d", o, first.Replayed)
	}
	w.atLeast("orders.parked", n-first.Replayed+2)

	second, err := q.Replay(t.Context(), parking.Replay{Filter: parking.Filter{ErrorType: "TimeoutError"}, Resume: first.Started})
	w.must(err)
	if !second.Started.Equal(first.Started) || second.Replayed+first.Replayed != len(names(timeouts, n)) {
		t.Errorf("got %+v after %+v", second, first)
	}
	w.atLeast("orders", second.Replayed)
	sent = append(sent, w.drain("orders")...)
	w.same("replayed", ids(sent), names(timeouts, n))
	w.atLeast("orders.parked", len(names(noCustomer, n))+2)
	w.same("left", ids(w.drain("orders.parked")), append(names(noCustomer, n), "m0", "new"))
}

// Two people at once: each message goes once.
func TestTwoReplaysAtOnce(t *testing.T) {
	w := newWorld(t)
	const n = 1500
	w.park(0, n)
	var wait sync.WaitGroup
	reports := make([]parking.ReplayReport, 2)
	errs := make([]error, 2)
	for i := range 2 {
		conn := w.dial()
		q, err := parking.Open(t.Context(), conn, "orders.parked", parking.Options{Force: true})
		w.must(err)
		wait.Go(func() {
			reports[i], errs[i] = q.Replay(t.Context(), parking.Replay{Filter: parking.Filter{ErrorType: "TimeoutError"}})
		})
	}
	wait.Wait()
	w.must(errors.Join(errs...))
	want := names(timeouts, n)
	w.atLeast("orders", len(want))
	got := ids(w.drain("orders"))
	slices.Sort(got)
	slices.Sort(want)
	w.same("replayed", got, want)
	if reports[0].Replayed+reports[1].Replayed != len(want) {
		t.Errorf("%+v\n%+v", reports[0], reports[1])
	}
	w.atLeast("orders.parked", n-len(want))
}

// handler parks every message of orders again, as a Hopback consumer would.
func (w world) handler(fails func(i int) bool) {
	w.Helper()
	conn := w.dial()
	ch, err := conn.Channel()
	w.must(err)
	deliveries, err := ch.Consume("orders", "handler", false, false, false, false, nil)
	w.must(err)
	ended := make(chan struct{})
	w.Cleanup(func() { conn.Close(); <-ended })
	go func() {
		defer close(ended)
		i := 0
		for d := range deliveries {
			p := attempt.FromDelivery(&d)
			rec, _ := attempt.Read(&p, attempt.Source{Queue: "orders"})
			if fails(i) {
				s := rec.Park(attempt.Failure{Error: "still down", ErrorType: "TimeoutError"}, attempt.ReasonPermanent).Successor(&p, 0)
				_ = ch.PublishWithContext(context.Background(), "hop.error", "orders", true, false, s)
			}
			_ = d.Ack(false)
			i++
		}
	}()
}

// When too many come back, a slow replay stops, and the rest stays in its order.
func TestReplayStops(t *testing.T) {
	w := newWorld(t)
	const n = 400
	w.park(0, n)
	w.handler(every)
	q := w.open("orders.parked", parking.Options{})
	r, err := q.Replay(t.Context(), parking.Replay{Rate: 40, StopRatio: 0.3})
	w.must(err)
	if r.Stopped == "" || r.Replayed < 10 || r.Replayed > n-50 {
		t.Errorf("got %+v, want it stopped early", r)
	}
	w.atLeast("orders.parked", n)
	left := ids(w.drain("orders.parked"))
	if rest := names(every, n)[r.Replayed:]; len(left) != n || !slices.Equal(left[:len(rest)], rest) {
		t.Errorf("left %.200q after %d were sent", left, r.Replayed)
	}
}

// What others park meanwhile does not stop it.
func TestReplayIsNotStoppedByOthers(t *testing.T) {
	w := newWorld(t)
	const n = 60
	w.park(0, n)
	q := w.open("orders.parked", parking.Options{})
	others := 0
	r, err := q.Replay(t.Context(), parking.Replay{Rate: 20, StopRatio: 0.3, Progress: func(r parking.ReplayReport) {
		if others == 0 && r.Replayed >= 12 {
			others = 30
			fresh := attempt.Record{Queue: "orders"}.Park(attempt.Failure{Error: "other"}, attempt.ReasonPermanent)
			for range others {
				w.publish("hop.error", "orders", fresh.Successor(&amqp.Publishing{MessageId: "other"}, 0))
			}
		}
	}})
	w.must(err)
	if r.Stopped != "" || r.Replayed != n {
		t.Errorf("got %+v, want all sent", r)
	}
	w.atLeast("orders.parked", others)
	for _, d := range w.drain("orders.parked") {
		if d.MessageId != "other" {
			t.Errorf("left: %s", d.MessageId)
		}
	}
}

// What came back in the part before an interruption does not stop the part after
// it.
func TestReplayResumesWithARatio(t *testing.T) {
	w := newWorld(t)
	const n = 80
	w.park(0, n)
	q := w.open("orders.parked", parking.Options{})
	ctx, stop := context.WithCancel(t.Context())
	first, err := q.Replay(ctx, parking.Replay{Rate: 200, Progress: func(r parking.ReplayReport) {
		if r.Replayed >= 20 {
			stop()
		}
	}})
	if !errors.Is(err, context.Canceled) || first.Replayed >= n-20 {
		t.Fatalf("got %+v, %v", first, err)
	}
	w.atLeast("orders", first.Replayed)
	sent := w.drain("orders")
	for _, d := range sent {
		p := attempt.FromDelivery(&d)
		rec, err := attempt.Read(&p, attempt.Source{Queue: "orders"})
		w.must(err)
		w.publish("hop.error", "orders", rec.Park(attempt.Failure{Error: "again"}, attempt.ReasonPermanent).Successor(&p, 0))
	}
	w.atLeast("orders.parked", n)
	others := 0
	r, err := q.Replay(t.Context(), parking.Replay{Rate: 20, StopRatio: 0.3, Resume: first.Started, Progress: func(r parking.ReplayReport) {
		if others == 0 && r.Replayed >= 12 {
			others = 10 // more than may be, and of somebody else
			fresh := attempt.Record{Queue: "orders"}.Park(attempt.Failure{Error: "other"}, attempt.ReasonPermanent)
			for range others {
				w.publish("hop.error", "orders", fresh.Successor(&amqp.Publishing{MessageId: "other"}, 0))
			}
		}
	}})
	w.must(err)
	if r.Stopped != "" || r.Replayed != n-first.Replayed || others == 0 {
		t.Errorf("got %+v after %d", r, first.Replayed)
	}
}

// A pause holds nothing.
func TestReplayPauses(t *testing.T) {
	w := newWorld(t)
	const n = 60
	w.park(0, n)
	q := w.open("orders.parked", parking.Options{})
	var mu sync.Mutex
	paused, sent, free := false, 0, -1
	r, err := q.Replay(t.Context(), parking.Replay{
		Rate: 50,
		Paused: func() bool {
			mu.Lock()
			defer mu.Unlock()
			if sent == 0 || free >= 0 {
				return false
			}
			if paused { // the second question: everything is back
				free = w.depth("orders.parked")
			}
			return !(free == n-sent)
		},
		Progress: func(r parking.ReplayReport) {
			mu.Lock()
			defer mu.Unlock()
			if r.Replayed >= 20 {
				sent, paused = r.Replayed, r.Paused
			}
		},
	})
	w.must(err)
	if r.Replayed != n || free < 0 {
		t.Errorf("got %+v, with %d free in the pause after %d", r, free, sent)
	}
	w.atLeast("orders", n)
	w.same("replayed", ids(w.drain("orders")), names(every, n))
}

// allTypes are headers of each type that can be published.
func allTypes() amqp.Table {
	return amqp.Table{
		"void": nil, "bool": true, "int8": int8(-3), "uint8": uint8(200), "int16": int16(-300), "uint16": uint16(60000),
		"int32": int32(-5), "uint32": uint32(4_000_000_000), "int64": int64(1) << 62, "float32": float32(1.5), "float64": 0.1,
		"decimal": amqp.Decimal{Scale: 1, Value: 30}, "string": "ü\x00", "odd": "\xff", "bytes": []byte{0xff, 0xfe}, "ms": time.Unix(1700000000123, 0),
		"array": []any{int8(1), nil, []any{"a"}, amqp.Table{"x": uint16(7)}}, "empty": []any(nil), "table": amqp.Table{"a": nil, "b": amqp.Table{}},
	}
}

// alike compares what two deliveries carry.
func alike(t *testing.T, got, want amqp.Delivery) {
	t.Helper()
	strip := func(d amqp.Delivery) string {
		p := attempt.FromDelivery(&d)
		p.Headers = maps.Clone(p.Headers)
		for _, k := range []string{"x-delivery-count", "x-acquired-count"} {
			delete(p.Headers, k)
		}
		if len(p.Headers) == 0 {
			p.Headers = nil
		}
		return fmt.Sprintf("%#v %s %s", p, d.Exchange, d.RoutingKey)
	}
	if g, w := strip(got), strip(want); g != w {
		t.Errorf("differs\n got %s\nwant %s", g, w)
	}
}

// What is exported and imported is equal, every type and every property.
func TestExportAndImport(t *testing.T) {
	w := newWorld(t)
	full := parked(1)
	maps.Copy(full.Headers, allTypes())
	full.ContentEncoding, full.CorrelationId, full.ReplyTo, full.Timestamp = "gzip", "c", "r", time.Unix(1700000000123, 0)
	full.Type, full.AppId, full.Priority, full.Body = "T", "app", 4, []byte{0x1f, 0x8b, 0}
	w.publish("hop.error", "orders", parked(0), full, amqp.Publishing{}, parked(2))
	w.atLeast("orders.parked", 4)
	q := w.open("orders.parked", parking.Options{})
	var out bytes.Buffer
	n, err := q.Export(t.Context(), &out, parking.Filter{})
	w.must(err)
	if n != 4 || strings.Count(out.String(), "\n") != 4 {
		t.Errorf("%d exported: %s", n, out.String())
	}
	w.atLeast("orders.parked", 4)
	before := w.drain("orders.parked")
	export := out.String()

	r, err := parking.Import{From: strings.NewReader(export), DryRun: true}.Run(t.Context(), w.conn)
	if err != nil || r.Imported != 4 || w.depth("orders.parked") != 0 {
		t.Errorf("dry: %+v, %v", r, err)
	}
	r, err = parking.Import{From: strings.NewReader(export)}.Run(t.Context(), w.conn)
	w.must(err)
	if r.Lines != 4 || r.Imported != 4 || r.Failed != 0 || r.Queues["orders.parked"] != 4 {
		t.Errorf("got %+v", r)
	}
	w.atLeast("orders.parked", 4)
	after := w.drain("orders.parked")
	for i := range before {
		alike(t, after[i], before[i])
	}

	// What cannot be imported is told, and does not stop the others.
	w.declare("other", nil)
	bad := "{}\n\nno JSON\n" + strings.Replace(strings.SplitN(export, "\n", 2)[0], `"version":1`, `"version":9`, 1) + "\n" + export
	r, err = parking.Import{From: strings.NewReader(bad), To: "other"}.Run(t.Context(), w.conn)
	w.must(err)
	if r.Lines != 7 || r.Imported != 4 || r.Failed != 3 || len(r.Errors) != 3 || w.depth("other") != 4 {
		t.Errorf("got %+v", r)
	}
	var line *parking.LineError
	if !errors.As(r.Errors[1], &line) || line.Line != 3 {
		t.Errorf("got %v", r.Errors)
	}
	r, err = parking.Import{From: strings.NewReader(export), To: "none"}.Run(t.Context(), w.conn)
	if err != nil || r.Failed != 4 {
		t.Errorf("to a queue that is none: %+v, %v", r, err)
	}
}

// A message that is larger than the broker takes fails alone.
func TestImportTooLarge(t *testing.T) {
	w := newWorld(t)
	version, _ := w.conn.Properties["version"].(string)
	if strings.HasPrefix(version, "3.") {
		t.Skip("RabbitMQ 3.x takes messages of 128 MiB")
	}
	body := strings.Repeat("a", 17<<20)
	line := func(id, body string) string {
		return fmt.Sprintf(`{"version":1,"id":%q,"queue":"orders.parked","exchange":"","routing_key":"","exported_at":"2026-01-01T00:00:00Z","properties":{"message_id":%[1]q},"body":{"type":"string","value":%[2]q}}`+"\n", id, body)
	}
	r, err := parking.Import{From: strings.NewReader(line("a", "x") + line("b", body) + line("c", "x"))}.Run(t.Context(), w.conn)
	w.must(err)
	if r.Imported != 2 || r.Failed != 1 || len(r.Errors) != 1 || !strings.Contains(r.Errors[0].Error(), "message b") {
		t.Errorf("got %+v", r)
	}
	w.atLeast("orders.parked", 2)
	w.same("imported", ids(w.drain("orders.parked")), []string{"a", "c"})
}

func TestDiscard(t *testing.T) {
	w := newWorld(t)
	const n = 600
	w.park(0, n)
	q := w.open("orders.parked", parking.Options{})
	disk := errors.New("disk full")
	r, err := q.Discard(t.Context(), parking.Discard{Keep: func([]*parking.Message) error { return disk }})
	if !errors.Is(err, disk) || r.Moved != 0 {
		t.Errorf("got %+v, %v", r, err)
	}
	w.atLeast("orders.parked", n)
	var kept []string
	r, err = q.Discard(t.Context(), parking.Discard{Filter: parking.Filter{ErrorType: "NotFound"}, Keep: func(ms []*parking.Message) error {
		for _, m := range ms {
			kept = append(kept, m.MessageID)
		}
		return nil
	}})
	w.must(err)
	if r.Moved != n/3 || r.NotPicked != n-n/3 {
		t.Errorf("got %+v", r)
	}
	w.same("kept", kept, names(noCustomer, n))
	w.atLeast("orders.parked", n-n/3)
	w.same("left", ids(w.drain("orders.parked")), names(timeouts, n))
}

func TestMoveAndReplace(t *testing.T) {
	w := newWorld(t)
	w.declare("later", nil)
	w.park(0, 9)
	q := w.open("orders.parked", parking.Options{})
	r, err := q.Move(t.Context(), parking.Move{Filter: parking.Filter{ErrorType: "NotFound"}, To: "later", Limit: 2})
	w.must(err)
	if r.Moved != 2 {
		t.Errorf("got %+v", r)
	}
	w.atLeast("later", 2)
	moved := w.drain("later")
	w.same("moved", ids(moved), []string{"m2", "m5"})
	if moved[0].Headers[attempt.HeaderReason] != "exhausted" || moved[0].Headers[attempt.HeaderError] != "no customer 2" {
		t.Errorf("moved with %v", moved[0].Headers)
	}
	w.atLeast("orders.parked", 7)
	for _, to := range []string{"", "orders.parked", "none"} {
		if _, err := q.Move(t.Context(), parking.Move{To: to}); err == nil {
			t.Errorf("moved to %q", to)
		}
	}

	var old *parking.Message
	for m, err := range q.Messages(t.Context(), parking.Filter{}) {
		w.must(err)
		if m.MessageID == "m3" {
			old = m
		}
	}
	w.atLeast("orders.parked", 7)
	with := attempt.FromDelivery(old.Delivery)
	with.Body = []byte("mended")
	broken := with // what cannot be written takes nothing out
	broken.Headers = amqp.Table{"large": strings.Repeat("x", 1<<20)}
	if err := q.Replace(t.Context(), old, broken); !errors.Is(err, parking.ErrUnsendable) {
		t.Errorf("replaced by what cannot be written: %v", err)
	}
	w.atLeast("orders.parked", 7)
	w.must(q.Replace(t.Context(), old, with))
	w.atLeast("orders.parked", 7)
	if err := q.Replace(t.Context(), old, with); !errors.Is(err, parking.ErrChanged) {
		t.Errorf("replaced twice: %v", err)
	}
	w.atLeast("orders.parked", 7)
	got := w.drain("orders.parked")
	w.same("left", ids(got), []string{"m0", "m1", "m4", "m6", "m7", "m8", "m3"})
	last := got[len(got)-1]
	if string(last.Body) != "mended" || last.Headers[attempt.HeaderID] != old.ID {
		t.Errorf("got %+v", last)
	}

	// A message of other people's has the same ID afterwards too.
	w.publish("", "later", amqp.Publishing{MessageId: "theirs", Headers: amqp.Table{"n": int8(1)}, Body: []byte("theirs")})
	w.atLeast("later", 1)
	theirs := w.open("later", parking.Options{Force: true}) // a default quorum queue on 4.0
	first := func() (m *parking.Message) {
		for m, err = range theirs.Messages(t.Context(), parking.Filter{}) {
			w.must(err)
			break
		}
		w.atLeast("later", 1)
		return m
	}
	m := first()
	with = attempt.FromDelivery(m.Delivery)
	with.Body = []byte("mended")
	w.must(theirs.Replace(t.Context(), m, with))
	if again := first(); again.ID != m.ID || string(again.Delivery.Body) != "mended" || again.Delivery.Headers["n"] != int8(1) {
		t.Errorf("%s is %s now, %+v", m.ID, again.ID, again.Delivery)
	}
}

func TestTail(t *testing.T) {
	for name, c := range map[string]struct{ workQueue, prefix string }{"copies": {"orders", "hop"}, "looks": {"", "hop"}, "no exchange": {"orders", "none"}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.park(0, 3)
			workQueue := c.workQueue
			q := w.open("orders.parked", parking.Options{Prefix: c.prefix})
			ctx, stop := context.WithTimeout(t.Context(), time.Minute)
			defer stop()
			var got []string
			arrive := time.AfterFunc(1500*time.Millisecond, func() {
				ch, err := w.conn.Channel()
				if err != nil {
					return
				}
				for i := 3; i < 6; i++ {
					_ = ch.PublishWithContext(ctx, "hop.error", "orders", true, false, parked(i))
				}
			})
			defer arrive.Stop()
			for m, err := range q.Tail(ctx, workQueue, parking.Filter{ErrorType: "TimeoutError"}, 200*time.Millisecond) {
				w.must(err)
				if got = append(got, m.MessageID); len(got) == 2 {
					break
				}
			}
			w.same("followed", got, []string{"m3", "m4"})
			w.atLeast("orders.parked", 6)
			w.same("left", ids(w.drain("orders.parked")), names(every, 6))
		})
	}
}

// Where the parking queue is gone, the copies must not keep those who park from
// finding that out.
func TestTailEndsWithTheQueue(t *testing.T) {
	w := newWorld(t)
	q := w.open("orders.parked", parking.Options{})
	conn := w.dial()
	deleted := time.AfterFunc(500*time.Millisecond, func() {
		if ch, err := conn.Channel(); err == nil {
			_, _ = ch.QueueDelete("orders.parked", false, false, false)
		}
	})
	defer deleted.Stop()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	var last error
	for m, err := range q.Tail(ctx, "orders", parking.Filter{}, 0) {
		if last = err; err == nil {
			t.Errorf("followed %s", m.MessageID)
		}
	}
	if !errors.Is(last, parking.ErrNoQueue) {
		t.Errorf("got %v, want that there is no queue", last)
	}
	if conn, err := amqp.Dial(w.url); err == nil { // parking fails, instead of going nowhere
		defer conn.Close()
		ch, err := conn.Channel()
		w.must(err)
		w.must(ch.Confirm(false))
		returned := ch.NotifyReturn(make(chan amqp.Return, 1))
		dc, err := ch.PublishWithDeferredConfirm("hop.error", "orders", true, false, parked(1))
		w.must(err)
		if !dc.Wait() || len(returned) != 1 {
			t.Error("a message was parked nowhere, and not returned")
		}
	}
}

// What was replayed and is parked again is told again, where it is looked for.
func TestTailTellsWhatComesBack(t *testing.T) {
	w := newWorld(t)
	w.park(0, 1)
	q := w.open("orders.parked", parking.Options{})
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	again := time.AfterFunc(time.Second, func() { // between two looks
		for ctx.Err() == nil {
			d, ok, err := w.ch.Get("orders.parked", false)
			if err != nil {
				return
			}
			if !ok {
				time.Sleep(10 * time.Millisecond)
				continue
			}
			p := attempt.FromDelivery(&d)
			rec, _ := attempt.Read(&p, attempt.Source{Queue: "orders"})
			_ = w.ch.PublishWithContext(ctx, "hop.error", "orders", true, false, rec.Park(attempt.Failure{Error: "again"}, attempt.ReasonPermanent).Successor(&p, 0))
			_ = d.Ack(false)
			return
		}
	})
	defer again.Stop()
	told := ""
	for m, err := range q.Tail(ctx, "", parking.Filter{}, 3*time.Second) {
		w.must(err)
		told = m.Error
		break
	}
	if told != "again" {
		t.Errorf("told %q", told)
	}
}
