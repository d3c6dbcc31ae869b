package topology

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Definitions returns t as a RabbitMQ definitions file for the virtual host: what
// "rabbitmqctl import_definitions", the boot option definitions.import_backend and
// the HTTP API read. The order is that of t, so that a change is a small diff.
// It mentions no virtual host, user or policy of its own accord: the virtual host
// must exist.
//
// The user's work queue is in it only if it may be declared; the bindings to it
// are in any case, and an import fails without the queue. An import leaves what
// exists as it is, whatever its arguments.
//
// JSON has no bytes, timestamps or decimals; a topology that has such arguments is
// an error.
func (t Topology) Definitions(vhost string) ([]byte, error) {
	if err := t.Validate(); err != nil {
		return nil, fmt.Errorf("export definitions: %w", err)
	}
	type exchange struct {
		Name       string    `json:"name"`
		Vhost      string    `json:"vhost"`
		Type       string    `json:"type"`
		Durable    bool      `json:"durable"`
		AutoDelete bool      `json:"auto_delete"`
		Internal   bool      `json:"internal"`
		Arguments  jsonTable `json:"arguments"`
	}
	type queue struct {
		Name       string    `json:"name"`
		Vhost      string    `json:"vhost"`
		Durable    bool      `json:"durable"`
		AutoDelete bool      `json:"auto_delete"`
		Arguments  jsonTable `json:"arguments"`
	}
	type binding struct {
		Source          string    `json:"source"`
		Vhost           string    `json:"vhost"`
		Destination     string    `json:"destination"`
		DestinationType string    `json:"destination_type"`
		RoutingKey      string    `json:"routing_key"`
		Arguments       jsonTable `json:"arguments"`
	}
	defs := struct {
		Exchanges []exchange `json:"exchanges"`
		Queues    []queue    `json:"queues"`
		Bindings  []binding  `json:"bindings"`
	}{[]exchange{}, []queue{}, []binding{}}
	for _, e := range t.Exchanges {
		defs.Exchanges = append(defs.Exchanges, exchange{Name: e.Name, Vhost: vhost, Type: e.Kind, Durable: true, Arguments: jsonTable(e.Args)})
	}
	for _, q := range t.Queues {
		if q.User && !q.Declare {
			continue
		}
		defs.Queues = append(defs.Queues, queue{Name: q.Name, Vhost: vhost, Durable: true, Arguments: jsonTable(q.Args)})
	}
	for _, b := range t.Bindings {
		kind := "queue"
		if b.ToExchange {
			kind = "exchange"
		}
		defs.Bindings = append(defs.Bindings, binding{b.Source, vhost, b.Destination, kind, b.Key, jsonTable(b.Args)})
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(defs); err != nil {
		return nil, fmt.Errorf("export definitions: %w", err)
	}
	return out.Bytes(), nil
}

// jsonTable writes arguments as JSON, keys in order.
type jsonTable amqp.Table

// MarshalJSON writes {} for no arguments: brokers want an object.
func (t jsonTable) MarshalJSON() ([]byte, error) {
	m := make(map[string]any, len(t))
	for k, v := range t {
		j, err := jsonValue(v)
		if err != nil {
			return nil, fmt.Errorf("argument %s: %w", k, err)
		}
		m[k] = j
	}
	return marshal(m)
}

func jsonValue(v any) (any, error) {
	switch v := v.(type) {
	case amqp.Table:
		return jsonTable(v), nil
	case []any:
		list := make([]any, len(v))
		for i, e := range v {
			var err error
			if list[i], err = jsonValue(e); err != nil {
				return nil, err
			}
		}
		return list, nil
	case float32:
		return jsonFloat(float64(v)), nil
	case float64:
		return jsonFloat(v), nil
	case nil, bool, string, int8, int16, int32, int64, uint8, uint16, uint32:
		return v, nil
	}
	return nil, fmt.Errorf("a %s has no form in JSON", valueOf(v).Type)
}

// jsonFloat keeps the point in 2.0, which would otherwise be read as an integer.
func jsonFloat(f float64) json.RawMessage {
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return json.RawMessage(s)
}

// marshal is json.Marshal that leaves <, > and & as they are.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSpace(b.Bytes()), nil
}

// Mermaid returns t as a Mermaid flowchart: exchanges as hexagons, queues as
// cylinders, the user's work queues with a double border. Full arrows are bindings
// with their keys and arguments, dotted ones are what the broker does on its own:
// dead letters and alternate exchanges. What t refers to without containing it is
// drawn too.
func (t Topology) Mermaid() string {
	m := &mermaid{ids: map[resource]string{}}
	for _, e := range t.Exchanges {
		m.node("exchange", e.Name, `{{"`, `"}}`, e.Kind)
	}
	for _, q := range t.Queues {
		before, after := `[("`, `")]`
		if q.User {
			before, after = `[["`, `"]]`
		}
		var lines []string
		if typ, ok := q.Args[queueType]; ok {
			lines = append(lines, valueOf(typ).Text)
		}
		if ttl, ok := q.Args["x-message-ttl"]; ok {
			lines = append(lines, valueOf(ttl).Text+" ms")
		}
		m.node("queue", q.Name, before, after, lines...)
	}
	for _, b := range t.Bindings {
		var label []string
		if b.Key != "" {
			label = append(label, b.Key)
		}
		for _, k := range sortedKeys(b.Args) {
			label = append(label, k+" = "+valueOf(b.Args[k]).Text)
		}
		kind := "queue"
		if b.ToExchange {
			kind = "exchange"
		}
		m.edge(m.id("exchange", b.Source), "-->", m.id(kind, b.Destination), strings.Join(label, ", "))
	}
	for _, q := range t.Queues {
		dlx, ok := q.Args["x-dead-letter-exchange"].(string)
		if !ok {
			continue
		}
		key, _ := q.Args["x-dead-letter-routing-key"].(string)
		from := m.id("queue", q.Name)
		if dlx != "" {
			m.edge(from, "-.->", m.id("exchange", dlx), strings.TrimSpace("dead letters "+key))
		} else if key != "" { // through the default exchange, to the queue of that name
			m.edge(from, "-.->", m.id("queue", key), "dead letters")
		}
	}
	for _, e := range t.Exchanges {
		if alt, ok := e.Args["alternate-exchange"].(string); ok {
			m.edge(m.id("exchange", e.Name), "-.->", m.id("exchange", alt), "no match")
		}
	}
	return "flowchart LR\n" + m.nodes.String() + m.edges.String()
}

type mermaid struct {
	nodes, edges strings.Builder
	ids          map[resource]string
}

func (m *mermaid) node(kind, name, before, after string, lines ...string) string {
	r := resource{kind: kind, name: name}
	if id, ok := m.ids[r]; ok {
		return id
	}
	id := fmt.Sprintf("%c%d", kind[0], len(m.ids))
	m.ids[r] = id
	text := mermaidText(name)
	for _, l := range lines {
		text += "<br>" + mermaidText(l)
	}
	fmt.Fprintf(&m.nodes, "  %s%s%s%s\n", id, before, text, after)
	return id
}

// id is the node of something that may not be in the topology.
func (m *mermaid) id(kind, name string) string {
	if kind == "exchange" {
		return m.node(kind, name, `{{"`, `"}}`)
	}
	return m.node(kind, name, `[("`, `")]`)
}

func (m *mermaid) edge(from, arrow, to, label string) {
	if label != "" {
		arrow += `|"` + mermaidText(label) + `"|`
	}
	fmt.Fprintf(&m.edges, "  %s %s %s\n", from, arrow, to)
}

// mermaidText writes what would end a text or be taken for markup as Mermaid's
// own entity codes.
var mermaidEntities = strings.NewReplacer("#", "#35;", `"`, "#quot;", "<", "#lt;", ">", "#gt;", "&", "#amp;", "`", "#96;")

func mermaidText(s string) string { return mermaidEntities.Replace(s) }
