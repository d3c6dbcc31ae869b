package native

import (
	"bytes"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	amqp10 "github.com/Azure/go-amqp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
)

// seen is a message in a form that can be compared.
type seen struct {
	amqp.Publishing
	Exchange, RoutingKey string
	Redelivered          bool
}

func seen091(d amqp.Delivery) seen {
	return tidy(seen{attempt.FromDelivery(&d), d.Exchange, d.RoutingKey, d.Redelivered})
}

func seenNative(d *Delivery) seen {
	return tidy(seen{d.Msg, d.Exchange, d.RoutingKey, d.Redelivered})
}

// tidy makes equal no body and an empty one, no headers and no header.
func tidy(s seen) seen {
	if len(s.Body) == 0 {
		s.Body = nil
	}
	if len(s.Headers) == 0 {
		s.Headers = nil
	}
	return s
}

// compare reports every difference by its name.
func compare(t *testing.T, name string, want, got seen) {
	t.Helper()
	w, g := want.Headers, got.Headers
	want.Headers, got.Headers = nil, nil
	if !reflect.DeepEqual(want, got) {
		t.Errorf("%s:\nwant %+v\ngot  %+v", name, want, got)
	}
	keys := slices.Sorted(maps.Keys(w))
	for k := range g {
		if _, ok := w[k]; !ok {
			keys = append(keys, k)
		}
	}
	for _, k := range keys {
		a, inA := w[k]
		b, inB := g[k]
		if inA != inB || !reflect.DeepEqual(a, b) {
			t.Errorf("%s: header %s: want %T %#v (%t), got %T %#v (%t)", name, k, a, a, inA, b, b, inB)
		}
	}
	if (w == nil) != (g == nil) {
		t.Errorf("%s: headers want %v, got %v", name, w, g)
	}
}

// A message that is published over AMQP 0-9-1 reads the same over both
// protocols, but for what is said here. docs/native.md has the same list.
func TestFidelity(t *testing.T) {
	url := shared(t)
	o := dial091(t, url)
	if err := o.ch.ExchangeDeclare("shop", "topic", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	for _, q := range []string{"old", "new"} {
		o.quorum(q)
		if err := o.ch.QueueBind(q, "order.#", "shop", false, nil); err != nil {
			t.Fatal(err)
		}
	}
	r := receive(t, open(t, url), "new", 10)

	full := amqp.Publishing{ // every property (B36)
		ContentType: "a/b", ContentEncoding: "gzip", DeliveryMode: 2, Priority: 4, CorrelationId: "c1", ReplyTo: "r",
		Expiration: "600000", MessageId: "m1", Timestamp: time.Unix(1_700_000_000, 0), Type: "T", UserId: "guest", AppId: "app",
		Headers: amqp.Table{"tenant": "acme"}, Body: []byte{0x1f, 0x8b, 0},
	}
	with := func(change func(p *amqp.Publishing)) amqp.Publishing {
		p := full
		change(&p)
		return p
	}
	headers := func(h amqp.Table) amqp.Publishing { return amqp.Publishing{Headers: h, Body: []byte("x")} }
	deep := func() []any {
		return []any{amqp.Table{"e": []any{int32(1), "s", nil, []any{amqp.Table{"f": int64(-1)}}}}, true, 1.5}
	}
	for _, c := range []struct {
		name string
		p    amqp.Publishing
		// differs makes of the message over 0-9-1 the one over 1.0.
		differs func(s *seen)
	}{
		{name: "all properties", p: full},
		{name: "nothing at all", p: amqp.Publishing{}}, // B43
		{name: "priority none", p: with(func(p *amqp.Publishing) { p.Priority = 0 })},
		{name: "priority 1", p: with(func(p *amqp.Publishing) { p.Priority = 1 })},
		{name: "priority 31", p: with(func(p *amqp.Publishing) { p.Priority = 31 })},
		{name: "priority 255", p: with(func(p *amqp.Publishing) { p.Priority = 255 })},
		{name: "delivery mode unset", p: with(func(p *amqp.Publishing) { p.DeliveryMode = 0 })},
		{
			name: "delivery mode transient", p: with(func(p *amqp.Publishing) { p.DeliveryMode = 1 }),
			// The AMQP 1.0 header says durable or not.
			differs: func(s *seen) { s.DeliveryMode = 0 },
		},
		{name: "reply-to special", p: with(func(p *amqp.Publishing) { p.ReplyTo = "a/b %2F é+&?#" })},
		{name: "reply-to address", p: with(func(p *amqp.Publishing) { p.ReplyTo = "/queues/x%20y" })},
		{name: "reply-to long", p: with(func(p *amqp.Publishing) { p.ReplyTo = strings.Repeat("é", 127) })},
		{name: "ids uuid", p: with(func(p *amqp.Publishing) {
			p.MessageId, p.CorrelationId = "urn:uuid:01234567-89ab-cdef-0123-456789abcdef", "urn:uuid:00000000-0000-0000-0000-000000000001"
		})},
		{
			name: "ids uuid in capitals",
			p:    with(func(p *amqp.Publishing) { p.MessageId = "urn:uuid:01234567-89AB-CDEF-0123-456789ABCDEF" }),
			// RabbitMQ makes a UUID of it, which has no letters.
			differs: func(s *seen) { s.MessageId = strings.ToLower(s.MessageId) },
		},
		{name: "ids plain uuid", p: with(func(p *amqp.Publishing) { p.MessageId = "01234567-89AB-CDEF-0123-456789ABCDEF" })},
		{name: "ids long", p: with(func(p *amqp.Publishing) {
			p.MessageId, p.CorrelationId = strings.Repeat("m", 255), strings.Repeat("é", 127)
		})},
		{name: "text not UTF-8", p: with(func(p *amqp.Publishing) {
			p.MessageId, p.AppId, p.Type, p.ContentType, p.CorrelationId = "m\xff", "a\xff", "t\xff", "c\xff", "\xfe"
		})},
		{
			name: "expiration beyond 32 bits", p: with(func(p *amqp.Publishing) { p.Expiration = "4294968296" }),
			// The AMQP 1.0 header has 32 bits for it.
			differs: func(s *seen) { s.Expiration = "1000" },
		},
		{name: "timestamp 1970", p: with(func(p *amqp.Publishing) { p.Timestamp = time.Unix(1, 0) })},
		{name: "timestamp far", p: with(func(p *amqp.Publishing) { p.Timestamp = time.Unix(253402300799, 0) })},
		{name: "integers", p: headers(amqp.Table{ // B39
			"i8": int8(-3), "u8": uint8(200), "i16": int16(-300), "u16": uint16(60_000), "i32": int32(-70_000), "u32": uint32(4_000_000_000),
			"i64": int64(1) << 60, "small": int64(3), "zero": int64(0), "i0": int32(0), "min": int64(-1 << 63), "counter": int32(3),
		})},
		{name: "x- integers", p: headers(amqp.Table{
			"x-i8": int8(-3), "x-u8": uint8(200), "x-i16": int16(-300), "x-u16": uint16(60_000), "x-i32": int32(-70_000),
			"x-u32": uint32(4_000_000_000), "x-i64": int64(1) << 60, "x-small": int64(3),
		})},
		{name: "floats", p: headers(amqp.Table{"f32": float32(1.5), "f64": 0.1, "x-f32": float32(-1.5), "x-f64": 1e300})},
		{name: "others", p: headers(amqp.Table{
			"t": true, "f": false, "nil": nil, "at": time.Unix(1_700_000_000, 0), "x-t": true, "x-nil": nil, "x-at": time.Unix(1_700_000_000, 0),
		})},
		{name: "text", p: headers(amqp.Table{
			"": "no key", "é ü": "key", "empty": "", "x-empty": "", "2000": strings.Repeat("é", 1000), "4096": strings.Repeat("a", 4096),
			"4097": strings.Repeat("b", 4097), "x-5000": strings.Repeat("é", 2500), "X-Upper": "x", "x-": "bare",
		})},
		{name: "bytes", p: headers(amqp.Table{
			"bytes": []byte{0xff, 0xfe}, "x-bytes": []byte{0xff, 0xfe}, "text bytes": []byte("abc"), "no bytes": []byte{},
			"long bytes": bytes.Repeat([]byte{0xff}, 5000),
		})},
		{
			name: "text that is none", p: headers(amqp.Table{
				"latin": "\xff\xfe", "x-latin": "\xff\xfe", "nul": "a\x00b", "long latin": strings.Repeat("\xff", 5000),
				"long text bytes": bytes.Repeat([]byte("a"), 5000),
			}),
			// A string that is no UTF-8, holds a NUL or has more than 4096 bytes is
			// binary to RabbitMQ, as byte arrays are.
			differs: func(s *seen) {
				for _, k := range []string{"latin", "x-latin", "nul", "long latin"} {
					s.Headers[k] = []byte(s.Headers[k].(string))
				}
				s.Headers["long text bytes"] = string(s.Headers["long text bytes"].([]byte))
			},
		},
		{
			name: "tables and lists", p: headers(amqp.Table{ // B42
				"deep": deep(), "table": amqp.Table{"a": int32(1)}, "empty list": []any{}, "empty table": amqp.Table{},
				"x-deep": deep(), "x-table": amqp.Table{"a": int32(1), "b": []byte{0xff}}, "x-empty list": []any{}, "x-empty table": amqp.Table{},
				"tenant": "acme",
			}),
			// Application properties of AMQP 1.0 hold simple values: RabbitMQ leaves
			// the others out.
			differs: func(s *seen) {
				for _, k := range []string{"deep", "table", "empty list", "empty table"} {
					delete(s.Headers, k)
				}
			},
		},
		{name: "CC", p: headers(amqp.Table{"CC": []any{"elsewhere", "too"}})},
		{name: "BCC", p: headers(amqp.Table{"BCC": []any{"elsewhere"}})},
		{name: "headers of RabbitMQ's, by a client", p: headers(amqp.Table{
			"x-delivery-count": int64(7), "x-acquired-count": int64(7),
			"x-death":             []any{amqp.Table{"queue": "q", "reason": "expired", "count": int64(1), "routing-keys": []any{"k"}, "time": time.Unix(1_700_000_000, 0)}},
			"x-first-death-queue": "q", "x-opt-delivery-time": int64(5), "x-stream-offset": int64(7),
		})},
		{
			name: "names that AMQP 1.0 uses", p: headers(amqp.Table{"x-exchange": "e", "x-routing-key": "k", "x-basic-type": "t", "x-cc": "c", "x-opt-deaths": "d"}),
			// They are where RabbitMQ keeps what AMQP 0-9-1 has fields for.
			differs: func(s *seen) {
				s.Type, s.Headers = "t", amqp.Table{"CC": "c"}
			},
		},
		{
			name: "a record of the wheel's", p: headers(amqp.Table{
				attempt.HeaderCount: int32(2), attempt.HeaderQueue: "new", attempt.HeaderID: "id", attempt.HeaderDelay: int64(1000),
				attempt.HeaderHistory: "[" + strings.Repeat(`{"n":1},`, 700) + `{"n":2}]`, attempt.HeaderCC: []any{"a"},
			}),
		},
		{
			name: "a counter of another width", p: headers(amqp.Table{attempt.HeaderCount: int64(2)}),
			// What a settlement writes has lost its width; the contract's is int32.
			differs: func(s *seen) { s.Headers[attempt.HeaderCount] = int32(2) },
		},
		{name: "1 MiB", p: amqp.Publishing{Body: bytes.Repeat([]byte("\x00\x53\x70\xc0\x05\x05\x41\x50\x04"), 116509)}},
	} {
		o.publish("shop", "order.create", c.p)
		old := o.get("old")
		d := next(t, r)
		want := seen091(old)
		if c.differs != nil {
			before := seen091(old)
			before.Headers = maps.Clone(before.Headers)
			c.differs(&want)
			if reflect.DeepEqual(before, want) {
				t.Errorf("%s: does not differ", c.name)
			}
		}
		compare(t, c.name, want, seenNative(d))
		if d.Exchange != "shop" || d.RoutingKey != "order.create" || d.Redelivered {
			t.Errorf("%s: %q %q %t", c.name, d.Exchange, d.RoutingKey, d.Redelivered)
		}
		d.Accept()
		if err := old.Ack(false); err != nil {
			t.Fatal(err)
		}
	}
}

// A message that is published over AMQP 1.0 reads as it does over 0-9-1.
func TestFidelityOfAMQP10(t *testing.T) {
	url := shared(t)
	o := dial091(t, url)
	for _, q := range []string{"old", "new"} {
		o.quorum(q)
		if err := o.ch.QueueBind(q, q, "amq.fanout", false, nil); err != nil {
			t.Fatal(err)
		}
	}
	c := open(t, url)
	r := receive(t, c, "new", 10)
	s, err := c.Session(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	session, err := s.conn.NewSession(ctx(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	sender, err := session.NewSender(ctx(t), "/exchanges/amq.fanout/a%2Fb", nil)
	if err != nil {
		t.Fatal(err)
	}
	p := func(s string) *string { return &s }
	at := time.UnixMilli(1_700_000_000_999)
	data := [][]byte{[]byte("data")}
	for _, m := range []struct {
		name    string
		m       amqp10.Message
		differs func(s *seen)
	}{
		{name: "plain", m: amqp10.Message{Data: data}},
		{name: "three data sections", m: amqp10.Message{Data: [][]byte{[]byte("a"), nil, []byte("bc")}}},
		{name: "properties", m: amqp10.Message{
			Data:   data,
			Header: &amqp10.MessageHeader{Durable: true, Priority: 7, TTL: time.Hour},
			Properties: &amqp10.MessageProperties{
				MessageID: "m", UserID: []byte("guest"), To: p("t"), Subject: p("s"), ReplyTo: p("/queues/a%20b"), CorrelationID: "c",
				ContentType: p("a/b"), ContentEncoding: p("gzip"), CreationTime: &at, GroupID: p("g"), ReplyToGroupID: p("rg"),
			},
		}},
		{name: "not durable", m: amqp10.Message{Data: data, Header: &amqp10.MessageHeader{Priority: 4}}},
		{name: "ids: numbers", m: amqp10.Message{Data: data, Properties: &amqp10.MessageProperties{MessageID: uint64(7), CorrelationID: uint64(1) << 63}}},
		{name: "ids: UUIDs", m: amqp10.Message{Data: data, Properties: &amqp10.MessageProperties{MessageID: amqp10.UUID{1, 2, 0xff}, CorrelationID: amqp10.UUID{}}}},
		{name: "ids: bytes", m: amqp10.Message{Data: data, Properties: &amqp10.MessageProperties{MessageID: []byte{1, 0xff}, CorrelationID: []byte("c")}}},
		{name: "ids: long", m: amqp10.Message{Data: data, Properties: &amqp10.MessageProperties{MessageID: strings.Repeat("m", 300), CorrelationID: strings.Repeat("c", 300)}}},
		{name: "reply-to elsewhere", m: amqp10.Message{Data: data, Properties: &amqp10.MessageProperties{ReplyTo: p("/exchanges/a/b")}}},
		{name: "long strings", m: amqp10.Message{Data: data, Properties: &amqp10.MessageProperties{ReplyTo: p(strings.Repeat("r", 300)), GroupID: p(strings.Repeat("g", 300))}}},
		{
			name: "application properties", m: amqp10.Message{Data: data, ApplicationProperties: map[string]any{
				"s": "s", "i8": int8(-1), "i32": int32(5), "i64": int64(1) << 40, "u8": uint8(9), "u64": uint64(7), "f": 1.5, "f32": float32(2), "t": true,
				"null": nil, "at": at, "symbol": amqp10.Symbol("y"), "x-app": "x",
			}},
		},
		{
			name: "binary application property", m: amqp10.Message{Data: data, ApplicationProperties: map[string]any{"b": []byte{1, 0xff}}},
			// RabbitMQ gives it to AMQP 0-9-1 consumers as text.
			differs: func(s *seen) { s.Headers["b"] = []byte(s.Headers["b"].(string)) },
		},
		{name: "annotations", m: amqp10.Message{Data: data, Annotations: amqp10.Annotations{
			"x-s": "s", "x-list": []any{int32(1), "two", map[string]any{"k": int64(3)}}, "x-map": map[string]any{"a": int8(1)}, "x-opt-mine": true,
		}}},
		{name: "a value: text", m: amqp10.Message{Value: "text"}},
		{name: "a value: null", m: amqp10.Message{Value: amqp10.Null{}}},
		{name: "a value: number", m: amqp10.Message{Value: int64(7)}},
		{name: "a value: map", m: amqp10.Message{Value: map[string]any{"only": int32(1)}, Properties: &amqp10.MessageProperties{MessageID: "m"}}},
		{name: "sequences", m: amqp10.Message{Sequence: [][]any{{int32(1), "a"}, {}}}},
		{name: "a footer", m: amqp10.Message{Value: "v", Footer: amqp10.Annotations{"x-sum": int64(5)}}},
		{name: "a footer behind data", m: amqp10.Message{Data: data, Footer: amqp10.Annotations{"x-sum": int64(5)}}},
	} {
		if err := sender.Send(ctx(t), &m.m, nil); err != nil {
			t.Fatalf("%s: %v", m.name, err)
		}
		old := o.get("old")
		d := next(t, r)
		want := seen091(old)
		if m.differs != nil {
			m.differs(&want)
		}
		compare(t, m.name, want, seenNative(d))
		d.Accept()
		if err := old.Ack(false); err != nil {
			t.Fatal(err)
		}
	}
}
