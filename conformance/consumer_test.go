package conformance_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/conformance"
)

// consumer is a correct one, or one with faults, which have names.
type consumer []string

func (k consumer) is(fault string) bool { return slices.Contains(k, fault) }

var errCrash = errors.New("crashed")

func (k consumer) run(ctx context.Context, env conformance.Env) error {
	conn, err := amqp.Dial(env.URL)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	if err := errors.Join(ch.Qos(50, 0, false), ch.Confirm(false)); err != nil {
		return err
	}
	returns := ch.NotifyReturn(make(chan amqp.Return, 100))
	deliveries, err := ch.Consume(env.Queue, "", k.is("acknowledges on delivery"), false, false, false, nil)
	if err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case d, open := <-deliveries:
			if !open {
				return errors.New("the channel is closed")
			}
			if err := k.handle(ctx, ch, returns, env, d); err != nil {
				return err
			}
		}
	}
}

func (k consumer) word(env conformance.Env, d amqp.Delivery) (string, time.Duration) {
	h := maps.Clone(d.Headers)
	if k.is("counts only with a record") && h[attempt.HeaderQueue] == nil {
		delete(h, attempt.HeaderCount)
	}
	if k.is("counts another queue's retries") {
		delete(h, attempt.HeaderQueue)
	}
	if k.is("counts by redelivered") {
		h[attempt.HeaderCount] = int32(0)
		if d.Redelivered {
			h[attempt.HeaderCount] = int32(1)
		}
	}
	word, after := conformance.Instruction(h, env.Queue)
	switch {
	case k.is("swallows crashes") && strings.HasPrefix(word, conformance.Crash):
		word = conformance.Handle
	case k.is("rejects instead of telling") && word == conformance.Fail:
		word = conformance.Reject
	case k.is("knows no verdict") && (word == conformance.Permanent || word == conformance.Discard):
		word = conformance.Fail
	}
	return word, after
}

func (k consumer) handle(ctx context.Context, ch *amqp.Channel, returns <-chan amqp.Return, env conformance.Env, d amqp.Delivery) error {
	if k.is("needs a header") && d.Headers[conformance.HeaderInstruction] == nil {
		return errors.New("no such header")
	}
	word, after := k.word(env, d)
	if word == conformance.CrashOnce && d.Redelivered {
		word = conformance.Reject
	}
	if k.is("sleeps on failures") && word != conformance.Handle {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(600 * time.Millisecond):
		}
	}
	switch word {
	case conformance.Crash, conformance.CrashOnce:
		return errCrash
	case conformance.Handle:
		if k.is("never acknowledges") {
			return nil
		}
		return d.Ack(false)
	case conformance.Reject:
		switch {
		case k.is("swallows failures"):
			return d.Ack(false)
		case k.is("rejects by publishing again"):
			if err := ch.Publish(env.Exchange, d.RoutingKey, false, false, amqp.Publishing{Headers: d.Headers, Body: d.Body}); err != nil {
				return err
			}
			return d.Ack(false)
		}
		return d.Reject(k.is("requeues"))
	}
	return k.fail(ctx, ch, returns, env, d, word, after)
}

// fail publishes a rich failure, as docs/rich-failures.md says.
func (k consumer) fail(ctx context.Context, ch *amqp.Channel, returns <-chan amqp.Return, env conformance.Env, d amqp.Delivery, word string, after time.Duration) error {
	p := attempt.FromDelivery(&d)
	p.Headers = k.headers(env, d, word, after)
	p.UserId = ""
	for _, fault := range k {
		switch fault {
		case "keeps user-id":
			p.UserId = d.UserId
		case "loses the content type":
			p.ContentType = ""
		case "adds a content type":
			if p.ContentType == "" {
				p.ContentType = "text/plain"
			}
		case "publishes persistent":
			p.DeliveryMode = amqp.Persistent
		case "publishes transient":
			p.DeliveryMode = amqp.Transient
		case "loses the expiration":
			p.Expiration = ""
		case "decodes the body":
			p.Body = []byte(strings.ToValidUTF8(string(p.Body), string(utf8.RuneError)))
		}
	}
	confirm, err := ch.PublishWithDeferredConfirm(env.Exchange, d.RoutingKey, !k.is("publishes without mandatory"), false, p)
	if err != nil {
		return err
	}
	if k.is("acknowledges before the confirm") {
		return d.Ack(false)
	}
	confirmed, err := confirm.WaitContext(ctx)
	if err != nil {
		return err
	}
	returned := false
	select {
	case <-returns:
		returned = true
	default:
	}
	switch {
	case k.is("leaves what was not taken"):
		if returned || !confirmed {
			return nil
		}
	case returned, !confirmed && !k.is("takes a nack for a confirm"):
		return d.Reject(false)
	}
	return d.Ack(false)
}

func (k consumer) headers(env conformance.Env, d amqp.Delivery, word string, after time.Duration) amqp.Table {
	h := amqp.Table{}
	owner := d.Headers[attempt.HeaderQueue]
	foreign := owner != nil && owner != env.Queue && !k.is("keeps another queue's record")
	for name, v := range d.Headers {
		if name != "x-death" && !(foreign && strings.HasPrefix(name, "x-retry-")) {
			h[name] = v
		}
	}
	if h[attempt.HeaderQueue] == nil || k.is("tells the origin each time") {
		h[attempt.HeaderExchange], h[attempt.HeaderRoutingKey] = d.Exchange, d.RoutingKey
	}
	h[attempt.HeaderQueue] = env.Queue
	h[attempt.HeaderError], h[attempt.HeaderErrorType] = "it failed", "testError"
	if text, ok := d.Headers[conformance.HeaderError]; ok {
		h[attempt.HeaderError] = text
	}
	switch word {
	case conformance.Permanent, conformance.Discard:
		h[attempt.HeaderVerdict] = word
	case conformance.After:
		h[attempt.HeaderAfter] = after.Milliseconds()
	}
	for _, fault := range k {
		switch fault {
		case "copies x-death":
			if v, ok := d.Headers["x-death"]; ok {
				h["x-death"] = v
			}
		case "drops headers":
			maps.DeleteFunc(h, func(name string, _ any) bool { return !strings.HasPrefix(name, "x-retry-") })
		case "writes numbers as texts":
			for name, v := range h {
				switch v.(type) {
				case int32, int64, float64:
					h[name] = fmt.Sprint(v)
				}
			}
		case "loses fractions":
			for name, v := range h {
				if n, ok := v.(float64); ok {
					h[name] = int64(n)
				}
			}
		case "widens numbers":
			for name, v := range h {
				if n, ok := v.(int32); ok {
					h[name] = int64(n)
				}
			}
		case "counts itself":
			n, _ := h[attempt.HeaderCount].(int32)
			h[attempt.HeaderCount] = n + 1
		case "forgets the record":
			delete(h, attempt.HeaderCount)
			delete(h, attempt.HeaderID)
		case "names another queue":
			h[attempt.HeaderQueue] = "orders"
		case "tells seconds":
			if after > 0 {
				h[attempt.HeaderAfter] = max(int64(after.Seconds()), 1)
			}
		case "tells no type":
			delete(h, attempt.HeaderErrorType)
		}
	}
	return h
}

// wrong is a consumer with faults, and the cases that are meant for them, each with
// words that its failure must have: so that it fails for that, and for nothing else.
type wrong struct {
	faults consumer
	cases  map[string]string
}

var wrongConsumers = []wrong{
	{consumer{"swallows crashes"}, map[string]string{"crash-loop": "nothing came out", "crash-once": "nothing came out"}},
	{consumer{"counts only with a record", "counts another queue's retries"}, map[string]string{
		"bare-count": "nothing came out", "copied-record": "nothing came out",
	}},
	{consumer{"never acknowledges"}, map[string]string{"handle": "left unsettled"}},
	{consumer{"swallows failures"}, map[string]string{"reject": "nothing came out"}},
	{consumer{"requeues"}, map[string]string{"reject": "died of delivery_limit", "reject-then-handle": "died of delivery_limit"}},
	{consumer{"acknowledges on delivery"}, map[string]string{"crash-once": "nothing came out"}},
	{consumer{"counts by redelivered"}, map[string]string{"reject-then-handle": "more attempts failed than were told to"}},
	{consumer{"needs a header"}, map[string]string{"bare": "more attempts failed", "alive": "no such header"}},
	{consumer{"sleeps on failures"}, map[string]string{"flow": "failures wait for one another", "rich-flow": "failures wait for one another"}},
	{consumer{"rejects instead of telling"}, map[string]string{"fail": "was rejected", "fail-then-handle": "was rejected", "mixed": "was rejected"}},
	{consumer{"counts itself"}, map[string]string{"count": "another x-retry-count", "fail": "another x-retry-count"}},
	{consumer{"forgets the record"}, map[string]string{"count": "another x-retry-count", "fail-then-handle": "more attempts failed"}},
	{consumer{"names another queue"}, map[string]string{"fail": "another x-retry-queue"}},
	{consumer{"drops headers"}, map[string]string{"headers": "no header"}},
	{consumer{"writes numbers as texts", "rejects by publishing again"}, map[string]string{"headers": "string \"5\"", "same-message": "was published"}},
	{consumer{"keeps user-id"}, map[string]string{"user-id": "until its delivery limit"}},
	{consumer{"acknowledges before the confirm"}, map[string]string{"returned": "the message is lost", "refused": "the message is lost"}},
	{consumer{"adds a content type", "publishes transient"}, map[string]string{
		"absent": "another content-type", "properties": "another delivery-mode",
	}},
	{consumer{"publishes without mandatory", "knows no verdict", "publishes persistent", "loses fractions"}, map[string]string{
		"returned": "the message is lost", "permanent": "another verdict", "discard": "another verdict", "transient": "another delivery-mode",
		"header-values": "another header fraction",
	}},
	{consumer{
		"takes a nack for a confirm", "tells seconds", "tells no type", "tells the origin each time", "copies x-death",
		"keeps another queue's record", "loses the content type", "decodes the body", "loses the expiration", "widens numbers",
	}, map[string]string{
		"refused": "the message is lost",
		"after":   "another x-retry-after", "error": "no x-retry-error-type", "origin": "another x-retry-exchange", "no-x-death": "x-death was copied",
		"derived": "is left: x-retry-id", "properties": "another content-type", "body": "another body, as it came out", "expiration": "another expiration",
		"header-types": "int64 7",
	}},
}
