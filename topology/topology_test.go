package topology

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestMerge(t *testing.T) {
	a := Topology{
		Exchanges: []Exchange{{Name: "x", Kind: "fanout"}, {Name: "y", Kind: "direct"}},
		Queues:    []Queue{{Name: "q", Args: amqp.Table{"x-message-ttl": int64(1)}}, {Name: "orders", User: true}},
		Bindings:  []Binding{{Source: "x", Destination: "q"}, {Source: "x", Destination: "q", ToExchange: true}},
	}
	b := Topology{
		Exchanges: []Exchange{{Name: "z", Kind: "topic"}, {Name: "x", Kind: "fanout", Args: amqp.Table{}}},
		Queues:    []Queue{{Name: "q", Args: amqp.Table{"x-message-ttl": int32(1)}}, {Name: "r"}, {Name: "orders", User: true, Declare: true, Args: amqp.Table{"x-max-length": int64(1)}}},
		Bindings:  []Binding{{Source: "x", Destination: "q", Args: amqp.Table{}}, {Source: "x", Destination: "q", Key: "k"}},
	}
	want := Topology{
		Exchanges: []Exchange{a.Exchanges[0], a.Exchanges[1], b.Exchanges[0]},
		Queues:    []Queue{a.Queues[0], b.Queues[2], b.Queues[1]},
		Bindings:  []Binding{a.Bindings[0], a.Bindings[1], b.Bindings[1]},
	}
	got := a.Merge(b, a, b)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if err := got.Validate(); err != nil {
		t.Error(err)
	}
	if again := got.Merge(got); !reflect.DeepEqual(again, got) {
		t.Errorf("merged with itself: %+v", again)
	}
	if len(a.Queues) != 2 || a.Queues[1].Declare {
		t.Errorf("Merge has changed what it was given: %+v", a)
	}
	if !reflect.DeepEqual(Topology{}.Merge(), Topology{}) {
		t.Error("nothing merged with nothing is something")
	}
}

func TestMergeKeepsConflicts(t *testing.T) {
	for _, c := range []struct {
		name string
		a, b Topology
		want []string
	}{
		{
			"exchange types",
			Topology{Exchanges: []Exchange{{Name: "x", Kind: "fanout"}}},
			Topology{Exchanges: []Exchange{{Name: "x", Kind: "direct"}}},
			[]string{`exchange "x"`, `"fanout"`, `"direct"`},
		},
		{
			"exchange arguments",
			Topology{Exchanges: []Exchange{{Name: "x", Kind: "fanout"}}},
			Topology{Exchanges: []Exchange{{Name: "x", Kind: "fanout", Args: amqp.Table{"alternate-exchange": "y"}}}},
			[]string{`exchange "x"`, "alternate-exchange", "nothing", `string "y"`},
		},
		{
			"queue arguments",
			Topology{Queues: []Queue{{Name: "q", Args: amqp.Table{"x-message-ttl": int64(1)}}}},
			Topology{Queues: []Queue{{Name: "q", Args: amqp.Table{"x-message-ttl": "1"}}}},
			[]string{`queue "q"`, "x-message-ttl", "int64 1", `string "1"`},
		},
		{
			"the user's and ours",
			Topology{Queues: []Queue{{Name: "q"}}},
			Topology{Queues: []Queue{{Name: "q", User: true}}},
			[]string{`queue "q"`, "the user's work queue"},
		},
		{
			"declared in two ways",
			Topology{Queues: []Queue{{Name: "q", User: true, Declare: true}}},
			Topology{Queues: []Queue{{Name: "q", User: true, Declare: true, Args: amqp.Table{"x-queue-type": "quorum"}}}},
			[]string{`queue "q"`, "x-queue-type", `"classic"`, `"quorum"`},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.a.Merge(c.b).Validate()
			if err == nil {
				t.Fatal("no error")
			}
			for _, part := range c.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not name %s", err, part)
				}
			}
		})
	}
}

func TestValidate(t *testing.T) {
	queue := func(key string, v any) Topology {
		return Topology{Queues: []Queue{{Name: "q", Args: amqp.Table{key: v}}}}
	}
	long := strings.Repeat("n", 256)
	for _, c := range []struct {
		name string
		top  Topology
		want string // "" for valid
	}{
		{"nothing", Topology{}, ""},
		{"longest name", Topology{Queues: []Queue{{Name: long[1:]}}}, ""},
		{"odd name", Topology{Queues: []Queue{{Name: "q/1 %2F é#?"}}}, ""},
		{"no name", Topology{Queues: []Queue{{}}}, "is empty"},
		{"long name", Topology{Exchanges: []Exchange{{Name: long, Kind: "fanout"}}}, "256 bytes: at most 255"},
		{"broken name", Topology{Queues: []Queue{{Name: "a\xff"}}}, "UTF-8"},
		{"line break", Topology{Queues: []Queue{{Name: "a\nb"}}}, "line break"},
		{"reserved name", Topology{Queues: []Queue{{Name: "amq.q"}}}, `"amq."`},
		{"reserved, but the user's", Topology{Queues: []Queue{{Name: "amq.gen-1", User: true}}}, ""},
		{"a broker's own exchange", Topology{Exchanges: []Exchange{{Name: "amq.topic", Kind: "topic"}}}, ""},
		{"no kind", Topology{Exchanges: []Exchange{{Name: "x"}}}, "kind is empty"},
		{"no source", Topology{Bindings: []Binding{{Destination: "q"}}}, "default exchange"},
		{"no destination", Topology{Bindings: []Binding{{Source: "x"}}}, "is empty"},
		{"long key", Topology{Bindings: []Binding{{Source: "x", Destination: "q", Key: long}}}, "routing key has 256 bytes"},
		{"int", queue("x-message-ttl", 3000000000), "use int64(3000000000)"},
		{"nested int", queue("t", amqp.Table{"l": []any{"a", 7}}), "argument t: argument l: element 1: 7 is a Go int"},
		{"int in a binding", Topology{Bindings: []Binding{{Source: "x", Destination: "q", Args: amqp.Table{"n": 1}}}}, "use int64(1)"},
		{"uint64", queue("k", uint64(1)), "uint64"},
		{"nil", queue("k", nil), "leave the argument out"},
		{"nil in a binding", Topology{Bindings: []Binding{{Source: "x", Destination: "q", Args: amqp.Table{"n": nil}}}}, ""},
		{"decimal", queue("k", amqp.Decimal{Value: 1}), "decimal"},
		{"NaN", queue("k", math.NaN()), "NaN"},
		{"infinite", queue("k", float32(math.Inf(-1))), "-Inf"},
		{"map", queue("k", map[string]any{}), "map[string]interface"},
		{"all that goes", queue("k", []any{true, byte(1), int8(1), int16(1), uint16(1), int32(1), uint32(1), int64(1), "", []byte{}, 1.5, float32(1.5), amqp.Table{}}), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.top.Validate()
			if c.want == "" {
				if err != nil {
					t.Error(err)
				}
			} else if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want one with %q", err, c.want)
			}
		})
	}
	both := Topology{Queues: []Queue{{}, {Name: "amq.q"}}}
	if err := both.Validate(); !strings.Contains(err.Error(), "is empty") || !strings.Contains(err.Error(), `"amq."`) {
		t.Errorf("does not tell all faults: %v", err)
	}
	for _, use := range []func() error{
		func() error { return Apply(context.Background(), nil, both) },
		func() error { _, err := MakePlan(context.Background(), nil, nil, both); return err },
		func() error { _, err := both.Definitions("/"); return err },
	} {
		if use() == nil {
			t.Error("an invalid topology was taken")
		}
	}
}

// TestPlanIsPure: what a broker has, against what is wanted, without a broker.
func TestPlanIsPure(t *testing.T) {
	top := Topology{
		Exchanges: []Exchange{{Name: "x", Kind: "headers"}, {Name: "y", Kind: "fanout"}},
		Queues:    []Queue{{Name: "q", Args: amqp.Table{"x-message-ttl": int64(10000)}}, {Name: "orders", User: true}},
		Bindings:  []Binding{{Source: "x", Destination: "q", Args: amqp.Table{"k": "v"}}},
	}
	s := &state{
		exchanges: map[string]exchangeState{"x": {Name: "x", Kind: "topic", AutoDelete: true}},
		queues: map[string]queueState{"q": {
			Name: "q", Durable: true, Exclusive: true,
			Args: table{"x-message-ttl": "10000", "x-queue-type": "quorum"},
		}},
		defaultQueueType: "classic",
	}
	p := s.plan(top)
	want := `exchange "x": differs: type is string "topic" on the broker, want string "headers"
exchange "x": differs: durable is bool false on the broker, want bool true
exchange "x": differs: auto_delete is bool true on the broker, want bool false
exchange "y": missing
queue "q": differs: exclusive is bool true on the broker, want bool false
queue "q": differs: x-message-ttl is string "10000" on the broker, want int64 10000 (they look alike, but the types differ)
queue "q": differs: x-queue-type is string "quorum" on the broker, want string "classic"
queue "orders": missing: it is the user's work queue, which is not declared here
binding "x -> q" {"k": string "v"}: missing
`
	if got := p.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if p.Empty() {
		t.Error("Empty is true")
	}
	err := error(&DriftError{Plan: p})
	if !errors.Is(err, ErrDrift) || errors.Is(err, ErrMissing) || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("got %v", err)
	}
	if got := (Plan{}).String(); got != "nothing to do\n" {
		t.Errorf("got %q", got)
	}
	unknown := Plan{Differences: []Difference{{Kind: "binding", State: Unknown, Note: "not read"}}}
	if got := unknown.String(); !unknown.Empty() || got != "nothing to do\nbinding: unknown: not read\n" {
		t.Errorf("got %t %q", unknown.Empty(), got)
	}
}

func TestDefinitionsJSON(t *testing.T) {
	top := Topology{Queues: []Queue{{Name: "q", Args: amqp.Table{"f": float64(2), "small": float32(0.25), "tiny": 1e-9, "n": nil}}, {Name: "orders", User: true}}}
	top.Queues[0].Args["n"] = []any{"<&>", amqp.Table{"z": int64(1), "a": float64(1e21)}}
	got, err := top.Definitions("a/b")
	if err != nil {
		t.Fatal(err)
	}
	var compact struct {
		Exchanges, Bindings []any
		Queues              []struct {
			Vhost     string
			Arguments json.RawMessage
		}
	}
	if err := json.Unmarshal(got, &compact); err != nil {
		t.Fatal(err)
	}
	if compact.Exchanges == nil || compact.Bindings == nil || len(compact.Queues) != 1 || compact.Queues[0].Vhost != "a/b" {
		t.Errorf("got %s", got)
	}
	want := `{"f":2.0,"n":["<&>",{"a":1000000000000000000000.0,"z":1}],"small":0.25,"tiny":0.000000001}`
	if args := strings.Join(strings.Fields(string(compact.Queues[0].Arguments)), ""); args != want {
		t.Errorf("got  %s\nwant %s", args, want)
	}
	top.Queues[0].Args = amqp.Table{"b": []byte{1}}
	if _, err := top.Definitions("/"); err == nil || !strings.Contains(err.Error(), "argument b: a bytes has no form in JSON") {
		t.Errorf("got %v", err)
	}
}

func TestMermaidEscapes(t *testing.T) {
	top := Topology{
		Exchanges: []Exchange{{Name: `a "b" #1 <i> & ` + "`c`", Kind: "topic", Args: amqp.Table{"alternate-exchange": "else"}}},
		Queues:    []Queue{{Name: "q", Args: amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders"}}},
		Bindings:  []Binding{{Source: `a "b" #1 <i> & ` + "`c`", Destination: "q", Key: "a.#"}},
	}
	want := `flowchart LR
  e0{{"a #quot;b#quot; #35;1 #lt;i#gt; #amp; #96;c#96;<br>topic"}}
  q1[("q")]
  q2[("orders")]
  e3{{"else"}}
  e0 -->|"a.#35;"| q1
  q1 -.->|"dead letters"| q2
  e0 -.->|"no match"| e3
`
	if got := top.Mermaid(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := fmt.Sprint(Topology{}.Mermaid()); got != "flowchart LR\n" {
		t.Errorf("got %q", got)
	}
}

// TestSole: what may be beside a sole binding and what not, without a broker.
func TestSole(t *testing.T) {
	old := Binding{Source: "error", Destination: "old", Key: "orders"}
	sole := Binding{Source: "error", Destination: "new", Key: "orders", Sole: true}
	plain := sole
	plain.Sole = false
	for _, m := range []Topology{
		Topology{Bindings: []Binding{plain}}.Merge(Topology{Bindings: []Binding{sole}}),
		Topology{Bindings: []Binding{sole}}.Merge(Topology{Bindings: []Binding{plain}}),
	} {
		if len(m.Bindings) != 1 || !m.Bindings[0].Sole {
			t.Errorf("merged to %v", m.Bindings)
		}
	}
	for _, bs := range [][]Binding{{old, sole}, {sole, old}, {sole, {Source: "error", Destination: "new", ToExchange: true, Key: "orders"}}} {
		err := Topology{Bindings: bs}.Validate()
		if err == nil || !strings.Contains(err.Error(), `cannot be there beside "error -> new (key \"orders\")", the sole one`) {
			t.Errorf("%v: %v", bs, err)
		}
	}
	top := Topology{Bindings: []Binding{
		sole, sole,
		{Source: "error", Destination: "new", Key: "orders", Args: amqp.Table{"same": "end"}},
		{Source: "error", Destination: "old", Key: "mails"},
		{Source: "shop", Destination: "old", Key: "orders"},
	}}
	if err := top.Validate(); err != nil {
		t.Error(err)
	}
	s := &state{vhost: "/"}
	for _, b := range append(top.Bindings, old) {
		s.bindings = append(s.bindings, bindingState{Source: b.Source, Destination: b.Destination, Type: "queue", Key: b.Key, Args: table(b.Args), Properties: b.Key})
	}
	want := `binding "error -> old (key \"orders\")": extra: only queue "new" may get what is published with this key: ` +
		"unbind this one by \"hopback apply\", by Apply WithUnbind, or by DELETE /api/bindings/%2F/e/error/q/old/orders of the management API\n"
	if got := s.plan(top); got.String() != want || got.Empty() {
		t.Errorf("got  %swant %s", got, want)
	}
	top.Bindings = append(top.Bindings[2:], plain)
	if got := s.plan(top); !got.Empty() {
		t.Errorf("without a sole binding: %v", got)
	}
}
