package router

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/backoff"
	"github.com/hopback/hopback/delay"
	"github.com/hopback/hopback/internal/fate"
	"github.com/hopback/hopback/internal/link"
)

// handoff takes one failed message from hop.failed to a slot or to a parking
// queue. Its source is acknowledged only when the broker has confirmed the
// successor and did not return it; until then it stays unsettled, and every other
// outcome tries again, or moves it aside.
type handoff struct {
	r         *Router
	sub       *link.Subscription
	tag       uint64
	to        *source // whose message it is; the router's own where nobody's
	arrivedBy string  // routing key in its work queue
	source    amqp.Publishing
	origin    origin
	advice    attempt.Advice
	record    attempt.Record
	unfailed  attempt.Record // before this failure
	bad       error          // its counter cannot be read
	began     time.Time

	request  delay.Request // where it shall wait; unused when parked
	exchange string
	key      string
	msg      amqp.Publishing
	aside    bool // it is being moved aside
	tries    int64
	stuck    bool                   // counted in to.stuck
	told     func(hopback.Observer) // what to tell once it is safe
}

func (h *handoff) event() hopback.Event {
	return hopback.Event{
		Queue: h.origin.queue, MessageID: h.source.MessageId,
		RetryID: h.record.ID, Attempt: int(h.record.Count) + 1,
	}
}

// Why a message died that its queue threw out by itself: what it is parked as, and
// in words.
var deaths = map[string]struct {
	reason string
	err    error
}{
	deliveryLimit: {attempt.ReasonCrashLoop, errors.New("delivered too often without being settled (delivery_limit): does it kill its consumer?")},
	expired:       {attempt.ReasonExpired, errors.New("its time to live ended in its work queue")},
	maxLength:     {attempt.ReasonOverflow, errors.New("its work queue was full and dropped it")},
}

// decide does what the policy says.
func (h *handoff) decide() {
	now := time.Now()
	if h.bad != nil {
		h.park(attempt.ReasonBadCounter, h.bad)
		return
	}
	if death, ok := deaths[h.origin.reason]; ok {
		// It would come back into the queue that threw it out.
		h.park(death.reason, death.err)
		return
	}
	f := h.failure()
	if h.origin.held && h.record.Reason != "" {
		h.park(h.record.Reason, f)
		return
	}
	if h.to.countDeaths && h.origin.reason != "" && h.firstSight() {
		// The death that brought it here is the failure that is being handled.
		h.record.Count = int32(min(max(h.origin.deaths-1, 0), maxCount))
	}
	if h.advice.Verdict == attempt.VerdictDiscard {
		h.r.log.Warn("discarded a message, as its consumer asks", "queue", h.origin.queue, "retry", h.record.Count,
			"message_id", h.source.MessageId, "error", f.Error())
		event := h.event()
		h.told = func(o hopback.Observer) { o.Discarded(hopback.Discarded{Event: event, Err: f}) }
		h.done()
		return
	}
	if h.record.Expired(now) {
		h.park(attempt.ReasonExpired, f)
		return
	}
	ask := fate.Ask{
		Park:   h.advice.Verdict == attempt.VerdictPermanent || h.to.permanent(f.kind),
		Chosen: h.advice.After > 0, After: h.advice.After,
	}
	var reason string
	if h.request, reason = h.to.limits.Decide(ask, h.record, now, backoff.Random); reason != "" {
		h.park(reason, f)
		return
	}
	h.retry(f, now)
}

const maxCount = 1_000_000

// firstSight reports whether nobody has counted before us.
func (h *handoff) firstSight() bool {
	_, counted := h.source.Headers[attempt.HeaderCount]
	return !counted && h.unfailed.ID == ""
}

// failure is what is known about why it failed. The error among the headers of a
// message that was only rejected is left from the failure before.
func (h *handoff) failure() *failure {
	told := h.origin.reason == "" || says(h.source.Headers) || h.unfailed.ID == ""
	if told && (h.advice.Error != "" || h.advice.ErrorType != "") {
		return &failure{text: cmp.Or(h.advice.Error, h.advice.ErrorType), kind: h.advice.ErrorType}
	}
	if h.origin.reason == "" {
		return &failure{text: "failed; its consumer gave no error"}
	}
	return &failure{text: "rejected by its consumer"}
}

// failure is an error of a consumer in another process.
type failure struct{ text, kind string }

func (f *failure) Error() string { return f.text }

func (h *handoff) failed(err error) attempt.Failure {
	f := attempt.Failure{At: time.Now(), Error: err.Error(), Consumer: h.r.name}
	var told *failure
	if errors.As(err, &told) {
		f.ErrorType = told.kind
	}
	return f
}

// permanent reports whether the policy names the type of an error.
func (s *source) permanent(kind string) bool {
	return kind != "" && slices.ContainsFunc(s.route.Policy.PermanentTypes, func(t string) bool {
		return t == kind || strings.HasSuffix(kind, "."+t)
	})
}

// retry sends the message into a slot.
func (h *handoff) retry(err error, now time.Time) {
	hold := h.to.delays.Hold(h.request)
	before, count := h.event(), h.record
	h.record = h.record.Identify(&h.source).Retry(h.failed(err), hold.Delay, now.Add(hold.Delay), h.to.route.Policy.Name)
	before.RetryID = h.record.ID
	reason := hopback.ReasonError
	if h.advice.After > 0 {
		reason = hopback.ReasonRetryAfter
	}
	h.told = func(o hopback.Observer) {
		o.Retried(hopback.Retried{Event: before, Reason: reason, Delay: h.record.Delay, Err: err})
	}
	h.into(hold)
	if size := attempt.HeaderSize(&h.msg); size > h.sub.HeaderLimit() {
		h.r.log.Warn("a message cannot wait: its headers leave no room for those of the broker",
			"queue", h.origin.queue, "message_id", h.source.MessageId, "bytes", size)
		h.record = count
		h.park(attempt.ReasonTooLarge, err)
		return
	}
	h.send()
}

// into addresses the successor to a slot.
func (h *handoff) into(hold delay.Hold) {
	h.record.Then = hold.Then
	if hold.Delay != h.record.Delay {
		h.record.DueAt = h.record.DueAt.Add(hold.Delay - h.record.Delay)
		h.record.Delay = hold.Delay
	}
	h.exchange, h.key = hold.Exchange, h.userKey()
	h.msg = h.record.Successor(&h.source, h.sub.HeaderLimit())
}

// userKey is the routing key that the message has for its consumer.
func (h *handoff) userKey() string {
	if h.record.OriginUnknown || len(h.record.RoutingKey) > 255 { // nobody can have published with that
		return h.arrivedBy
	}
	return h.record.RoutingKey
}

// park sends the message to the parking queue.
func (h *handoff) park(reason string, err error) {
	h.record = h.record.Identify(&h.source).Park(h.failed(err), reason)
	event := h.event()
	h.told = func(o hopback.Observer) { o.Parked(hopback.Parked{Event: event, Reason: reason, Err: err}) }
	h.request = delay.Request{}
	h.exchange, h.key = h.r.names.errors(), h.to.queue
	h.msg = h.record.Successor(&h.source, h.sub.HeaderLimit())
	h.send()
}

// hold moves the message aside, as it was before this failure: it comes back to
// hop.failed as one whose consumer published it, with what it failed of.
func (h *handoff) hold(why error) {
	f := h.failure()
	rec := h.unfailed
	rec.Error, rec.ErrorType = f.text, f.kind
	rec.Reason = ""
	if death, ok := deaths[h.origin.reason]; ok {
		rec.Reason, rec.Error = death.reason, death.err.Error()
	} else if h.origin.held {
		rec.Reason = h.unfailed.Reason
	}
	if h.to.countDeaths && h.origin.reason != "" && h.firstSight() {
		rec.Count = h.record.Count
		if h.record.Reason == "" && rec.Count > 0 {
			rec.Count-- // it was retried
		}
	}
	event := h.event()
	h.msg = rec.Successor(&h.source, h.sub.HeaderLimit()-64)
	if h.bad != nil {
		h.msg.Headers[attempt.HeaderCount] = h.source.Headers[attempt.HeaderCount]
	}
	if h.advice.Verdict != "" {
		h.msg.Headers[attempt.HeaderVerdict] = h.advice.Verdict
	}
	if h.advice.After > 0 {
		h.msg.Headers[attempt.HeaderAfter] = h.advice.After.Milliseconds()
	}
	h.exchange, h.key, h.aside = h.r.names.held(), h.userKey(), true
	h.told = func(hopback.Observer) {
		if others, ok := h.to.heldLog.May(); ok {
			h.r.log.Error("moved a message aside, since its hand-off is refused; it is tried again later",
				"queue", event.Queue, "message_id", event.MessageID, "aside", h.r.names.held(), "next_in", heldFor, "error", why, "others", others)
		}
		h.r.observeMore(func(o Observer) { o.Held(Held{Event: event, Source: h.to.queue, Err: why}) })
	}
	h.send()
}

func (h *handoff) send() {
	publisher := h.to.publisher
	if h.aside {
		publisher = h.r.self.publisher
	}
	publisher.Publish(&link.Publication{
		Exchange: h.exchange, Key: h.key, Msg: h.msg,
		Stale: func() bool { return !h.sub.Live() },
		Done:  h.sent,
	})
}

// sent learns what became of the publish. It runs on the publisher's goroutine.
func (h *handoff) sent(err error) {
	if err == nil {
		h.done()
		return
	}
	if errors.Is(err, link.ErrStale) || !h.sub.Live() {
		h.finish() // the broker delivers it again
		return
	}
	if errors.Is(err, link.ErrEncode) && (h.aside || h.record.Reason != "") {
		go h.quarantine(err) // it writes, and this goroutine reads the confirms of all
		return
	}
	h.tries++
	if !h.stuck {
		h.stuck = true
		h.to.stuck.Add(1)
	}
	wait := time.Duration(0)
	if h.tries > 1 || errors.Is(err, link.ErrNacked) || errors.Is(err, link.ErrEncode) {
		wait = retryPublish.Delay(h.tries, 0, backoff.Random())
	}
	if others, ok := h.to.refused.May(); ok {
		h.r.log.Warn("a hand-off was not confirmed; the message stays and is handed off again",
			"queue", h.origin.queue, "retry", h.record.Count, "message_id", h.source.MessageId, "exchange", h.exchange,
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

// holdAfter is how often a hand-off is tried before the message is moved aside:
// some ten seconds, in which a leader is elected and a queue is declared again.
const holdAfter = 4

func (h *handoff) again(err error) {
	if !h.sub.Live() {
		h.finish()
		return
	}
	if errors.Is(err, link.ErrReturned) || errors.Is(err, link.ErrUnknown) {
		if h.aside {
			h.r.self.repair()
		} else {
			h.to.repair()
		}
	}
	switch {
	case h.aside:
	case h.tries >= holdAfter || int(h.to.stuck.Load()) > h.r.share():
		h.hold(err)
		return
	case (errors.Is(err, link.ErrNacked) || errors.Is(err, link.ErrTimeout)) && h.record.Reason == "":
		// A slot can be without a leader while its neighbours are well. It
		// refuses, or says nothing; and each silence costs a connection.
		h.request.Avoid = h.exchange
		h.into(h.to.delays.Hold(h.request))
		h.request.Avoid = ""
	}
	h.send()
}

// quarantine is for what can be read and not be written again, since its headers
// leave no room in the frame for our own: the broker moves it, which takes no
// publish.
func (h *handoff) quarantine(err error) {
	h.r.log.Error("a message cannot be parked, since its headers leave no room for a reason; it is moved to the quarantine",
		"queue", h.origin.queue, "message_id", h.source.MessageId, "quarantine", h.r.names.quarantine(), "error", err)
	h.sub.Reject(h.tag)
	h.r.observeMore(func(o Observer) { o.HandedOff(HandedOff{Queue: h.to.queue, Took: time.Since(h.began)}) })
	h.finish()
}

// share is how much of the prefetch the stuck messages of one queue may hold.
func (r *Router) share() int { return max(r.cfg.Prefetch/4, 1) }

// done settles the source, tells of it, and is done with the message.
func (h *handoff) done() {
	h.sub.Ack(h.tag)
	h.r.observe(h.told)
	h.r.observeMore(func(o Observer) { o.HandedOff(HandedOff{Queue: h.to.queue, Took: time.Since(h.began)}) })
	h.finish()
}

// finish ends the message's time in this process; without a settlement the broker
// delivers it again.
func (h *handoff) finish() {
	if h.stuck {
		h.to.stuck.Add(-1)
	}
	h.r.inFlight.Add(-1)
	h.sub.Finish()
}
