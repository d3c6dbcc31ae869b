package attempt

import (
	"errors"
	"fmt"
	"math"
)

// ErrBadCounter matches, by errors.Is, every *CounterError.
var ErrBadCounter = errors.New(HeaderCount + " is not a count")

// CounterError says that a counter holds something that is no count of
// retries. A message with such a counter is parked with ReasonBadCounter: a
// counter that silently became 0 would let the message loop for ever.
type CounterError struct {
	// Value is what the header held.
	Value any
	// Type is its AMQP type in the words of the contract: void, bool, int8,
	// uint8, int16, uint16, int32, uint32, int64, float32, float64, decimal,
	// string, bytes, timestamp, array or table.
	Type string
}

// Error names the header, the value (at most 64 bytes of it) and the type.
func (e *CounterError) Error() string {
	return fmt.Sprintf("reading %s: %s of type %s is not a count (an integer from 0 to %d)",
		HeaderCount, brief(e.Value), e.Type, int32(math.MaxInt32))
}

// Is reports whether target is ErrBadCounter.
func (e *CounterError) Is(target error) bool { return target == ErrBadCounter }

// ParseCount reads a counter of any AMQP type. It takes every integer width, a
// float or a decimal of integral value (3.0, or amqp.Decimal{Scale: 1, Value:
// 30}), and a string or bytes of ASCII digits, from 0 to 2147483647.
//
// Everything else is a *CounterError: a negative or larger number, a fraction,
// NaN and the infinities, a void, a boolean, a timestamp, a list, a table, an
// empty string, and a string with anything but digits in it, also a blank.
func ParseCount(v any) (int32, error) {
	// What we write ourselves is first: it is the hot path.
	if n, ok := v.(int32); ok && n >= 0 {
		return n, nil
	}
	n, ok := integer(v)
	if !ok || n < 0 || n > math.MaxInt32 {
		return 0, &CounterError{Value: v, Type: typeName(v)}
	}
	return int32(n), nil
}
