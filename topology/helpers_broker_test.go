package topology_test

import (
	"context"
	"fmt"
	"net/url"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/rabbittest"
	"github.com/hopback/hopback/topology"
)

// space is a fresh virtual host of a real broker.
type space struct {
	*rabbittest.Broker
	url, vhost string
	management *topology.Management
}

func newSpace(t *testing.T) *space {
	t.Helper()
	b := rabbittest.Shared(t)
	u, err := amqp.ParseURI(b.Vhost(t))
	if err != nil {
		t.Fatal(err)
	}
	return spaceOf(b, u.Vhost)
}

func spaceOf(b *rabbittest.Broker, vhost string) *space {
	return &space{
		Broker: b, url: b.VhostURL(vhost), vhost: vhost,
		management: &topology.Management{URL: b.ManagementURL(), Vhost: vhost},
	}
}

// namedSpace is a virtual host of a given name, with what PUT /api/vhosts takes.
func namedSpace(t *testing.T, vhost string, body any) *space {
	t.Helper()
	s := spaceOf(rabbittest.Shared(t), vhost)
	if err := s.Put(t.Context(), "/api/vhosts/"+url.PathEscape(vhost), body); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.DeleteVhost(context.Background(), vhost); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *space) dial(t *testing.T) *amqp.Connection { return dial(t, s.url) }

func dial(t *testing.T, url string) *amqp.Connection {
	t.Helper()
	c, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// do runs one step on a channel of its own.
func do(t *testing.T, c *amqp.Connection, step func(*amqp.Channel) error) error {
	t.Helper()
	ch, err := c.Channel()
	if err != nil {
		t.Fatal(err)
	}
	defer ch.Close()
	return step(ch)
}

func must(t *testing.T, c *amqp.Connection, step func(*amqp.Channel) error) {
	t.Helper()
	if err := do(t, c, step); err != nil {
		t.Fatal(err)
	}
}

func declareQueue(t *testing.T, c *amqp.Connection, name string, args amqp.Table) {
	t.Helper()
	must(t, c, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(name, true, false, false, false, args)
		return err
	})
}

func exists(t *testing.T, c *amqp.Connection, queue string) bool {
	t.Helper()
	return do(t, c, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		return err
	}) == nil
}

// slot is one delay queue as the wheel has it.
func slot(name string, ttl int64) topology.Topology {
	return topology.Topology{
		Exchanges: []topology.Exchange{{Name: name, Kind: "fanout"}},
		Queues: []topology.Queue{{Name: name, Args: amqp.Table{
			"x-queue-type":           "quorum",
			"x-message-ttl":          ttl,
			"x-dead-letter-exchange": "hop.return",
			"x-dead-letter-strategy": "at-least-once",
			"x-overflow":             "reject-publish",
		}}},
		Bindings: []topology.Binding{{Source: name, Destination: name}},
	}
}

// sample is a small wheel for one work queue, which is declared if missing.
func sample() topology.Topology {
	t := topology.Topology{
		Exchanges: []topology.Exchange{
			{Name: "hop.return", Kind: "headers", Args: amqp.Table{"alternate-exchange": "hop.lost"}},
			{Name: "hop.lost", Kind: "fanout"},
			{Name: "hop.error", Kind: "direct"},
		},
		Queues: []topology.Queue{
			{Name: "orders", Args: amqp.Table{"x-queue-type": "quorum"}, User: true, Declare: true},
			{Name: "orders.parked", Args: amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1000000)}},
			{Name: "hop.lost", Args: amqp.Table{"x-queue-type": "quorum"}},
		},
		Bindings: []topology.Binding{
			{Source: "hop.return", Destination: "orders", Args: amqp.Table{"x-match": "all-with-x", "x-retry-queue": "orders"}},
			{Source: "hop.error", Destination: "orders.parked", Key: "orders", Sole: true},
			{Source: "hop.lost", Destination: "hop.lost"},
			{Source: "hop.error", Destination: "hop.lost", Key: "to an exchange", ToExchange: true},
		},
	}
	return t.Merge(slot("hop.delay.1s", 1000), slot("hop.delay.2s", 2000))
}

// slots is a whole wheel: six decades of nine.
func slots() topology.Topology {
	all := topology.Topology{Exchanges: []topology.Exchange{{Name: "hop.return", Kind: "headers"}}}
	ms := int64(100)
	for range 6 {
		for d := int64(1); d <= 9; d++ {
			all = all.Merge(slot(fmt.Sprintf("hop.delay.%dms", d*ms), d*ms))
		}
		ms *= 10
	}
	return all
}
