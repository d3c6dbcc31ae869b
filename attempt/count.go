package attempt

import "errors"

// ErrBadCounter matches every *CounterError.
var ErrBadCounter = errors.New("attempt: x-retry-count is not a count")

// CounterError says that a counter holds no count.
type CounterError struct {
	Value any
	Type  string
}

func (e *CounterError) Error() string        { return ErrBadCounter.Error() }
func (e *CounterError) Is(target error) bool { return target == ErrBadCounter }

// ParseCount reads a counter.
func ParseCount(v any) (int32, error) { panic("skeleton") }
