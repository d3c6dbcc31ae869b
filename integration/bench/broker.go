package main

import (
	"context"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// bare is a connection of the loops that Hopback is compared with.
type bare struct {
	conn *amqp.Connection
	ch   *amqp.Channel
}

func dial(url string) (*bare, error) {
	conn, err := amqp.Dial(url)
	if err != nil {
		return nil, err
	}
	ch, err := conn.Channel()
	if err != nil {
		return nil, err
	}
	return &bare{conn, ch}, nil
}

func (b *bare) close() { b.conn.Close() }

// sync returns when the broker has done all that this channel asked before.
func (b *bare) sync(queue string) (int, error) {
	q, err := b.ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	return q.Messages, err
}

func quorumQueue(ch *amqp.Channel, name string) error {
	_, err := ch.QueueDeclare(name, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	return err
}

var body = make([]byte, 512)

// fill publishes n messages to a queue, confirmed.
func fill(url, queue string, n int) error {
	b, err := dial(url)
	if err != nil {
		return err
	}
	defer b.close()
	if err := b.ch.Confirm(false); err != nil {
		return err
	}
	const window = 2000
	var last []*amqp.DeferredConfirmation
	for i := range n {
		dc, err := b.ch.PublishWithDeferredConfirm("", queue, false, false, amqp.Publishing{
			DeliveryMode: amqp.Persistent, MessageId: fmt.Sprint(i), Body: body,
		})
		if err != nil {
			return err
		}
		last = append(last, dc)
		if len(last) == window {
			for _, dc := range last {
				if !dc.Wait() {
					return fmt.Errorf("a publish to %s was not confirmed", queue)
				}
			}
			last = last[:0]
		}
	}
	for _, dc := range last {
		dc.Wait()
	}
	return nil
}

// waitDepth waits until a queue holds exactly n ready messages.
func waitDepth(ctx context.Context, b *bare, queue string, n int) error {
	for {
		got, err := b.sync(queue)
		if err != nil || got == n {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("queue %s holds %d messages, not %d: %w", queue, got, n, ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}
