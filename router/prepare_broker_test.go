package router_test

import (
	"context"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/backoff"
	"github.com/hopback/hopback/rabbittest"
	"github.com/hopback/hopback/router"
	"github.com/hopback/hopback/topology"
)

// A queue that comes after the router, and can refuse messages, has slots of its own
// with its first failure: in shared ones it would stop the messages of all.
func TestAQueueThatCameLaterIsIsolated(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a broker")
	}
	b := rabbittest.Shared(t)
	u := b.Vhost(t)
	uri, err := amqp.ParseURI(u)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(err)
	conn, err := amqp.Dial(u)
	must(err)
	defer conn.Close()
	ch, err := conn.Channel()
	must(err)

	m := &topology.Management{URL: b.ManagementURL(), Vhost: uri.Vhost}
	r, err := router.New(router.Config{
		Client: hopback.Config{URL: u, Management: m},
		Routes: []router.Route{{Route: hopback.Route{Queue: "orders", Policy: hopback.Policy{Schedule: backoff.Schedule{Base: time.Hour, Max: time.Hour, MinDelay: 30 * time.Minute}}}}},
	})
	must(err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	deadline := time.Now().Add(time.Minute)
	until := func(what string, is func() bool) {
		t.Helper()
		for !is() {
			if time.Now().After(deadline) {
				t.Fatalf("not yet: %s", what)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	until("the router is subscribed", r.Ready)
	_, err = ch.QueueDeclare("orders", true, false, false, false, amqp.Table{
		"x-queue-type": "quorum", "x-max-length": int64(100), "x-overflow": "reject-publish", "x-dead-letter-exchange": router.Exchange(""),
	})
	must(err)
	for range 3 {
		must(ch.Publish("", "orders", true, false, amqp.Publishing{Body: []byte("x")}))
	}
	for rejected := 0; rejected < 3; {
		d, ok, err := ch.Get("orders", false)
		must(err)
		if ok {
			must(d.Reject(false))
			rejected++
		}
	}
	waiting := func() (own, shared int) {
		var queues []struct {
			Name string `json:"name"`
		}
		must(m.Read(t.Context(), &queues, "?disable_stats=true&columns=name", "queues", uri.Vhost))
		for _, q := range queues {
			if !strings.Contains(q.Name, ".delay.") {
				continue
			}
			state, err := ch.QueueDeclarePassive(q.Name, true, false, false, false, nil)
			must(err)
			if owner, _, _ := router.Slot("", q.Name); owner == "orders" {
				own += state.Messages
			} else {
				shared += state.Messages
			}
		}
		return own, shared
	}
	until("all wait in slots", func() bool { own, shared := waiting(); return own+shared == 3 })
	if own, shared := waiting(); own != 3 || shared != 0 {
		t.Errorf("%d wait in slots of its own, and %d in those of all", own, shared)
	}
}
