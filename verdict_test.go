package hopback

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

type ValidationError struct{ Field string }

func (e *ValidationError) Error() string { return e.Field + " is missing" }

var errSentinel = errors.New("sentinel")

func TestJudge(t *testing.T) {
	plain := errors.New("down")
	policy := &Policy{Permanent: []error{errSentinel}, PermanentTypes: []string{"ValidationError"}}
	for _, c := range []struct {
		name string
		err  error
		want verdict
	}{
		{"plain", plain, verdict{kind: retry}},
		{"permanent", Permanent(plain), verdict{kind: park}},
		{"permanent, wrapped twice", fmt.Errorf("a: %w", fmt.Errorf("b: %w", Permanent(plain))), verdict{kind: park}},
		{"permanent, joined", errors.Join(plain, Permanent(plain)), verdict{kind: park}},
		{"retry after", RetryAfter(plain, time.Minute), verdict{kind: retryAfter, after: time.Minute}},
		{"retry after without an error is still a failure", RetryAfter(nil, time.Minute), verdict{kind: retryAfter, after: time.Minute}},
		{"snooze", fmt.Errorf("not yet: %w", Snooze(time.Second)), verdict{kind: snooze, after: time.Second}},
		{"discard", Discard(plain), verdict{kind: discard}},
		{"the outermost counts", Discard(fmt.Errorf("x: %w", Permanent(plain))), verdict{kind: discard}},
		{"the outermost counts, the other way round", Permanent(Discard(plain)), verdict{kind: park}},
		{"an error the policy lists", fmt.Errorf("x: %w", errSentinel), verdict{kind: park}},
		{"a type the policy lists", fmt.Errorf("x: %w", &ValidationError{"id"}), verdict{kind: park}},
		{"an explicit verdict beats the policy's list", RetryAfter(&ValidationError{"id"}, time.Second), verdict{kind: retryAfter, after: time.Second}},
		{"a timeout", context.DeadlineExceeded, verdict{kind: retry}},
		{"a panic", &PanicError{Value: "boom"}, verdict{kind: retry}},
		{"a panic with a permanent error", &PanicError{Value: Permanent(plain)}, verdict{kind: park}},
	} {
		if got := judge(c.err, policy); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestNoFailureIsNoVerdict(t *testing.T) {
	if err := Permanent(nil); err != nil {
		t.Errorf("Permanent(nil) = %v: a check wrapped whole must pass", err)
	}
	if err := Discard(nil); err != nil {
		t.Errorf("Discard(nil) = %v", err)
	}
}

func TestErrorTypeNamesWhatSaysSomething(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{Permanent(fmt.Errorf("order: %w", &ValidationError{"id"})), "hopback.ValidationError"},
		{errors.Join(&ValidationError{"id"}, errSentinel), "hopback.ValidationError"},
		{errors.New("down"), "errors.errorString"},
		{RetryAfter(context.DeadlineExceeded, 1), "context.deadlineExceededError"},
		{&PanicError{Value: 1}, "hopback.PanicError"},
		{Snooze(1), "hopback.SnoozeError"},
	} {
		if got := errorType(c.err); got != c.want {
			t.Errorf("errorType(%v) = %q, want %q", c.err, got, c.want)
		}
	}
}

type hostileError struct{}

func (hostileError) Error() string { panic("no text") }

func TestAnErrorsOwnPanicHarmsNothing(t *testing.T) {
	if got := message(hostileError{}); got == "" {
		t.Error("no text at all")
	}
}

// A codec that asks others may know that the next attempt can succeed.
func TestACodecsVerdictCounts(t *testing.T) {
	h := Handle(func(context.Context, int, *Message) error { return nil }, brokenCodec{})
	if got := judge(h.Handle(context.Background(), &Message{}), &Policy{}); got.kind != retryAfter {
		t.Errorf("verdict %+v, want the codec's own", got)
	}
}

type brokenCodec struct{}

func (brokenCodec) Decode(*Message, any) error {
	return RetryAfter(errors.New("the schema registry is away"), time.Second)
}
