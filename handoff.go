package hopback

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/backoff"
	"github.com/hopback/hopback/delay"
	"github.com/hopback/hopback/internal/fate"
	"github.com/hopback/hopback/internal/link"
)

// handoff takes one failed message from its work queue to a slot or to its
// parking queue. The source is acknowledged only when the broker has confirmed
// the successor and did not return it; until then it stays unsettled, and every
// other outcome tries again. It holds no worker while it waits.
type handoff struct {
	c      *Consumer
	sub    *subscription
	source delivery
	record attempt.Record
	took   time.Duration

	request  delay.Request // where it shall wait; unused when parked
	exchange string
	key      string
	optional bool // not mandatory: for the delayed-message plugin
	msg      amqp.Publishing
	tries    int64
	told     func(Observer) // what to tell once it is safe
}

func (h *handoff) event() Event {
	return Event{
		Queue: h.c.cfg.Route.Queue, MessageID: h.source.msg.MessageId,
		RetryID: h.record.ID, Attempt: int(h.record.Count) + 1,
	}
}

// fail decides what a failure means for the message.
func (c *Consumer) fail(h *handoff, err error) {
	v := c.judge(err)
	if v.kind == discard {
		c.log.Warn("discarded a message", "retry", h.record.Count, "message_id", h.source.msg.MessageId, "error", message(err))
		h.ack(func(o Observer) { o.Discarded(Discarded{Event: h.event(), Err: err}) })
		return
	}
	now := c.client.clock()
	chosen := v.kind == retryAfter || v.kind == snooze
	ask := fate.Ask{Park: v.kind == park, Chosen: chosen, After: v.after, Free: v.kind == snooze}
	var reason string
	if h.request, reason = c.cfg.Route.Policy.limits().Decide(ask, h.record, now, random); reason != "" {
		h.park(reason, err)
		return
	}
	h.retry(v, err, now)
}

// judge reads the verdict of an error whose methods are the user's code.
func (c *Consumer) judge(err error) (v verdict) {
	defer func() {
		if r := recover(); r != nil {
			c.log.Error("an error's own methods panicked; the message is retried", "panic", r)
			v = verdict{kind: retry}
		}
	}()
	return judge(err, &c.cfg.Route.Policy)
}

// retry sends the message into a slot.
func (h *handoff) retry(v verdict, err error, now time.Time) {
	hold := h.sub.delays.Hold(h.request)
	f := attempt.Failure{At: now, Error: message(err), ErrorType: errorType(err), Consumer: h.c.name}
	policy := h.c.cfg.Route.Policy.Name
	before, unfailed := h.event(), h.record
	h.record = h.record.Identify(&h.source.msg)
	reason := ReasonError
	switch v.kind {
	case snooze:
		reason = ReasonSnooze
		h.record = h.record.Snooze(f, hold.Delay, now.Add(hold.Delay), policy)
	case retryAfter:
		reason = ReasonRetryAfter
		fallthrough
	default:
		h.record = h.record.Retry(f, hold.Delay, now.Add(hold.Delay), policy)
	}
	before.RetryID = h.record.ID
	h.told = func(o Observer) {
		o.Retried(Retried{Event: before, Reason: reason, Delay: h.record.Delay, Err: err, Took: h.took})
	}
	if h.sub.isNative() && h.source.msg.Expiration == "" {
		if h.delay(now.Add(h.record.Delay)) != nil {
			h.record = unfailed
			h.park(attempt.ReasonTooLarge, err)
		}
		return
	}
	h.address(hold)
	if size := attempt.HeaderSize(&h.msg); size > h.sub.headerLimit() {
		h.c.log.Warn("a message cannot wait: its headers leave no room for those of the broker", "message_id", h.source.msg.MessageId, "bytes", size)
		h.record = unfailed
		h.park(attempt.ReasonTooLarge, err)
		return
	}
	h.send()
}

// delay leaves the message on its own queue, which holds it until it is due: the
// one settlement takes the place of publish, confirm and acknowledgement. After an
// error the message is unsettled, and the caller parks it.
func (h *handoff) delay(until time.Time) error {
	if !h.sub.Live() {
		h.drop() // the broker delivers it again
		return nil
	}
	headers := h.record.Annotations(&h.source.msg, h.sub.headerLimit())
	if err := h.sub.delay(&h.source, until, headers); err != nil {
		h.c.log.Error("a message cannot be delayed", "message_id", h.source.msg.MessageId, "error", err)
		return err
	}
	if h.told != nil {
		h.c.client.observe(h.told)
	}
	h.sub.Finish()
	return nil
}

// ownQueue as x-retry-then says that the message has yet to wait, on its own queue.
const ownQueue = "own-queue"

// address is into, for every mechanism. A message that stays on its queue keeps its
// expiration, which the broker counts from when it came there: it could end the
// message while it waits. So one that has an expiration is published to its queue
// anew, without, and waits there: see wait.
func (h *handoff) address(hold delay.Hold) {
	if h.sub.isNative() {
		hold = delay.Hold{Exchange: h.c.client.cfg.Prefix + ".return", Then: ownQueue, Delay: hold.Delay}
	}
	h.into(hold)
}

// wait leaves a message that address has sent to its queue there, until it is due.
// Its due time is by the clock of another consumer, its delay by none.
func (h *handoff) wait(now time.Time) {
	left := min(max(h.record.DueAt.Sub(now), 0), h.record.Delay)
	h.record.Then = ""
	if err := h.delay(now.Add(left)); err != nil {
		h.park(attempt.ReasonTooLarge, err)
	}
}

// into addresses the successor to a slot.
func (h *handoff) into(hold delay.Hold) {
	h.record.Then = hold.Then
	if hold.Delay != h.record.Delay {
		h.record.DueAt = h.record.DueAt.Add(hold.Delay - h.record.Delay)
		h.record.Delay = hold.Delay
	}
	h.exchange, h.key = hold.Exchange, h.record.RoutingKey
	if h.record.OriginUnknown || len(h.key) > 255 { // nobody can have published with that
		h.key = h.source.routingKey
	}
	h.optional = hold.XDelay > 0
	if !h.optional {
		h.msg = h.record.Successor(&h.source.msg, h.sub.headerLimit())
		return
	}
	h.msg = h.record.Successor(&h.source.msg, h.sub.headerLimit()-xDelaySize)
	h.msg.Headers["x-delay"] = hold.XDelay
}

// xDelaySize is what the header x-delay takes: name, type and value.
const xDelaySize = 1 + len("x-delay") + 1 + 8

// park sends the message to the parking queue.
func (h *handoff) park(reason string, err error) {
	f := attempt.Failure{At: h.c.client.clock(), Error: message(err), ErrorType: errorType(err), Consumer: h.c.name}
	h.record = h.record.Identify(&h.source.msg).Park(f, reason)
	event := h.event()
	if reason == attempt.ReasonCrashLoop || reason == attempt.ReasonBadCounter {
		if others, ok := h.c.unseen.May(); ok {
			h.c.log.Error("parked a message that no handler saw", "reason", reason,
				"message_id", h.source.msg.MessageId, "error", err, "others", others)
		}
	}
	h.told = func(o Observer) { o.Parked(Parked{Event: event, Reason: reason, Err: err}) }
	h.request = delay.Request{}
	h.exchange, h.key, h.optional = h.c.client.cfg.Prefix+".error", h.c.cfg.Route.Queue, false
	h.msg = h.record.Successor(&h.source.msg, h.sub.headerLimit())
	h.send()
}

func (h *handoff) send() {
	if h.optional {
		if err := h.c.way.verified(); err != nil {
			h.sent(err) // a confirm would not tell
			return
		}
	}
	h.c.publisher.Publish(&link.Publication{
		Exchange: h.exchange, Key: h.key, Msg: h.msg, Optional: h.optional,
		Stale: func() bool { return !h.sub.Live() },
		Done:  h.sent,
	})
}

// sent learns what became of the publish. It runs on the publisher's
// goroutine.
func (h *handoff) sent(err error) {
	if err == nil {
		h.ack(h.told)
		return
	}
	if errors.Is(err, link.ErrStale) || !h.sub.Live() {
		h.drop() // the broker delivers it again
		return
	}
	h.tries++
	wait := time.Duration(0)
	if h.tries > 1 || errors.Is(err, link.ErrNacked) || errors.Is(err, link.ErrEncode) {
		wait = retryPublish.Delay(h.tries, 0, random())
	}
	if others, ok := h.c.refused.May(); ok {
		h.c.log.Warn("a hand-off was not confirmed; the message stays on its queue and is handed off again",
			"retry", h.record.Count, "message_id", h.source.msg.MessageId, "exchange", h.exchange,
			"try", h.tries, "next_in", wait, "error", err, "others", others)
	}
	go func() { // also without a wait: this one reads the confirms of all others
		t := time.NewTimer(wait)
		defer t.Stop()
		select {
		case <-t.C:
		case <-h.sub.Done():
		}
		h.again(err)
	}()
}

// retryPublish is how long a hand-off waits before it is tried again.
var retryPublish = backoff.Schedule{
	Base: 2 * time.Second, Max: 30 * time.Second, MinDelay: time.Second, Jitter: backoff.Equal,
}.WithDefaults()

func (h *handoff) again(err error) {
	if !h.sub.Live() {
		h.drop()
		return
	}
	switch {
	case (errors.Is(err, link.ErrNacked) || errors.Is(err, link.ErrTimeout)) && h.record.Reason == "":
		// A slot can be without a leader while its neighbours are well. It
		// refuses, or says nothing; and each silence costs a connection.
		h.request.Avoid = h.exchange
		h.address(h.sub.delays.Hold(h.request))
		h.request.Avoid = ""
	case errors.Is(err, link.ErrReturned), errors.Is(err, link.ErrUnknown), errors.Is(err, errNoWay):
		h.c.repair()
	}
	h.send()
}

// ack settles the source and tells of it, in this order, and is done with the
// message only then: when Run has returned nil, all has been told. After the end
// of its channel there is nothing to settle: the broker has the message back.
func (h *handoff) ack(tell func(Observer)) {
	if h.sub.Live() {
		h.sub.accept(&h.source)
	}
	h.c.client.observe(tell)
	h.sub.Finish()
}

// drop leaves the source unsettled.
func (h *handoff) drop() { h.sub.Finish() }

// repairs allows one repair of the topology at a time, and one a second.
type repairs struct {
	mu   sync.Mutex
	last time.Time
}

// repair declares what is missing of ours, after a publish found no queue or
// no exchange: somebody may have deleted it.
func (c *Consumer) repair() {
	c.repairs.mu.Lock()
	defer c.repairs.mu.Unlock()
	if time.Since(c.repairs.last) < time.Second {
		return
	}
	defer func() { c.repairs.last = time.Now() }()
	ctx, cancel := context.WithTimeout(context.Background(), topologyTimeout)
	defer cancel()
	// Not over the publishing connection: an alarm would hold it up.
	session, err := c.client.consume.Session(ctx)
	if err == nil {
		err = c.applyTopology(ctx, session)
	}
	if err != nil {
		c.log.Error("cannot repair the topology", "error", err)
	}
}

// message is an error's text; its method is the user's code.
func message(err error) (text string) {
	defer func() {
		if r := recover(); r != nil {
			text = fmt.Sprintf("(the error's own text panicked: %v)", r)
		}
	}()
	return err.Error()
}
