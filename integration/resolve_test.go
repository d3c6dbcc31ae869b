package integration

import (
	"errors"
	"net/url"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/topology"
)

// A work queue that can refuse messages gets slots of its own, whether an
// argument or a policy says so; one that drops its oldest, or has no limit, does
// not.
func TestResolveIsolatesQueuesThatRefuse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m := &topology.Management{URL: w.broker.ManagementURL(), Vhost: w.vhost}
	conn, err := amqp.Dial(w.url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string]amqp.Table{
		"plain":    {},
		"limited":  {"x-max-length": int64(10)},
		"refusing": {"x-max-length": int64(10), "x-overflow": "reject-publish"},
		"bytes":    {"x-max-length-bytes": int64(1000), "x-overflow": "reject-publish", "x-queue-type": "quorum"},
		"policed":  {"x-max-length": int64(10)},
		"overflow": {"x-overflow": "reject-publish"},
	} {
		if _, err := ch.QueueDeclare(name, true, false, false, false, args); err != nil {
			t.Fatal(err)
		}
	}
	err = w.broker.Put(t.Context(), "policies/"+url.PathEscape(w.vhost)+"/full", map[string]any{
		"pattern": "^policed$", "definition": map[string]any{"overflow": "reject-publish"}, "apply-to": "queues",
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"plain": "", "limited": "", "overflow": "",
		"refusing": "max-length 10 with overflow reject-publish",
		"bytes":    "max-length-bytes 1000 with overflow reject-publish",
		"policed":  "max-length 10 with overflow reject-publish",
		"missing":  "",
	}
	for name, setting := range want {
		var got hopback.Decision
		eventually(t, name+" is looked at with its policy", func() bool { // policies show with a delay
			routes, decisions, err := hopback.Resolve(t.Context(), hopback.View{Management: m}, hopback.Route{Queue: name})
			if err != nil {
				t.Fatal(err)
			}
			got = decisions[0]
			return got.IsolatedWhy == setting && routes[0].Isolate == (setting != "")
		})
		if got.Mechanism != hopback.Wheel || got.Why == "" { // the version is not known here
			t.Errorf("%s: %+v; want the wheel, and why", name, got)
		}
	}
}

// A stream cannot take one message back for one consumer: it is refused by name.
func TestResolveRefusesStreams(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	conn, err := amqp.Dial(w.url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueueDeclare("log", true, false, false, false, amqp.Table{"x-queue-type": "stream"}); err != nil {
		t.Fatal(err)
	}
	m := &topology.Management{URL: w.broker.ManagementURL(), Vhost: w.vhost}
	_, _, err = hopback.Resolve(t.Context(), hopback.View{Management: m}, hopback.Route{Queue: "log"})
	var unusable *hopback.ConfigError
	if !errors.As(err, &unusable) || unusable.Field != "queue" || unusable.Value != "log" || !strings.Contains(unusable.Fix, "stream") {
		t.Errorf("a stream as work queue: %v", err)
	}
}
