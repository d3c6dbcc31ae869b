package attach

import (
	"strings"
	"testing"
)

// The types of queues that plugins bring dead-letter in ways of their own, or not at
// all.
func TestUnknownTypes(t *testing.T) {
	for kind, want := range map[string]bool{quorum: false, classic: false, stream: true, "rabbit_mqtt_qos0_queue": true, "": true} {
		s := &survey{prefix: "hop", queues: map[string]*queue{"orders": {Name: "orders", Type: kind, Durable: true}}}
		p := s.plan(Request{Queue: "orders"})
		if p.Refused() != want {
			t.Errorf("a queue of type %q: the plan is\n%s", kind, p)
		}
	}
}

func TestClearPolicy(t *testing.T) {
	s := &survey{vhost: "/"}
	for name, want := range map[string]string{
		"hop.attach.orders": "rabbitmqctl clear_policy -p / hop.attach.orders",
		"all queues":        "rabbitmqctl clear_policy -p / 'all queues'",
		"it's; rm":          `rabbitmqctl clear_policy -p / 'it'\''s; rm'`,
	} {
		if got := s.clearPolicy(name); got != want {
			t.Errorf("%s", got)
		}
	}
}

// A prefix that cannot work is an error and nothing worse.
func TestPrefix(t *testing.T) {
	for _, prefix := range []string{strings.Repeat("p", 300), "amq.hop"} {
		if _, err := MakePlan(t.Context(), nil, Request{Queue: "orders", Prefix: prefix}); err == nil || !strings.Contains(err.Error(), "prefix") {
			t.Errorf("%.10s: %v", prefix, err)
		}
	}
}
