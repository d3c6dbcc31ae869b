package integration

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hopback/hopback"
)

// A handler's error says what shall become of the message, and an Observer is
// told what became of it.
func Example_verdicts() {
	s := newStage("jobs")
	defer s.close()

	told := teller{news: make(chan string, 10)}
	client, err := hopback.New(hopback.Config{URL: s.URL, Logger: quiet, Observer: told})
	must(err)
	defer client.Close(context.Background()) //nolint:errcheck // it waits for nothing here

	consumer, err := client.NewConsumer(hopback.ConsumerConfig{
		Route: hopback.Route{Queue: "jobs", Policy: hopback.Policy{
			MaxRetryAfter: time.Second,
			Schedule:      hopback.Schedule{Base: 100 * time.Millisecond, Max: time.Second},
		}},
		Handler: hopback.HandlerFunc(func(_ context.Context, m *hopback.Message) error {
			if m.RetryID != "" { // it was here before
				return nil
			}
			switch m.MessageID {
			case "broken":
				return hopback.Permanent(errors.New("no such customer"))
			case "limited":
				return hopback.RetryAfter(errors.New("429 Too Many Requests"), 300*time.Millisecond)
			case "early":
				return hopback.Snooze(200 * time.Millisecond)
			case "stale":
				return hopback.Discard(errors.New("a newer one is here"))
			}
			return nil
		}),
	})
	must(err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- consumer.Run(ctx) }()
	for _, id := range []string{"fine", "broken", "limited", "early", "stale"} {
		s.publish("", "jobs", id, "")
	}
	for range 7 {
		fmt.Println(<-told.news)
	}
	stop()
	must(<-ended)
	// Unordered output:
	// fine: handled in attempt 1
	// broken: parked as permanent: no such customer
	// limited: waits 300ms (retry-after)
	// limited: handled in attempt 2
	// early: waits 200ms (snooze)
	// early: handled in attempt 1
	// stale: discarded: a newer one is here
}

// teller is an Observer; what it does not care about is left to NopObserver.
type teller struct {
	hopback.NopObserver
	news chan string
}

func (t teller) Retried(e hopback.Retried) {
	t.news <- fmt.Sprintf("%s: waits %s (%s)", e.MessageID, e.Delay, e.Reason)
}

func (t teller) Handled(e hopback.Handled) {
	t.news <- fmt.Sprintf("%s: handled in attempt %d", e.MessageID, e.Attempt)
}

func (t teller) Parked(e hopback.Parked) {
	t.news <- fmt.Sprintf("%s: parked as %s: %v", e.MessageID, e.Reason, e.Err)
}

func (t teller) Discarded(e hopback.Discarded) {
	t.news <- fmt.Sprintf("%s: discarded: %v", e.MessageID, e.Err)
}

// Handle decodes payloads; a body that cannot be decoded is parked at once,
// since it will not be better the next time.
func Example_typedPayloads() {
	s := newStage("payments")
	defer s.close()

	client, err := hopback.New(hopback.Config{URL: s.URL, Logger: quiet})
	must(err)
	defer client.Close(context.Background()) //nolint:errcheck // it waits for nothing here

	type Payment struct {
		Amount   int    `json:"amount"`
		Currency string `json:"currency"`
	}
	handled := make(chan struct{}, 1)
	consumer, err := client.NewConsumer(hopback.ConsumerConfig{
		Route: hopback.Route{Queue: "payments"},
		Handler: hopback.Handle(func(_ context.Context, p Payment, m *hopback.Message) error {
			fmt.Printf("%s: %d %s\n", m.MessageID, p.Amount, p.Currency)
			handled <- struct{}{}
			return nil
		}),
	})
	must(err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- consumer.Run(ctx) }()
	s.publish("", "payments", "p-1", `{"amount": 7, "currency": "EUR"}`)
	<-handled
	s.publish("", "payments", "p-2", `<amount>7</amount>`)
	d := s.take("payments.parked")
	fmt.Printf("%s: %s, %s\n", d.MessageId, d.Headers["x-retry-reason"], d.Headers["x-retry-error-type"])
	stop()
	must(<-ended)
	// Output:
	// p-1: 7 EUR
	// p-2: permanent, hopback.DecodeError
}
