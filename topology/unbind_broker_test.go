package topology_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/topology"
)

// oddQueue is a work queue whose name must be escaped in the API's paths.
const oddQueue = "orders.eu/ü 1"

// parking is what a route needs that parks in the given queue.
func parking(t *testing.T, queue string) topology.Topology {
	t.Helper()
	top, err := hopback.Topology("", hopback.Route{
		Queue: oddQueue, Parking: queue, Declare: &hopback.Declare{},
		Mechanism: hopback.Ladder, Ladder: []time.Duration{time.Second},
	})
	if err != nil {
		t.Fatal(err)
	}
	return top
}

// bound is every binding of the virtual host that somebody made.
func (s *space) bound(t *testing.T) []string {
	t.Helper()
	var all []struct {
		Source, Destination string
		Key                 string `json:"routing_key"`
	}
	if err := s.Get(t.Context(), "/api/bindings/"+s.vhost, &all); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, b := range all {
		if b.Source != "" { // not of the default exchange
			names = append(names, b.Source+" -> "+b.Destination+" "+b.Key)
		}
	}
	slices.Sort(names)
	return names
}

// extras makes a plan in which nothing but bindings is extra.
func (s *space) extras(t *testing.T, c *amqp.Connection, top topology.Topology) (names []string, p topology.Plan) {
	t.Helper()
	p, err := topology.MakePlan(t.Context(), c, s.management, top)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range p.Differences {
		if d.State != topology.Extra || d.Kind != "binding" {
			t.Errorf("also: %v", d)
		}
		names = append(names, d.Name)
	}
	return names, p
}

// TestChangeParking changes the parking queue of a route and looks, before and
// after, at every binding there is.
func TestChangeParking(t *testing.T) {
	s := newSpace(t)
	c := s.dial(t)
	before, after := parking(t, "orders.parked"), parking(t, "payment.error.dlq")
	if err := topology.Apply(t.Context(), c, before); err != nil {
		t.Fatal(err)
	}
	// What must be left alone: another key, another source, and the user's own
	// binding to the very queue, from elsewhere.
	must(t, c, func(ch *amqp.Channel) error {
		return errors.Join(
			ch.QueueBind("orders.parked", "mails", "hop.error", false, nil),
			ch.ExchangeDeclare("shop", "direct", true, false, false, false, nil),
			ch.QueueBind("orders.parked", oddQueue, "shop", false, nil),
		)
	})
	if names, _ := s.extras(t, c, before); len(names) > 0 {
		t.Errorf("extra before the change: %v", names)
	}
	if err := topology.Apply(t.Context(), c, after, topology.WithManagement(s.management)); err != nil {
		t.Fatal(err)
	}

	const stale = `hop.error -> orders.parked (key "orders.eu/ü 1")`
	names, p := s.extras(t, c, after)
	if !slices.Equal(names, []string{stale}) || p.Empty() {
		t.Fatalf("the plan says %v", p)
	}
	if text := p.String(); !strings.Contains(text, `: extra: only queue "payment.error.dlq" may get what is published with this key: unbind this one by`) {
		t.Errorf("no remedy in words: %s", text)
	}
	if err := topology.Verify(t.Context(), c, s.management, after); !errors.Is(err, topology.ErrDrift) {
		t.Errorf("verify says %v", err)
	}
	// AMQP does not show it.
	if err := topology.Verify(t.Context(), c, nil, after); err != nil {
		t.Errorf("without management: %v", err)
	}

	// Nothing is removed without being asked, nor blindly.
	was := s.bound(t)
	told := 0
	for _, opts := range [][]topology.Option{
		nil,
		{topology.WithManagement(s.management)},
		{topology.WithUnbind(func(topology.Difference) { told++ })},
	} {
		if err := topology.Apply(t.Context(), c, after, opts...); err != nil {
			t.Fatal(err)
		}
	}
	if now := s.bound(t); !slices.Equal(now, was) || told > 0 {
		t.Fatalf("%d told; bindings are\n%v, were\n%v", told, now, was)
	}

	publish(t, c, "parked before")
	if a, b := depth(t, c, "orders.parked"), depth(t, c, "payment.error.dlq"); a != 1 || b != 1 {
		t.Fatalf("the fault is not there: %d in the old queue, %d in the new", a, b)
	}

	var removed []string
	for range 2 { // the second time there is nothing left
		err := topology.Apply(t.Context(), c, after, topology.WithManagement(s.management),
			topology.WithUnbind(func(d topology.Difference) { removed = append(removed, d.State+" "+d.Name) }))
		if err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(removed, []string{"extra " + stale}) {
		t.Errorf("removed %q", removed)
	}
	want := slices.DeleteFunc(was, func(b string) bool { return b == "hop.error -> orders.parked "+oddQueue })
	if now := s.bound(t); !slices.Equal(now, want) {
		t.Errorf("bindings are\n%v, want\n%v", now, want)
	}
	s.inOrder(t, c, after)
	publish(t, c, "parked after")
	if a, b := depth(t, c, "orders.parked"), depth(t, c, "payment.error.dlq"); a != 1 || b != 2 {
		t.Errorf("%d in the old queue, want 1; %d in the new, want 2", a, b)
	}
}

// TestUnbindByHand does what the plan says, for a queue and for an exchange, with
// and without a key.
func TestUnbindByHand(t *testing.T) {
	s := newSpace(t)
	c := s.dial(t)
	top := topology.Topology{
		Exchanges: []topology.Exchange{{Name: "from", Kind: "direct"}, {Name: "to", Kind: "fanout"}},
		Queues:    []topology.Queue{{Name: "to"}},
		Bindings: []topology.Binding{
			{Source: "from", Destination: "to", Key: oddQueue, Sole: true},
			{Source: "from", Destination: "to", ToExchange: true, Sole: true},
		},
	}
	if err := topology.Apply(t.Context(), c, top); err != nil {
		t.Fatal(err)
	}
	must(t, c, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare("other/q.1", true, false, false, false, nil)
		return errors.Join(err,
			ch.QueueBind("to", oddQueue, "from", false, amqp.Table{"same": "end"}), // is no second copy
			ch.ExchangeBind("to", oddQueue, "from", false, nil),
			ch.QueueBind("other/q.1", oddQueue, "from", false, amqp.Table{"n": int64(1)}),
			ch.QueueBind("other/q.1", "", "from", false, nil),
		)
	})
	names, p := s.extras(t, c, top)
	if want := []string{
		`from -> exchange to (key "orders.eu/ü 1")`, `from -> other/q.1 (key "orders.eu/ü 1")`, "from -> other/q.1",
	}; !slices.Equal(names, want) {
		t.Fatalf("got %q, want %q", names, want)
	}
	for i, d := range p.Differences {
		_, path, ok := strings.Cut(d.Note, "DELETE ")
		path, _, _ = strings.Cut(path, " ")
		if !ok {
			t.Fatalf("%v names no request", d)
		}
		if err := s.Delete(t.Context(), path); err != nil {
			t.Fatal(err)
		}
		if left, _ := s.extras(t, c, top); !slices.Equal(left, names[i+1:]) {
			t.Errorf("after %s: %q", path, left)
		}
	}
	s.inOrder(t, c, top)
}

// TestUnbindWithArguments: brokers find a binding by its very arguments, and JSON
// does not tell all of them apart. What stays is an error and not a success.
func TestUnbindWithArguments(t *testing.T) {
	s := newSpace(t)
	c, top := s.dial(t), sample()
	if err := topology.Apply(t.Context(), c, top); err != nil {
		t.Fatal(err)
	}
	declareQueue(t, c, "old", nil)
	for _, args := range []amqp.Table{
		{"s": "text", "n": int64(3000000000), "b": true, "f": 1.5, "deep": amqp.Table{"list": []any{"a", int64(1)}}},
		{"n": int32(7)},
	} {
		must(t, c, func(ch *amqp.Channel) error { return ch.QueueBind("old", "orders", "hop.error", false, args) })
	}
	const name = `hop.error -> old (key "orders")`
	var removed []topology.Difference
	err := topology.Apply(t.Context(), c, top, topology.WithManagement(s.management),
		topology.WithUnbind(func(d topology.Difference) { removed = append(removed, d) }))
	if len(removed) != 1 || removed[0].Name != name || !strings.Contains(removed[0].String(), `"s": string "text"`) {
		t.Errorf("removed %v", removed)
	}
	if err == nil || !strings.Contains(err.Error(), `it is there still, since its arguments {"n": integer 7} are not of the types`) {
		t.Fatalf("got %v", err)
	}
	names, p := s.extras(t, c, top)
	if !slices.Equal(names, []string{name}) || !strings.Contains(p.String(), `{"n": integer 7}: extra: `) {
		t.Errorf("left: %v", p)
	}
}

// TestNotUnbound: where the sole binding is not there, the other is the only way;
// and an account without the permission is told so.
func TestNotUnbound(t *testing.T) {
	s := newSpace(t)
	admin, top := s.dial(t), sample()
	if err := topology.Apply(t.Context(), admin, top); err != nil {
		t.Fatal(err)
	}
	declareQueue(t, admin, "old", nil)
	must(t, admin, func(ch *amqp.Channel) error {
		return errors.Join(
			ch.QueueBind("old", "orders", "hop.error", false, nil),
			ch.QueueUnbind("orders.parked", "orders", "hop.error", nil),
		)
	})
	was := s.bound(t)
	unbind := []topology.Option{
		topology.WithManagement(s.management),
		topology.WithUnbind(func(d topology.Difference) { t.Errorf("removed %v", d) }),
	}
	// The new way cannot be made: it takes write on the parking queue.
	err := topology.Apply(t.Context(), s.as(t, ".*", `^(hop\..*|orders|old)$`, ".*"), top, unbind...)
	for _, a := range accessErrors(t, err) {
		if !strings.Contains(a.Resource, "orders.parked") {
			t.Errorf("got %v", a)
		}
	}
	if now := s.bound(t); !slices.Equal(now, was) {
		t.Errorf("bindings are\n%v, were\n%v", now, was)
	}
	// The new way can be made, and the old one not removed.
	denied := accessErrors(t, topology.Apply(t.Context(), s.as(t, ".*", `^(hop\..*|orders.*)$`, ".*"), top, unbind...))
	if len(denied) != 1 || denied[0].Permission != "write" || denied[0].Resource != `queue "old"` ||
		!strings.HasPrefix(denied[0].Error(), `remove binding "hop.error -> old`) {
		t.Errorf("got %v", denied)
	}
	if names, _ := s.extras(t, admin, top); len(names) != 1 {
		t.Errorf("extra: %v", names)
	}
}

// publish parks a message as a consumer does, and waits for the confirm.
func publish(t *testing.T, c *amqp.Connection, body string) {
	t.Helper()
	must(t, c, func(ch *amqp.Channel) error {
		if err := ch.Confirm(false); err != nil {
			return err
		}
		confirm, err := ch.PublishWithDeferredConfirm("hop.error", oddQueue, true, false,
			amqp.Publishing{Body: []byte(body), DeliveryMode: amqp.Persistent})
		if err != nil {
			return err
		}
		ok, err := confirm.WaitContext(t.Context())
		if err == nil && !ok {
			err = errors.New("nack")
		}
		return err
	})
}

func depth(t *testing.T, c *amqp.Connection, queue string) (n int) {
	t.Helper()
	must(t, c, func(ch *amqp.Channel) error {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		n = q.Messages
		return err
	})
	return n
}
