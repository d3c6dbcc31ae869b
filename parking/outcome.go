package parking

import (
	"context"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/internal/reading"
)

// OutcomeQuery asks what became of the messages of a replay.
type OutcomeQuery struct {
	// Started and Replayed are those of the report.
	Started  time.Time
	Replayed int
	// Waiting names the queues that a message may wait in on its way: the work
	// queues and the slots. Those that do not exist count as empty.
	Waiting []string
}

// Outcome is what became of the messages of a replay.
//
// Only what is parked again can be told message by message: each has the line of
// its replay in its history. A work queue and its slots are not read, since that
// would disturb those who work; they are counted, with whatever else they hold.
// So Waiting is the most that it can be, and Handled the least.
type Outcome struct {
	// Replayed is the size of the set, ParkedAgain how many of it are in this
	// parking queue now.
	Replayed, ParkedAgain int
	// Waiting is how many of the set may still be in work queues and slots, at most.
	Waiting int
	// Handled is how many are neither, at least: they were handled, or discarded by
	// their handler, or are in its hands. (Those that a handler holds are counted by
	// the management API alone, as waiting.)
	Handled int
	// HandsSeen says that what handlers hold was counted too.
	HandsSeen bool
}

// Outcome looks for what became of the messages of a replay. It changes nothing.
func (q *Queue) Outcome(ctx context.Context, o OutcomeQuery) (Outcome, error) {
	out := Outcome{Replayed: o.Replayed}
	fail := func(err error) (Outcome, error) {
		return out, fmt.Errorf("what became of the messages of %q: %w", q.name, err)
	}
	// In this order: what is parked between the two counts as parked, or as waiting
	// as well, and never as handled.
	out.HandsSeen = q.o.Management != nil
	waiting, err := q.Waiting(ctx, o.Waiting...)
	if err != nil {
		return fail(err)
	}
	started := o.Started.UTC().Truncate(time.Millisecond)
	for m, err := range q.Messages(ctx, Filter{}) {
		if err != nil {
			return fail(err)
		}
		if m.ReplayedAt().Equal(started) {
			out.ParkedAgain++
		}
	}
	out.Waiting = min(waiting, max(out.Replayed-out.ParkedAgain, 0))
	out.Handled = max(out.Replayed-out.ParkedAgain-out.Waiting, 0)
	return out, nil
}

// Waiting counts what queues hold, without reading them: what is ready, and with
// the management API also what their consumers hold.
func (q *Queue) Waiting(ctx context.Context, queues ...string) (int, error) {
	sum := 0
	for _, name := range queues {
		n, err := q.holds(ctx, name)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// holds counts what a queue holds: what is ready, and with the management API
// also what its consumers hold.
func (q *Queue) holds(ctx context.Context, name string) (int, error) {
	n, err := onChannel(ctx, q.conn, func(ch *amqp.Channel) (int, error) { return reading.Count(ctx, ch, name) })
	if err != nil {
		if isMissing(err) {
			return 0, nil
		}
		return 0, fmt.Errorf("count the messages of %q: %w", name, err)
	}
	if m := q.o.Management; m != nil {
		held, err := m.Held(ctx, name)
		if err != nil {
			return 0, fmt.Errorf("count what the consumers of %q hold: %w", name, err)
		}
		n += held
	}
	return n, nil
}
