package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/router"
)

// watch begins to look at what comes out of the consumer and of the router. The
// way to the router and the way back are seen by queues of our own beside them;
// what is parked is taken out of the parking queues themselves.
func (b *bench) watch(context.Context) error {
	ch, err := b.conn.Channel()
	if err != nil {
		return fmt.Errorf("watch the consumer: %w", err)
	}
	private := func(args amqp.Table) (name string) {
		if err == nil {
			var q amqp.Queue
			q, err = ch.QueueDeclare("", false, true, true, false, args)
			name = q.Name
		}
		return name
	}
	bind := func(queue, exchange string, args amqp.Table) {
		if err == nil {
			err = ch.QueueBind(queue, "", exchange, false, args)
		}
	}
	b.tap = private(nil)
	bind(b.tap, b.cfg.failed(), nil)
	if b.breakable() {
		bind(b.tap, b.cfg.dead(), nil)
		bind(b.cfg.failed(), b.cfg.dead(), nil) // the router's queue
		b.refusing = private(amqp.Table{"x-max-length": int64(0), "x-overflow": "reject-publish"})
	}
	back := private(nil)
	// Not "all", which ignores names that begin with x- and so matches everything.
	bind(back, b.cfg.back(), amqp.Table{"x-match": "all-with-x", "x-retry-queue": b.cfg.Queue})
	if err == nil {
		err = ch.Qos(1000, 0, false)
	}
	consume := func(queue string, own bool, see func(amqp.Delivery) event) {
		if err != nil {
			return
		}
		var deliveries <-chan amqp.Delivery
		if deliveries, err = ch.Consume(queue, "", own, own, false, false, nil); err != nil {
			return
		}
		b.watching.Go(func() {
			for d := range deliveries {
				id := idOf(&d)
				if !own {
					if id == "" && !b.private(queue) {
						continue // somebody else's stays, and is back in its place at the end
					}
					_ = d.Ack(false)
				}
				e := see(d)
				e.at, e.d = time.Now(), d
				b.ledger.add(id, e)
			}
		})
	}
	at := func(where string) func(amqp.Delivery) event {
		return func(amqp.Delivery) event { return event{where: where} }
	}
	consume(b.tap, true, b.onTheWay)
	consume(back, true, at(returned))
	consume(b.cfg.parking(), false, at(parked))
	consume(router.Parking(b.cfg.Prefix), false, at(astray))
	consume(router.Quarantine(b.cfg.Prefix), false, at(quarantined))
	if err != nil {
		return fmt.Errorf("watch the consumer: %w", err)
	}
	return nil
}

// onTheWay tells what was rejected from what the consumer published.
func (b *bench) onTheWay(d amqp.Delivery) event {
	reason, died := deathIn(d.Headers, b.cfg.Queue)
	if b.breakable() {
		died = d.Exchange == b.cfg.dead() // whatever its headers say
	}
	if died {
		return event{where: rejected, reason: reason}
	}
	return event{where: published}
}

// breakWay lets what the consumer publishes to the router be returned, or refused.
func (b *bench) breakWay(refuse bool) error {
	return b.do("break the way to the router", func(ch *amqp.Channel) error {
		var err error
		if refuse {
			err = ch.QueueBind(b.refusing, "", b.cfg.failed(), false, nil)
		}
		return errors.Join(err,
			ch.QueueUnbind(b.cfg.failed(), "", b.cfg.failed(), nil),
			ch.QueueUnbind(b.tap, "", b.cfg.failed(), nil))
	})
}

func (b *bench) mendWay() error {
	return b.do("mend the way to the router", func(ch *amqp.Channel) error {
		return errors.Join(
			ch.QueueBind(b.tap, "", b.cfg.failed(), false, nil),
			ch.QueueBind(b.cfg.failed(), "", b.cfg.failed(), false, nil),
			ch.QueueUnbind(b.refusing, "", b.cfg.failed(), nil))
	})
}

// awaitConsumers waits until the work queue has some consumer, or none. fatal tells
// of a reason to give up.
func (b *bench) awaitConsumers(ctx context.Context, some bool, limit time.Duration, fatal func() error) error {
	var deadline <-chan time.Time
	if limit > 0 {
		t := time.NewTimer(limit)
		defer t.Stop()
		deadline = t.C
	}
	for {
		q, there, err := b.look(b.cfg.Queue)
		switch {
		case err != nil:
			return err
		case !there:
			return fmt.Errorf("wait for the consumer: queue %q is gone", b.cfg.Queue)
		case (q.Consumers > 0) == some:
			return nil
		}
		if err := fatal(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline:
			if some {
				return fmt.Errorf("wait for the consumer: nobody consumes from queue %q after %s", b.cfg.Queue, limit)
			}
			return fmt.Errorf("wait for the consumer to end: queue %q still has %d after %s", b.cfg.Queue, q.Consumers, limit)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// ready counts what is in the work queue, once nobody consumes from it.
func (b *bench) ready() (int, error) {
	for i := 0; ; i++ {
		q, _, err := b.look(b.cfg.Queue)
		if err != nil || q.Messages > 0 || i == 3 {
			return q.Messages, err
		}
		time.Sleep(50 * time.Millisecond) // a queue may still take back what was handed out
	}
}

// drain takes out of the work queue what is left in it, once nobody consumes from it.
func (b *bench) drain() ([]amqp.Delivery, error) {
	var all []amqp.Delivery
	err := b.do("empty the work queue", func(ch *amqp.Channel) error {
		const tag = "drain"
		deliveries, err := ch.Consume(b.cfg.Queue, tag, true, false, false, false, nil)
		if err != nil {
			return err
		}
		quiet := 0 // looks at which there was nothing
		for quiet < 3 {
			select {
			case d, open := <-deliveries:
				if !open {
					return errors.New("the queue is gone")
				}
				all = append(all, d)
				quiet = 0
			case <-time.After(100 * time.Millisecond):
				q, err := ch.QueueDeclarePassive(b.cfg.Queue, true, false, false, false, nil)
				if err != nil {
					return err
				}
				if q.Messages == 0 {
					quiet++
				}
			}
		}
		return ch.Cancel(tag, false)
	})
	return all, err
}
