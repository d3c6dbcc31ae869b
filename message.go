package hopback

import (
	"context"
	"maps"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
)

// Message is one delivery of a message to a handler. However often it was
// retried, body, properties, headers and routing key are those it was first
// published with; what Hopback knows of its life stands in the fields at the
// end and, as x-retry-* headers, in Headers.
type Message struct {
	// Body is for reading: its bytes are what a retry publishes again. Headers
	// is a copy, whose nested tables and lists are for reading too.
	Body    []byte
	Headers amqp.Table // nil when there are none

	ContentType     string
	ContentEncoding string
	DeliveryMode    uint8 // as first published: 1 transient, 2 persistent, 0 unset
	Priority        uint8
	CorrelationID   string
	ReplyTo         string
	Expiration      string // as first published; ms
	MessageID       string
	Timestamp       time.Time
	Type            string
	UserID          string
	AppID           string

	// Exchange and RoutingKey are where the message was first published.
	Exchange   string
	RoutingKey string

	// Queue is the work queue that it was read from.
	Queue string

	// Redelivered is RabbitMQ's own flag: the message was handed out before
	// without being settled, by a crash or a lost connection.
	Redelivered bool

	// Attempt is the number of this run of the handler, from 1. Retries is one
	// less: how often the message came back after a failure.
	Attempt int
	Retries int

	// RetryID is the same for all attempts and for duplicates of one message;
	// empty before the first failure. With Attempt it tells a duplicate. Where
	// the message has no MessageID, copies that come of its very first failure
	// have different ones: nothing then says that they are one message.
	RetryID string

	// FirstFailedAt is zero before the first failure. LastError is the text of
	// the last one.
	FirstFailedAt time.Time
	LastError     string

	record attempt.Record
}

// History lists the failures so far, oldest first: the first and the last nine.
func (m *Message) History() []attempt.Entry { return m.record.History() }

// Handler does the work on one message. nil acknowledges it; any error is a
// failure and is retried by the route's policy, unless Permanent, RetryAfter,
// Snooze or Discard says something else. A panic is a failure like any other.
//
// The context ends when ConsumerConfig.AttemptTimeout has passed, or when the
// consumer is shutting down and ran out of time.
type Handler interface {
	Handle(ctx context.Context, m *Message) error
}

// HandlerFunc is a function as a Handler.
type HandlerFunc func(ctx context.Context, m *Message) error

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, m *Message) error { return f(ctx, m) }

// newMessage is the handler's view of a delivery and of its record.
func newMessage(p *amqp.Publishing, rec attempt.Record, queue string, redelivered bool) *Message {
	m := &Message{
		Body: p.Body, Headers: maps.Clone(p.Headers),
		ContentType: p.ContentType, ContentEncoding: p.ContentEncoding,
		DeliveryMode: p.DeliveryMode, Priority: p.Priority,
		CorrelationID: p.CorrelationId, ReplyTo: p.ReplyTo,
		Expiration: p.Expiration, MessageID: p.MessageId, Timestamp: p.Timestamp,
		Type: p.Type, UserID: p.UserId, AppID: p.AppId,
		Exchange: rec.Exchange, RoutingKey: rec.RoutingKey,
		Queue: queue, Redelivered: redelivered,
		Attempt: int(rec.Count) + 1, Retries: int(rec.Count),
		RetryID: rec.ID, FirstFailedAt: rec.FirstFailedAt, LastError: rec.Error,
		record: rec,
	}
	if rec.Count > 0 || rec.ID != "" {
		// Retried messages come back persistent and without what the broker
		// would act on; the record remembers.
		switch rec.DeliveryMode {
		case 0: // was persistent, as it is now
		case attempt.DeliveryModeAbsent:
			m.DeliveryMode = 0
		default:
			m.DeliveryMode = rec.DeliveryMode
		}
		m.Expiration, m.UserID = rec.Expiration, rec.UserID
	}
	return m
}
