package topology

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// comparisons are pairs of argument tables and whether RabbitMQ takes the second
// for the first when a queue is declared again. The broker tests hold the same
// pairs against real brokers.
var comparisons = []struct {
	name       string
	want, have amqp.Table
	key        string // of the one difference, "" for none
}{
	{"nothing and nothing", nil, amqp.Table{}, ""},
	{"int64 and int32", amqp.Table{"x-message-ttl": int64(1000)}, amqp.Table{"x-message-ttl": int32(1000)}, ""},
	{"int64 and int16", amqp.Table{"x-message-ttl": int64(1000)}, amqp.Table{"x-message-ttl": int16(1000)}, ""},
	{"int64 and uint16", amqp.Table{"x-message-ttl": int64(1000)}, amqp.Table{"x-message-ttl": uint16(1000)}, ""},
	{"int64 and uint32", amqp.Table{"x-message-ttl": int64(1000)}, amqp.Table{"x-message-ttl": uint32(1000)}, ""},
	{"int64 and int8", amqp.Table{"x-message-ttl": int64(100)}, amqp.Table{"x-message-ttl": int8(100)}, ""},
	{"int64 and byte", amqp.Table{"x-message-ttl": int64(200)}, amqp.Table{"x-message-ttl": byte(200)}, ""},
	{"other numbers", amqp.Table{"x-message-ttl": int64(2000)}, amqp.Table{"x-message-ttl": int64(1000)}, "x-message-ttl"},
	{"string and number", amqp.Table{"x-message-ttl": "10000"}, amqp.Table{"x-message-ttl": int32(10000)}, "x-message-ttl"},
	{"float and number", amqp.Table{"x-message-ttl": float64(1000)}, amqp.Table{"x-message-ttl": int64(1000)}, "x-message-ttl"},
	{"timestamp and number", amqp.Table{"x-message-ttl": time.Unix(1000, 0)}, amqp.Table{"x-message-ttl": int64(1000)}, ""},
	{"array and number", amqp.Table{"x-message-ttl": []any{int64(1000)}}, amqp.Table{"x-message-ttl": int64(1000)}, "x-message-ttl"},
	{"table and number", amqp.Table{"x-message-ttl": amqp.Table{"a": "b"}}, amqp.Table{"x-message-ttl": int64(1000)}, "x-message-ttl"},
	{"too much", amqp.Table{"x-message-ttl": int64(1000)}, nil, "x-message-ttl"},
	{"too little", nil, amqp.Table{"x-message-ttl": int64(1000)}, "x-message-ttl"},
	{"zero is not absent", nil, amqp.Table{"x-message-ttl": int64(0)}, "x-message-ttl"},
	{"bytes and string", amqp.Table{"x-dead-letter-exchange": []byte("é x")}, amqp.Table{"x-dead-letter-exchange": "é x"}, ""},
	{"other strings", amqp.Table{"x-dead-letter-exchange": "a"}, amqp.Table{"x-dead-letter-exchange": "b"}, "x-dead-letter-exchange"},
	{"case matters", amqp.Table{"x-dead-letter-exchange": "a"}, amqp.Table{"x-dead-letter-exchange": "A"}, "x-dead-letter-exchange"},
	{"empty is not absent", amqp.Table{"x-dead-letter-exchange": ""}, nil, "x-dead-letter-exchange"},
	{"other bools", amqp.Table{"x-single-active-consumer": true}, amqp.Table{"x-single-active-consumer": false}, "x-single-active-consumer"},
	{"string and bool", amqp.Table{"x-single-active-consumer": "true"}, amqp.Table{"x-single-active-consumer": true}, "x-single-active-consumer"},
	{"same type", amqp.Table{"x-queue-type": "quorum"}, amqp.Table{"x-queue-type": "quorum"}, ""},
	{"classic is the default", amqp.Table{"x-queue-type": "classic"}, nil, ""},
	{"and the other way round", nil, amqp.Table{"x-queue-type": "classic"}, ""},
	{"quorum is not the default", amqp.Table{"x-queue-type": "quorum"}, nil, "x-queue-type"},
	{"nor the other way round", nil, amqp.Table{"x-queue-type": "quorum"}, "x-queue-type"},
	{"other types", amqp.Table{"x-queue-type": "classic"}, amqp.Table{"x-queue-type": "quorum"}, "x-queue-type"},
	{
		"string and number on a quorum queue",
		amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": "5"},
		amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(5)},
		"x-delivery-limit",
	},
}

func TestCompare(t *testing.T) {
	for _, c := range comparisons {
		t.Run(c.name, func(t *testing.T) {
			var keys []string
			for _, d := range Compare(c.want, c.have) {
				keys = append(keys, d.Key)
				if d.State != Differs {
					t.Errorf("state %q, want %q", d.State, Differs)
				}
			}
			if got := strings.Join(keys, " "); got != c.key {
				t.Errorf("differs in %q, want %q", got, c.key)
			}
		})
	}
}

func TestCompareTellsBothValuesWithTypes(t *testing.T) {
	got := Compare(
		amqp.Table{"a": int64(1), "b": "10000", "c": true, "same": int64(7), "t": amqp.Table{"y": int64(1), "x": "s"}},
		amqp.Table{"a": int32(2), "b": json.Number("10000"), "d": json.Number("0.5"), "same": json.Number("7"), "t": map[string]any{"x": "s", "y": json.Number("2")}},
	)
	want := []Difference{
		{State: Differs, Key: "a", Want: Value{"int64", "1"}, Have: Value{"int32", "2"}},
		{State: Differs, Key: "b", Want: Value{"string", "10000"}, Have: Value{"integer", "10000"}},
		{State: Differs, Key: "c", Want: Value{"bool", "true"}},
		{State: Differs, Key: "d", Have: Value{"float", "0.5"}},
		{State: Differs, Key: "t", Want: Value{"table", `{"x": string "s", "y": integer 1}`}, Have: Value{"table", `{"x": string "s", "y": integer 2}`}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestCompareProperties: what goes to JSON and back is the same for Compare, and
// Compare finds a difference both ways or neither.
func TestCompareProperties(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	table := func() amqp.Table {
		args := amqp.Table{}
		for _, k := range []string{"x-message-ttl", "x-max-length", "x-overflow", "k"} {
			switch rng.IntN(9) {
			case 0:
				args[k] = int64(rng.IntN(3))
			case 1:
				args[k] = int32(rng.IntN(3))
			case 2:
				args[k] = []string{"classic", "quorum", "1"}[rng.IntN(3)]
			case 3:
				args[k] = rng.IntN(2) == 0
			case 4:
				args[k] = float64(rng.IntN(3))
			case 5:
				args[k] = []any{int64(rng.IntN(2)), "x", amqp.Table{"a": int64(rng.IntN(2))}}
			case 6:
				args[k] = float32(0.1)
			}
		}
		return args
	}
	for range 5000 {
		a, b := table(), table()
		if d := Compare(a, a); len(d) > 0 {
			t.Fatalf("%v differs from itself: %v", a, d)
		}
		ab, ba := Compare(a, b), Compare(b, a)
		if len(ab) != len(ba) {
			t.Fatalf("%v and %v: %v one way, %v the other", a, b, ab, ba)
		}
		same, other := amqp.Table{"more": true}, amqp.Table{}
		for k, v := range a {
			same[k], other[k] = v, v
			switch v := v.(type) {
			case int64:
				same[k], other[k] = uint16(v), strconv.FormatInt(v, 10)
			case string:
				same[k], other[k] = []byte(v), v+"x"
			case float32:
				same[k], other[k] = float64(v), "0.1"
			case bool:
				other[k] = !v
			case float64:
				other[k] = int64(v)
			default:
				delete(other, k)
			}
		}
		if d := Compare(a, same); len(d) != 1 || d[0].Key != "more" {
			t.Fatalf("%v and %v: %v", a, same, d)
		}
		if d := Compare(a, other); len(d) != len(a) {
			t.Fatalf("%v and %v: only %v", a, other, d)
		}
		text, err := json.Marshal(jsonTable(a))
		if err != nil {
			t.Fatal(err)
		}
		var back table2
		if err := json.Unmarshal(text, &back); err != nil {
			t.Fatal(err)
		}
		if d := Compare(a, amqp.Table(back.Args)); len(d) > 0 {
			t.Fatalf("%v came back from %s as %v: %v", a, text, back.Args, d)
		}
	}
}

// table2 reads what jsonTable writes as a broker's answer would be read.
type table2 struct{ Args table }

func (t *table2) UnmarshalJSON(data []byte) error { return t.Args.UnmarshalJSON(data) }

func TestValueString(t *testing.T) {
	for _, c := range []struct {
		v    Value
		want string
	}{
		{Value{}, "nothing"},
		{valueOf(int64(3000)), "int64 3000"},
		{valueOf("3000"), `string "3000"`},
		{valueOf([]byte("a")), `bytes "a"`},
		{valueOf(nil), "void"},
		{valueOf(true), "bool true"},
		{valueOf(1.5), "float64 1.5"},
		{valueOf(amqp.Decimal{Scale: 2, Value: 314}), "decimal 314e-2"},
		{valueOf([]any{int64(1), "a"}), `array [integer 1, string "a"]`},
		{valueOf(json.Number("5")), "integer 5"},
		{Value{Text: "5"}, `"5" (type not told)`},
		{Value{Type: "unknown"}, "something else"},
		{Value{Type: "unknown", Text: "ab"}, `"ab" (cut short)`},
	} {
		if got := c.v.String(); got != c.want {
			t.Errorf("%+v: got %s, want %s", c.v, got, c.want)
		}
	}
}
