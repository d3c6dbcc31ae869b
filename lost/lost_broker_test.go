package lost_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/delay"
	"github.com/hopback/hopback/lost"
	"github.com/hopback/hopback/rabbittest"
	"github.com/hopback/hopback/topology"
)

// world is a virtual host with Hopback set up for two work queues, orders and
// invoices, of which neither is there.
type world struct {
	*testing.T
	conn *amqp.Connection
	ch   *amqp.Channel
}

func newWorld(t *testing.T) world {
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
	w := world{t, conn, ch}
	w.must(ch.Confirm(false))
	top, err := hopback.Topology("hop", route("orders"), route("invoices"))
	w.must(err)
	w.must(topology.Apply(t.Context(), conn, top))
	w.delete("orders")
	w.delete("invoices")
	return w
}

// route has one slot, which is quickly declared.
func route(queue string) hopback.Route {
	return hopback.Route{
		Queue: queue, Mechanism: hopback.Ladder, Ladder: []time.Duration{100 * time.Millisecond},
		Declare: &hopback.Declare{},
	}
}

func (w world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w world) delete(queue string) {
	w.Helper()
	_, err := w.ch.QueueDelete(queue, false, false, false)
	w.must(err)
}

func (w world) declare(queue string, args amqp.Table) {
	w.Helper()
	_, err := w.ch.QueueDeclare(queue, true, false, false, false, args)
	w.must(err)
}

// lose sends a message on its way back to a queue that is not there.
func (w world) lose(queue, body string, headers amqp.Table) {
	w.Helper()
	h := amqp.Table{
		attempt.HeaderQueue: queue, attempt.HeaderCount: int32(2), attempt.HeaderID: "id-" + body,
		attempt.HeaderExchange: "shop", attempt.HeaderRoutingKey: "order.create", attempt.HeaderThen: "hop.delay.100ms",
		attempt.HeaderError: "no stock", "theirs": int64(7),
	}
	maps.Copy(h, headers)
	for k, v := range h {
		if v == nil {
			delete(h, k)
		}
	}
	dc, err := w.ch.PublishWithDeferredConfirm("hop.return", "order.create", true, false, amqp.Publishing{
		Headers: h, Body: []byte(body), DeliveryMode: amqp.Persistent, MessageId: "m-" + body, ContentType: "text/plain", Priority: 3,
	})
	w.must(err)
	if !dc.Wait() {
		w.Fatal("not confirmed")
	}
}

// wait waits until the lost queue counts that many messages: what a channel has
// just given back or published is counted a moment later.
func (w world) wait(n int) {
	w.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		q, err := w.ch.QueueDeclarePassive("hop.lost", true, false, false, false, nil)
		w.must(err)
		if q.Messages == n {
			return
		}
		if time.Now().After(deadline) {
			w.Fatalf("hop.lost counts %d messages, want %d", q.Messages, n)
		}
	}
}

// drain takes everything out of a queue.
func (w world) drain(queue string) []amqp.Delivery {
	w.Helper()
	var all []amqp.Delivery
	for {
		d, ok, err := w.ch.Get(queue, true)
		w.must(err)
		if !ok {
			return all
		}
		all = append(all, d)
	}
}

func bodies(ds []amqp.Delivery) []string {
	var bs []string
	for _, d := range ds {
		bs = append(bs, string(d.Body))
	}
	return bs
}

func (w world) expect(queue string, want ...string) {
	w.Helper()
	if queue == "hop.lost" && len(want) > 0 {
		w.wait(len(want)) // what was read comes back a moment later
	}
	if got := bodies(w.drain(queue)); !slices.Equal(got, want) {
		w.Errorf("%s holds %q, want %q", queue, got, want)
	}
}

func (w world) run(o lost.Options, want lost.Report) {
	w.Helper()
	w.wait(want.Total)
	got, err := lost.Return(w.Context(), w.conn, o)
	w.must(err)
	got.Queues = nil
	if !reflect.DeepEqual(got, want) {
		w.Errorf("got %+v, want %+v", got, want)
	}
}

func TestReturnedOnceTheQueueIsBack(t *testing.T) {
	w := newWorld(t)
	w.lose("orders", "a", nil)
	w.run(lost.Options{}, lost.Report{Total: 1, Seen: 1, Stayed: 1, Missing: 1})

	w.declare("orders", amqp.Table{"x-queue-type": "quorum"})
	w.run(lost.Options{}, lost.Report{Total: 1, Seen: 1, Returned: 1})
	w.expect("hop.lost")
	got := w.drain("orders")
	if len(got) != 1 {
		t.Fatalf("orders holds %d messages, want 1", len(got))
	}
	d := got[0]
	if string(d.Body) != "a" || d.RoutingKey != "order.create" || d.MessageId != "m-a" || d.ContentType != "text/plain" || d.Priority != 3 {
		t.Errorf("not the same message: %+v", d)
	}
	for k, want := range map[string]any{
		attempt.HeaderQueue: "orders", attempt.HeaderCount: int32(2), attempt.HeaderID: "id-a", attempt.HeaderError: "no stock",
		attempt.HeaderExchange: "shop", attempt.HeaderRoutingKey: "order.create", attempt.HeaderThen: nil, "theirs": int64(7),
	} {
		if d.Headers[k] != want {
			t.Errorf("header %s is %T %[2]v, want %T %[3]v", k, d.Headers[k], want)
		}
	}

	// The queue is on the way back again for the messages that come.
	w.lose("orders", "b", nil)
	w.expect("orders", "b")
}

// The whole way: a message waits in a slot while its work queue is deleted.
func TestLostInASlot(t *testing.T) {
	w := newWorld(t)
	hold := route("orders").DelayMechanism("hop").Hold(delay.Request{Delay: 100 * time.Millisecond})
	w.must(w.ch.PublishWithContext(t.Context(), hold.Exchange, "order.create", true, false, amqp.Publishing{
		Headers: amqp.Table{attempt.HeaderQueue: "orders", attempt.HeaderCount: int32(1)}, Body: []byte("a"), DeliveryMode: amqp.Persistent,
	}))
	w.wait(1)
	w.declare("orders", nil)
	w.run(lost.Options{}, lost.Report{Total: 1, Seen: 1, Returned: 1})
	d := w.drain("orders")
	if len(d) != 1 || d[0].RoutingKey != "order.create" || d[0].Headers["x-death"] != nil {
		t.Errorf("got %+v", d)
	}
}

func TestParkedWhereTheQueueIsGoneForGood(t *testing.T) {
	w := newWorld(t)
	w.declare("invoices", nil)
	w.lose("orders", "a", nil)
	w.lose("invoices", "b", nil)
	w.run(lost.Options{Park: true}, lost.Report{Total: 2, Seen: 2, Returned: 1, Parked: 1})
	w.expect("invoices", "b")
	w.expect("hop.lost")
	got := w.drain("orders.parked")
	if len(got) != 1 {
		t.Fatalf("%d messages parked, want 1", len(got))
	}
	h := got[0].Headers
	if h[attempt.HeaderReason] != attempt.ReasonLostRoute || h[attempt.HeaderError] != "no stock" || h[attempt.HeaderCount] != int32(2) || h[attempt.HeaderRoutingKey] != "order.create" {
		t.Errorf("parked with %v", h)
	}
}

func TestNoParkingQueue(t *testing.T) {
	w := newWorld(t)
	w.delete("orders.parked")
	w.lose("orders", "a", nil)
	w.lose("orders", "a", nil) // two that nothing tells apart
	w.run(lost.Options{Park: true}, lost.Report{Total: 2, Seen: 2, Stayed: 2, Refused: 2})
	w.expect("hop.lost", "a", "a")
}

func TestWhatCannotBeReadStays(t *testing.T) {
	w := newWorld(t)
	w.declare("orders", nil)
	w.delete("orders") // its binding goes with it, and comes back below
	w.lose("orders", "counter", amqp.Table{attempt.HeaderCount: "many"})
	w.lose("", "nameless", amqp.Table{attempt.HeaderQueue: nil})
	w.declare("orders", nil)
	w.run(lost.Options{}, lost.Report{Total: 2, Seen: 2, Stayed: 2, Unreadable: 2})
	w.run(lost.Options{Park: true}, lost.Report{Total: 2, Seen: 2, Parked: 1, Stayed: 1, Unreadable: 1})
	w.expect("orders")
	w.expect("hop.lost", "nameless")
	got := w.drain("orders.parked")
	if len(got) != 1 || got[0].Headers[attempt.HeaderReason] != attempt.ReasonBadCounter {
		t.Errorf("parked: %v", got)
	}
}

func TestAQueueThatRefuses(t *testing.T) {
	w := newWorld(t)
	for _, body := range []string{"a", "b", "c"} {
		w.lose("orders", body, nil)
	}
	w.declare("orders", amqp.Table{"x-max-length": int64(1), "x-overflow": "reject-publish"})
	w.run(lost.Options{}, lost.Report{Total: 3, Seen: 3, Returned: 1, Stayed: 2, Refused: 2})
	w.expect("orders", "a")
	w.expect("hop.lost", "b", "c")
}

func TestOneQueueOnly(t *testing.T) {
	w := newWorld(t)
	const n = 80 // half of them stay: more than come back in their order by themselves
	var orders, invoices []string
	for i := range n {
		body := fmt.Sprint(i)
		if i%2 == 0 {
			orders = append(orders, body)
			w.lose("orders", body, nil)
		} else {
			invoices = append(invoices, body)
			w.lose("invoices", body, nil)
		}
	}
	w.declare("orders", nil)
	w.declare("invoices", nil)
	w.run(lost.Options{Queue: "invoices"}, lost.Report{Total: n, Seen: n, Returned: n / 2, Stayed: n / 2, Skipped: n / 2})
	w.expect("invoices", invoices...)
	w.expect("hop.lost", orders...)
}

// More stay than one consumer may hold, before, between and behind those that
// are returned: each is where it belongs, once, in its order.
func TestMoreThanAConsumerHolds(t *testing.T) {
	w := newWorld(t)
	const n = 2600
	var orders, invoices []string
	var confirms []*amqp.DeferredConfirmation
	for i := range n {
		queue, body := "orders", fmt.Sprint(i)
		if i > 100 && i%10 == 0 {
			queue, invoices = "invoices", append(invoices, body)
		} else {
			orders = append(orders, body)
		}
		dc, err := w.ch.PublishWithDeferredConfirm("hop.return", "", true, false, amqp.Publishing{
			Headers: amqp.Table{attempt.HeaderQueue: queue, attempt.HeaderID: body}, Body: []byte(body), DeliveryMode: amqp.Persistent,
		})
		w.must(err)
		if confirms = append(confirms, dc); len(confirms) == 100 || i == n-1 {
			for _, dc := range confirms {
				if !dc.Wait() {
					t.Fatal("not confirmed")
				}
			}
			confirms = nil
		}
	}
	w.wait(n)
	w.declare("invoices", nil)
	w.run(lost.Options{}, lost.Report{Total: n, Seen: n, Returned: len(invoices), Stayed: len(orders), Missing: len(orders)})
	w.expect("invoices", invoices...)
	w.wait(len(orders))
	w.expect("hop.lost", orders...)
}

// More than are on the way at a time, and stopped in between: what was not
// returned stays, and a second run returns it.
func TestStoppedHalfWay(t *testing.T) {
	w := newWorld(t)
	const n = 400
	var want []string
	for i := range n {
		want = append(want, fmt.Sprint(i))
		w.lose("orders", fmt.Sprint(i), nil)
	}
	w.declare("orders", nil)
	w.wait(n)
	ctx, stop := context.WithCancel(t.Context())
	r, err := lost.Return(ctx, w.conn, lost.Options{Progress: func(lost.Report) { stop() }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want it cancelled", err)
	}
	if r.Returned == 0 || r.Returned == n || r.Queues["orders"].Returned != r.Returned {
		t.Errorf("got %+v, want a part of %d", r, n)
	}
	w.run(lost.Options{}, lost.Report{Total: n - r.Returned, Seen: n - r.Returned, Returned: n - r.Returned})
	w.expect("hop.lost")
	w.expect("orders", want...)
}

// Looking changes nothing, more often than the 21 times that a message without
// a delivery limit of its own would bear on 4.0.
func TestListChangesNothing(t *testing.T) {
	w := newWorld(t)
	want := []string{"0", "1", "2", "3", "4"}
	for _, body := range want {
		w.lose("orders", body, nil)
	}
	for range 30 {
		w.wait(len(want))
		l, err := lost.List(t.Context(), w.conn, lost.Options{})
		w.must(err)
		if l.Total != len(want) || len(l.Messages) != len(want) || !l.Complete {
			t.Fatalf("got %+v", l)
		}
	}
	w.wait(len(want))
	l, err := lost.List(t.Context(), w.conn, lost.Options{Limit: 2})
	w.must(err)
	if l.Total != len(want) || len(l.Messages) != 2 || l.Complete {
		t.Errorf("with a limit: %+v", l)
	}
	m := l.Messages[0]
	m.FirstFailedAt, m.DueAt = time.Time{}, time.Time{}
	if wanted := (lost.Message{
		ID: "id-0", MessageID: "m-0", Queue: "orders", Exchange: "shop", RoutingKey: "order.create", Retries: 2, Error: "no stock", Size: 1,
	}); m != wanted {
		t.Errorf("got %+v, want %+v", m, wanted)
	}
	w.declare("orders", nil)
	w.wait(len(want))
	if l, err = lost.List(t.Context(), w.conn, lost.Options{}); err != nil || !l.Messages[0].QueueExists {
		t.Errorf("the queue is back: %+v, %v", l, err)
	}
	w.expect("hop.lost", want...)
}

func TestNotSetUp(t *testing.T) {
	w := newWorld(t)
	if _, err := lost.Return(t.Context(), w.conn, lost.Options{Prefix: "other"}); !errors.Is(err, lost.ErrNotSetUp) {
		t.Errorf("return: %v", err)
	}
	if _, err := lost.List(t.Context(), w.conn, lost.Options{Prefix: "other"}); !errors.Is(err, lost.ErrNotSetUp) {
		t.Errorf("list: %v", err)
	}
}

// Without the exchange the broker closes the channel: everything stays.
func TestTheWayBackIsGone(t *testing.T) {
	w := newWorld(t)
	w.lose("orders", "a", nil)
	w.lose("orders", "b", nil)
	w.wait(2)
	w.must(w.ch.ExchangeDelete("hop.error", false, false))
	r, err := lost.Return(t.Context(), w.conn, lost.Options{Park: true})
	var e *amqp.Error
	if !errors.As(err, &e) || e.Code != amqp.NotFound {
		t.Errorf("got %v, want the broker's 404", err)
	}
	if r.Parked != 0 || r.Refused == 0 {
		t.Errorf("got %+v", r)
	}
	w.expect("hop.lost", "a", "b")
}
