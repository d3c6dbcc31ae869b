package topology_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/topology"
)

// inOrder fails unless the broker has all of the topology, seen both ways.
func (s *space) inOrder(t *testing.T, c *amqp.Connection, top topology.Topology) {
	t.Helper()
	for _, m := range []*topology.Management{s.management, nil} {
		p, err := topology.MakePlan(t.Context(), c, m, top)
		if err != nil || !p.Empty() {
			t.Errorf("with management: %t: %v, plan:\n%v", m != nil, err, p)
		}
		if err := topology.Verify(t.Context(), c, m, top); err != nil {
			t.Errorf("with management: %t: %v", m != nil, err)
		}
	}
}

func TestApplyTwice(t *testing.T) {
	s := newSpace(t)
	c, top := s.dial(t), sample()
	all := len(top.Exchanges) + len(top.Queues) + len(top.Bindings)
	for _, m := range []*topology.Management{s.management, nil} {
		p, err := topology.MakePlan(t.Context(), c, m, top)
		if err != nil {
			t.Fatal(err)
		}
		missing := 0
		for _, d := range p.Differences {
			if d.State == topology.Missing {
				missing++
			}
		}
		if missing != all {
			t.Errorf("with management: %t: %d of %d items are missing before the first apply:\n%v", m != nil, missing, all, p)
		}
		var drift *topology.DriftError
		if err := topology.Verify(t.Context(), c, m, top); !errors.As(err, &drift) || !errors.Is(err, topology.ErrDrift) ||
			len(drift.Plan.Differences) != len(p.Differences) || !strings.Contains(err.Error(), `queue "hop.delay.2s": missing`) {
			t.Errorf("verify says %v", err)
		}
	}
	if exists(t, c, "orders") || exists(t, c, "hop.delay.1s") {
		t.Fatal("a plan declared something")
	}
	for range 2 {
		if err := topology.Apply(t.Context(), c, top); err != nil {
			t.Fatal(err)
		}
		s.inOrder(t, c, top)
	}
}

// TestApplyRoutes sends a message the whole way, so that what is declared is what
// was meant and not only what is compared.
func TestApplyRoutes(t *testing.T) {
	s := newSpace(t)
	c := s.dial(t)
	if err := topology.Apply(t.Context(), c, sample()); err != nil {
		t.Fatal(err)
	}
	ch, err := c.Channel()
	if err != nil {
		t.Fatal(err)
	}
	got, err := ch.Consume("orders", "", true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := ch.PublishWithContext(t.Context(), "hop.delay.1s", "order.create", true, false, amqp.Publishing{
		Headers: amqp.Table{"x-retry-queue": "orders"}, Body: []byte("1"), DeliveryMode: 2,
	}); err != nil {
		t.Fatal(err)
	}
	select {
	case d := <-got:
		if string(d.Body) != "1" || d.RoutingKey != "order.create" {
			t.Errorf("got %q with key %q", d.Body, d.RoutingKey)
		}
	case <-time.After(time.Minute):
		t.Fatal("the message did not come back")
	}
}

func TestApplyAtOnce(t *testing.T) {
	s := newSpace(t)
	top := sample()
	admin := s.dial(t)
	for round := range 10 {
		var wg sync.WaitGroup
		start := make(chan struct{})
		errs := make([]error, 4)
		for i := range errs {
			c := s.dial(t)
			wg.Go(func() {
				defer c.Close()
				<-start
				errs[i] = topology.Apply(t.Context(), c, top)
			})
		}
		close(start)
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if err := topology.Verify(t.Context(), admin, s.management, top); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		must(t, admin, func(ch *amqp.Channel) error {
			for _, q := range top.Queues {
				if _, err := ch.QueueDelete(q.Name, false, false, false); err != nil {
					return err
				}
			}
			for _, e := range top.Exchanges {
				if err := ch.ExchangeDelete(e.Name, false, false); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

func TestApplyWholeWheel(t *testing.T) {
	s := newSpace(t)
	c, top := s.dial(t), slots()
	if len(top.Queues) != 54 {
		t.Fatalf("%d slots", len(top.Queues))
	}
	for _, what := range []string{"applied", "applied again"} {
		begin := time.Now()
		if err := topology.Apply(t.Context(), c, top); err != nil {
			t.Fatal(err)
		}
		t.Logf("54 slots %s in %v", what, time.Since(begin).Round(time.Millisecond))
	}
	begin := time.Now()
	s.inOrder(t, c, top)
	t.Logf("two plans and two verifications in %v", time.Since(begin).Round(time.Millisecond))
}

// TestApplyGoesOn breaks an item in each way and expects its error, with both
// values, and everything else in place.
func TestApplyGoesOn(t *testing.T) {
	for _, f := range []struct {
		name        string
		break_      func(t *testing.T, c *amqp.Connection)
		kind, item  string
		key         string
		want        topology.Value
		have        topology.Value // as concluded from the broker's words
		fromHTTP    topology.Value // as read with WithManagement
		alsoInError string
	}{
		{
			name: "other TTL",
			break_: func(t *testing.T, c *amqp.Connection) {
				q := slot("hop.delay.1s", 5000).Queues[0]
				declareQueue(t, c, q.Name, q.Args)
			},
			kind: "queue", item: "hop.delay.1s", key: "x-message-ttl",
			want: topology.Value{Type: "int64", Text: "1000"}, have: topology.Value{Type: "integer", Text: "5000"},
			fromHTTP: topology.Value{Type: "integer", Text: "5000"},
		},
		{
			name: "no TTL",
			break_: func(t *testing.T, c *amqp.Connection) {
				q := slot("hop.delay.1s", 0).Queues[0]
				delete(q.Args, "x-message-ttl")
				declareQueue(t, c, q.Name, q.Args)
			},
			kind: "queue", item: "hop.delay.1s", key: "x-message-ttl",
			want: topology.Value{Type: "int64", Text: "1000"},
		},
		{
			name: "string for a number",
			break_: func(t *testing.T, c *amqp.Connection) {
				declareQueue(t, c, "orders.parked", amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": "1000000"})
			},
			kind: "queue", item: "orders.parked", key: "x-delivery-limit",
			want: topology.Value{Type: "int64", Text: "1000000"}, have: topology.Value{Type: "string", Text: "1000000"},
			fromHTTP:    topology.Value{Type: "string", Text: "1000000"},
			alsoInError: "look alike",
		},
		{
			name: "classic for quorum",
			break_: func(t *testing.T, c *amqp.Connection) {
				declareQueue(t, c, "hop.lost", amqp.Table{"x-queue-type": "classic"})
			},
			kind: "queue", item: "hop.lost", key: "x-queue-type",
			want: topology.Value{Type: "string", Text: "quorum"}, have: topology.Value{Type: "string", Text: "classic"},
			fromHTTP: topology.Value{Type: "string", Text: "classic"},
		},
		{
			name: "other exchange type",
			break_: func(t *testing.T, c *amqp.Connection) {
				must(t, c, func(ch *amqp.Channel) error {
					return ch.ExchangeDeclare("hop.error", "topic", true, false, false, false, nil)
				})
			},
			kind: "exchange", item: "hop.error", key: "type",
			want: topology.Value{Type: "string", Text: "direct"}, have: topology.Value{Type: "string", Text: "topic"},
			fromHTTP: topology.Value{Type: "string", Text: "topic"},
		},
		{
			name: "transient exchange",
			break_: func(t *testing.T, c *amqp.Connection) {
				must(t, c, func(ch *amqp.Channel) error {
					return ch.ExchangeDeclare("hop.error", "direct", false, false, false, false, nil)
				})
			},
			kind: "exchange", item: "hop.error", key: "durable",
			want: topology.Value{Type: "bool", Text: "true"}, have: topology.Value{Type: "bool", Text: "false"},
			fromHTTP: topology.Value{Type: "bool", Text: "false"},
		},
		{
			name: "other alternate exchange",
			break_: func(t *testing.T, c *amqp.Connection) {
				must(t, c, func(ch *amqp.Channel) error {
					return ch.ExchangeDeclare("hop.return", "headers", true, false, false, false, amqp.Table{"alternate-exchange": "elsewhere"})
				})
			},
			kind: "exchange", item: "hop.return", key: "alternate-exchange",
			want: topology.Value{Type: "string", Text: "hop.lost"}, have: topology.Value{Type: "string", Text: "elsewhere"},
			fromHTTP: topology.Value{Type: "string", Text: "elsewhere"},
		},
	} {
		t.Run(f.name, func(t *testing.T) {
			s := newSpace(t)
			c, top := s.dial(t), sample()
			f.break_(t, c)
			for _, opts := range [][]topology.Option{nil, {topology.WithManagement(s.management)}} {
				have := f.have
				if opts != nil {
					have = f.fromHTTP
				}
				err := topology.Apply(t.Context(), c, top, opts...)
				var m *topology.MismatchError
				if !errors.As(err, &m) || !errors.Is(err, topology.ErrMismatch) {
					t.Fatalf("got %v", err)
				}
				if m.Kind != f.kind || m.Name != f.item || m.Key != f.key || m.Want != f.want || m.Have != have {
					t.Errorf("got %s %q %s: want %+v have %+v, expected %+v and %+v", m.Kind, m.Name, m.Key, m.Want, m.Have, f.want, have)
				}
				var e *amqp.Error
				if !errors.As(err, &e) || e.Code != amqp.PreconditionFailed {
					t.Errorf("the broker's answer is not in %v", err)
				}
				for _, part := range []string{f.item, f.key, f.want.String(), have.String(), f.alsoInError} {
					if !strings.Contains(err.Error(), part) {
						t.Errorf("%q does not name %q", err, part)
					}
				}
				if joined, ok := err.(interface{ Unwrap() []error }); !ok || len(joined.Unwrap()) != 1 {
					t.Errorf("more than the one fault: %v", err)
				}
			}
			// The plan shows the same fault and nothing else.
			p, err := topology.MakePlan(t.Context(), c, s.management, top)
			if err != nil {
				t.Fatal(err)
			}
			if len(p.Differences) != 1 {
				t.Fatalf("plan:\n%v", p)
			}
			d := p.Differences[0]
			if d.Kind != f.kind || d.Name != f.item || d.State != topology.Differs || d.Key != f.key || d.Want != f.want || d.Have != f.fromHTTP {
				t.Errorf("plan has %+v", d)
			}
			// Without the management API all that exists is in order.
			if p, err := topology.MakePlan(t.Context(), c, nil, top); err != nil || !p.Empty() || len(p.Differences) != 1 || p.Differences[0].State != topology.Unknown {
				t.Errorf("%v, plan:\n%v", err, p)
			}
		})
	}
}

// TestApplyTakesOtherWidths: PHP and others declare a TTL with 32 bits.
func TestApplyTakesOtherWidths(t *testing.T) {
	s := newSpace(t)
	c, top := s.dial(t), slot("hop.delay.1s", 1000)
	other := amqp.Table{}
	for k, v := range top.Queues[0].Args {
		other[k] = v
	}
	other["x-message-ttl"] = int32(1000)
	declareQueue(t, c, "hop.delay.1s", other)
	top.Exchanges = append(top.Exchanges, topology.Exchange{Name: "hop.return", Kind: "headers"})
	if err := topology.Apply(t.Context(), c, top); err != nil {
		t.Fatal(err)
	}
	s.inOrder(t, c, top)
}

func TestApplyWithDefaultQueueType(t *testing.T) {
	s := namedSpace(t, "quorum by default", map[string]any{
		"default_queue_type": "quorum", "defaultqueuetype": "quorum", // the second is for 3.10
	})
	c := s.dial(t)
	top := sample().Merge(topology.Topology{Queues: []topology.Queue{
		{Name: "no type"},
		{Name: "classic", Args: amqp.Table{"x-queue-type": "classic"}},
	}})
	for range 2 {
		if err := topology.Apply(t.Context(), c, top); err != nil {
			t.Fatal(err)
		}
		s.inOrder(t, c, top)
	}
	// It did become a quorum queue: one that asks for another type differs.
	top.Queues = []topology.Queue{{Name: "no type", Args: amqp.Table{"x-queue-type": "classic"}}}
	top.Exchanges, top.Bindings = nil, nil
	if p, err := topology.MakePlan(t.Context(), c, s.management, top); err != nil || len(p.Differences) != 1 || p.Differences[0].Have.Text != "quorum" {
		t.Errorf("%v, plan:\n%v", err, p)
	}
}

// TestUserQueue: it is never changed, and never declared unless asked.
func TestUserQueue(t *testing.T) {
	s := newSpace(t)
	c, top := s.dial(t), sample()
	arguments := func() string {
		var q struct{ Arguments map[string]any }
		if err := s.Get(t.Context(), "/api/queues/"+s.vhost+"/orders", &q); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(q.Arguments)
	}
	top.Queues[0].Declare = false
	err := topology.Apply(t.Context(), c, top)
	var missing *topology.MissingError
	if !errors.As(err, &missing) || missing.Queue != "orders" || !errors.Is(err, topology.ErrMissing) {
		t.Fatalf("got %v", err)
	}
	if exists(t, c, "orders") {
		t.Fatal("the user's queue was declared without being asked")
	}
	if joined := err.(interface{ Unwrap() []error }); len(joined.Unwrap()) != 1 {
		t.Errorf("more than the one fault: %v", err)
	}
	p, err := topology.MakePlan(t.Context(), c, s.management, top)
	if err != nil || len(p.Differences) != 2 || p.Differences[0].Note == "" || p.Differences[1].Kind != "binding" {
		t.Errorf("%v, plan:\n%v", err, p)
	}
	// The user makes it, in a way of his own.
	declareQueue(t, c, "orders", amqp.Table{"x-queue-type": "classic", "x-max-length": int64(7), "x-overflow": "reject-publish"})
	before := arguments()
	for _, declare := range []bool{false, true} {
		top.Queues[0].Declare = declare
		for _, opts := range [][]topology.Option{nil, {topology.WithManagement(s.management)}} {
			if err := topology.Apply(t.Context(), c, top, opts...); err != nil {
				t.Fatal(err)
			}
			s.inOrder(t, c, top)
		}
	}
	if after := arguments(); after != before {
		t.Errorf("the arguments were %s and are %s", before, after)
	}
}

// TestUserQueueAtOnce: two processes that want it in two ways; one of them wins,
// and neither fails.
func TestUserQueueAtOnce(t *testing.T) {
	s := newSpace(t)
	admin := s.dial(t)
	for round := range 10 {
		var wg sync.WaitGroup
		errs := make([]error, 4)
		for i := range errs {
			c := s.dial(t)
			top := topology.Topology{Queues: []topology.Queue{{
				Name: "orders", User: true, Declare: true,
				Args: amqp.Table{"x-queue-type": "classic", "x-max-length": int64(i + 1)},
			}}}
			wg.Go(func() {
				defer c.Close()
				errs[i] = topology.Apply(t.Context(), c, top)
			})
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		must(t, admin, func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete("orders", false, false, false)
			return err
		})
	}
}

// TestExclusiveUserQueue belongs to another connection: it exists, and no consumer
// of ours could read from it.
func TestExclusiveUserQueue(t *testing.T) {
	s := newSpace(t)
	owner, c := s.dial(t), s.dial(t)
	must(t, owner, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare("orders", false, false, true, false, nil)
		return err
	})
	top := topology.Topology{Queues: []topology.Queue{{Name: "orders", User: true, Declare: true}}}
	err := topology.Apply(t.Context(), c, top)
	var e *amqp.Error
	if !errors.As(err, &e) || e.Code != amqp.ResourceLocked || !strings.Contains(err.Error(), `"orders"`) {
		t.Errorf("got %v", err)
	}
	if p, err := topology.MakePlan(t.Context(), c, nil, top); err != nil || !p.Empty() {
		t.Errorf("%v, plan:\n%v", err, p)
	}
}

// TestMissingEnds: what a topology only refers to must exist.
func TestMissingEnds(t *testing.T) {
	s := newSpace(t)
	c := s.dial(t)
	declareQueue(t, c, "q", nil)
	top := topology.Topology{Bindings: []topology.Binding{
		{Source: "amq.direct", Destination: "nowhere", Key: "k"},
		{Source: "gone", Destination: "q", Key: "k"},
		{Source: "amq.direct", Destination: "q", Key: "k"},
	}}
	err := topology.Apply(t.Context(), c, top)
	text := fmt.Sprint(err)
	if !errors.Is(err, topology.ErrMissing) || !strings.Contains(text, `queue "nowhere" does not exist`) || !strings.Contains(text, `exchange "gone" does not exist`) {
		t.Errorf("got %v", err)
	}
	p, err := topology.MakePlan(t.Context(), c, s.management, top)
	if err != nil || len(p.Differences) != 2 {
		t.Errorf("%v: the third binding should be there:\n%v", err, p)
	}
}

func TestApplyChecksFirst(t *testing.T) {
	s := newSpace(t)
	c := s.dial(t)
	top := sample()
	top.Queues[1].Args = amqp.Table{"x-delivery-limit": 5}
	err := topology.Apply(context.Background(), c, top)
	if err == nil || !strings.Contains(err.Error(), "int64(5)") {
		t.Errorf("got %v", err)
	}
	if exists(t, c, "hop.lost") {
		t.Error("something was declared of an invalid topology")
	}
}
