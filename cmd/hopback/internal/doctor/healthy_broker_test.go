package doctor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/backoff"
	"github.com/hopback/hopback/cmd/hopback/internal/doctor"
	"github.com/hopback/hopback/rabbittest"
	"github.com/hopback/hopback/topology"
)

// healthy has set-ups that are right, on which every check is silent.
func healthy(t *testing.T, b *rabbittest.Broker) {
	t.Parallel()
	for name, make := range map[string]func(w *world){
		"empty":                    func(*world) {},
		"ours":                     ours,
		"ours, with the file":      func(w *world) { ours(w); w.configured(ourRoutes()...); w.scope.Routes = true },
		"ours, one queue":          func(w *world) { ours(w); w.configured(ourRoutes()...); w.scope.Queue = "orders" },
		"ours, while it is in use": inUse,
		"three tiers":              threeTiers,
		"three tiers, idle":        func(w *world) { tiers(w) },
		"retry queues by exchange": retryExchanges,
		"a stream, a reply queue":  others,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, b)
			make(w)
			w.finds()
		})
	}
	t.Run("reading changes nothing", func(t *testing.T) { t.Parallel(); readOnly(t, b) })
	t.Run("scopes", func(t *testing.T) { t.Parallel(); scopes(t, b) })
}

func ourRoutes() []hopback.Route {
	return []hopback.Route{
		{Queue: "orders", Policy: small, Declare: &hopback.Declare{Exchange: "shop", RoutingKey: "order.#"}},
		{Queue: "mails", Policy: small, Declare: &hopback.Declare{Type: "classic"}},
		{
			Queue: "invoices", Mechanism: hopback.Ladder, Ladder: []time.Duration{time.Second, 10 * time.Second, time.Minute},
			Policy: hopback.Policy{Schedule: backoff.Schedule{Max: time.Minute}, MaxRetryAfter: time.Minute}, Declare: &hopback.Declare{},
		},
		{Queue: "bounded", Policy: small, Isolate: true, Declare: &hopback.Declare{
			Args: amqp.Table{"x-max-length": int64(1000), "x-overflow": "reject-publish"},
		}},
	}
}

func ours(w *world) { w.apply(ourRoutes()...) }

// inUse: consumers, messages that wait and messages that are parked.
func inUse(w *world) {
	ours(w)
	w.consume("orders", 10)
	for _, q := range []string{"hop.delay.5s", "hop.delay.300ms", "orders.parked"} {
		w.publish("", q, amqp.Publishing{Headers: amqp.Table{"x-retry-queue": "mails"}})
	}
	w.ready("orders.parked", 1)
	w.options.Wait = 2 * time.Second
}

// tiers is the set-up of the textbooks with everything in it right: a failed
// message is published to a tier, which returns it; what is given up is rejected.
func tiers(w *world) {
	w.exchange("retry", "direct")
	w.exchange("back", "direct", "alternate-exchange", "unroutable")
	w.exchange("unroutable", "fanout")
	w.exchange("dead", "direct")
	w.work("unroutable")
	w.bind("unroutable", "", "unroutable")
	w.work("orders", "x-dead-letter-exchange", "dead", "x-dead-letter-routing-key", "orders")
	w.bind("back", "orders", "orders")
	w.work("orders.dead")
	w.bind("dead", "orders", "orders.dead")
	for name, ms := range map[string]int{"10s": 10_000, "1m": 60_000, "10m": 600_000} {
		w.quorum("retry."+name, "x-message-ttl", ms, "x-dead-letter-exchange", "back", "x-dead-letter-routing-key", "orders",
			"x-dead-letter-strategy", "at-least-once", "x-overflow", "reject-publish")
		w.bind("retry", name, "retry."+name)
	}
}

func threeTiers(w *world) {
	tiers(w)
	w.consume("orders", 10)
	w.publish("retry", "1m", amqp.Publishing{})
	w.publish("dead", "orders", amqp.Publishing{})
	w.ready("orders.dead", 1)
}

// retryExchanges: each work queue rejects into its retry queue, which returns it.
func retryExchanges(w *world) {
	w.exchange("shop", "topic")
	w.exchange("shop.retry", "direct")
	w.exchange("shop.return", "direct")
	for _, q := range []string{"orders", "mails"} {
		w.work(q, "x-dead-letter-exchange", "shop.retry", "x-dead-letter-routing-key", q)
		w.quorum(q+".wait", "x-message-ttl", 30_000, "x-dead-letter-exchange", "shop.return", "x-dead-letter-routing-key", q)
		w.bind("shop", q+".#", q)
		w.bind("shop.retry", q, q+".wait")
		w.bind("shop.return", q, q)
	}
	w.consume("orders", 10)
}

func others(w *world) {
	w.queue("log", "x-queue-type", "stream")
	_, err := w.ch.QueueDeclare("", false, false, true, false, nil)
	w.must(err)
	w.work("audit")
	w.exchange("all", "topic")
	w.bind("all", "#", "audit")
	w.bind("all", "#", "log")
}

// readOnly compares everything that is defined before and after, and works with an
// account that may write nothing.
func readOnly(t *testing.T, b *rabbittest.Broker) {
	w := newWorld(t, b)
	ours(w)
	w.configured(ourRoutes()...)
	w.publish("", "orders.parked", amqp.Publishing{})
	w.ready("orders.parked", 1)
	w.examine()

	user, password := "looker-"+w.vhost, "p@ss/w:rd#?%&+"
	ctx := t.Context()
	w.must(w.AddUser(ctx, user, password, w.vhost, "", "", ".*"))
	w.must(w.Put(ctx, "/api/users/"+url.PathEscape(user), map[string]any{"password": password, "tags": "management"}))
	t.Cleanup(func() { _ = b.Delete(context.Background(), "/api/users/"+url.PathEscape(user)) })
	m, _ := url.Parse(w.ManagementURL())
	m.User = url.UserPassword(user, password)
	amqpURL, _ := url.Parse(w.VhostURL(w.vhost))
	amqpURL.User = m.User
	conn, err := amqp.Dial(amqpURL.String())
	w.must(err)
	defer conn.Close()

	var before, after map[string]any
	definitions := "/api/definitions/" + url.PathEscape(w.vhost)
	w.must(w.Get(ctx, definitions, &before))
	s, err := doctor.Read(ctx, conn, &topology.Management{URL: m.String(), Vhost: w.vhost}, doctor.Options{Routes: w.options.Routes, Topology: w.options.Topology, Wait: time.Second})
	w.must(err)
	w.must(w.Get(ctx, definitions, &after))
	if a, b := fmt.Sprint(before), fmt.Sprint(after); a != b {
		t.Errorf("before\n%s\nafter\n%s", a, b)
	}
	if n, err := w.Depth(ctx, w.vhost, "orders.parked"); n != 1 || err != nil {
		t.Errorf("%d messages are parked, want 1: %v", n, err)
	}
	if got := short(doctor.Diagnose(s, doctor.Scope{})); len(got) != 0 || len(s.Queues) == 0 || s.Product != "RabbitMQ" || s.Version == "" {
		t.Errorf("a reader finds %v in %d queues of %s %s", got, len(s.Queues), s.Product, s.Version)
	}
	if !slices.Contains(s.ExchangeTypes, "headers") {
		t.Errorf("exchange types %v", s.ExchangeTypes)
	}
	if text, _ := json.Marshal(s); strings.Contains(string(text), password) {
		t.Error("the password is in what was read")
	}
}

// scopes: what concerns other queues is left out.
func scopes(t *testing.T, b *rabbittest.Broker) {
	w := newWorld(t, b)
	route := hopback.Route{Queue: "orders", Policy: small, Declare: &hopback.Declare{}}
	w.apply(route)
	w.queue("hop.delay.9s", "x-message-ttl", 9000, "x-dead-letter-exchange", "hop.return") // a slot of ours, by hand
	w.work("mails", "x-dead-letter-exchange", "nowhere")
	w.work("sms", "x-dead-letter-exchange", "", "x-dead-letter-routing-key", "sms.dlq")
	w.queue("sms.dlq")
	slot, mails, sms := "warning delay-classic hop.delay.9s", "error dlx-missing mails", "warning delay-classic sms.dlq"
	w.configured(route)
	for _, c := range []struct {
		scope doctor.Scope
		want  []string
	}{
		{doctor.Scope{}, []string{slot, mails, sms}},
		{doctor.Scope{Routes: true}, []string{slot}},
		{doctor.Scope{Queue: "orders"}, []string{slot}},
		{doctor.Scope{Queue: "mails"}, []string{mails}},
		{doctor.Scope{Queue: "sms"}, []string{sms}},
		{doctor.Scope{Queue: "sms.dlq", Routes: true}, []string{sms}},
		{doctor.Scope{Queue: "orders.parked"}, nil},
	} {
		w.scope = c.scope
		w.finds(c.want...)
	}
}
