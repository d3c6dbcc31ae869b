package topology

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

// QueueType is the type of a queue, "quorum", "classic" or "stream", and "" when
// it cannot be told. A queue that does not exist is a [*MissingError].
//
// With a management API it is read there, and c is not used. Without one, AMQP
// 0-9-1 has no question for it, but an answer: the queue is declared as what it
// is not, and the broker names what it is when it refuses (406). It compares the
// arguments in an order of its own, so what it names first is taken over and
// asked again, each time on a new channel. Nothing can be created by that, also
// when the queue is deleted in between: the declaration carries an argument that
// no queue can have. It takes the configure permission on the queue; without it
// the type cannot be told, which is no error.
func QueueType(ctx context.Context, c Connection, m *Management, queue string) (string, error) {
	if m != nil {
		info, found, err := m.Queue(ctx, queue)
		if err != nil {
			return "", fmt.Errorf("look for the type of queue %q: %w", queue, err)
		}
		if !found {
			return "", &MissingError{Queue: queue, Err: errNotThere}
		}
		return info.Type, nil
	}
	var kind string
	err := run(ctx, "look for the type of a queue", c, 1, func(crew *crew) error {
		return crew.stage(1, func(w *worker, _ int) error {
			var err error
			kind, err = askQueueType(w, queue)
			return err
		})
	})
	return kind, err
}

// asked is how many arguments of a queue are worked through. RabbitMQ compares
// some twenty.
const asked = 32

// probeArgument is compared after the type, and "none" is no value for it, so
// that a declaration with it can never make a queue.
const probeArgument = "x-quorum-initial-group-size"

func askQueueType(w *worker, queue string) (string, error) {
	err := w.do(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		return err
	})
	var e *amqp.Error
	if err != nil {
		if missing, ok := (*MissingError)(nil), false; errors.As(err, &e) && !connectionLost(err) {
			if missing, ok = notFound(e); ok {
				return "", missing
			}
			if e.Code == amqp.AccessRefused {
				return "", nil
			}
		}
		return "", wrap("look for", "queue", queue, err)
	}
	args := amqp.Table{queueType: "stream", probeArgument: "none"}
	for range asked {
		err := w.do(func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare(queue, true, false, false, false, args)
			return err
		})
		if err == nil {
			return "stream", nil // all agreed; what comes after the type is not compared for a stream
		}
		if !errors.As(err, &e) || connectionLost(err) {
			return "", wrap("look for the type of", "queue", queue, err)
		}
		m := mismatch(e, "queue", queue, func(key string) Value { return wanted(args, key) })
		switch {
		case m == nil:
			return "", nil // 403, or words that are new to us
		case m.Key == queueType && m.Have == Value{}:
			return classic, nil
		case m.Key == queueType:
			return m.Have.Text, nil
		case m.Key == probeArgument:
			return "stream", nil // the types agreed
		}
		v, ok := valueFrom(m.Have)
		if !ok {
			return "", nil
		}
		if v == nil {
			delete(args, m.Key)
		} else {
			args[m.Key] = v
		}
	}
	return "", nil
}

// valueFrom is a value that the broker takes for the one it told of, and nil for
// one that is not there.
func valueFrom(v Value) (any, bool) {
	switch class(v.Type) {
	case "":
		return nil, v.Text == ""
	case "integer":
		var n int64
		_, err := fmt.Sscan(v.Text, &n)
		return n, err == nil
	case "string":
		return v.Text, true
	case "bool":
		return v.Text == "true", true
	}
	return nil, false
}
