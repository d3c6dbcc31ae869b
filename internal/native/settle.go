package native

import (
	"context"
	"time"

	amqp10 "github.com/Azure/go-amqp"
	amqp "github.com/rabbitmq/amqp091-go"
)

// Accept removes the message from its queue. It returns at once.
func (d *Delivery) Accept() { d.finish(accepted, nil, time.Time{}) }

// Release gives the message back to its queue, to be delivered again at once.
// Neither x-delivery-count nor anything else of it changes but x-acquired-count.
func (d *Delivery) Release() { d.finish(released, nil, time.Time{}) }

// Delay gives the message back to its queue, which delivers it again when until
// has come, by our clock. The headers are set on it, over those of the same
// names; all others, the body and the properties stay as they are, and
// x-delivery-count too. A header cannot be taken off: give it an empty string.
//
// A header holds a string, a boolean or an integer, and its name begins with x-.
// Anything else is ErrAnnotation; the message is then still unsettled.
func (d *Delivery) Delay(until time.Time, headers amqp.Table) error {
	a, err := encodeAnnotations(headers)
	if err != nil {
		return err
	}
	d.finish(delayed, a, until)
	return nil
}

// DeadLetter takes the message out of its queue, into the queue's dead-letter
// exchange, reason rejected, with the headers set on it as by Delay. Where the
// queue has no dead-letter exchange the broker drops the message.
func (d *Delivery) DeadLetter(headers amqp.Table) error {
	a, err := encodeAnnotations(headers)
	if err != nil {
		return err
	}
	d.finish(deadLettered, a, time.Time{})
	return nil
}

func (d *Delivery) finish(o outcome, a amqp10.Annotations, until time.Time) {
	r := d.r
	r.mu.Lock()
	if d.settled {
		r.mu.Unlock()
		return
	}
	d.settled, d.outcome, d.until = true, o, until
	if o == delayed || o == deadLettered {
		// What the message says already need not be said again: the queue keeps
		// each annotation in memory and in its log.
		for k, v := range a {
			if d.m.Annotations[k] == v {
				delete(a, k)
			}
		}
		d.modify = &amqp10.ModifyMessageOptions{UndeliverableHere: o == deadLettered, Annotations: a}
	}
	if o == delayed && !r.s.own.clock.compared() {
		// Nothing else waits with it.
		r.waiting++
		r.mu.Unlock()
		go func() {
			r.s.own.clock.await(r.done)
			r.mu.Lock()
			r.waiting--
			r.ready = append(r.ready, d)
			r.mu.Unlock()
			r.poke()
		}()
		return
	}
	r.ready = append(r.ready, d)
	r.mu.Unlock()
	r.poke()
}

// atOnce is how many settlements go out together at most: a moment's worth.
const atOnce = 256

// grantLater is how long a few credits may wait for more to join them.
const grantLater = 20 * time.Millisecond

// settle sends what is ready. Nothing waits for more to come.
func (r *Receiver) settle() {
	defer close(r.drained)
	var batch []*Delivery
	later := time.NewTimer(time.Hour)
	defer later.Stop()
	for {
		select {
		case <-r.done:
			return
		case <-later.C:
			r.grant(true)
			continue
		case <-r.wake:
		}
		var closing bool
		batch, closing = r.take(batch)
		for rest := batch; len(rest) > 0; {
			n := min(len(rest), atOnce)
			if r.send(rest[:n]) != nil {
				return // it has ended, and the broker has all back
			}
			rest = rest[n:]
			r.mu.Lock()
			r.issued -= n
			r.mu.Unlock()
			if r.grant(false) {
				later.Reset(grantLater)
			}
		}
		clear(batch)
		if closing {
			return
		}
	}
}

func (r *Receiver) send(batch []*Delivery) error {
	r.s.wire.cork()
	defer r.s.wire.uncork()
	ctx := context.Background()
	for _, d := range batch {
		var err error
		switch d.outcome {
		case accepted:
			err = r.link.AcceptMessage(ctx, d.m)
		case released:
			err = r.link.ReleaseMessage(ctx, d.m)
		case delayed:
			d.modify.Annotations[annDeliveryTime] = r.s.own.clock.ofBroker(d.until, r.s.cfg.Now())
			err = r.link.ModifyMessage(ctx, d.m, d.modify)
		case deadLettered:
			err = r.link.ModifyMessage(ctx, d.m, d.modify)
		}
		if err != nil {
			return err
		}
		d.m, d.modify = nil, nil
	}
	return nil
}
