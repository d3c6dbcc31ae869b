package parking

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
)

func TestFold(t *testing.T) {
	for in, want := range map[string]string{
		"":                        "",
		"no stock":                "no stock",
		"order 4711 not found":    "order <n> not found",
		"took 3.25s, limit 1,000": "took <n>s, limit <n>",
		"dial tcp 10.0.0.7:5432: connect: connection refused":                    "dial tcp <address>: connect: connection refused",
		"dial tcp [fe80::1%eth0]:5432: i/o timeout":                              "dial tcp <address>: i/o timeout",
		"user maria.b+x@example.co.uk is unknown":                                "user <address> is unknown",
		"customer 3f2504e0-4f89-11d3-9a0c-0305e82c3301 gone":                     "customer <id> gone",
		"commit 9fceb02d0ae598e95dc970b74767f19372d61af8 and deadbeef":           "commit <id> and deadbeef",
		"pointer 0xc000123abc":                                                   "pointer <id>",
		"at 2026-11-30T17:15:20.123Z and 2026-11-30 17:15:20 and 17:15:20.5":     "at <time> and <time> and <time>",
		"order 123456789012 failed":                                              "order <n> failed",
		"timeout\n\tat main.go:12":                                               "timeout",
		"HTTP 503 from https://api.example.com/v2/orders/8271?retry=1 in 1500ms": "HTTP 503 from https://api.example.com/v<n>/orders/<n>?retry=<n> in <n>s",
	} {
		if got := Fold(in); got != want {
			t.Errorf("Fold(%q) = %q, want %q", in, got, want)
		}
	}
	// 10,000 failures of three causes read as three.
	causes := map[string]bool{}
	for i := range 10_000 {
		m := Message{ErrorType: "E", Error: fmt.Sprintf([]string{
			"order %d: card 4%015[1]d refused", "dial 10.%d.0.1:%[1]d: timeout", "no customer %08[1]x-0000-4000-8000-%012[1]x",
		}[i%3], i%200)}
		causes[m.Fingerprint()] = true
	}
	if len(causes) != 3 {
		t.Errorf("%d causes: %v", len(causes), causes)
	}
	if id := FingerprintID("a"); len(id) != 8 || id == FingerprintID("b") {
		t.Errorf("id %q", id)
	}
}

func parked(at time.Time) *Message {
	return describe("orders.parked", &amqp.Delivery{
		Exchange: "hop.error", RoutingKey: "orders", MessageId: "m1", Body: []byte(`{"customer": {"id": 12345678901234567890, "vip": true}, "items": [{"sku": "A"}, {"sku": null}], "a.b": "dots"}`),
		Headers: amqp.Table{
			attempt.HeaderQueue: "orders", attempt.HeaderID: "0123456789abcdef0123456789abcdef", attempt.HeaderCount: int32(5),
			attempt.HeaderReason: "exhausted", attempt.HeaderError: "timeout after 3s", attempt.HeaderErrorType: "net.TimeoutError",
			attempt.HeaderFailedAt: at.UnixMilli(), attempt.HeaderExchange: "shop", attempt.HeaderRoutingKey: "order.create",
			attempt.HeaderPolicy: "standard", "tenant": "acme", "weight": int16(3),
			"price": amqp.Decimal{Scale: 2, Value: -314}, "share": amqp.Decimal{Scale: 3, Value: 5}, "whole": amqp.Decimal{Value: 7},
		},
	})
}

func TestFilter(t *testing.T) {
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	m := parked(at)
	for name, c := range map[string]struct {
		f    Filter
		want bool
	}{
		"all":               {Filter{}, true},
		"id":                {Filter{IDs: []string{"ffff", "0123"}}, true},
		"other id":          {Filter{IDs: []string{"0124"}}, false},
		"queue":             {Filter{Queue: "orders"}, true},
		"other queue":       {Filter{Queue: "invoices"}, false},
		"error":             {Filter{Error: regexp.MustCompile(`after \d+s$`)}, true},
		"other error":       {Filter{Error: regexp.MustCompile("^after")}, false},
		"type":              {Filter{ErrorType: "net.TimeoutError"}, true},
		"type alone":        {Filter{ErrorType: "TimeoutError"}, true},
		"end of a type":     {Filter{ErrorType: "Error"}, false},
		"decimal":           {Filter{Headers: map[string]string{"price": "-3.14", "share": "0.005", "whole": "7"}}, true},
		"reason":            {Filter{Reason: "exhausted"}, true},
		"other reason":      {Filter{Reason: "permanent"}, false},
		"policy":            {Filter{Policy: "standard", Exchange: "shop", RoutingKey: "order.create"}, true},
		"other policy":      {Filter{Policy: "slow"}, false},
		"other exchange":    {Filter{Exchange: "hop.error"}, false},
		"other routing key": {Filter{RoutingKey: "orders"}, false},
		"since":             {Filter{Since: at}, true},
		"since later":       {Filter{Since: at.Add(time.Millisecond)}, false},
		"until":             {Filter{Until: at.Add(time.Millisecond)}, true},
		"until then":        {Filter{Until: at}, false},
		"header":            {Filter{Headers: map[string]string{"tenant": "acme", "weight": "3"}}, true},
		"other header":      {Filter{Headers: map[string]string{"tenant": "acme", "weight": "4"}}, false},
		"no header":         {Filter{Headers: map[string]string{"none": ""}}, false},
		"fingerprint":       {Filter{Fingerprint: "net.TimeoutError: timeout after <n>s"}, true},
		"fingerprint id":    {Filter{Fingerprint: FingerprintID("net.TimeoutError: timeout after <n>s")}, true},
		"other fingerprint": {Filter{Fingerprint: "timeout"}, false},
		"body":              {Filter{BodyJSON: map[string]string{"customer.id": "12345678901234567890", "customer.vip": "true", "items.0.sku": "A", "items.1.sku": "null", "a.b": "dots"}}, true},
		"as JSONPath":       {Filter{BodyJSON: map[string]string{"$.customer.vip": "true", "$.items[0].sku": "A", ".items[1].sku": "null", "items[0].sku": "A"}}, true},
		"other body":        {Filter{BodyJSON: map[string]string{"customer.id": "12345678901234567000"}}, false},
		"no path":           {Filter{BodyJSON: map[string]string{"items.2.sku": "A"}}, false},
		"not a scalar":      {Filter{BodyJSON: map[string]string{"customer": "{}"}}, false},
	} {
		if err := c.f.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := c.f.Match(m); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	nobody := parked(time.Time{})
	for name, f := range map[string]Filter{"since": {Since: at}, "until": {Until: at}} {
		if f.Match(nobody) {
			t.Errorf("%s: a message of which nobody knows when it was parked", name)
		}
	}
	for name, f := range map[string]Filter{
		"short": {IDs: []string{"012"}}, "swapped": {Since: at, Until: at}, "no path": {BodyJSON: map[string]string{"": "a"}},
		"far": {Until: time.Date(20000, 1, 1, 0, 0, 0, 0, time.UTC)},
	} {
		if f.Validate() == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestSameType(t *testing.T) {
	for _, have := range []string{"TimeoutError", "net.TimeoutError", "*net.TimeoutError", "app::TimeoutError", `App\Errors\TimeoutError`, "Outer$TimeoutError"} {
		if !sameType("TimeoutError", have) {
			t.Errorf("TimeoutError is not found as %s", have)
		}
	}
	for want, have := range map[string]string{"Error": "net.TimeoutError", "TimeoutError": "", "net.TimeoutError": "TimeoutError"} {
		if sameType(want, have) {
			t.Errorf("%s is found as %q", want, have)
		}
	}
}

func TestGroupings(t *testing.T) {
	m := parked(time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC))
	want := map[string]string{
		"error-type": "net.TimeoutError", "reason": "exhausted", "fingerprint": "net.TimeoutError: timeout after <n>s", "error": "timeout after 3s",
		"queue": "orders", "policy": "standard", "exchange": "shop", "routing-key": "order.create", "header:NAME": "", "header:weight": "3",
	}
	for _, by := range append([]string{"header:weight"}, Groupings...) {
		k, err := key(by)
		if err != nil {
			t.Errorf("%s: %v", by, err)
			continue
		}
		if w, there := want[by]; !there || k(m) != w {
			t.Errorf("%s: %q, want %q", by, k(m), w)
		}
	}
}

// A message of other people's, that RabbitMQ dead-lettered.
func TestForeignMessages(t *testing.T) {
	at := time.Unix(1700000000, 0)
	death := func(queue, reason, exchange, key string, at time.Time) amqp.Table {
		return amqp.Table{"queue": queue, "reason": reason, "exchange": exchange, "routing-keys": []any{key}, "time": at, "count": int64(1)}
	}
	d := amqp.Delivery{
		Exchange: "dlx", RoutingKey: "order.create", Body: []byte("a"),
		Headers: amqp.Table{
			"x-death":             []any{death("orders", "rejected", "", "orders", at.Add(time.Minute)), death("orders.wait", "expired", "shop", "order.create", at)},
			"x-exception-message": "no stock", "x-delivery-count": int64(3),
		},
	}
	m := describe("dead", &d)
	if m.Queue != "orders" || m.Reason != "rejected" || m.Error != "no stock" || m.Exchange != "shop" || m.RoutingKey != "order.create" ||
		m.OriginUnknown || !m.ParkedAt.Equal(at.Add(time.Minute)) || !m.FirstFailedAt.Equal(at) || len(m.ID) != 32 {
		t.Errorf("got %+v", m)
	}
	// The same at the next look, and another for another message.
	again := d
	again.Headers = amqp.Table{"x-death": d.Headers["x-death"], "x-exception-message": "no stock", "x-delivery-count": int64(4), "x-acquired-count": int64(9)}
	again.Redelivered, again.DeliveryTag, again.ConsumerTag = true, 7, "other"
	if id := describe("dead", &again).ID; id != m.ID {
		t.Errorf("the ID is %s at the next look, and was %s", id, m.ID)
	}
	again.Body = []byte("b")
	if describe("dead", &again).ID == m.ID {
		t.Error("another message has the same ID")
	}
	if bare := describe("dead", &amqp.Delivery{RoutingKey: "dead"}); bare.ID == "" || bare.Queue != "" || !bare.OriginUnknown || !bare.ParkedAt.IsZero() {
		t.Errorf("a message that says nothing: %+v", bare)
	}
	bad := describe("dead", &amqp.Delivery{Headers: amqp.Table{attempt.HeaderQueue: "orders", attempt.HeaderCount: "many"}})
	if !bad.BadCounter || bad.Queue != "orders" {
		t.Errorf("a counter that is none: %+v", bad)
	}
}

func TestPace(t *testing.T) {
	run := func(p pace, last time.Duration) (sent int) {
		now := time.Unix(0, 0).Add(time.Hour)
		for end := now.Add(last); now.Before(end); sent++ {
			now = now.Add(p.wait(now) + time.Microsecond)
		}
		return sent
	}
	if n := run(pace{rate: 100}, 10*time.Second); n < 990 || n > 1010 {
		t.Errorf("%d in 10 s at 100 a second", n)
	}
	// 10 s each at 1, 10, 100 and 200 a second.
	if n := run(pace{rate: 200, step: 10 * time.Second}, 40*time.Second); n < 3050 || n > 3150 {
		t.Errorf("%d in 40 s of a ramp to 200 a second, want about 3110", n)
	}
	p := pace{step: time.Second}
	now := time.Unix(1000, 0)
	p.wait(now)
	if r := p.at(now.Add(time.Hour)); r != 0 {
		t.Errorf("a ramp without an end stays at %g", r)
	}
	if p = (pace{}); p.wait(now) != 0 {
		t.Error("no pace, and yet a wait")
	}
}

func TestReplayValidate(t *testing.T) {
	for want, o := range map[string]Replay{
		"Rate": {Rate: -1}, "Ramp": {Ramp: -1}, "Limit": {Limit: -1}, "StopRatio: 1": {StopRatio: 1, Rate: 1}, "StopRatio needs": {StopRatio: 0.1},
		"name one": {ToQueue: "a", ToExchange: "b"}, "ToKey": {ToKey: "a"}, "filter": {Filter: Filter{IDs: []string{"a"}}},
	} {
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want an error about %s", o, err, want)
		}
	}
	if err := (Replay{Ramp: time.Second, StopRatio: 0.5}).Validate(); err != nil {
		t.Error(err)
	}
}

func TestCost(t *testing.T) {
	limit := func(n int64) *int64 { return &n }
	quorum := func(l *int64) settings { return settings{known: true, kind: "quorum", limit: l} }
	for name, c := range map[string]struct {
		s         settings
		version   [2]int
		consumers int
		want      string // a part of the reasons; empty means free
		nack      bool
	}{
		"ours":                {s: quorum(limit(1_000_000)), version: [2]int{4, 0}},
		"ours, 3.10":          {s: quorum(limit(1_000_000)), version: [2]int{3, 10}},
		"classic":             {s: settings{known: true, kind: "classic"}, version: [2]int{4, 0}},
		"default, 3.10":       {s: quorum(nil), version: [2]int{3, 10}},
		"default, 4.0":        {s: quorum(nil), version: [2]int{4, 0}, want: "at its 22nd look a message is dropped"},
		"default, 4.2, DLX":   {s: settings{known: true, kind: "quorum", dlx: "dlx"}, version: [2]int{4, 2}, want: `at its 22nd look a message goes to the exchange "dlx"`},
		"default, 4.3":        {s: quorum(nil), version: [2]int{4, 3}, nack: true},
		"unlimited, 3.10":     {s: quorum(limit(-1)), version: [2]int{3, 10}, want: "at the first look"},
		"unlimited, 4.0":      {s: quorum(limit(-1)), version: [2]int{4, 0}},
		"limit of 5, 3.10":    {s: quorum(limit(5)), version: [2]int{3, 10}, want: "its delivery limit is 5"},
		"limit of 5, 4.3":     {s: quorum(limit(5)), version: [2]int{4, 3}, nack: true},
		"nobody knows, 4.0":   {version: [2]int{4, 0}, want: "nobody could say"},
		"nobody knows, 3.10":  {version: [2]int{3, 10}},
		"no version, unknown": {want: "nobody could say"},
		"consumers":           {s: settings{known: true, kind: "classic"}, consumers: 2, want: "2 consumers"},
		"stream":              {s: settings{known: true, kind: "stream"}, version: [2]int{4, 0}, want: "stream"},
		"single":              {s: settings{known: true, kind: "classic", single: true}, want: "single active consumer"},
		"full":                {s: conclude("classic", amqp.Table{"x-max-length": int64(5)}, nil), want: "max-length 5"},
		"refuses":             {s: conclude("classic", amqp.Table{"x-max-length": int64(5), "x-overflow": "reject-publish"}, nil)},
		"a policy":            {s: conclude("quorum", amqp.Table{"x-delivery-limit": int64(1_000_000)}, map[string]any{"delivery-limit": 7.0}), version: [2]int{4, 0}, want: "limit is 7"},
	} {
		got := judge(c.s, c.version, c.consumers)
		reasons := strings.Join(got.Reasons, "; ")
		if got.Free() != (c.want == "") || !strings.Contains(reasons, c.want) || got.nack != c.nack {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestInequivalent(t *testing.T) {
	for in, want := range map[string]any{
		"PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue 'a' in vhost '/': received 'quorum' but current is 'classic'":                                              "classic",
		"PRECONDITION_FAILED - inequivalent arg 'x-delivery-limit' for queue 'a' in vhost '/': received the value '1000000' of type 'long' but current is none":                     nil,
		"PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue 'a' in vhost '/': received none but current is the value '5' of type 'signedint'":                          int64(5),
		"PRECONDITION_FAILED - inequivalent arg 'x-single-active-consumer' for queue 'a' in vhost '/': received none but current is the value 'true' of type 'bool'":                true,
		"PRECONDITION_FAILED - inequivalent arg 'x-dead-letter-exchange' for queue 'a' in vhost '/': received none but current is the value '7' of type 'longstr'":                  "7",
		"PRECONDITION_FAILED - inequivalent arg 'x-dead-letter-exchange' for queue 'a but current is b' in vhost '/': received none but current is the value 'd' of type 'longstr'": "d",
	} {
		if _, got, ok := inequivalent(in); !ok || got != want {
			t.Errorf("%s: %v, %v; want %v", in, got, ok, want)
		}
	}
	for _, in := range []string{
		"", "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'a' in vhost '/': received 'true' but current is 'false'",
		"PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue 'a' in vhost '/': received none but current is the va...",
	} {
		if key, v, ok := inequivalent(in); ok {
			t.Errorf("%s: %s = %v", in, key, v)
		}
	}
}
