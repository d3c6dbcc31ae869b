package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/rabbittest"
)

// What waits and what is parked outlives the broker's restart, whatever delivery
// mode it was published with: also on a broker on which everything is forbidden
// that RabbitMQ means to remove.
func TestWaitingAndParkedOutliveRestart(t *testing.T) {
	t.Parallel()
	shared := newWorld(t)
	o := rabbittest.Options{}
	if !strings.HasPrefix(shared.broker.Version(), "3.") {
		o.Config = []string{
			"deprecated_features.permit.transient_nonexcl_queues = false",
			"deprecated_features.permit.global_qos = false",
		}
	}
	b := rabbittest.Start(t, brokerOptions(o))
	w := newWorldOn(t, b)
	w.declare("classic", "classic")
	w.declare("quorum", "quorum")
	var seen calls
	for _, q := range []string{"classic", "quorum"} {
		// A wheel and a ladder, so that both kinds of slot are there.
		r := hopback.Route{Queue: q, Policy: quick(5), Mechanism: crowdMechanism()}
		r.Policy.MaxRetryAfter = 4 * time.Second
		switch {
		case mechanism == hopback.Plugin && q == "quorum":
			r.Mechanism = hopback.Wheel // the plugin loses what it hands to a queue without a leader: docs/plugin.md
		case mechanism == hopback.Plugin:
		case q == "classic":
			r.Mechanism, r.Ladder = hopback.Ladder, []time.Duration{100 * time.Millisecond, 4 * time.Second}
		}
		w.runConsumer(hopback.ConsumerConfig{
			Route: r,
			Handler: seen.handler(func(_ context.Context, m *hopback.Message) error {
				switch {
				case strings.HasPrefix(m.MessageID, "parked"):
					return hopback.Permanent(errBusy)
				case m.Attempt == 1:
					return hopback.RetryAfter(errBusy, 4*time.Second)
				}
				return nil
			}),
		})
		for mode := range uint8(3) {
			w.publish("", q,
				amqp.Publishing{MessageId: fmt.Sprint("waiting ", q, mode), DeliveryMode: mode, Body: []byte("w")},
				amqp.Publishing{MessageId: fmt.Sprint("parked ", q, mode), DeliveryMode: mode, Body: []byte("p")})
		}
	}
	eventually(t, "six wait and six are parked", func() bool {
		return len(w.events.of("retried")) == 6 && len(w.events.of("parked")) == 6
	})
	// A settlement that the broker has not seen yet is a duplicate to come, of which
	// this test is not.
	eventually(t, "the broker has all settlements", func() bool { return w.unacked("classic")+w.unacked("quorum") == 0 })
	if err := b.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the six that waited are handled", func() bool { return len(w.events.of("handled")) >= 6 })
	for _, e := range w.events.of("handled") {
		if e.Attempt != 2 || !strings.HasPrefix(e.MessageID, "waiting "+e.Queue) {
			t.Errorf("handled: %+v", e)
		}
	}
	neverEarly(t, w, &seen)
	for _, q := range []string{"classic", "quorum"} {
		for _, d := range w.awaitParked(q+".parked", 3) {
			mode := d.MessageId[len(d.MessageId)-1] - '0'
			p := attempt.FromDelivery(&d)
			rec, err := attempt.Read(&p, attempt.Source{})
			if err != nil || d.DeliveryMode != amqp.Persistent || rec.Original(&p).DeliveryMode != shown(mode, q) {
				t.Errorf("%s: mode %d in the queue, %d before: %v", d.MessageId, d.DeliveryMode, rec.Original(&p).DeliveryMode, err)
			}
		}
	}
	for _, k := range seen.of() {
		if mode := k.MessageID[len(k.MessageID)-1] - '0'; k.DeliveryMode != shown(mode, k.Queue) {
			t.Errorf("%s: attempt %d sees delivery mode %d", k.MessageID, k.Attempt, k.DeliveryMode)
		}
	}
}

// shown is a delivery mode as a handler sees it: AMQP 1.0 does not tell 1 from none.
func shown(mode uint8, queue string) uint8 {
	if mode == 1 && queue == "quorum" && mechanism == hopback.Native {
		return 0
	}
	return mode
}
