package parking

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/internal/reading"
)

// mover takes messages out of a queue once their successors are safe.
type mover struct {
	q    *Queue
	from *reading.Reader
	to   *publisher

	safe   []safeItem // to be acknowledged
	before func() error
}

type safeItem struct {
	it   reading.Item
	done func()
}

func (q *Queue) mover(ctx context.Context, o reading.Options) (*mover, error) {
	r, err := q.read(ctx, o)
	if err != nil {
		return nil, err
	}
	return &mover{q: q, from: r, to: newPublisher(q.conn, q.o.ConfirmTimeout)}, nil
}

// next reads the next message.
func (m *mover) next(ctx context.Context) (it reading.Item, msg *Message, err error) {
	it, ok, err := m.from.Next(ctx)
	if err != nil || !ok {
		return it, nil, err
	}
	return it, describe(m.q.name, it.Delivery), nil
}

// send sends a successor on its way. gone is called when the message has left
// the queue, stays with the reason when it does not.
func (m *mover) send(ctx context.Context, it reading.Item, exchange, key string, p amqp.Publishing, gone func(), stays func(error)) error {
	err := m.to.send(ctx, exchange, key, p, func(err error) {
		if err != nil {
			stays(err)
			return
		}
		m.safe = append(m.safe, safeItem{it, gone})
	})
	return errors.Join(err, m.acknowledge(window))
}

// drop takes a message out without a successor.
func (m *mover) drop(it reading.Item, gone func()) error {
	m.safe = append(m.safe, safeItem{it, gone})
	return m.acknowledge(window)
}

// acknowledge takes what is safe out of the queue, where that is as many as most.
func (m *mover) acknowledge(most int) error {
	if len(m.safe) < most || len(m.safe) == 0 {
		return nil
	}
	if m.before != nil {
		if err := m.before(); err != nil {
			m.safe = nil // they stay
			return err
		}
	}
	items := make([]reading.Item, len(m.safe))
	for i, s := range m.safe {
		items[i] = s.it
	}
	// Whatever ctx says: what has a successor must go.
	ctx, cancel := context.WithTimeout(context.Background(), m.q.o.ConfirmTimeout)
	defer cancel()
	safe := m.safe
	m.safe = nil
	if err := m.from.Ack(ctx, items...); err != nil {
		return err
	}
	for _, s := range safe {
		s.done()
	}
	return nil
}

// settle waits for what is on its way, and takes it out of the queue.
func (m *mover) settle() error {
	err := m.to.settle()
	return errors.Join(err, m.acknowledge(1))
}

// close finishes what is on its way and gives back what stays.
func (m *mover) close(ctx context.Context) error {
	err := m.settle()
	if cerr := m.to.close(); cerr != nil && !errors.Is(cerr, amqp.ErrClosed) {
		err = errors.Join(err, fmt.Errorf("close the publishing channel: %w", cerr))
	}
	return errors.Join(err, m.q.giveBack(ctx, m.from))
}
