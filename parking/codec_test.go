package parking

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// everyType is a header of each type that a client can receive.
func everyType() amqp.Table {
	return amqp.Table{
		"void": nil, "bool": true, "int8": int8(-3), "uint8": uint8(200), "int16": int16(-300), "uint16": uint16(60000),
		"int32": int32(math.MinInt32), "uint32": uint32(math.MaxUint32), "int64": int64(math.MaxInt64),
		"float32": float32(1.5), "float64": 0.1, "nan": math.NaN(), "inf": math.Inf(-1), "inf32": float32(math.Inf(1)),
		"decimal": amqp.Decimal{Scale: 2, Value: -314}, "string": "Grüße <&> \u2028 \x00", "odd": "\xff\xfe", "empty": "",
		"bytes": []byte{0xff, 0, 1}, "none": []byte{}, "timestamp": time.Unix(1700000000, 0), "ms": time.Unix(1700000000123, 0), "past": time.Unix(-5, 0),
		"array": []any{int8(1), "a", nil, []any{int64(2)}, amqp.Table{"k": []any(nil)}}, "nothing": []any(nil),
		"table": amqp.Table{"deep": amqp.Table{"deeper": []any{amqp.Table{"x": int16(1)}}}}, "bare": amqp.Table{},
	}
}

func same(t *testing.T, got, want amqp.Publishing) {
	t.Helper()
	// fmt prints maps in the order of their keys, and NaN as equal to NaN.
	if g, w := fmt.Sprintf("%#v", got), fmt.Sprintf("%#v", want); g != w {
		t.Errorf("differs\n got %s\nwant %s", g, w)
	}
}

func TestEveryTypeSurvives(t *testing.T) {
	for name, p := range map[string]amqp.Publishing{
		"nothing": {},
		"all": {
			Headers: everyType(), ContentType: "application/json", ContentEncoding: "gzip", DeliveryMode: 1, Priority: 9,
			CorrelationId: "c", ReplyTo: "r", Expiration: "60000", MessageId: "m", Timestamp: time.Unix(1700000000123, 0), Type: "T",
			UserId: "guest", AppId: "\xffapp", Body: []byte("{\"a\": \"ü\"}\n"),
		},
		"binary": {Body: []byte{0x1f, 0x8b, 0, 0xff}},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := Marshal(&p)
			if err != nil {
				t.Fatal(err)
			}
			if !json.Valid(b) || strings.Contains(string(b), "\n") {
				t.Errorf("not one line of JSON: %s", b)
			}
			got, err := Unmarshal(b)
			if err != nil {
				t.Fatal(err)
			}
			same(t, got, p)
		})
	}
}

// The values of the golden vectors of package attempt are written as they are
// there.
func TestTheFormIsThatOfTheVectors(t *testing.T) {
	values := 0
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, e := range v {
				walk(e)
			}
		case map[string]any:
			if kind, ok := v["type"].(string); ok && kind != "id" && kind != "json" && wellFormed(v) {
				values++
				text, err := json.Marshal(v)
				if err != nil {
					t.Fatal(err)
				}
				var typed typedValue
				if err := strict(text, &typed); err != nil {
					t.Fatalf("%s: %v", text, err)
				}
				value, err := typed.value()
				if err != nil {
					t.Fatalf("%s: %v", text, err)
				}
				back, err := toTyped(value)
				if err != nil {
					t.Fatalf("%s: %v", text, err)
				}
				again, err := marshal(back)
				if err != nil {
					t.Fatal(err)
				}
				var a, b any
				if json.Unmarshal(text, &a) != nil || json.Unmarshal(again, &b) != nil || !reflect.DeepEqual(a, b) {
					t.Errorf("%s is written as %s", text, again)
				}
				return
			}
			for _, e := range v {
				walk(e)
			}
		}
	}
	files, err := filepath.Glob("../attempt/testdata/*.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if filepath.Base(f) == "schema.json" { // of their form, and no vectors
			continue
		}
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		var doc any
		if err := json.Unmarshal(b, &doc); err != nil {
			t.Fatal(err)
		}
		walk(doc)
	}
	if values < 200 {
		t.Errorf("only %d values found", values)
	}
}

// wellFormed tells a value of the vectors from a message that has a property
// named type, and passes over numbers that are written in another way.
func wellFormed(v map[string]any) bool {
	for k := range v {
		if k != "type" && k != "value" && k != "hex" && k != "scale" {
			return false
		}
	}
	s, _ := v["value"].(string)
	return v["type"] != "T" && !(v["type"] == "float64" && strings.ContainsAny(s, "e+")) && v["scale"] != 0.0 && !hasTyped(v)
}

// hasTyped finds the stand-ins for a string below a value.
func hasTyped(v any) bool {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			if hasTyped(e) {
				return true
			}
		}
	case map[string]any:
		if v["type"] == "json" || v["type"] == "id" {
			return true
		}
		for _, e := range v {
			if hasTyped(e) {
				return true
			}
		}
	}
	return false
}

func TestWhatIsNoMessage(t *testing.T) {
	for _, bad := range []string{
		``, `[]`, `{"properties":{}} {}`, `{"proprties":{}}`, `{"properties":{"priority":300}}`, `{"properties":{"timestamp":"soon"}}`,
		`{"headers":{"a":{"type":"int8","value":"128"}}}`, `{"headers":{"a":{"type":"int32","value":3}}}`,
		`{"headers":{"a":{"type":"bytes"}}}`, `{"headers":{"a":{"type":"string"}}}`, `{"headers":{"a":{"type":"int23","value":"1"}}}`,
		`{"headers":{"a":{"type":"array","value":[{"type":"x"}]}}}`, `{"headers":{"a":{"type":"table"}}}`,
		`{"headers":{"a":` + strings.Repeat(`{"type":"array","value":[`, 200) + strings.Repeat(`]}`, 200) + `}}`,
		`{"body":{"type":"int8","value":"1"}}`, `{"body":{"type":"bytes","hex":"0"}}`, `{"odd_properties":{"priority":"00"}}`,
	} {
		if p, err := Unmarshal([]byte(bad)); err == nil {
			t.Errorf("%s: no error, but %+v", bad, p)
		}
	}
	var deep any
	for range 200 {
		deep = []any{deep}
	}
	for _, p := range []amqp.Publishing{
		{Headers: amqp.Table{"a": deep}}, {Headers: amqp.Table{"a": struct{}{}}}, {Headers: amqp.Table{"\xff": 1}}, {Headers: amqp.Table{"a": []any{amqp.Table{"b": make(chan int)}}}},
	} {
		if _, err := Marshal(&p); err == nil {
			t.Errorf("%v: no error", p.Headers)
		}
	}
}

// What can be read as a message is written as one that reads the same.
func FuzzExport(f *testing.F) {
	p := amqp.Publishing{Headers: everyType(), Body: []byte("a"), AppId: "\xff"}
	if b, err := Marshal(&p); err == nil {
		f.Add(b)
	}
	f.Add([]byte(`{"properties":{"type":"T"},"headers":{"a":{"type":"float32","value":"1e-40"}},"body":{"type":"string","hex":"ff"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Unmarshal(b)
		if err != nil {
			return
		}
		out, err := Marshal(&p)
		if err != nil {
			t.Fatalf("%s was read, and cannot be written: %v", b, err)
		}
		again, err := Unmarshal(out)
		if err != nil {
			t.Fatalf("%s was written, and cannot be read: %v", out, err)
		}
		same(t, again, p)
	})
}
