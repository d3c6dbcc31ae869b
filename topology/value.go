package topology

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Value is the value of one argument, with the type that it has on the wire. The
// type matters because RabbitMQ compares it: a queue declared with the string
// "10000" is another queue than one with the number 10000, and the broker's own
// message shows both as '10000'. The zero Value is an argument that is not there.
type Value struct {
	// Type is the type's name: "string", "bool", "int8" to "int64", "uint8" to
	// "uint32", "float32", "float64", "bytes", "timestamp", "decimal", "table",
	// "array" or "void"; "integer" for a number of unknown width, and "float",
	// which is how JSON gives them; "" when nobody says, "unknown" when the broker's
	// answer was cut before the value ended.
	Type string
	// Text is the value in words: digits, the string itself (not quoted), or
	// "true"; tables and arrays in a JSON-like notation.
	Text string
}

// String is the type and the value, for example int64 3000 or string "3000", and
// "nothing" for the zero Value.
func (v Value) String() string {
	switch v.Type {
	case "":
		if v.Text == "" {
			return "nothing"
		}
		return fmt.Sprintf("%q (type not told)", v.Text)
	case "string", "bytes":
		return fmt.Sprintf("%s %q", v.Type, v.Text)
	case "void":
		return "void"
	case unknownType:
		if v.Text == "" {
			return "something else"
		}
		return fmt.Sprintf("%q (cut short)", v.Text)
	}
	return v.Type + " " + v.Text
}

// valueOf describes a value of an AMQP table, or of decoded JSON whose numbers
// are kept as [json.Number].
func valueOf(v any) Value {
	switch v := v.(type) {
	case nil:
		return Value{Type: "void"}
	case bool:
		return Value{"bool", strconv.FormatBool(v)}
	case string:
		return Value{"string", v}
	case []byte:
		return Value{"bytes", string(v)}
	case int8, int16, int32, int64, uint8, uint16, uint32:
		return Value{fmt.Sprintf("%T", v), fmt.Sprint(v)}
	case int:
		return Value{"int32", strconv.Itoa(v)} // what the client library makes of it
	case float32:
		return Value{"float32", strconv.FormatFloat(float64(v), 'g', -1, 32)}
	case float64:
		return Value{"float64", strconv.FormatFloat(v, 'g', -1, 64)}
	case json.Number:
		if strings.ContainsAny(v.String(), ".eE") {
			return Value{"float", v.String()}
		}
		return Value{"integer", v.String()}
	case time.Time:
		return Value{"timestamp", strconv.FormatInt(v.Unix(), 10)} // seconds since 1970
	case amqp.Decimal:
		return Value{"decimal", fmt.Sprintf("%de-%d", v.Value, v.Scale)}
	case amqp.Table, map[string]any:
		return Value{"table", canonical(v)}
	case []any:
		return Value{"array", canonical(v)}
	}
	return Value{fmt.Sprintf("%T", v), fmt.Sprint(v)}
}

// class folds the types that RabbitMQ takes for one another when an item is
// declared again (rabbit_misc:assert_args_equivalence; measured on 3.10.8, 4.0.5
// and 4.3.6): all integers, and the timestamp, which is an integer there; both
// floats; strings and bytes.
func class(typ string) string {
	switch typ {
	case "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "integer", "timestamp":
		return "integer"
	case "float32", "float64", "float":
		return "float"
	case "string", "bytes":
		return "string"
	}
	return typ
}

// equivalent reports whether the broker takes a for b.
func equivalent(a, b any) bool {
	return canonicalKey(a) == canonicalKey(b)
}

// canonicalKey is equal for equivalent values and for no others.
func canonicalKey(v any) string {
	x := valueOf(v)
	switch c := class(x.Type); c {
	case "float":
		return "float " + strconv.FormatFloat(floatOf(v), 'g', -1, 64)
	case "string":
		return "string " + strconv.Quote(x.Text)
	case "void":
		return "void"
	default:
		return c + " " + x.Text
	}
}

func floatOf(v any) float64 {
	switch v := v.(type) {
	case float32:
		return float64(v)
	case float64:
		return v
	case json.Number:
		f, _ := v.Float64() // out of range gives ±Inf, which equals no argument
		return f
	}
	return 0
}

// canonical writes a value so that equivalent values give the same text: keys in
// order, each value with its class.
func canonical(v any) string {
	var b bytes.Buffer
	switch v := v.(type) {
	case amqp.Table:
		writeTable(&b, v)
	case map[string]any:
		writeTable(&b, v)
	case []any:
		b.WriteByte('[')
		for i, e := range v {
			if i > 0 {
				b.WriteString(", ")
			}
			b.WriteString(canonicalKey(e))
		}
		b.WriteByte(']')
	default:
		b.WriteString(canonicalKey(v))
	}
	return b.String()
}

func writeTable(b *bytes.Buffer, t map[string]any) {
	b.WriteByte('{')
	for i, k := range sortedKeys(t) {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(b, "%q: %s", k, canonicalKey(t[k]))
	}
	b.WriteByte('}')
}

func sortedKeys[M ~map[string]V, V any](m M) []string {
	return slices.Sorted(maps.Keys(m))
}

// Compare returns the arguments in which have differs from want, by key, with
// Key, Want and Have filled in. It follows what RabbitMQ does when a queue is
// declared again: the widths of integers do not matter, a number and a string of
// the same digits do, an argument that is there differs from one that is not.
// The one exception is the broker's own: no x-queue-type is the same as
// "classic". Unlike the broker, which looks only at the arguments that it knows,
// Compare looks at all of them. have may come from JSON that was decoded with
// [json.Decoder.UseNumber].
func Compare(want, have amqp.Table) []Difference {
	keys := sortedKeys(want)
	for k := range have {
		if _, ok := want[k]; !ok {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	var diffs []Difference
	for _, k := range keys {
		w, inWant := want[k]
		h, inHave := have[k]
		if k == queueType && !inWant {
			w, inWant = classic, true
		}
		if k == queueType && !inHave {
			h, inHave = classic, true
		}
		if inWant && inHave && equivalent(w, h) {
			continue
		}
		d := Difference{State: Differs, Key: k}
		if inWant {
			d.Want = valueOf(w)
		}
		if inHave {
			d.Have = valueOf(h)
		}
		diffs = append(diffs, d)
	}
	return diffs
}

const (
	queueType   = "x-queue-type"
	classic     = "classic"
	unknownType = "unknown"
)
