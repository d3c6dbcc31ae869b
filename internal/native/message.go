package native

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	amqp10 "github.com/Azure/go-amqp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
)

// view is a message as a consumer over AMQP 0-9-1 sees it.
type view struct {
	msg         amqp.Publishing
	exchange    string
	routingKey  string
	redelivered bool
}

// Annotations of RabbitMQ's that are fields in AMQP 0-9-1, and not headers.
const (
	annExchange   = "x-exchange"
	annRoutingKey = "x-routing-key"
	annCC         = "x-cc"
	annDeaths     = "x-opt-deaths"
	annReceived   = "x-opt-rabbitmq-received-time"
	annType       = "x-basic-type"
	annMode       = "x-basic-delivery-mode"
	annPriority   = "x-basic-priority"
	annExpiration = "x-basic-expiration"
	annAcquired   = "x-acquired-count"
)

// typeAMQP10 is the type property that RabbitMQ gives over AMQP 0-9-1 to a
// message whose body is no plain data. The body is then AMQP 1.0 encoded.
const typeAMQP10 = "amqp-1.0"

// convert turns a message into what RabbitMQ would have delivered over AMQP
// 0-9-1 (mc_amqpl of 4.3), and undoes what its way to AMQP 1.0 did to one that
// was published over 0-9-1.
func convert(m *amqp10.Message) (view, error) {
	v := view{}
	h := amqp.Table{}
	p := &v.msg
	if m.Header != nil {
		if m.Header.Durable {
			p.DeliveryMode = amqp.Persistent
		}
		switch m.Header.Priority {
		case markedPriority:
			p.Priority = defaultPriority
		case defaultPriority: // none
		default:
			p.Priority = m.Header.Priority
		}
		if m.Header.TTL > 0 {
			p.Expiration = strconv.FormatInt(m.Header.TTL.Milliseconds(), 10)
		}
	}
	for k, value := range m.ApplicationProperties {
		if len(k) <= 255 {
			h[k] = header(value)
		}
	}
	v.annotations(m, h)
	if m.Properties != nil {
		v.properties(m.Properties, h)
	}
	if err := v.body(m); err != nil {
		return v, err
	}
	if len(h) > 0 {
		p.Headers = h
	}
	return v, nil
}

// annotations reads the message annotations: headers that begin with x-, and
// what has no place in the other sections. One that was set by a settlement
// counts more than a header of the same name.
func (v *view) annotations(m *amqp10.Message, h amqp.Table) {
	for key, value := range m.Annotations {
		k, ok := key.(string)
		if !ok {
			continue
		}
		switch k {
		case annExchange:
			v.exchange, _ = value.(string)
		case annRoutingKey:
			v.routingKey, _ = value.(string)
		case annCC:
			h["CC"] = header(value)
		case annDeaths: // below
		case annReceived:
			if t, ok := value.(time.Time); ok {
				h["timestamp_in_ms"] = t.UnixMilli()
			}
		case annType:
			v.msg.Type, _ = value.(string)
		case annMode, annPriority, annExpiration:
			v.older(k, value, m.Header == nil)
		default:
			if strings.HasPrefix(k, "x-") && len(k) <= 255 {
				h[k] = header(value)
			}
		}
	}
	if deaths := deathHeader(m.Annotations[annDeaths]); deaths != nil {
		h["x-death"] = deaths // over one that a client wrote
	}
	acquired, _ := h[annAcquired].(int64)
	// A message that died elsewhere has an acquirer before it, too, and a client
	// can write the header.
	v.redelivered = acquired > 0 && (m.Header == nil || !m.Header.FirstAcquirer)
	// The broker keeps annotations of a settlement as numbers without a width.
	if n, ok := h[attempt.HeaderCount].(int64); ok && n == int64(int32(n)) {
		h[attempt.HeaderCount] = int32(n)
	}
}

// older reads what RabbitMQ 3.13 kept in annotations, in messages that are
// still there.
func (v *view) older(k string, value any, noHeader bool) {
	if !noHeader {
		return
	}
	switch n := header(value).(type) {
	case uint8:
		if k == annMode {
			v.msg.DeliveryMode = n
		} else if k == annPriority {
			v.msg.Priority = n
		}
	case string:
		if k == annExpiration {
			v.msg.Expiration = n
		}
	}
}

func (v *view) properties(p *amqp10.MessageProperties, h amqp.Table) {
	v.msg.MessageId = identifier(p.MessageID, "x-message-id", h)
	v.msg.CorrelationId = identifier(p.CorrelationID, "x-correlation-id", h)
	if user := p.UserID; len(user) <= 255 && text(user) {
		v.msg.UserId = string(user)
	}
	v.msg.ReplyTo = short(p.ReplyTo)
	if queue, ok := strings.CutPrefix(v.msg.ReplyTo, "/queues/"); ok {
		if v.msg.ReplyTo, _ = url.PathUnescape(queue); len(v.msg.ReplyTo) > 255 {
			v.msg.ReplyTo = ""
		}
	}
	if p.ReplyTo != nil && len(*p.ReplyTo) > 255 {
		// Its percent-encoding is longer than it was.
		if queue, ok := strings.CutPrefix(*p.ReplyTo, "/queues/"); ok {
			if name, err := url.PathUnescape(queue); err == nil && len(name) <= 255 {
				v.msg.ReplyTo = name
			}
		}
	}
	v.msg.AppId = short(p.GroupID)
	v.msg.ContentType, v.msg.ContentEncoding = deref(p.ContentType), deref(p.ContentEncoding)
	if p.CreationTime != nil {
		// AMQP 0-9-1 has whole seconds.
		v.msg.Timestamp = time.Unix(floorSeconds(*p.CreationTime), 0)
	}
}

// body joins the data sections. Any other body is what an AMQP 0-9-1 consumer
// gets of it: the encoded section, and a type that says so.
func (v *view) body(m *amqp10.Message) error {
	switch {
	case len(m.Data) == 1:
		v.msg.Body = m.Data[0]
	case len(m.Data) > 1:
		v.msg.Body = bytes.Join(m.Data, nil)
	default:
		encoded := amqp10.Message{Sequence: m.Sequence, Footer: m.Footer}
		if m.Sequence == nil {
			if encoded.Value = m.Value; m.Value == nil {
				encoded.Value = amqp10.Null{}
			}
		}
		b, err := encoded.MarshalBinary()
		if err != nil {
			return fmt.Errorf("encode the body: %w", err)
		}
		v.msg.Body, v.msg.Type = b, typeAMQP10
	}
	return nil
}

// identifier is a message or correlation id. What is no short string in AMQP
// 0-9-1 becomes a header there.
func identifier(id any, key string, h amqp.Table) string {
	switch id := id.(type) {
	case string:
		if len(id) <= 255 {
			return id
		}
		h[key] = id
	case uint64:
		return strconv.FormatUint(id, 10)
	case amqp10.UUID:
		return urn(id)
	case []byte:
		h[key] = id
	}
	return ""
}

func urn(id amqp10.UUID) string {
	s := hex.EncodeToString(id[:])
	return "urn:uuid:" + s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:]
}

// maxScanned is up to which length RabbitMQ looks whether a string is UTF-8; a
// longer one it takes for binary without a look (mc_util, UTF8_SCAN_LIMIT).
const maxScanned = 4096

// header gives a value the type that amqp091-go gives it.
func header(value any) any {
	switch v := value.(type) {
	case []byte:
		// A byte array, or a string that is no UTF-8, holds a NUL or is long:
		// RabbitMQ makes the same of them. Long text is text.
		if len(v) > maxScanned && text(v) {
			return string(v)
		}
		return v
	case time.Time:
		return time.Unix(floorSeconds(v), 0)
	case uint64:
		return int64(v)
	case amqp10.UUID:
		return urn(v)
	case amqp10.Symbol:
		return string(v)
	case map[string]any:
		t := make(amqp.Table, len(v))
		for k, e := range v {
			t[k] = header(e)
		}
		return t
	case map[any]any:
		t := make(amqp.Table, len(v))
		for k, e := range v {
			t[fmt.Sprint(k)] = header(e)
		}
		return t
	case []any:
		return list(v)
	case []string:
		return list(v)
	case []amqp10.Symbol:
		return list(v)
	case []int64:
		return list(v)
	case []int32:
		return list(v)
	case []uint64:
		return list(v)
	case []bool:
		return list(v)
	case []map[any]any:
		return list(v)
	case amqp10.Null:
		return nil
	}
	if amqp.Table(map[string]any{"": value}).Validate() != nil {
		return fmt.Sprint(value) // an array of a type that no message of RabbitMQ's own has
	}
	return value
}

func list[T any](v []T) []any {
	var l []any // nil when empty, as amqp091-go has it
	for _, e := range v {
		l = append(l, header(e))
	}
	return l
}

// deathHeader turns RabbitMQ's record of dead-letterings into the x-death of
// AMQP 0-9-1. What is none, a client's own annotation, gives nil.
func deathHeader(value any) []any {
	maps, _ := value.([]map[any]any)
	if len(maps) == 0 {
		return nil
	}
	deaths := make([]any, len(maps))
	for i, m := range maps {
		t := amqp.Table{}
		for key, e := range m {
			switch k := fmt.Sprint(key); k {
			case "ttl":
				t["original-expiration"] = fmt.Sprint(e)
			case "first-time":
				t["time"] = header(e)
			case "last-time":
			default:
				t[k] = header(e)
			}
		}
		deaths[i] = t
	}
	return deaths
}

// text reports whether RabbitMQ would take it for a string: UTF-8 without NUL.
func text(b []byte) bool { return utf8.Valid(b) && bytes.IndexByte(b, 0) < 0 }

// floorSeconds is the whole seconds of a time with milliseconds.
func floorSeconds(t time.Time) int64 { return t.Truncate(time.Second).Unix() }

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// short is a short string of AMQP 0-9-1; a longer one is left out.
func short(s *string) string {
	if s == nil || len(*s) > 255 {
		return ""
	}
	return *s
}
