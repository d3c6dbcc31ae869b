package attempt

import (
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Verdicts that a consumer can hand to the router, the values of HeaderVerdict.
const (
	// VerdictPermanent: no retry can help; park the message at once.
	VerdictPermanent = "permanent"
	// VerdictDiscard: drop the message.
	VerdictDiscard = "discard"
)

// Advice is what a consumer in any language tells the router about a failure,
// by the headers of a message that it publishes to the router itself.
type Advice struct {
	// Verdict is VerdictPermanent, VerdictDiscard, or empty: retry by policy.
	Verdict string
	// After is the delay that the consumer asks for; 0 if it asks for none.
	After time.Duration
	// Error and ErrorType are those headers as they stand. On a message that
	// was only rejected, not published by its consumer, they are left from the
	// failure before.
	Error, ErrorType string
}

// AdviceError says that x-retry-verdict or x-retry-after cannot be read. The
// advice is then taken as if that header were absent.
type AdviceError struct {
	// Header is the name of the header.
	Header string
	// Value is what it held, Type its AMQP type as in CounterError.
	Value any
	Type  string
}

// Error names the header, the value (at most 64 bytes of it), the type and
// what is allowed.
func (e *AdviceError) Error() string {
	want := "a number of ms, 0 or more"
	if e.Header == HeaderVerdict {
		want = fmt.Sprintf("%q or %q", VerdictPermanent, VerdictDiscard)
	}
	return fmt.Sprintf("reading %s: %s of type %s is not %s", e.Header, brief(e.Value), e.Type, want)
}

// ReadAdvice reads what a consumer tells the router. After may have any type
// that ParseCount takes, and has no upper bound but the longest duration: the
// policy bounds it. The error joins an *AdviceError for each header that cannot
// be read; the rest of the advice holds nevertheless, so that a misspelt
// verdict becomes a retry and not a loss.
func ReadAdvice(h amqp.Table) (Advice, error) {
	var a Advice
	var errs []error
	if v, ok := h[HeaderVerdict]; ok {
		s, isText := text(v)
		if isText && (s == VerdictPermanent || s == VerdictDiscard) {
			a.Verdict = s
		} else {
			errs = append(errs, &AdviceError{Header: HeaderVerdict, Value: v, Type: typeName(v)})
		}
	}
	if v, ok := h[HeaderAfter]; ok {
		if ms, isInt := integer(v); isInt && ms >= 0 {
			a.After = span(ms)
		} else {
			errs = append(errs, &AdviceError{Header: HeaderAfter, Value: v, Type: typeName(v)})
		}
	}
	a.Error, _ = text(h[HeaderError])
	a.ErrorType, _ = text(h[HeaderErrorType])
	return a, errors.Join(errs...)
}
