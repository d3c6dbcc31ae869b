package attempt

import (
	"encoding/json"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Source says where and when a message was read.
type Source struct {
	// Queue is the work queue that the message was read from or, for a router,
	// died in. Empty means: whichever queue the record names, for tools that
	// look into a parking queue.
	Queue string
	// Exchange and RoutingKey are those of the delivery. On the first sight of
	// a message they are where it was first published.
	Exchange, RoutingKey string
	// OriginUnknown says that Exchange and RoutingKey are not the producer's
	// and must not be recorded as such; for instance when they name a return
	// exchange of ours on a message whose record is gone.
	OriginUnknown bool
	// At is when the message was read. Its expiration is counted from then.
	At time.Time
}

// FromDelivery gives the message that a delivery carries: its thirteen
// properties, headers and body. (The fourteenth, cluster-id, does not exist in
// amqp091-go.) Headers and Body are shared with the delivery, not copied.
func FromDelivery(d *amqp.Delivery) amqp.Publishing {
	return amqp.Publishing{
		Headers:         d.Headers,
		ContentType:     d.ContentType,
		ContentEncoding: d.ContentEncoding,
		DeliveryMode:    d.DeliveryMode,
		Priority:        d.Priority,
		CorrelationId:   d.CorrelationId,
		ReplyTo:         d.ReplyTo,
		Expiration:      d.Expiration,
		MessageId:       d.MessageId,
		Timestamp:       d.Timestamp,
		Type:            d.Type,
		UserId:          d.UserId,
		AppId:           d.AppId,
		Body:            d.Body,
	}
}

// Read returns the record of the message p as it was read from src. It never
// changes p; strings and bytes may be shared with it.
//
// A message has a record if x-retry-queue names src.Queue. If that header names
// another queue, the record was copied from another message, or belongs to what
// another queue did with this one: it is dropped. Without a record the result
// is fresh: Queue, Exchange and RoutingKey from src, what a republish takes off
// (CC, BCC, expiration, user-id, delivery mode) from p, and no ID. A bare
// x-retry-count without a readable x-retry-queue is other people's retry code;
// its count is taken over.
//
// On a message without any record, one that was read through the default
// exchange but has been dead-lettered before (it has x-death) was put back by
// hand or by a dead-letter-routing-key: then the oldest entry of x-death says
// where it was published, and if it does not, OriginUnknown is set. Beside the
// record of another queue, x-death was copied along and says nothing.
//
// The error is a *CounterError if x-retry-count is no count. The record is
// filled as well as it can be, with a count of 0, so that the message can be
// parked. Other headers of ours that cannot be read count as absent.
func Read(p *amqp.Publishing, src Source) (Record, error) {
	if len(p.Headers) == 0 {
		return fresh(p, src), nil
	}
	queue, _ := text(p.Headers[HeaderQueue])
	if queue == "" {
		r := fresh(p, src)
		v, ok := p.Headers[HeaderCount]
		if !ok {
			return r, nil
		}
		var err error
		r.Count, err = ParseCount(v)
		return r, err
	}
	if src.Queue != "" && queue != src.Queue {
		return fresh(p, src), nil
	}
	return own(p, src, queue)
}

// fresh is the record of a message that never failed here.
func fresh(p *amqp.Publishing, src Source) Record {
	r := Record{
		Queue: src.Queue, Exchange: src.Exchange, RoutingKey: src.RoutingKey,
		OriginUnknown: src.OriginUnknown,
		UserID:        p.UserId,
	}
	if r.OriginUnknown {
		r.Exchange, r.RoutingKey = "", ""
	}
	switch p.DeliveryMode {
	case amqp.Persistent:
	case 0:
		r.DeliveryMode = DeliveryModeAbsent
	default:
		r.DeliveryMode = p.DeliveryMode
	}
	if p.Expiration != "" {
		r.Expiration = p.Expiration
		r.Deadline = deadline(p.Expiration, src.At)
	}
	if len(p.Headers) == 0 {
		return r
	}
	r.CC, r.BCC = routingKeys(p.Headers[headerCC]), routingKeys(p.Headers[headerBCC])
	if src.Exchange == "" && src.RoutingKey == src.Queue && !src.OriginUnknown && p.Headers[HeaderQueue] == nil {
		// With the record of another queue beside it, x-death belongs to that
		// life: it was copied along, and knows that life's slots.
		if deaths, _ := p.Headers[headerDeath].([]any); len(deaths) > 0 {
			r.Exchange, r.RoutingKey, r.OriginUnknown = firstPublished(deaths[len(deaths)-1], src.Queue)
		}
	}
	return r
}

// firstPublished reads an entry of x-death: where the message was published
// before it died there. That it was published straight to the queue cannot be
// told from having been put back there before, and counts as unknown.
func firstPublished(death any, queue string) (exchange, key string, unknown bool) {
	entry, _ := death.(amqp.Table)
	exchange, ok := text(entry["exchange"])
	keys := routingKeys(entry["routing-keys"])
	if !ok || len(keys) == 0 || exchange == "" && keys[0] == queue {
		return "", "", true
	}
	return exchange, keys[0], false
}

// own reads the message's own record.
func own(p *amqp.Publishing, src Source, queue string) (Record, error) {
	r := Record{Queue: queue, OriginUnknown: true}
	var err error
	for k, v := range p.Headers {
		if len(k) < len("x-retry-") || k[:len("x-retry-")] != "x-retry-" {
			continue
		}
		switch k {
		case HeaderCount:
			r.Count, err = ParseCount(v)
		case HeaderID:
			r.ID, _ = text(v)
		case HeaderExchange:
			var ok bool
			r.Exchange, ok = text(v)
			r.OriginUnknown = !ok
		case HeaderRoutingKey:
			r.RoutingKey, _ = text(v)
		case HeaderFirstFailedAt:
			r.FirstFailedAt = instant(v)
		case HeaderFailedAt:
			r.FailedAt = instant(v)
		case HeaderDueAt:
			r.DueAt = instant(v)
		case HeaderDeadline:
			r.Deadline = instant(v)
		case HeaderDelay:
			ms, _ := integer(v)
			r.Delay = span(ms)
		case HeaderError:
			r.Error, _ = text(v)
		case HeaderErrorType:
			r.ErrorType, _ = text(v)
		case HeaderHistory:
			r.history, _ = text(v)
		case HeaderReason:
			r.Reason, _ = text(v)
		case HeaderPolicy:
			r.Policy, _ = text(v)
		case HeaderThen:
			r.Then, _ = text(v)
		case HeaderCC:
			r.CC = unpackKeys(v)
		case HeaderBCC:
			r.BCC = unpackKeys(v)
		case HeaderExpiration:
			r.Expiration, _ = text(v)
		case HeaderUserID:
			r.UserID, _ = text(v)
		case HeaderDeliveryMode:
			r.DeliveryMode = unpackMode(v)
		}
	}
	if r.OriginUnknown {
		r.RoutingKey = ""
	}

	// Somebody may have put back what was taken off, by moving the message
	// with another tool. It goes into the record where that has none; the
	// first value stays where it has one.
	if r.Expiration == "" && p.Expiration != "" {
		r.Expiration = p.Expiration
		if r.Deadline.IsZero() {
			r.Deadline = deadline(p.Expiration, src.At)
		}
	}
	if r.UserID == "" {
		r.UserID = p.UserId
	}
	if r.CC == nil {
		r.CC = routingKeys(p.Headers[headerCC])
	}
	if r.BCC == nil {
		r.BCC = routingKeys(p.Headers[headerBCC])
	}
	return r, err
}

// routingKeys reads an AMQP list of routing keys: CC, BCC, and routing-keys in
// x-death. RabbitMQ too passes over elements that are no strings.
func routingKeys(v any) []string {
	list, _ := v.([]any)
	var keys []string
	for _, e := range list {
		if key, ok := text(e); ok {
			keys = append(keys, key)
		}
	}
	return keys
}

// unpackKeys reads x-retry-cc and x-retry-bcc: a JSON array of strings, or an
// AMQP list where a key is not UTF-8.
func unpackKeys(v any) []string {
	s, ok := text(v)
	if !ok {
		return routingKeys(v)
	}
	var keys []string
	if json.Unmarshal([]byte(s), &keys) != nil || len(keys) == 0 {
		return nil
	}
	return keys
}

// unpackMode reads x-retry-delivery-mode; what is no delivery mode is absent,
// which means that the message was persistent.
func unpackMode(v any) uint8 {
	n, ok := integer(v)
	switch {
	case !ok || n < 0 || n > 255 || n == int64(amqp.Persistent):
		return 0
	case n == 0:
		return DeliveryModeAbsent
	}
	return uint8(n)
}
