package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/rabbittest"
	"github.com/hopback/hopback/router"
	"github.com/hopback/hopback/topology"
)

// What a replay's messages may wait in counts as waiting, also where the queue has no
// route and a router serves it: none of these was handled.
func TestOutcomeBehindARouter(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a broker")
	}
	b := rabbittest.Shared(t)
	for name, where := range map[string]string{
		"on its way to the router": "hop.failed",
		"aside":                    "hop.failed.held",
		"in a slot of the wheel":   "hop.delay.2s",
		"nowhere":                  "",
	} {
		t.Run(name, func(t *testing.T) {
			clearEnvironment(t)
			url := b.Vhost(t)
			t.Setenv("HOPBACK_BROKER_URL", url)
			conn, err := amqp.Dial(url)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			ch := open(t, conn)
			if _, err := ch.QueueDeclare("orders", true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
				t.Fatal(err)
			}
			top, err := router.Topology("", router.Route{Route: hopback.Route{Queue: "orders"}})
			if err == nil {
				err = topology.Apply(t.Context(), conn, top)
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := ch.Confirm(false); err != nil {
				t.Fatal(err)
			}
			r := attempt.Record{Queue: "orders", ID: strings.Repeat("a", 32), RoutingKey: "orders"}
			publish(t, ch, "orders.parked", r.Park(attempt.Failure{At: time.Now(), Error: "no"}, attempt.ReasonExhausted).Successor(&amqp.Publishing{MessageId: "m"}, 0))

			// A worker takes what is replayed, and it goes where the case says.
			deliveries, err := ch.Consume("orders", "", false, false, false, false, nil)
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				for d := range deliveries {
					if where != "" {
						publish(t, ch, where, amqp.Publishing{Headers: d.Headers, Body: d.Body})
					}
					d.Ack(false) //nolint:errcheck // ends with the channel
				}
			}()
			var out, errs bytes.Buffer
			if code := run([]string{"parked", "replay", "orders", "--yes", "--wait", "1s"}, &out, &errs); code != exitDone {
				t.Fatalf("exit code %d: %s%s", code, &out, &errs)
			}
			want := "outcome: 0 parked again, at most 1 waiting, at least 0 handled"
			if where == "" {
				want = "outcome: 0 parked again, 0 waiting, 1 handled"
			}
			if !strings.Contains(out.String(), want) {
				t.Errorf("got %s\nwant %s", &out, want)
			}
		})
	}
}

// publish puts a message into a queue, for sure.
func publish(t *testing.T, ch *amqp.Channel, queue string, p amqp.Publishing) {
	t.Helper()
	p.DeliveryMode = amqp.Persistent
	c, err := ch.PublishWithDeferredConfirm("", queue, true, false, p)
	if err != nil || !c.Wait() {
		t.Errorf("publish to %s: %v", queue, err)
	}
}
