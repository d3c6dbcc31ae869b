package hopback

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// A handler's error decides what happens to the message. A plain error retries
// it by the policy; the functions below say something else. They are found
// through any wrapping, fmt.Errorf("…: %w") and errors.Join alike; where
// several are wrapped in each other, the outermost counts.

// Permanent marks an error that no retry can mend: the message is parked at
// once. Permanent(nil) is nil, so a check can be wrapped whole:
//
//	return hopback.Permanent(validate(order))
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &PermanentError{Err: err}
}

// RetryAfter retries the message after at least d, as an HTTP 429 with
// Retry-After asks for. It uses up one retry. The policy's MaxRetryAfter bounds
// d from above. A nil err is still a failure.
func RetryAfter(err error, d time.Duration) error {
	if err == nil {
		err = errors.New("retry asked for by the handler")
	}
	return &RetryAfterError{Err: err, After: d}
}

// Snooze brings the message back after at least d without using up a retry,
// for work that is not due yet rather than failed. The policy's MaxRetryAfter
// bounds d, and its MaxAge bounds how long a message can be snoozed in all.
func Snooze(d time.Duration) error { return &SnoozeError{For: d} }

// Discard drops the message: it is acknowledged, counted and logged, and kept
// nowhere. Discard(nil) is nil, which acknowledges the message as handled.
func Discard(err error) error {
	if err == nil {
		return nil
	}
	return &DiscardError{Err: err}
}

// PermanentError is what Permanent returns.
type PermanentError struct{ Err error }

func (e *PermanentError) Error() string { return e.Err.Error() }
func (e *PermanentError) Unwrap() error { return e.Err }

// RetryAfterError is what RetryAfter returns.
type RetryAfterError struct {
	Err   error
	After time.Duration
}

func (e *RetryAfterError) Error() string { return e.Err.Error() }
func (e *RetryAfterError) Unwrap() error { return e.Err }

// SnoozeError is what Snooze returns.
type SnoozeError struct{ For time.Duration }

func (e *SnoozeError) Error() string { return fmt.Sprintf("snoozed for %s", e.For) }

// DiscardError is what Discard returns.
type DiscardError struct{ Err error }

func (e *DiscardError) Error() string { return e.Err.Error() }
func (e *DiscardError) Unwrap() error { return e.Err }

// PanicError is the failure of a handler that panicked or called
// runtime.Goexit. It is retried like any other.
type PanicError struct {
	Value any    // what was passed to panic; nil after runtime.Goexit
	Stack []byte // bounded to 8 KiB
}

func (e *PanicError) Error() string {
	if e.Value == nil {
		return "handler called runtime.Goexit"
	}
	return fmt.Sprintf("handler panicked: %v", e.Value)
}

// Unwrap gives the panic's value where that is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// verdict is what a failure means.
type verdict struct {
	kind  verdictKind
	after time.Duration
}

type verdictKind int

const (
	retry verdictKind = iota
	retryAfter
	snooze
	park
	discard
)

// judge reads the verdict out of a handler's error.
func judge(err error, p *Policy) verdict {
	if v, found := explicitVerdict(err); found {
		return v
	}
	for _, target := range p.Permanent {
		if errors.Is(err, target) {
			return verdict{kind: park}
		}
	}
	if len(p.PermanentTypes) > 0 && anyError(err, func(e error) bool { return p.namesType(e) }) {
		return verdict{kind: park}
	}
	return verdict{kind: retry}
}

func explicitVerdict(err error) (v verdict, found bool) {
	found = anyError(err, func(e error) bool {
		switch e := e.(type) {
		case *PermanentError:
			v = verdict{kind: park}
		case *RetryAfterError:
			v = verdict{kind: retryAfter, after: e.After}
		case *SnoozeError:
			v = verdict{kind: snooze, after: e.For}
		case *DiscardError:
			v = verdict{kind: discard}
		default:
			return false
		}
		return true
	})
	return v, found
}

// anyError walks an error and all that it wraps, outermost first, until f says
// true. errors.As walks the same way but for one target type at a time, which
// would make the order of our own checks decide between two verdicts.
func anyError(err error, f func(error) bool) bool {
	if err == nil {
		return false
	}
	if f(err) {
		return true
	}
	switch u := err.(type) {
	case interface{ Unwrap() error }:
		return anyError(u.Unwrap(), f)
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(u.Unwrap(), func(e error) bool { return anyError(e, f) })
	}
	return false
}

func (p *Policy) namesType(err error) bool {
	name := typeName(err)
	return slices.ContainsFunc(p.PermanentTypes, func(t string) bool {
		return t == name || strings.HasSuffix(name, "."+t)
	})
}

// typeName is the type of an error without its pointer, "orders.ValidationError".
func typeName(err error) string { return strings.TrimLeft(reflect.TypeOf(err).String(), "*") }

// errorType names the first error in the chain whose type says something:
// wrappers made by fmt, errors and this package do not.
func errorType(err error) (name string) {
	defer func() { _ = recover() }() // Unwrap is the user's code
	anyError(err, func(e error) bool {
		switch t := typeName(e); t {
		case "fmt.wrapError", "fmt.wrapErrors", "errors.joinError", "hopback.PermanentError",
			"hopback.RetryAfterError", "hopback.DiscardError":
			return false
		default:
			name = t
			return true
		}
	})
	return name
}

// isError is errors.Is for an error whose methods are the user's code: one that
// panics is nothing.
func isError(err, target error) (is bool) {
	defer func() { _ = recover() }()
	return errors.Is(err, target)
}
