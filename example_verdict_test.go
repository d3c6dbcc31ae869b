package hopback_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hopback/hopback"
)

// Permanent takes a check whole, since Permanent(nil) is nil. The error stays
// what it was for errors.Is and errors.As.
func ExamplePermanent() {
	errNoCustomer := errors.New("no such customer")
	check := func(customer string) error {
		if customer == "" {
			return errNoCustomer
		}
		return nil
	}
	fmt.Println(hopback.Permanent(check("ada")))

	err := fmt.Errorf("ship: %w", hopback.Permanent(check("")))
	var permanent *hopback.PermanentError
	fmt.Println(err, errors.As(err, &permanent), errors.Is(err, errNoCustomer))
	// Output:
	// <nil>
	// ship: no such customer true true
}

// RetryAfter takes the delay that another service asks for.
func ExampleRetryAfter() {
	handler := hopback.HandlerFunc(func(context.Context, *hopback.Message) error {
		retryAfter := 30 * time.Second // of an HTTP 429
		return hopback.RetryAfter(errors.New("rate limited"), retryAfter)
	})
	err := handler.Handle(context.Background(), &hopback.Message{})
	var after *hopback.RetryAfterError
	if errors.As(err, &after) {
		fmt.Println(err, after.After)
	}
	// Output:
	// rate limited 30s
}

// Snooze is for work that is not due yet: it uses up no retry.
func ExampleSnooze() {
	due := time.Now().Add(time.Hour)
	handler := hopback.HandlerFunc(func(context.Context, *hopback.Message) error {
		if wait := time.Until(due); wait > 0 {
			return hopback.Snooze(wait.Round(time.Minute))
		}
		return nil
	})
	fmt.Println(handler.Handle(context.Background(), &hopback.Message{}))
	// Output:
	// snoozed for 1h0m0s
}

// Discard drops what nobody needs any more. It is logged and told to the
// Observer, with the error as its reason.
func ExampleDiscard() {
	err := hopback.Discard(errors.New("a newer one is here"))
	var discard *hopback.DiscardError
	fmt.Println(err, errors.As(err, &discard))
	// Output:
	// a newer one is here true
}
