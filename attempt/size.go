package attempt

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// headerFixed is what every content header carries before its properties:
// class 2, weight 2, body size 8, property flags 2.
const headerFixed = 14

// Size is the number of bytes that a field table takes on the wire, its own
// length prefix of four included, as amqp091-go writes it. A value whose type
// amqp091-go refuses counts as nothing.
func Size(t amqp.Table) int {
	n := 4
	for k, v := range t {
		n += 1 + len(k) + fieldSize(v)
	}
	return n
}

func fieldSize(v any) int {
	switch v := v.(type) {
	case nil:
		return 1
	case bool, int8, uint8:
		return 2
	case int16, uint16:
		return 3
	case int, int32, uint32, float32: // int is 32 bits on the wire
		return 5
	case amqp.Decimal:
		return 6
	case string:
		return 5 + len(v)
	case []byte:
		return 5 + len(v)
	case []any:
		n := 5
		for _, e := range v {
			n += fieldSize(e)
		}
		return n
	case amqp.Table:
		return 1 + Size(v)
	case map[string]any:
		return 1 + Size(v)
	case int64, float64, time.Time:
		return 9
	}
	return 0
}

// HeaderSize is the number of bytes of the content header that amqp091-go
// writes for p: properties and headers, without the frame around them. A
// message whose content header is larger than the negotiated frame size less 8
// cannot be published.
func HeaderSize(p *amqp.Publishing) int {
	return propertySize(p) + tableProperty(p.Headers)
}

// tableProperty is the size of the headers property: amqp091-go leaves an empty
// table away.
func tableProperty(t amqp.Table) int {
	if len(t) == 0 {
		return 0
	}
	return Size(t)
}

// propertySize is HeaderSize without the headers. An empty property is not
// written.
func propertySize(p *amqp.Publishing) int {
	n := headerFixed
	for _, s := range [...]string{
		p.ContentType, p.ContentEncoding, p.CorrelationId, p.ReplyTo,
		p.Expiration, p.MessageId, p.Type, p.UserId, p.AppId,
	} {
		if s != "" {
			n += 1 + len(s)
		}
	}
	if p.DeliveryMode > 0 {
		n++
	}
	if p.Priority > 0 {
		n++
	}
	if !p.Timestamp.IsZero() {
		n += 8
	}
	return n
}
