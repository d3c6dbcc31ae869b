package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// docs/rich-failures.md shows this function, and a test compares the two.

// ch is in confirm mode, by ch.Confirm(false), and returned is ch.NotifyReturn(make(chan amqp.Return, 1)).
// One call at a time: else nobody knows which message was returned.
func fail(ch *amqp.Channel, returned <-chan amqp.Return, queue string, d amqp.Delivery, err error, verdict string, after time.Duration) error {
	h := amqp.Table{}
	derived := d.Headers["x-retry-queue"] != nil && d.Headers["x-retry-queue"] != queue
	for k, v := range d.Headers {
		if k != "x-death" && !(derived && strings.HasPrefix(k, "x-retry-")) {
			h[k] = v
		}
	}
	if h["x-retry-queue"] == nil {
		h["x-retry-queue"], h["x-retry-exchange"], h["x-retry-routing-key"] = queue, d.Exchange, d.RoutingKey
	}
	h["x-retry-error"], h["x-retry-error-type"] = err.Error(), fmt.Sprintf("%T", err)
	if verdict != "" {
		h["x-retry-verdict"] = verdict
	}
	if after > 0 {
		h["x-retry-after"] = after.Milliseconds()
	}
	confirm, perr := ch.PublishWithDeferredConfirm("hop.failed", d.RoutingKey, true, false, amqp.Publishing{
		Headers: h, Body: d.Body, DeliveryMode: d.DeliveryMode, Priority: d.Priority, Expiration: d.Expiration,
		ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, MessageId: d.MessageId, Timestamp: d.Timestamp,
		CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, Type: d.Type, AppId: d.AppId,
	})
	if perr != nil {
		return perr // and the message is not acknowledged: close the connection, and the broker delivers it again
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if ok, werr := confirm.WaitContext(ctx); werr != nil || !ok {
		return errors.Join(errors.New("the broker did not confirm the failed message"), werr)
	}
	select {
	case r := <-returned: // the client reads it before the confirm
		return fmt.Errorf("the failed message was returned: %s", r.ReplyText)
	default:
		return d.Ack(false)
	}
}
