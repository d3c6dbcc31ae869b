package topology_test

import (
	"context"
	"errors"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/topology"
)

// The type of a queue is told over AMQP alone, whatever its arguments, and the
// same as over HTTP.
func TestQueueType(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	c := s.dial(t)
	want := map[string]string{}
	for name, args := range map[string]amqp.Table{
		"bare":    nil,
		"classic": {"x-queue-type": "classic", "x-max-length": int64(5), "x-overflow": "reject-publish"},
		"many": {
			"x-message-ttl": int64(1000), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "bare",
			"x-max-length": int32(7), "x-max-length-bytes": int64(9000), "x-max-priority": int64(3), "x-single-active-consumer": true, "x-expires": int64(3_600_000),
		},
		"quorum": {"x-queue-type": "quorum"},
		"slot": {
			"x-queue-type": "quorum", "x-message-ttl": int64(3000), "x-dead-letter-exchange": "hop.then.1s",
			"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
		},
		"parking": {"x-queue-type": "quorum", "x-delivery-limit": int64(1_000_000), "x-quorum-initial-group-size": int64(1)},
		"stream":  {"x-queue-type": "stream", "x-max-age": "1h", "x-max-length-bytes": int64(1 << 30)},
		"odd":     {"x-queue-type": "quorum", "mine": "x", "x-queue-leader-locator": "client-local"},
	} {
		declareQueue(t, c, name, args)
		want[name], _ = args["x-queue-type"].(string)
		if want[name] == "" {
			want[name] = "classic"
		}
	}
	for name, kind := range want {
		for how, m := range map[string]*topology.Management{"AMQP": nil, "HTTP": s.management} {
			got, err := topology.QueueType(t.Context(), c, m, name)
			if err != nil || got != kind {
				t.Errorf("queue %q over %s: %q, %v; want %q", name, how, got, err, kind)
			}
		}
	}
	if c.IsClosed() {
		t.Error("it cost the connection")
	}
}

// Nothing is created by asking, and an account without rights is not told.
func TestQueueTypeCreatesNothing(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	c := s.dial(t)
	for how, m := range map[string]*topology.Management{"AMQP": nil, "HTTP": s.management} {
		_, err := topology.QueueType(t.Context(), c, m, "none")
		var missing *topology.MissingError
		if !errors.As(err, &missing) || missing.Queue != "none" {
			t.Errorf("over %s: %v", how, err)
		}
	}
	// As if it were deleted between the two questions.
	err := do(t, c, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare("none", true, false, false, false, amqp.Table{"x-queue-type": "stream", "x-quorum-initial-group-size": "none"})
		return err
	})
	if err == nil || exists(t, c, "none") {
		t.Errorf("the question made a queue: %v", err)
	}
	declareQueue(t, c, "q", amqp.Table{"x-queue-type": "quorum"})
	name := "asker-" + s.vhost
	if err := s.AddUser(t.Context(), name, "secret", s.vhost, "", "", "q"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Delete(context.Background(), "/api/users/"+name) }) //nolint:errcheck // goes with the broker
	u, err := amqp.ParseURI(s.url)
	if err != nil {
		t.Fatal(err)
	}
	u.Username, u.Password = name, "secret"
	if got, err := topology.QueueType(t.Context(), dial(t, u.String()), nil, "q"); got != "" || err != nil {
		t.Errorf("without rights: %q, %v", got, err)
	}
}
