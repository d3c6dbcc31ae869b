package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hopback/hopback"
)

// handler is the consumer's code of one route: it reads an order and pays it.
func (s *side) handler() hopback.Handler {
	pay := hopback.Handle(s.pay)
	return hopback.HandlerFunc(func(ctx context.Context, m *hopback.Message) (err error) {
		at := time.Now()
		returned := false
		defer func() { // a panic passes through
			if m.RetryID != "" {
				s.retries.add(at, outcomeOf(err, returned))
			}
		}()
		if due, ok := m.Headers["x-retry-due-at"].(int64); ok && m.RetryID != "" {
			s.ledger.late(at.Sub(time.UnixMilli(due)))
		}
		err = pay.Handle(ctx, m)
		returned = true
		return err
	})
}

// outcomeOf sorts a retry for its bar.
func outcomeOf(err error, returned bool) outcome {
	switch {
	case returned && err == nil:
		return handled
	case errors.Is(err, errOverloaded):
		return refused
	default:
		return failed
	}
}

// answers are what the banks said last.
var answers = map[string]*struct{ status string }{}

// pay is what a handler looks like.
func (s *side) pay(ctx context.Context, o order, m *hopback.Message) error {
	if o.Amount <= 0 {
		return hopback.Permanent(fmt.Errorf("order %s: the amount is %d", o.ID, o.Amount))
	}
	first := m.RetryID == "" // so a snooze, which uses up no retry, comes once too
	switch o.Bank {
	case bankGone:
		return fmt.Errorf("order %s: the bank does not answer", o.ID)
	case bankBusy:
		if first {
			return hopback.RetryAfter(fmt.Errorf("order %s: 429 too many requests", o.ID), 2*time.Second)
		}
	case bankNotDue:
		if first {
			return hopback.Snooze(2 * time.Second)
		}
	case bankCrashes:
		if first {
			_ = answers[o.Bank].status // of a bank that nobody entered
		}
	}
	if err := s.payments.call(ctx); err != nil {
		return fmt.Errorf("pay order %s: %w", o.ID, err)
	}
	return nil
}
