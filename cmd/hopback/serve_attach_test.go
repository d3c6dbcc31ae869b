package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/rabbittest"
	"github.com/hopback/hopback/topology"
)

// README's commands, without a configuration file: a queue joins the router while its
// consumer runs, what that rejects comes back by the default policy, and the queue
// leaves as it was.
func TestAQueueJoinsAndLeaves(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("needs a broker")
	}
	b := rabbittest.Shared(t)
	url := b.Vhost(t)
	uri, err := amqp.ParseURI(url)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch := open(t, conn)
	if _, err := ch.QueueDeclare("orders", true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
		t.Fatal(err)
	}
	deliveries, err := ch.Consume("orders", "", false, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	hopback := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(os.Args[0], args...) // in this folder, where no hopback.yaml is
		cmd.Args[0] = "hopback"
		cmd.Env = append(os.Environ(), "HOPBACK_BROKER_URL="+url, "HOPBACK_MANAGEMENT_URL="+b.ManagementURL())
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("hopback %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	m := &topology.Management{URL: b.ManagementURL(), Vhost: uri.Vhost}
	policies := func() int {
		t.Helper()
		all, err := m.Policies(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}

	p := startServe(t, url, "serve", "--listen", "127.0.0.1:0")
	p.awaitReady(t)
	hopback("attach", "orders", "--yes")
	if out := hopback("attach", "orders", "--yes"); policies() != 1 || !strings.Contains(out, "nothing to do") {
		t.Errorf("%d policies; the second attach says %s", policies(), out)
	}
	if err := ch.Publish("", "orders", true, false, amqp.Publishing{MessageId: "m", DeliveryMode: amqp.Persistent, Body: []byte("m")}); err != nil {
		t.Fatal(err)
	}
	for want := range int32(3) {
		d := <-deliveries
		if got, _ := d.Headers[attempt.HeaderCount].(int32); got != want || string(d.Body) != "m" {
			t.Fatalf("delivery of %q with count %d, want %d", d.Body, got, want)
		}
		if want < 2 {
			err = d.Reject(false)
		} else {
			err = d.Ack(false)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if out := hopback("status"); !strings.Contains(out, "orders") || !strings.Contains(out, "hop.attach.orders") {
		t.Errorf("status: %s", out)
	}
	hopback("detach", "orders", "--yes")
	if n := policies(); n != 0 {
		t.Errorf("%d policies after detaching, want none", n)
	}
	p.signal(t, os.Interrupt)
	if err := p.wait(t); err != nil {
		t.Errorf("serve ended with %v", err)
	}
}
