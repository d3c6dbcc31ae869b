package attempt

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// DeliveryModeAbsent is the value of Record.DeliveryMode for a message whose
// delivery-mode property was absent.
const DeliveryModeAbsent uint8 = 255

// Source says where and when a message was read.
type Source struct {
	Queue, Exchange, RoutingKey string
	At                          time.Time
	// OriginUnknown: Exchange and RoutingKey are not the producer's.
	OriginUnknown bool
}

// Record is the retry state that a message carries.
type Record struct {
	Count                                    int32
	Queue, ID, Exchange, RoutingKey, Policy  string
	OriginUnknown                            bool
	FirstFailedAt, FailedAt, DueAt, Deadline time.Time
	Delay                                    time.Duration
	Error, ErrorType, Reason                 string
	CC, BCC                                  []string
	Expiration, UserID                       string
	DeliveryMode                             uint8
	Then                                     string
	history                                  string
}

// Entry is one line of the history.
type Entry struct {
	N               int32
	At              time.Time
	Delay           time.Duration
	Error, Consumer string
}

// Failure describes a failed attempt.
type Failure struct {
	At                         time.Time
	Error, ErrorType, Consumer string
}

// Advice is what a consumer tells the router.
type Advice struct {
	Verdict          string
	After            time.Duration
	Error, ErrorType string
}

func (r Record) History() []Entry                         { panic("skeleton") }
func Read(p *amqp.Publishing, src Source) (Record, error) { panic("skeleton") }
func (r Record) Retry(f Failure, delay time.Duration, due time.Time, policy string) Record {
	panic("skeleton")
}

func (r Record) Snooze(f Failure, delay time.Duration, due time.Time, policy string) Record {
	panic("skeleton")
}
func (r Record) Park(f Failure, reason string) Record { panic("skeleton") }
func (r Record) Expired(now time.Time) bool           { panic("skeleton") }
func (r Record) Successor(p *amqp.Publishing, headerLimit int) amqp.Publishing {
	panic("skeleton")
}
func (r Record) Original(p *amqp.Publishing) amqp.Publishing { panic("skeleton") }
func FromDelivery(d *amqp.Delivery) amqp.Publishing          { panic("skeleton") }
func Size(t amqp.Table) int                                  { panic("skeleton") }
func HeaderSize(p *amqp.Publishing) int                      { panic("skeleton") }
func ReadAdvice(h amqp.Table) (Advice, error)                { panic("skeleton") }
