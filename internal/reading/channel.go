package reading

import (
	"context"
	"errors"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Count counts the messages of a queue that are ready for delivery.
func Count(ctx context.Context, ch *amqp.Channel, queue string) (int, error) {
	q, err := inspect(ctx, ch, queue)
	return q.Messages, err
}

func inspect(ctx context.Context, ch *amqp.Channel, queue string) (amqp.Queue, error) {
	return Within(ctx, func() (amqp.Queue, error) {
		return ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	})
}

// settled waits until a queue counts that many messages: what was given back is
// counted a moment later. It gives up after a while, since others may take some
// meanwhile.
func settled(ctx context.Context, ch *amqp.Channel, queue string, messages int) {
	pause := time.Millisecond
	for deadline := time.Now().Add(2 * time.Second); time.Now().Before(deadline); time.Sleep(pause) {
		if n, err := Count(ctx, ch, queue); err != nil || n >= messages {
			return
		}
		pause = min(2*pause, 20*time.Millisecond)
	}
}

// CloseChannel closes a channel, also one that is closed already.
func CloseChannel(ctx context.Context, ch *amqp.Channel) error {
	_, err := Within(ctx, func() (struct{}, error) { return struct{}{}, ch.Close() })
	if errors.Is(err, amqp.ErrClosed) {
		return nil
	}
	return err
}

// CloseSoon closes a channel on which nothing is left to wait for.
func CloseSoon(ch *amqp.Channel) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return CloseChannel(ctx, ch)
}

// Within does something that knows no context: the broker may leave any question
// unanswered for as long as it has an alarm. What is given up ends with its
// channel or connection.
func Within[T any](ctx context.Context, f func() (T, error)) (T, error) {
	type result struct {
		v   T
		err error
	}
	var none T
	if ctx.Err() != nil {
		return none, context.Cause(ctx)
	}
	done := make(chan result, 1)
	go func() {
		v, err := f()
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
}
