package router

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/delay"
)

func death(queue, reason string, more ...any) any {
	t := amqp.Table{"queue": queue, "reason": reason, "count": int64(1), "exchange": "shop", "routing-keys": []any{"order.create"}}
	for i := 0; i < len(more); i += 2 {
		t[more[i].(string)] = more[i+1]
	}
	return t
}

func TestOriginOf(t *testing.T) {
	n := names{"hop"}
	died := func(entries ...any) amqp.Table { return amqp.Table{"x-death": entries} }
	with := func(h amqp.Table, more ...any) amqp.Table {
		for i := 0; i < len(more); i += 2 {
			h[more[i].(string)] = more[i+1]
		}
		return h
	}
	for _, tt := range []struct {
		name    string
		headers amqp.Table
		want    origin
		found   bool
	}{
		{"rejected", died(death("orders", "rejected")), origin{queue: "orders", reason: "rejected", exchange: "shop", key: "order.create", known: true, deaths: 1}, true},
		{
			"with an expiration", died(death("orders", "rejected", "original-expiration", "600000")),
			origin{queue: "orders", reason: "rejected", exchange: "shop", key: "order.create", known: true, expiration: "600000", deaths: 1},
			true,
		},
		{"B30: the newest of two", died(death("W2", "rejected"), death("W1", "expired")), origin{queue: "W2", reason: "rejected", exchange: "shop", key: "order.create", known: true, deaths: 1}, true},
		{
			"slots are passed over", died(death("hop.delay.3s", "expired"), death("hop.orders.delay.1500ms", "expired"), death("hop.failed", "delivery_limit"), death("orders", "rejected")),
			origin{queue: "orders", reason: "rejected", exchange: "shop", key: "order.create", known: true, deaths: 1},
			true,
		},
		{
			"x-first-death-queue is no help", with(died(death("hop.delay.3s", "expired")), "x-first-death-queue", "orders", "x-first-death-reason", "rejected"),
			origin{},
			false,
		},
		{"published by its consumer", amqp.Table{attempt.HeaderQueue: "orders"}, origin{queue: "orders"}, true},
		{"published after a retry", with(died(death("hop.delay.3s", "expired")), attempt.HeaderQueue, "orders"), origin{queue: "orders"}, true},
		{"the name as bytes", amqp.Table{attempt.HeaderQueue: []byte("orders")}, origin{queue: "orders"}, true},
		{
			"rejected with the record of another queue", with(died(death("invoices", "rejected")), attempt.HeaderQueue, "orders", attempt.HeaderError, "left over"),
			origin{queue: "invoices", reason: "rejected", exchange: "shop", key: "order.create", known: true, deaths: 1},
			true,
		},
		{
			"published with a verdict and with an x-death of before", with(died(death("inbox", "rejected")), attempt.HeaderQueue, "orders", attempt.HeaderVerdict, "permanent"),
			origin{queue: "orders"},
			true,
		},
		{
			"published with a delay and with an x-death of before", with(died(death("inbox", "rejected")), attempt.HeaderQueue, "orders", attempt.HeaderAfter, int64(5)),
			origin{queue: "orders"},
			true,
		},
		{
			"rejected over AMQP 1.0 with a verdict", with(died(death("orders", "rejected")), attempt.HeaderQueue, "orders", attempt.HeaderVerdict, "permanent"),
			origin{queue: "orders", reason: "rejected", exchange: "shop", key: "order.create", known: true, deaths: 1},
			true,
		},
		{"back from aside", with(died(death("hop.failed.held", "expired")), attempt.HeaderQueue, "orders"), origin{queue: "orders", held: true}, true},
		{"all taken off", amqp.Table{"tenant": "acme"}, origin{}, false},
		{"no headers", nil, origin{}, false},
		{"x-retry-queue names one of ours", amqp.Table{attempt.HeaderQueue: "hop.failed"}, origin{}, false},
		{"x-death is no list", amqp.Table{"x-death": "orders"}, origin{}, false},
		{"entries are no tables", amqp.Table{"x-death": []any{"orders", nil, int64(1)}}, origin{}, false},
		{"an entry that tells nothing but the queue", died(amqp.Table{"queue": "orders"}), origin{queue: "orders", reason: "rejected"}, true},
		{"another prefix's slot is a queue like any", died(death("pop.delay.3s", "expired")), origin{queue: "pop.delay.3s", reason: "expired", exchange: "shop", key: "order.create", known: true, deaths: 1}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, found := n.originOf(tt.headers)
			if got != tt.want || found != tt.found {
				t.Errorf("got  %+v, %t\nwant %+v, %t", got, found, tt.want, tt.found)
			}
		})
	}
}

// Headers come from anybody: none of them may end the router.
func FuzzOriginOf(f *testing.F) {
	f.Add("orders", "rejected", "hop.delay.3s", int64(3))
	f.Add("", "", "", int64(-1))
	f.Fuzz(func(t *testing.T, queue, reason, named string, count int64) {
		n := names{"hop"}
		o, found := n.originOf(amqp.Table{
			"x-death":           []any{amqp.Table{"queue": queue, "reason": reason, "count": count, "routing-keys": []any{count}}},
			attempt.HeaderQueue: named,
		})
		if found && (o.queue == "" || n.ours(o.queue)) {
			t.Errorf("queue %q and x-retry-queue %q gave the origin %q, to which nothing may go back", queue, named, o.queue)
		}
	})
}

func TestOurs(t *testing.T) {
	n := names{"hop"}
	for queue, want := range map[string]bool{
		"hop.failed": true, "hop.failed.held": true, "hop.failed.quarantine": true, "hop.failed.parked": true, "hop.lost": true,
		"hop.delay.100ms": true, "hop.delay.90000s": true, "hop.orders.delay.3s": true, "hop.a.delay.b.delay.3s": true,
		"hop.orders": false, "hop.delay.orders": false, "hop.delay.": false, "hop.delay.ms": false, "hop.delay.3": false, "hop.delay.3m": false,
		"hop.delay.-3s": false, "hop..delay.3s": false, "hop.failed.orders": false,
		"hop": false, "": false, "orders": false, "hopper.failed": false, "orders.delay.3s": false,
	} {
		if got := n.ours(queue); got != want {
			t.Errorf("%q is ours: %t, want %t", queue, got, want)
		}
	}
}

// The names that package delay makes are read back, whatever the work queue is called.
func TestSlot(t *testing.T) {
	for _, prefix := range []string{"hop", "my.hop"} {
		for _, owner := range []string{"", "orders", "a.delay.b", "delay.3s", "é /#"} {
			for _, want := range []time.Duration{100 * time.Millisecond, 1500 * time.Millisecond, 3 * time.Second, 90_000 * time.Second} {
				name := delay.Names{Prefix: prefix, Owner: owner}.Slot(want)
				if got, wait, ok := Slot(prefix, name); !ok || got != owner || wait != want {
					t.Errorf("%s: for %q, %s, %t", name, got, wait, ok)
				}
				if !Own(prefix, name) || Own("other", name) {
					t.Errorf("%s: whose is it?", name)
				}
			}
		}
	}
	for _, name := range []string{"my.hop.orders", "hop.delay.3s", "my.hop.delay.soon", "my.hop.delay.99999999999999999999s", "my.hop.delay.1h", "my.hop"} {
		if _, _, ok := Slot("my.hop", name); ok {
			t.Errorf("%s is no slot of this prefix", name)
		}
	}
}
