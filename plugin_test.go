package hopback

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hopback/hopback/delay"
)

// fieldsOf are the fields that an error names.
func fieldsOf(err error) map[string]*ConfigError {
	found := map[string]*ConfigError{}
	var walk func(error)
	walk = func(err error) {
		switch e := err.(type) { //nolint:errorlint // the tree is walked here
		case *ConfigError:
			found[e.Field] = e
		case interface{ Unwrap() []error }:
			for _, one := range e.Unwrap() {
				walk(one)
			}
		}
	}
	walk(err)
	return found
}

// What the plugin would deliver at once is refused, by field; what fits is not,
// and with the wheel it still is.
func TestPluginLongest(t *testing.T) {
	route := func(mechanism string, most, after time.Duration) Route {
		return Route{Queue: "q", Mechanism: mechanism, Policy: Policy{Schedule: Schedule{Max: most}, MaxRetryAfter: after}}
	}
	if err := route(Plugin, delay.PluginLongest, delay.PluginLongest).Validate(); err != nil {
		t.Errorf("the longest: %v", err)
	}
	for field, r := range map[string]Route{
		"max":             route(Plugin, delay.PluginLongest+time.Millisecond, time.Hour),
		"max_retry_after": route(Plugin, time.Minute, delay.PluginLongest+time.Millisecond),
	} {
		err := fieldsOf(r.Validate())[field]
		if err == nil || !strings.Contains(err.Fix, "4294967295 ms") {
			t.Errorf("%s: %v", field, r.Validate())
		}
	}
	if err := route(Wheel, 26*time.Hour, 26*time.Hour).Validate(); fieldsOf(err)["max"] == nil {
		t.Errorf("26h in the wheel: %v", err)
	}
}

// A route says what its mechanism needs, and no more.
func TestPluginTopology(t *testing.T) {
	top, err := Topology("", Route{Queue: "orders", Mechanism: Plugin})
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, x := range top.Exchanges {
		if strings.Contains(x.Name, "delay") {
			if found = true; x.Name != "hop.delay.plugin" || x.Kind != delay.PluginType {
				t.Errorf("exchange %+v", x)
			}
		}
	}
	if !found {
		t.Errorf("no delayed exchange in %+v", top.Exchanges)
	}
	for _, q := range top.Queues {
		if strings.Contains(q.Name, "delay") {
			t.Errorf("queue %q", q.Name)
		}
	}
}

// Nothing is published into the plugin before its way back was seen.
func TestWay(t *testing.T) {
	var w way
	if err := w.verified(); !errors.Is(err, errNoWay) {
		t.Errorf("never looked at: %v", err)
	}
	w.set(nil)
	if err := w.verified(); err != nil {
		t.Errorf("seen: %v", err)
	}
	reason := errors.New("gone")
	w.set(reason)
	if err := w.verified(); !errors.Is(err, errNoWay) || !errors.Is(err, reason) {
		t.Errorf("gone: %v", err)
	}
}

func TestNativeLinear(t *testing.T) {
	good := Route{Queue: "orders", Mechanism: NativeLinear, Policy: Policy{
		Schedule: Schedule{Backoff: Linear, Jitter: NoJitter, Base: 10 * time.Second, Max: time.Minute}, MaxRetries: 4,
	}}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	p, ok := good.RetryPolicy("")
	if !ok || p.Queue != "orders" || p.Definition["delivery-limit"] != int64(4) || p.Definition["delayed-retry-min"] != int64(10_000) ||
		p.Definition["delayed-retry-max"] != int64(60_000) || p.Definition["dead-letter-exchange"] != "hop.error" {
		t.Errorf("policy %+v", p)
	}
	if _, ok := (Route{Queue: "orders"}).RetryPolicy(""); ok {
		t.Error("a route with another mechanism has a policy")
	}
	top, err := Topology("", good)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range top.Queues {
		if q.Name != "orders" && q.Name != "orders.parked" && q.Name != "hop.lost" {
			t.Errorf("queue %q", q.Name)
		}
	}
	none := good
	none.Policy.MaxRetries = NoRetries
	if p, _ := none.RetryPolicy(""); p.Definition["delivery-limit"] != int64(0) {
		t.Errorf("no retries: %v", p.Definition)
	}
	// Nobody gets other delays than the ones that the policy says.
	for words, change := range map[string]func(*Route){
		"backoff":         func(r *Route) { r.Policy.Backoff, r.Policy.Base = Constant, time.Second },
		"jitter":          func(r *Route) { r.Policy.Jitter = Full },
		"isolate":         func(r *Route) { r.Isolate = true },
		"permanent_types": func(r *Route) { r.Policy.PermanentTypes = []string{"E"} },
		"max_age":         func(r *Route) { r.Policy.MaxAge = 99 * time.Second }, // 10+20+30+40 s
	} {
		r := good
		change(&r)
		err := fieldsOf(r.Validate())["mechanism"]
		if err == nil || err.Value != NativeLinear || !strings.Contains(err.Fix, words) {
			t.Errorf("%s: %v", words, r.Validate())
		}
	}
	long := good
	long.Policy.MaxAge = 100 * time.Second
	if err := long.Validate(); err != nil {
		t.Errorf("as long as it takes: %v", err)
	}
}
