package hopback

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hopback/hopback/backoff"
	"github.com/hopback/hopback/delay"
)

func TestPolicyDefaults(t *testing.T) {
	p := Policy{}.WithDefaults()
	if p.MaxRetries != 5 || p.MaxAge != 24*time.Hour || p.MaxRetryAfter != time.Hour ||
		p.Base != time.Second || p.Max != time.Minute || p.Jitter != Full {
		t.Errorf("defaults are %+v", p)
	}
	if err := (Policy{}).Validate(); err != nil {
		t.Errorf("the zero policy must work: %v", err)
	}
	if got := (Policy{Schedule: Schedule{Max: 2 * time.Hour}}).WithDefaults().MaxRetryAfter; got != 2*time.Hour {
		t.Errorf("max_retry_after = %s, want it no shorter than max", got)
	}
	if got := (Policy{MaxRetries: NoRetries}).WithDefaults().retries(); got != 0 {
		t.Errorf("NoRetries allows %d retries", got)
	}
}

func TestPolicyErrorsNameFieldValueAndFix(t *testing.T) {
	for _, c := range []struct {
		policy       Policy
		field, value string
	}{
		{Policy{MaxRetries: -2}, "max_retries", "-2"},
		{Policy{MaxRetries: 2_000_000}, "max_retries", "2000000"},
		{Policy{MaxAge: -time.Second}, "max_age", "-1s"},
		{Policy{MaxRetryAfter: -time.Second}, "max_retry_after", "-1s"},
		{Policy{MaxRetryAfter: delay.Longest + 1}, "max_retry_after", "25h0m0.000000001s"},
		{Policy{Schedule: Schedule{Max: delay.Longest + time.Second}}, "max", "25h0m1s"},
		{Policy{PermanentTypes: []string{"A", ""}}, "permanent_types[1]", ""},
	} {
		err := c.policy.Validate()
		var ce *ConfigError
		if !errors.As(err, &ce) || ce.Field != c.field || ce.Value != c.value || ce.Fix == "" {
			t.Errorf("%+v: %v; want %s, %q and a fix", c.policy, err, c.field, c.value)
		}
	}
	var fe *backoff.FieldError
	if err := (Policy{Schedule: Schedule{Backoff: "sometimes"}}).Validate(); !errors.As(err, &fe) || fe.Field != "backoff" {
		t.Errorf("an unknown backoff: %v", err)
	}
}

func TestRouteErrorsNameFieldValueAndFix(t *testing.T) {
	for _, c := range []struct {
		route        Route
		field, value string
	}{
		{Route{}, "queue", ""},
		{Route{Queue: strings.Repeat("q", 256)}, "queue", strings.Repeat("q", 256)},
		{Route{Queue: "q", Parking: "q"}, "parking", "q"},
		{Route{Queue: "q", Mechanism: "magic"}, "mechanism", "magic"},
		{Route{Queue: "q", Precision: "three"}, "precision", "three"},
		{Route{Queue: "q", Mechanism: Ladder}, "ladder", "[]"},
		{Route{Queue: "q", Ladder: []time.Duration{1e9}}, "ladder", "[1s]"},
		{Route{Queue: "q", Mechanism: Ladder, Ladder: []time.Duration{2e9, 1e9}}, "ladder[1]", "1s"},
		{Route{Queue: "q", Mechanism: Ladder, Ladder: []time.Duration{0}}, "ladder[0]", "0s"},
		{Route{Queue: "q", Declare: &Declare{Type: "stream"}}, "declare.type", "stream"},
		{Route{Queue: "q", Declare: &Declare{Exchange: "x", ExchangeType: "odd"}}, "declare.exchange_type", "odd"},
		{Route{Queue: "q", Declare: &Declare{RoutingKey: "k"}}, "declare.routing_key", "k"},
	} {
		var ce *ConfigError
		if err := c.route.Validate(); !errors.As(err, &ce) || ce.Field != c.field || ce.Value != c.value || ce.Fix == "" {
			t.Errorf("%+v: %v; want %s, %q and a fix", c.route, err, c.field, c.value)
		}
	}
	if err := (Route{Queue: "q"}).Validate(); err != nil {
		t.Errorf("a queue's name must be enough: %v", err)
	}
}

func TestClientConfigNeverRepeatsThePassword(t *testing.T) {
	for _, url := range []string{"http://u:s3cret@h/", "amqp://u:s3cret@h:port/", "amqp://u:s3cret%zz@h/", ""} {
		_, err := New(Config{URL: url})
		if err == nil {
			t.Errorf("%q was accepted", url)
		} else if strings.Contains(err.Error(), "s3cret") {
			t.Errorf("the error repeats the password: %v", err)
		}
	}
}

// The slots of a topology are those that the mechanism of its route names, for
// shared and for isolated routes, wheels and ladders.
func TestTopologyHoldsEverySlot(t *testing.T) {
	for _, r := range []Route{
		{Queue: "orders"},
		{Queue: "orders", Isolate: true},
		{Queue: "orders", Mechanism: Ladder, Ladder: []time.Duration{1e9, 15e9, 60e9}},
	} {
		top, err := Topology("hop", r)
		if err != nil {
			t.Fatal(err)
		}
		names := map[string]bool{}
		for _, q := range top.Queues {
			names[q.Name] = true
			if q.Args["x-expires"] != nil {
				t.Errorf("%s has x-expires: it would drop what waits", q.Name)
			}
		}
		m := r.DelayMechanism("hop")
		for _, d := range m.Slots() {
			if d > time.Hour {
				continue // longer than the policy ever asks for
			}
			h := m.Hold(delay.Request{Delay: d, Exact: true})
			if !names[h.Exchange] || h.Delay != d {
				t.Errorf("%s holds %s in %q, which is not declared", m.Name(), d, h.Exchange)
			}
		}
		if !names["orders.parked"] || !names["hop.lost"] || !names["orders"] {
			t.Errorf("queues are %v", names)
		}
	}
}
