package parking

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
)

// Message is a message that was read from a queue.
type Message struct {
	// ID is the same at every look: the x-retry-id, or for a message that Hopback
	// never had in its hands a digest of it (32 hexadecimal digits as well), which
	// becomes its x-retry-id when it is replayed or edited. Messages that are alike in
	// all that is theirs have the same digest.
	ID string
	// MessageID is the application's own id; it may be empty.
	MessageID string

	// Queue is the work queue that it failed in; empty where nobody knows.
	Queue string
	// ParkedIn is the queue that it was read from.
	ParkedIn string

	// Reason is why it rests here: one of attempt's reasons, or RabbitMQ's own
	// (rejected, expired, maxlen, delivery_limit) in other people's dead letter
	// queues.
	Reason string
	// Error and ErrorType are the last failure's.
	Error, ErrorType string
	// Policy is the name of the policy that chose its last delay.
	Policy string
	// Retries so far; 0 as well where its counter is none, which BadCounter says.
	Retries    int
	BadCounter bool

	// FirstFailedAt is when it first failed, ParkedAt when it came here. Zero where
	// nobody knows.
	FirstFailedAt, ParkedAt time.Time

	// Exchange and RoutingKey are where it was first published, unless
	// OriginUnknown is set.
	Exchange, RoutingKey string
	OriginUnknown        bool

	// Size of the body in bytes.
	Size int

	// Delivery is the message as it was read: properties, headers with their AMQP
	// types, body. Nothing of it may be changed, and it must not be settled.
	Delivery *amqp.Delivery

	record attempt.Record
}

// describe reads what a delivery says about itself.
func describe(queue string, d *amqp.Delivery) *Message {
	p := attempt.FromDelivery(d)
	rec, err := attempt.Read(&p, attempt.Source{RoutingKey: d.RoutingKey, Exchange: d.Exchange, OriginUnknown: true, At: time.Now()})
	m := &Message{
		ID: rec.ID, MessageID: d.MessageId, Queue: rec.Queue, ParkedIn: queue,
		Reason: rec.Reason, Error: rec.Error, ErrorType: rec.ErrorType, Policy: rec.Policy,
		Retries: int(rec.Count), BadCounter: err != nil,
		FirstFailedAt: rec.FirstFailedAt, ParkedAt: rec.FailedAt,
		Exchange: rec.Exchange, RoutingKey: rec.RoutingKey, OriginUnknown: rec.OriginUnknown,
		Size: len(d.Body), Delivery: d, record: rec,
	}
	if rec.Queue == "" || rec.Reason == "" {
		m.foreign(&p)
	}
	if m.ID == "" { // edited here, or replayed to an exchange
		m.ID, _ = d.Headers[attempt.HeaderID].(string)
	}
	if m.ID == "" {
		m.ID = digest(d)
	}
	return m
}

// others are the headers in which other people's retry code leaves what went
// wrong.
var others = []struct{ err, kind string }{
	{"x-exception-message", "x-exception-type"}, // Spring AMQP
	{"MT-Fault-Message", "MT-Fault-ExceptionType"},
	{"NServiceBus.ExceptionInfo.Message", "NServiceBus.ExceptionInfo.ExceptionType"},
}

// foreign reads what RabbitMQ and other people's code know of a message whose
// record does not say why it rests here.
func (m *Message) foreign(p *amqp.Publishing) {
	deaths, _ := p.Headers["x-death"].([]any)
	if len(deaths) > 0 {
		newest, _ := deaths[0].(amqp.Table)
		if m.Reason == "" {
			m.Reason, _ = newest["reason"].(string)
		}
		if at, ok := newest["time"].(time.Time); ok && at.After(m.ParkedAt) {
			m.ParkedAt = at.UTC()
		}
		if m.Queue == "" {
			m.Queue, _ = newest["queue"].(string)
			m.record.Queue = m.Queue
		}
		oldest, _ := deaths[len(deaths)-1].(amqp.Table)
		exchange, ok := oldest["exchange"].(string)
		if keys, _ := oldest["routing-keys"].([]any); m.OriginUnknown && ok && len(keys) > 0 {
			if key, ok := keys[0].(string); ok {
				m.Exchange, m.RoutingKey, m.OriginUnknown = exchange, key, false
				m.record.Exchange, m.record.RoutingKey, m.record.OriginUnknown = exchange, key, false
			}
		}
		if m.FirstFailedAt.IsZero() {
			if at, ok := oldest["time"].(time.Time); ok {
				m.FirstFailedAt = at.UTC()
			}
		}
	}
	for _, o := range others {
		if m.Error == "" {
			m.Error, _ = p.Headers[o.err].(string)
		}
		if m.ErrorType == "" {
			m.ErrorType, _ = p.Headers[o.kind].(string)
		}
	}
}

// passing are the headers that change from look to look.
var passing = []string{"x-delivery-count", "x-acquired-count"}

// digest is the ID of a message that has none.
func digest(d *amqp.Delivery) string {
	h := sha256.New()
	p := attempt.FromDelivery(d)
	headers := make(amqp.Table, len(p.Headers))
	for k, v := range p.Headers {
		headers[k] = v
	}
	for _, k := range passing {
		delete(headers, k)
	}
	p.Headers, p.Body = headers, nil
	h.Write(encode(&p)) // keys in their order
	h.Write([]byte(d.Exchange + "\x00" + d.RoutingKey + "\x00"))
	h.Write(d.Body)
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// History returns the failed attempts and replays that the message remembers,
// oldest first.
func (m *Message) History() []attempt.Entry { return m.record.History() }

// Original gives the message as its producer published it.
func (m *Message) Original() amqp.Publishing {
	p := attempt.FromDelivery(m.Delivery)
	return m.record.Original(&p)
}

// ReplayedAt is when the message was last replayed, as far as its history tells;
// zero where it was not.
func (m *Message) ReplayedAt() time.Time {
	h := m.History()
	for i := len(h) - 1; i >= 0; i-- {
		if h[i].Replay() {
			return h[i].At
		}
	}
	return time.Time{}
}
