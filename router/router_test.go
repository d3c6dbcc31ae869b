package router

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/topology"
)

func TestConfigIsChecked(t *testing.T) {
	const url = "amqp://guest:s3cret@localhost:5672/"
	route := func(queue string) Route { return Route{Route: hopback.Route{Queue: queue}} }
	for _, tt := range []struct {
		name string
		cfg  Config
		want string // in the error; none if empty
	}{
		{"good", Config{Client: hopback.Config{URL: url}, Routes: []Route{route("orders")}}, ""},
		{"no routes", Config{Client: hopback.Config{URL: url}}, ""},
		{"a native route", Config{Client: hopback.Config{URL: url}, Routes: []Route{{Route: hopback.Route{Queue: "orders", Mechanism: "native"}}}}, ""},
		{"no URL", Config{}, "URL"},
		{"twice", Config{Client: hopback.Config{URL: url}, Routes: []Route{route("orders"), route("orders")}}, "Routes[1].queue"},
		{"one of ours", Config{Client: hopback.Config{URL: url}, Routes: []Route{route("hop.failed")}}, "Hopback's own"},
		{"no queue", Config{Client: hopback.Config{URL: url}, Routes: []Route{route("")}}, "name the work queue"},
		{"prefetch", Config{Client: hopback.Config{URL: url}, Prefetch: 2001}, "2000"},
		{"a policy", Config{Client: hopback.Config{URL: url}, Unrouted: &hopback.Policy{MaxRetries: -7}}, "max_retries"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := New(tt.cfg)
			switch {
			case tt.want == "" && err != nil:
				t.Error(err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got %v, want something about %s", err, tt.want)
			case err != nil && strings.Contains(err.Error(), "s3cret"):
				t.Errorf("the password is in the error: %v", err)
			}
		})
	}
}

// Nothing of the router's own may lose a message when it dies there, and what
// people look into must not count their looks.
func TestTopologyIsSafe(t *testing.T) {
	top, err := Topology("", Route{Route: hopback.Route{Queue: "orders"}})
	if err != nil {
		t.Fatal(err)
	}
	queues := map[string]topology.Queue{}
	for _, q := range top.Queues {
		queues[q.Name] = q
		if q.User {
			continue
		}
		if q.Args["x-queue-type"] != "quorum" {
			t.Errorf("%s is no quorum queue", q.Name)
		}
		if q.Args["x-dead-letter-exchange"] != nil && (q.Args["x-dead-letter-strategy"] != "at-least-once" || q.Args["x-overflow"] != "reject-publish") {
			t.Errorf("%s loses what dies in it: %v", q.Name, q.Args)
		}
		if q.Args["x-expires"] != nil {
			t.Errorf("%s expires with what is in it", q.Name)
		}
	}
	for _, name := range []string{Quarantine(""), Parking(""), "orders.parked"} {
		if queues[name].Args["x-delivery-limit"] != int64(1_000_000) {
			t.Errorf("%s counts how often somebody looks: %v", name, queues[name].Args)
		}
	}
	failed := queues[Exchange("")]
	if failed.Args["x-delivery-limit"] != int64(quarantineAfter) || failed.Args["x-dead-letter-exchange"] != Quarantine("") {
		t.Errorf("%s does not lead into the quarantine: %v", failed.Name, failed.Args)
	}
	for _, e := range top.Exchanges {
		if e.Name == Exchange("") && e.Kind != "fanout" {
			t.Errorf("%s is %s: a message with another routing key would be dropped", e.Name, e.Kind)
		}
	}
	if failed, ok := queues["hop.failed.held"]; !ok || failed.Args["x-message-ttl"] != int64(heldFor/time.Millisecond) {
		t.Errorf("what is moved aside does not come back: %v", failed.Args)
	}
}

func TestUndecodable(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{&amqp.Error{Code: amqp.FrameError, Reason: amqp.ErrSyntax.Error()}, true},
		{fmt.Errorf("channel closed: %w", &amqp.Error{Code: amqp.FrameError, Reason: amqp.ErrFrameTooLarge.Error()}), true},
		{&amqp.Error{Code: amqp.FrameError, Reason: "EOF"}, false},
		{&amqp.Error{Code: amqp.FrameError, Reason: "read tcp 127.0.0.1:1->127.0.0.1:2: connection reset by peer"}, false},
		{&amqp.Error{Code: 320, Reason: "CONNECTION_FORCED"}, false},
		{errors.New("channel closed"), false},
		{nil, false},
	} {
		if got := undecodable(tt.err); got != tt.want {
			t.Errorf("%v: undecodable is %t", tt.err, got)
		}
	}
}

// What a message died of by the queue itself is parked under a reason of its own.
func TestDeaths(t *testing.T) {
	seen := map[string]bool{}
	for died, d := range deaths {
		if died == rejected || d.reason == "" || d.err == nil || seen[d.reason] {
			t.Errorf("%s is parked as %q (%v)", died, d.reason, d.err)
		}
		seen[d.reason] = true
	}
}
