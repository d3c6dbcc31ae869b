package integration

import (
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/topology"
)

// A consumer that knows nothing of Hopback rejects with requeue; the broker, by
// our policy, delivers again after base × n, at most max, and dead-letters into
// the parking queue when the retries are used up.
func TestNativeLinear(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if caps := (hopback.Capabilities{Version: w.broker.Version()}); !caps.AtLeast("4.3.1") {
		t.Skipf("RabbitMQ %s has no delayed retry by policy: from 4.3.1", w.broker.Version())
	}
	w.declare("work", "quorum") // long before us, by somebody else
	route := hopback.Route{Queue: "work", Mechanism: hopback.NativeLinear, Policy: hopback.Policy{
		MaxRetries: 4, Schedule: hopback.Schedule{
			Backoff: hopback.Linear, Base: 500 * time.Millisecond, Max: 1200 * time.Millisecond, Jitter: hopback.NoJitter,
		},
	}}
	top, err := hopback.Topology("", route)
	if err != nil {
		t.Fatal(err)
	}
	policy, _ := route.RetryPolicy("")
	m := &topology.Management{URL: w.broker.ManagementURL(), Vhost: w.vhost}
	w.depth("work") // dials
	if err := topology.Apply(t.Context(), w.conn, top); err != nil {
		t.Fatal(err)
	}
	if err := m.ApplyPolicy(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	if err := m.VerifyPolicy(t.Context(), policy); err != nil {
		t.Fatal(err)
	}

	const n = 20
	var ids []string
	for i := range n {
		ids = append(ids, fmt.Sprint(i))
	}
	at := map[string][]time.Time{}
	ch := w.channel()
	if err := ch.Qos(100, 0, false); err != nil {
		t.Fatal(err)
	}
	deliveries, err := ch.Consume("work", "", false, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.send("work", ids...)
	parked := func() int { return w.depth("work.parked") }
	deadline := time.After(patience)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for parked() < n {
		select {
		case d := <-deliveries:
			at[d.MessageId] = append(at[d.MessageId], time.Now())
			if err := d.Reject(true); err != nil {
				t.Fatal(err)
			}
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%d of %d are parked; deliveries %v", parked(), n, at)
		}
	}
	want := []time.Duration{500 * time.Millisecond, time.Second, 1200 * time.Millisecond, 1200 * time.Millisecond}
	for id, times := range at {
		if len(times) != 1+len(want) {
			t.Errorf("%s: %d deliveries, want %d", id, len(times), 1+len(want))
			continue
		}
		for i, least := range want {
			if waited := times[i+1].Sub(times[i]); waited < least-5*time.Millisecond {
				t.Errorf("%s: retry %d came after %s, want %s", id, i+1, waited, least)
			}
		}
	}
	ch.Close()
	seen := map[string]int{}
	for _, d := range w.awaitParked("work.parked", n) {
		seen[d.MessageId]++
		if string(d.Body) != d.MessageId || d.RoutingKey != "work" {
			t.Errorf("%s: body %q, key %q", d.MessageId, d.Body, d.RoutingKey)
		}
		deaths, _ := d.Headers["x-death"].([]any)
		if len(deaths) != 1 {
			t.Fatalf("%s: x-death %v", d.MessageId, d.Headers["x-death"])
		}
		death, _ := deaths[0].(amqp.Table)
		if death["queue"] != "work" || death["reason"] != "delivery_limit" || death["count"] != int64(1) {
			t.Errorf("%s: %v", d.MessageId, death)
		}
	}
	if len(seen) != n {
		t.Errorf("%d different messages were parked, want %d", len(seen), n)
	}
	if left := w.depth("work"); left != 0 {
		t.Errorf("%d are left on the work queue", left)
	}

	// A reject without requeue parks at once; nothing is lost on the way.
	again := w.channel()
	defer again.Close()
	w.send("work", "at-once")
	d, ok, err := again.Get("work", false)
	for deadline := time.Now().Add(patience); err == nil && !ok && time.Now().Before(deadline); {
		d, ok, err = again.Get("work", false)
	}
	if err != nil || !ok {
		t.Fatal(err, ok)
	}
	if err := d.Reject(false); err != nil {
		t.Fatal(err)
	}
	if p := w.awaitParked("work.parked", 1); p[0].MessageId != "at-once" {
		t.Errorf("parked %q", p[0].MessageId)
	}
}
