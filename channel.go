package hopback

import (
	"context"
	"errors"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/internal/link"
	"github.com/hopback/hopback/internal/native"
)

// channel is the transport over AMQP 0-9-1, for every mechanism that publishes.
type channel struct{ sub *link.Subscription }

func (t *channel) deliveries() (<-chan amqp.Delivery, <-chan *native.Delivery) {
	return t.sub.Deliveries, nil
}

func fromChannel(d *amqp.Delivery) delivery {
	return delivery{
		msg: attempt.FromDelivery(d), exchange: d.Exchange, routingKey: d.RoutingKey,
		redelivered: d.Redelivered, tag: d.DeliveryTag,
	}
}

func (t *channel) accept(d *delivery) { t.sub.Ack(d.tag) }

func (t *channel) delay(*delivery, time.Time, amqp.Table) error {
	return errors.New("AMQP 0-9-1 has no settlement that delays")
}

func (t *channel) headerLimit() int           { return t.sub.HeaderLimit() }
func (t *channel) cancel(ctx context.Context) { t.sub.Cancel(ctx) }
func (t *channel) close(ctx context.Context)  { t.sub.Close(ctx) }
func (t *channel) end(ctx context.Context)    { t.sub.End(ctx) }
