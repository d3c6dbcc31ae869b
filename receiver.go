package hopback

import (
	"context"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/internal/link"
	"github.com/hopback/hopback/internal/native"
)

// receiver is the transport over AMQP 1.0, for the mechanism native.
type receiver struct {
	*native.Receiver
	limit int // of a parked message's headers, and of one that AMQP 0-9-1 must be able to read
}

// receive starts to consume over AMQP 1.0. The session is that of AMQP 0-9-1,
// over which the topology was declared.
func (c *Consumer) receive(ctx context.Context, over091 *link.Session) (*link.Life, transport, error) {
	if err := c.client.connectNative(c); err != nil {
		return nil, nil, err
	}
	session, err := c.native.Session(ctx)
	if err != nil {
		return nil, nil, err
	}
	r, err := session.Receive(ctx, c.cfg.Route.Queue, c.cfg.Prefetch)
	if err != nil {
		return nil, nil, fmt.Errorf("subscribe: %w", err)
	}
	life := link.NewLife()
	go func() {
		<-r.Done()
		life.Over(r.Err())
	}()
	return life, &receiver{Receiver: r, limit: over091.HeaderLimit()}, nil
}

func (t *receiver) deliveries() (<-chan amqp.Delivery, <-chan *native.Delivery) {
	return nil, t.Deliveries()
}

func fromReceiver(d *native.Delivery) delivery {
	return delivery{msg: d.Msg, exchange: d.Exchange, routingKey: d.RoutingKey, redelivered: d.Redelivered, native: d}
}

// settleFlags gives a message that came over AMQP 1.0 the flag and the headers that
// it would have over AMQP 0-9-1. There redelivered means that it was handed out and
// came back unsettled; here every message that was delayed has the flag, so one
// that has failed before is taken for redelivered if the broker counts a crash.
func settleFlags(d *delivery, rec *attempt.Record) {
	if d.native == nil || rec.ID == "" {
		return
	}
	d.redelivered = d.redelivered && deliveryCount(d.msg.Headers) > 0
	attempt.HideTakenOff(d.msg.Headers)
}

func (t *receiver) accept(d *delivery) { d.native.Accept() }

func (t *receiver) delay(d *delivery, until time.Time, headers amqp.Table) error {
	return d.native.Delay(until, headers)
}

func (t *receiver) headerLimit() int { return t.limit }

// cancel stops the deliveries and gives back what no worker has.
func (t *receiver) cancel(context.Context) { t.Stop() }

func (t *receiver) close(ctx context.Context) { t.Close(ctx) } //nolint:errcheck // cut is closed

// end has nothing to do: what stops over AMQP 1.0 has ended.
func (t *receiver) end(context.Context) {}
