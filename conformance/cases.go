package conformance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
)

// testCase is one thing that a consumer must do right.
type testCase struct {
	name, level, about string

	// probes are its messages. id gives a new one.
	probes func(cfg Config, id func() string) []*probe
	// each checks one of them, beside where it came to; may be nil.
	each func(c *check, p *probe, events []event)
	// all replaces the checks of each probe, where one failure says it for all.
	all func(c *check, r *runner, probes []*probe)

	// apart runs it after those that run together, with the worker to itself.
	apart bool
	// during runs an apart case where publishing and waiting is not all; may be nil.
	during func(ctx context.Context, r *runner, c *check, probes []*probe) error
	// endOnly checks that its messages are parked, and not how they got there.
	endOnly bool
	// skip says why it cannot be checked here, or nothing; may be nil.
	skip func(cfg Config, b *bench) string
}

var allCases []*testCase

func init() { // since a case is checked by what refers to the list of all
	allCases = slices.Concat(basicCases, richCases, exactCases, apartCases)
}

// one is a case of a single message.
func one(words string, change ...func(*probe)) func(Config, func() string) []*probe {
	return func(_ Config, id func() string) []*probe {
		p := newProbe(id(), words)
		for _, f := range change {
			f(p)
		}
		return []*probe{p}
	}
}

func several(n int, words string) func(Config, func() string) []*probe {
	return func(_ Config, id func() string) []*probe {
		var all []*probe
		for range n {
			all = append(all, newProbe(id(), words))
		}
		return all
	}
}

// ofAnotherQueue are the headers of a record as they are copied onto a message that
// is derived from another one.
func ofAnotherQueue() amqp.Table {
	return amqp.Table{
		attempt.HeaderQueue: "orders-of-another-service", attempt.HeaderCount: int32(7),
		attempt.HeaderID: strings.Repeat("0f", 16), attempt.HeaderError: "of the other message",
		attempt.HeaderExchange: "elsewhere", attempt.HeaderRoutingKey: "another.key",
		attempt.HeaderHistory: `[{"n":7,"at":1700000000000,"delay":1000,"error":"of the other message"}]`,
	}
}

func derived(p *probe) {
	for k, v := range ofAnotherQueue() {
		p.msg.Headers[k] = v
	}
}

// ordersKey is the routing key of messages that are published to an exchange.
const ordersKey = "order.create"

func viaExchange(p *probe) { p.key = ordersKey }

// withProperties fills every property but those that have cases of their own.
func withProperties(p *probe) {
	p.msg.ContentType, p.msg.ContentEncoding = "application/x-conformance", "x-none"
	p.msg.Priority, p.msg.CorrelationId, p.msg.ReplyTo = 4, "correlation-ü", "reply.to"
	p.msg.Timestamp, p.msg.Type, p.msg.AppId = time.Unix(1_700_000_000, 0), "order.created", "shop"
}

// withHeaders adds what the client library of every language can read and write
// again, so that a header that is lost is the consumer's doing.
func withHeaders(p *probe) {
	for k, v := range (amqp.Table{
		"tenant": "acme", "größe": "überlang", "long": strings.Repeat("é", 500), "empty": "",
		"small": int32(5), "large": int64(1_700_000_000_123), "yes": true, "no": false, "at": time.Unix(1_700_000_000, 0),
		"list":       []any{"a", int32(1), "z"},
		"table":      amqp.Table{"street": "Hauptstraße 1", "deeper": amqp.Table{"zip": int32(12345), "tags": []any{"x", "y"}}},
		"x-trace-id": "theirs", theirs: "theirs too",
	}) {
		p.msg.Headers[k] = v
	}
}

// withValues adds what some client libraries read as another value than it is.
func withValues(p *probe) {
	p.exotic = true
	for k, v := range (amqp.Table{
		"negative": int32(-70_000), "negative long": int64(-3), "beyond 2^53": int64(1)<<60 + 1, "fraction": 12.5,
		"decimal": amqp.Decimal{Scale: 2, Value: 1999}, "void": nil, "bytes": []byte{0xff, 0xfe, 0x00},
	}) {
		p.msg.Headers[k] = v
	}
}

// withTypes adds every AMQP type that there is, nested and empty ones too.
func withTypes(p *probe) {
	p.exotic = true
	for k, v := range (amqp.Table{
		"i8": int8(-3), "u8": uint8(200), "i16": int16(-300), "u16": uint16(60_000), "i32": int32(7), "u32": uint32(4_000_000_000),
		"i64": int64(7), "i64 large": int64(1)<<60 + 1, "f32": float32(1.5), "f64": 0.1, "f64 whole": float64(2),
		"decimal": amqp.Decimal{Scale: 2, Value: 1999}, "bytes": []byte{0xff, 0xfe, 0x00}, "no list": []any{}, "no table": amqp.Table{},
		"nested": []any{amqp.Table{"e": []any{int16(1), "s", nil, []any{amqp.Table{"f": int64(-1)}}}}},
		"true":   true, "void": nil, "at": time.Unix(1_700_000_000, 0), "not text": "\xff\xfe",
	}) {
		p.msg.Headers[k] = v
	}
}

// bareMessage has no header and no property. Its body says which it is.
func bareMessage(p *probe) { p.msg = amqp.Publishing{Body: []byte(p.id)} }

var basicCases = []*testCase{
	{
		name: "handle", level: Basic, about: "What is handled is acknowledged, and nothing more comes of it",
		probes: several(3, Handle),
	},
	{
		name: "reject", level: Basic, about: "A message that is always rejected has all its attempts, and is parked",
		probes: one(Reject),
	},
	{
		name: "reject-then-handle", level: Basic, about: "A message is rejected twice and then handled: the attempt is known from its headers",
		probes: one("reject,reject,handle"),
	},
	{
		name: "bare", level: Basic, about: "A message without a single header and property is handled",
		probes: one(Handle, bareMessage),
	},
	{
		name: "copied-record", level: Basic, about: "A record of another queue, copied along, does not count as attempts",
		probes: one("reject,handle", derived),
	},
	{
		name: "bare-count", level: Basic, about: "An x-retry-count that other code has left is taken over",
		probes: one("handle,reject,handle", func(p *probe) { p.first, p.msg.Headers[attempt.HeaderCount] = 1, int64(1) }),
	},
	{
		name: "same-message", level: Basic, about: "Properties, headers with their types, body and routing key stay, through all attempts",
		probes: func(cfg Config, id func() string) []*probe {
			all := append(one(Reject, viaExchange, withProperties, withHeaders)(cfg, id), one(Reject, viaExchange, withTypes)(cfg, id)...)
			return append(all, one(Reject, func(p *probe) { p.msg.Body = allBytes() })(cfg, id)...)
		},
		each: func(c *check, p *probe, events []event) { c.kept(p, events, true) },
	},
	{
		name: "flow", level: Basic, about: "Forty messages fail, and none waits for another: a failure is not slept on",
		probes: several(flowSize, "reject,handle"), all: flows,
	},
	{
		name: "alive", level: Basic, about: "The worker does not end by itself",
		all: func(c *check, r *runner, _ []*probe) {
			if times, last, _ := r.worker.ended(); times > 0 {
				c.add(0, "the worker ended while nothing told it to", "no end", fmt.Sprintf("%d times, the last with: %v", times, last),
					"look at the cases that failed beside this one: some message ends it")
			}
		},
		skip: func(cfg Config, _ *bench) string { return needsWorker(cfg) },
	},
}

const flowSize = 40

// flows checks many messages at once. A consumer that sleeps before it settles lets
// out one after another.
func flows(c *check, r *runner, probes []*probe) {
	out := 0
	var wrong *probe
	for _, p := range probes {
		events := r.ledger.of(p.id)
		if len(failures(events)) > 0 {
			out++
		}
		if wrong == nil && (p.left || !p.fate(c.cfg).over(events)) {
			wrong = p
		}
	}
	if out < len(probes) {
		c.add(1, "failures wait for one another", fmt.Sprintf("%d messages come out", len(probes)),
			fmt.Sprintf("%d within %s", out, c.cfg.Patience), "settle a failure at once: the broker holds the delay, and nothing sleeps")
	} else if wrong != nil {
		c.came(wrong, r.ledger.of(wrong.id))
	}
}

// allBytes has every byte once, and begins with none of our ids.
func allBytes() []byte {
	b := make([]byte, 256)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

func needsWorker(cfg Config) string {
	if cfg.Worker == nil {
		return "the runner must have started the worker: use --run"
	}
	return ""
}
