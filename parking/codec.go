package parking

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"
)

// typedValue is an AMQP value in JSON, in the form of the golden vectors of
// package attempt: every number a string, so that no JSON reader rounds it, and
// every type by its name.
type typedValue struct {
	Type  string          `json:"type"`
	Value json.RawMessage `json:"value,omitempty"`
	Hex   *string         `json:"hex,omitempty"`
	Scale uint8           `json:"scale,omitempty"`
}

func text(s string) json.RawMessage {
	b, err := marshal(s)
	if err != nil {
		panic(err) // a valid string has no way to fail
	}
	return b
}

// marshal is json.Marshal without the escapes of HTML.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// toTyped writes a value as a client receives it. What cannot be on the wire,
// such as a Go struct, is an error.
func toTyped(v any) (typedValue, error) { return toTypedAt(v, 0) }

// maxDepth bounds how deeply values nest. JSON in JSON costs the square of it, and
// nobody nests headers so.
const maxDepth = 100

var errDeep = fmt.Errorf("values nest more than %d deep", maxDepth)

func toTypedAt(v any, depth int) (typedValue, error) {
	if depth > maxDepth {
		return typedValue{}, errDeep
	}
	hexed := func(b []byte) *string { s := hex.EncodeToString(b); return &s }
	integer := func(name string, n int64) (typedValue, error) {
		return typedValue{Type: name, Value: text(strconv.FormatInt(n, 10))}, nil
	}
	switch v := v.(type) {
	case nil:
		return typedValue{Type: "void"}, nil
	case bool:
		return typedValue{Type: "bool", Value: strconv.AppendBool(nil, v)}, nil
	case int8:
		return integer("int8", int64(v))
	case uint8:
		return integer("uint8", int64(v))
	case int16:
		return integer("int16", int64(v))
	case uint16:
		return integer("uint16", int64(v))
	case int32:
		return integer("int32", int64(v))
	case uint32:
		return integer("uint32", int64(v))
	case int64:
		return integer("int64", v)
	case int:
		return integer("int64", int64(v))
	case float32:
		return typedValue{Type: "float32", Value: text(float(float64(v), 32))}, nil
	case float64:
		return typedValue{Type: "float64", Value: text(float(v, 64))}, nil
	case amqp.Decimal:
		return typedValue{Type: "decimal", Scale: v.Scale, Value: text(strconv.FormatInt(int64(v.Value), 10))}, nil
	case string:
		if utf8.ValidString(v) {
			return typedValue{Type: "string", Value: text(v)}, nil
		}
		return typedValue{Type: "string", Hex: hexed([]byte(v))}, nil
	case []byte:
		return typedValue{Type: "bytes", Hex: hexed(v)}, nil
	case time.Time:
		return integer("timestamp", v.Unix())
	case []any:
		list := make([]typedValue, len(v))
		for i := range v {
			var err error
			if list[i], err = toTypedAt(v[i], depth+1); err != nil {
				return typedValue{}, err
			}
		}
		b, err := marshal(list)
		return typedValue{Type: "array", Value: b}, err
	case amqp.Table:
		t, err := typedTable(v, depth+1)
		if err != nil {
			return typedValue{}, err
		}
		b, err := marshal(t)
		return typedValue{Type: "table", Value: b}, err
	case map[string]any:
		return toTypedAt(amqp.Table(v), depth)
	}
	return typedValue{}, fmt.Errorf("a value of type %T is none of AMQP's", v)
}

func float(f float64, bits int) string {
	format := byte('f')
	if a := math.Abs(f); a != 0 && (a < 1e-6 || a >= 1e21) {
		format = 'g'
	}
	s := strconv.FormatFloat(f, format, -1, bits)
	if s == "+Inf" {
		return "Inf"
	}
	return s
}

// typedTable writes a table. A key that is no UTF-8 would not survive.
func typedTable(t amqp.Table, depth int) (map[string]typedValue, error) {
	m := make(map[string]typedValue, len(t))
	for k, v := range t {
		if !utf8.ValidString(k) {
			return nil, fmt.Errorf("the key %q is no UTF-8", k)
		}
		tv, err := toTypedAt(v, depth)
		if err != nil {
			return nil, fmt.Errorf("key %q: %w", k, err)
		}
		m[k] = tv
	}
	return m, nil
}

// value reads it back.
func (t typedValue) value() (any, error) { return t.valueAt(0) }

func (t typedValue) valueAt(depth int) (any, error) {
	if depth > maxDepth {
		return nil, errDeep
	}
	fail := func(err error) (any, error) { return nil, fmt.Errorf("a value of type %q: %w", t.Type, err) }
	digits := func() (s string, err error) { err = strict(t.Value, &s); return s, err }
	integer := func(bits int) (int64, error) {
		s, err := digits()
		if err != nil {
			return 0, err
		}
		return strconv.ParseInt(s, 10, bits)
	}
	unsigned := func(bits int) (uint64, error) {
		s, err := digits()
		if err != nil {
			return 0, err
		}
		return strconv.ParseUint(s, 10, bits)
	}
	var v any
	var err error
	var n int64
	var u uint64
	switch t.Type {
	case "void":
		return nil, nil
	case "bool":
		var b bool
		err = strict(t.Value, &b)
		v = b
	case "int8":
		n, err = integer(8)
		v = int8(n)
	case "uint8":
		u, err = unsigned(8)
		v = uint8(u)
	case "int16":
		n, err = integer(16)
		v = int16(n)
	case "uint16":
		u, err = unsigned(16)
		v = uint16(u)
	case "int32":
		n, err = integer(32)
		v = int32(n)
	case "uint32":
		u, err = unsigned(32)
		v = uint32(u)
	case "int64":
		n, err = integer(64)
		v = n
	case "timestamp":
		n, err = integer(64)
		v = time.Unix(n, 0)
	case "float32", "float64":
		var s string
		if s, err = digits(); err != nil {
			return fail(err)
		}
		bits := 64
		if t.Type == "float32" {
			bits = 32
		}
		var f float64
		f, err = strconv.ParseFloat(s, bits)
		if v = f; bits == 32 {
			v = float32(f)
		}
	case "decimal":
		n, err = integer(32)
		v = amqp.Decimal{Scale: t.Scale, Value: int32(n)}
	case "string":
		if t.Hex == nil {
			var s string
			err = strict(t.Value, &s)
			v = s
			break
		}
		var b []byte
		b, err = hex.DecodeString(*t.Hex)
		v = string(b)
	case "bytes":
		if t.Hex == nil {
			return fail(errors.New("it has no hex"))
		}
		var b []byte
		b, err = hex.DecodeString(*t.Hex)
		v = b
	case "array":
		var list []typedValue
		if err = strict(t.Value, &list); err != nil {
			return fail(err)
		}
		var out []any // nil when empty, as amqp091-go reads it
		for _, e := range list {
			ev, err := e.valueAt(depth + 1)
			if err != nil {
				return nil, err
			}
			out = append(out, ev)
		}
		v = out
	case "table":
		var fields map[string]typedValue
		if err = strict(t.Value, &fields); err != nil {
			return fail(err)
		}
		return table(fields, depth+1)
	default:
		return fail(errors.New("there is no such type"))
	}
	if err != nil {
		return fail(err)
	}
	return v, nil
}

func table(fields map[string]typedValue, depth int) (amqp.Table, error) {
	t := make(amqp.Table, len(fields))
	for k, tv := range fields {
		v, err := tv.valueAt(depth)
		if err != nil {
			return nil, fmt.Errorf("key %q: %w", k, err)
		}
		t[k] = v
	}
	return t, nil
}

// strict decodes JSON and refuses keys that nobody reads.
func strict(b []byte, into any) error {
	if len(b) == 0 {
		return errors.New("it has no value")
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if d.More() {
		return errors.New("something follows the value")
	}
	return nil
}

// properties are named as in AMQP. What is absent is empty.
type properties struct {
	ContentType     string `json:"content_type,omitempty"`
	ContentEncoding string `json:"content_encoding,omitempty"`
	DeliveryMode    uint8  `json:"delivery_mode,omitempty"`
	Priority        uint8  `json:"priority,omitempty"`
	CorrelationID   string `json:"correlation_id,omitempty"`
	ReplyTo         string `json:"reply_to,omitempty"`
	Expiration      string `json:"expiration,omitempty"`
	MessageID       string `json:"message_id,omitempty"`
	Timestamp       string `json:"timestamp,omitempty"` // seconds since 1970
	Type            string `json:"type,omitempty"`
	UserID          string `json:"user_id,omitempty"`
	AppID           string `json:"app_id,omitempty"`
}

// exported is a message in JSON.
type exported struct {
	Properties properties            `json:"properties"`
	Headers    map[string]typedValue `json:"headers,omitempty"`
	Body       *typedValue           `json:"body,omitempty"`
	// Odd has the properties that are no UTF-8, in hex.
	Odd map[string]string `json:"odd_properties,omitempty"`
}

// texts are the properties that are texts, by their names in JSON.
func texts(p *amqp.Publishing) map[string]*string {
	return map[string]*string{
		"content_type": &p.ContentType, "content_encoding": &p.ContentEncoding, "correlation_id": &p.CorrelationId,
		"reply_to": &p.ReplyTo, "expiration": &p.Expiration, "message_id": &p.MessageId,
		"type": &p.Type, "user_id": &p.UserId, "app_id": &p.AppId,
	}
}

func toExported(p *amqp.Publishing) (e exported, err error) {
	q := *p
	for name, s := range texts(&q) {
		if !utf8.ValidString(*s) {
			if e.Odd == nil {
				e.Odd = map[string]string{}
			}
			e.Odd[name] = hex.EncodeToString([]byte(*s))
			*s = ""
		}
	}
	e.Properties = properties{
		ContentType: q.ContentType, ContentEncoding: q.ContentEncoding, DeliveryMode: q.DeliveryMode, Priority: q.Priority,
		CorrelationID: q.CorrelationId, ReplyTo: q.ReplyTo, Expiration: q.Expiration, MessageID: q.MessageId,
		Type: q.Type, UserID: q.UserId, AppID: q.AppId,
	}
	if !q.Timestamp.IsZero() {
		e.Properties.Timestamp = strconv.FormatInt(q.Timestamp.Unix(), 10)
	}
	if len(q.Headers) > 0 {
		if e.Headers, err = typedTable(q.Headers, 0); err != nil {
			return e, fmt.Errorf("headers: %w", err)
		}
	}
	if len(q.Body) > 0 {
		var v any = q.Body
		if utf8.Valid(q.Body) {
			v = string(q.Body)
		}
		body, err := toTyped(v)
		if err != nil {
			return e, err
		}
		e.Body = &body
	}
	return e, nil
}

func (e exported) publishing() (amqp.Publishing, error) {
	p := amqp.Publishing{
		ContentType: e.Properties.ContentType, ContentEncoding: e.Properties.ContentEncoding,
		DeliveryMode: e.Properties.DeliveryMode, Priority: e.Properties.Priority,
		CorrelationId: e.Properties.CorrelationID, ReplyTo: e.Properties.ReplyTo,
		Expiration: e.Properties.Expiration, MessageId: e.Properties.MessageID,
		Type: e.Properties.Type, UserId: e.Properties.UserID, AppId: e.Properties.AppID,
	}
	if s := e.Properties.Timestamp; s != "" {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return p, fmt.Errorf("timestamp: %w", err)
		}
		p.Timestamp = time.Unix(n, 0)
	}
	for name, s := range e.Odd {
		b, err := hex.DecodeString(s)
		into := texts(&p)[name]
		if err != nil || into == nil {
			return p, fmt.Errorf("odd_properties: %q: no property, or no hex", name)
		}
		*into = string(b)
	}
	if len(e.Headers) > 0 {
		t, err := table(e.Headers, 0)
		if err != nil {
			return p, fmt.Errorf("headers: %w", err)
		}
		p.Headers = t
	}
	if e.Body != nil {
		v, err := e.Body.value()
		if err != nil {
			return p, fmt.Errorf("body: %w", err)
		}
		switch v := v.(type) {
		case string:
			p.Body = []byte(v)
		case []byte:
			p.Body = slices.Clone(v)
		default:
			return p, fmt.Errorf("body: want a string or bytes, not %s", e.Body.Type)
		}
	}
	return p, nil
}

// Marshal writes a message as JSON, on one line, with every type: see
// docs/parking.md for the form.
func Marshal(p *amqp.Publishing) ([]byte, error) {
	e, err := toExported(p)
	if err != nil {
		return nil, fmt.Errorf("write a message as JSON: %w", err)
	}
	return marshal(e)
}

// Unmarshal reads what Marshal wrote.
func Unmarshal(b []byte) (amqp.Publishing, error) {
	var e exported
	if err := strict(b, &e); err != nil {
		return amqp.Publishing{}, fmt.Errorf("read a message from JSON: %w", err)
	}
	p, err := e.publishing()
	if err != nil {
		return p, fmt.Errorf("read a message from JSON: %w", err)
	}
	return p, nil
}

// encode is Marshal for a digest, which takes what it can get.
func encode(p *amqp.Publishing) []byte {
	b, err := Marshal(p)
	if err != nil {
		return fmt.Appendf(nil, "%#v", p.Headers)
	}
	return b
}
