package native

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	amqp10 "github.com/Azure/go-amqp"
	amqp "github.com/rabbitmq/amqp091-go"
)

// ErrAnnotation says that a settlement was not sent, since an annotation of it
// would do harm: RabbitMQ ends the session, or can never deliver the message
// over AMQP 1.0 again. The message is still unsettled.
var ErrAnnotation = errors.New("cannot annotate the message")

// annDeliveryTime is when RabbitMQ 4.3 delivers a message again, in epoch ms by
// the clock of the node that leads the queue.
const annDeliveryTime = "x-opt-delivery-time"

// encodeAnnotations checks headers that shall be set by a settlement.
//
// RabbitMQ 4.3 keeps of an annotation only whether it is a number, a string or
// a boolean. A float or a null is taken, and then every delivery of the message
// over AMQP 1.0 crashes its session, and the connection with it; lists and tables
// are not shown to AMQP 0-9-1 consumers. A key that does not begin with x- ends
// the session at once, and a settlement larger than a frame the connection.
func encodeAnnotations(headers amqp.Table) (amqp10.Annotations, error) {
	a := make(amqp10.Annotations, len(headers)+1)
	size := 0
	for k, v := range headers {
		size += len(k) + 16
		if !strings.HasPrefix(k, "x-") || len(k) > 255 || strings.HasPrefix(k, "x-opt-") {
			return nil, fmt.Errorf("%w: the key %q must begin with x-, not with x-opt-, and have at most 255 bytes", ErrAnnotation, k)
		}
		switch v := v.(type) {
		case string:
			if !utf8.ValidString(v) {
				return nil, fmt.Errorf("%w: %s is no UTF-8", ErrAnnotation, k)
			}
			a[k] = v
			size += len(v)
		case bool:
			a[k] = v
		case int64:
			a[k] = v
		case int32:
			a[k] = int64(v)
		case int16:
			a[k] = int64(v)
		case int8:
			a[k] = int64(v)
		case uint32:
			a[k] = int64(v)
		case uint16:
			a[k] = int64(v)
		case uint8:
			a[k] = int64(v)
		default:
			return nil, fmt.Errorf("%w: %s is a %T; a string, a boolean or an integer can be kept", ErrAnnotation, k, v)
		}
	}
	if size > maxAnnotations {
		return nil, fmt.Errorf("%w: its annotations take %d bytes, at most %d can be sent", ErrAnnotation, size, maxAnnotations)
	}
	return a, nil
}

// maxAnnotations is half of the largest frame that RabbitMQ takes, unless its
// frame_max says otherwise.
const maxAnnotations = 64 << 10

// millis is a time in epoch ms, rounded up so that nothing comes early.
func millis(t time.Time) int64 {
	ms := t.UnixMilli()
	if t.Nanosecond()%int(time.Millisecond) != 0 && ms < math.MaxInt64 {
		ms++
	}
	return ms
}
