package integration

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
)

// What becomes of a message on its way through a worker in another language: of one
// that it only rejects, nothing, since the client never writes it; of one that it
// publishes to the router, what its client makes of headers. docs/rich-failures.md
// has the table.

// kinds of header values, each in a message of its own.
var kinds = map[string]any{
	"int8": int8(5), "int8 below 0": int8(-3), "uint8": uint8(200), "int16": int16(300), "int16 below 0": int16(-300), "uint16": uint16(60_000),
	"int32": int32(70_000), "int32 below 0": int32(-70_000), "uint32": uint32(4_000_000_000),
	"int64": int64(5_000_000_000), "int64 below 0": int64(-5), "int64 above 2^53": int64(1)<<60 + 1,
	"float32": float32(1.5), "float64": float64(2.5), "float64 whole": float64(3),
	"decimal": amqp.Decimal{Scale: 2, Value: 1234}, "decimal whole": amqp.Decimal{Scale: 1, Value: 30},
	"string": "Zoë ✓ 順序", "string no UTF-8": string([]byte{0xff, 0xfe}), "bytes": []byte{0xff, 0xfe, 0}, "bool": true, "nothing": nil,
	"time": time.Unix(1_700_000_000, 0), "empty list": []any{}, "empty table": amqp.Table{},
	"list": []any{"s", nil, "long enough"}, "list that ends short": []any{"s", nil}, "table": amqp.Table{"a": amqp.Table{"b": "é"}, "c": []any{amqp.Table{"d": true}}},
}

// rewritten is what a client makes of them when it publishes what it read.
var rewritten = map[string]map[string]any{
	"go": {},
	// The smallest integer that holds a number, whatever it was; no number above 2^53
	// to the last digit.
	"node": {
		"uint8": int16(200), "uint16": int32(60_000), "uint32": int64(4_000_000_000), "int64 below 0": int8(-5), "int64 above 2^53": int64(1) << 60,
		"float32": float64(1.5), "float64 whole": int8(3), "string no UTF-8": "\ufffd\ufffd",
	},
	// Integers of 8 bits with the wrong sign, and no fractions.
	"python": {
		"int8": int32(5), "int8 below 0": int32(253), "uint8": int32(-56), "int16": int32(300), "int16 below 0": int32(-300), "uint16": int32(60_000), "uint32": int64(4_000_000_000),
		"float32": int64(1), "float64": int64(2), "float64 whole": int64(3), "decimal whole": amqp.Decimal{Value: 3}, "string no UTF-8": []byte{0xff, 0xfe},
	},
	"php":  {},
	"java": {},
	// Everything is 64 bits wide, read without its sign up to 32, and a list loses a
	// last element of up to three bytes.
	"ruby": {
		"int8": int64(5), "int8 below 0": int64(253), "int16": int64(300), "int16 below 0": int64(-300), "int32": int64(70_000), "int32 below 0": int64(4_294_897_296),
		"float32": float64(6.896490392174587e-41), "decimal": amqp.Decimal{Value: 12}, "decimal whole": amqp.Decimal{Value: 3}, "bytes": string([]byte{0xff, 0xfe, 0}),
		"list that ends short": []any{"s"}, "table": amqp.Table{"a": amqp.Table{"b": "é"}, "c": []any{amqp.Table{"d": true}}},
	},
}

// refused are those that a client can read and not write: the worker then rejects.
var refused = map[string][]string{
	"python": {"int64 below 0"},
	"php":    {"float32", "float64", "float64 whole"},
}

// unreadable are those that end a client's connection before the worker sees them.
var unreadable = map[string][]string{
	"java": {"uint8", "uint16", "uint32"},
	"ruby": {"uint8", "uint16", "uint32"},
}

// measured are the versions that all this is true of. Another one may do better,
// not worse.
var measured = map[string]struct {
	version string
	ask     []string // of the program that runs the worker
}{
	"python": {"1.2.0", []string{"-c", "import pika; print(pika.__version__)"}},
	"php":    {"3.5.3", []string{"-r", `require "PhpAmqpLib/autoload.php"; echo PhpAmqpLib\Package::VERSION;`}},
	"ruby":   {"2.19.0", []string{"-e", `require "bunny"; puts Bunny::VERSION`}},
	"java":   {"5.0.0", nil}, // its archive is named after it
}

// isMeasured reports whether a client has the version that was measured. Those of
// Node and Go are pinned.
func isMeasured(t *testing.T, lang language) bool {
	t.Helper()
	m, ok := measured[lang.name]
	if !ok {
		return true
	}
	if m.ask == nil {
		_, err := os.Stat(jars + "amqp-client-" + m.version + ".jar")
		return err == nil
	}
	out, err := exec.Command(lang.command[0], m.ask...).Output()
	if err != nil {
		t.Fatalf("ask %s for the version of its client: %v", lang.name, err)
	}
	if v := strings.TrimSpace(string(out)); v != m.version {
		t.Logf("measured was %s %s, this is %s: it may do better", lang.name, m.version, v)
		return false
	}
	return true
}

func TestClientsFidelity(t *testing.T) {
	t.Parallel()
	eachLanguage(t, func(t *testing.T, w *world, lang language) {
		strict := isMeasured(t, lang)
		w.startWorker(lang, 0)
		w.runRouter(w.routerConfig(routedRoute("work", 1)))

		sent := map[string]amqp.Publishing{}
		everything := amqp.Table{"x-retry-note": "theirs"}
		for name, v := range kinds {
			if slices.Contains(unreadable[lang.name], name) {
				continue
			}
			everything[name] = v
			sent[name] = amqp.Publishing{MessageId: name, Type: "permanent", Headers: amqp.Table{"v": v}}
		}
		for _, kind := range []string{"permanent", "transient 99"} {
			p := full("full, "+kind, 1)
			p.Type, p.Body, p.Headers = kind, []byte{0x1f, 0x8b, 0x00, 0xff, 0xfe}, amqp.Table{"tenant": "acmé"}
			if kind != "permanent" {
				p.Headers = everything
			}
			sent[p.MessageId] = p
		}
		sent["bare"] = amqp.Publishing{MessageId: "bare", Type: "permanent"}
		// Made of a message of another queue, that had been retried and rejected there,
		// with all of its headers.
		sent["derived"] = amqp.Publishing{MessageId: "derived", Type: "permanent", Headers: amqp.Table{
			attempt.HeaderQueue: "other", attempt.HeaderCount: int32(3), attempt.HeaderError: "of the other",
			"x-death": []any{amqp.Table{
				"queue": "other", "reason": "rejected", "count": int64(1), "exchange": "", "routing-keys": []any{"other"}, "time": time.Unix(1_700_000_000, 0),
			}},
		}}
		for _, p := range sent {
			w.publish("", "work", p)
		}

		parked := w.parkedBy("work.parked", len(sent))
		for _, id := range slices.Sorted(maps.Keys(sent)) {
			d, want := parked[id], sent[id]
			got := attempt.FromDelivery(&d)
			rec, err := attempt.Read(&got, attempt.Source{})
			if err != nil {
				t.Fatal(err)
			}
			original := rec.Original(&got)
			why := attempt.ReasonPermanent
			if want.Type != "permanent" || slices.Contains(refused[lang.name], id) {
				why = attempt.ReasonExhausted
			}
			if !strict && slices.Contains(refused[lang.name], id) { // perhaps not any more
				why = fmt.Sprint(d.Headers[attempt.HeaderReason])
			}
			checkHeaders(t, id, d.Headers, amqp.Table{attempt.HeaderReason: why})
			if why == attempt.ReasonPermanent || lang.name == "go" {
				// A rich failure is a message of the worker's own: it comes back
				// persistent, and without the user that it was published by.
				want.DeliveryMode, want.UserId = amqp.Persistent, ""
				same := typed(want.Headers) == typed(original.Headers)
				if v, ok := rewritten[lang.name][id]; ok && (strict || !same) {
					want.Headers = amqp.Table{"v": v}
				}
				if lang.name == "ruby" && want.ContentType == "" && (strict || original.ContentType != "") {
					want.ContentType = "application/octet-stream"
				}
				if lang.name == "ruby" && id == "nothing" && (strict || !same) { // it is left out
					want.Headers = nil
				}
			}
			if id == "derived" {
				want.Headers = nil
				checkHeaders(t, id, d.Headers, amqp.Table{attempt.HeaderQueue: "work", attempt.HeaderCount: int32(0), attempt.HeaderRoutingKey: "work"})
			}
			if a, b := typed(want.Headers), typed(original.Headers); a != b {
				t.Errorf("%s: headers changed\n from %s\n   to %s", id, a, b)
			}
			want.Headers, original.Headers = nil, nil
			text := cmp.Transformer("empty", func(b []byte) string { return string(b) })
			if diff := cmp.Diff(want, original, text); diff != "" {
				t.Errorf("%s: parked as another message (-sent +parked):\n%s", id, diff)
			}
		}
	})
}

// typed shows a header's value with the types of all that is in it.
func typed(v any) string {
	var parts []string
	switch v := v.(type) {
	case amqp.Table:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			parts = append(parts, k+": "+typed(v[k]))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case []any:
		for _, e := range v {
			parts = append(parts, typed(e))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case time.Time:
		return fmt.Sprint("time ", v.Unix())
	}
	return fmt.Sprintf("%T %q", v, fmt.Sprint(v))
}
