package attempt

import (
	"encoding/json"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Headers that RabbitMQ and its plugins read or write.
const (
	headerCC    = "CC"
	headerBCC   = "BCC"
	headerDeath = "x-death"
)

// recordHeaders is room for the headers of a usual record.
const recordHeaders = 15

// minError is as short as an error is cut before it is dropped altogether.
const minError = 64

// takenOff reports whether a header is left out of everything that we publish:
// what RabbitMQ acts upon or counts in, and our own, which are written anew.
// Headers of other people that begin with x-retry- are not ours, and stay.
func takenOff(key string) bool {
	if key == "" || key[0] != 'x' && key[0] != 'C' && key[0] != 'B' {
		return false
	}
	switch key {
	case headerCC, headerBCC: // would route copies to other queues
		return true
	case headerDeath: // RabbitMQ drops silently what it takes for a cycle
		return true
	case "x-delivery-count", "x-acquired-count", "x-stream-offset": // true of the queue it was read from only
		return true
	case "x-opt-delivery-time": // when a native retry was due: a queue that reads it might hold it again
		return true
	case "x-delay": // the delayed-message plugin would delay it again
		return true
	case "x-received-from": // federation would not forward it
		return true
	case HeaderCount, HeaderQueue, HeaderID, HeaderExchange, HeaderRoutingKey, HeaderFirstFailedAt,
		HeaderFailedAt, HeaderDueAt, HeaderDelay, HeaderError, HeaderErrorType, HeaderHistory, HeaderReason,
		HeaderVerdict, HeaderAfter, HeaderPolicy, HeaderThen, HeaderCC, HeaderBCC, HeaderExpiration,
		HeaderUserID, HeaderDeliveryMode, HeaderDeadline:
		return true
	}
	return hasPrefix(key, "x-first-death-") || hasPrefix(key, "x-last-death-")
}

func hasPrefix(s, prefix string) bool { return len(s) >= len(prefix) && s[:len(prefix)] == prefix }

// Successor builds the message that is published in the place of p after it
// failed, or when it is parked: all properties, a deep copy of the user's
// headers with their types, and the record. What would act on the way is taken
// off: CC, BCC, x-death and the other death headers, x-delivery-count,
// x-acquired-count, x-opt-delivery-time, x-delay, x-stream-offset, x-received-from, and the
// properties expiration and user-id. The delivery mode is persistent. The body
// is shared with p, not copied.
//
// headerLimit is the most bytes that the content header may take, as HeaderSize
// counts them: the negotiated frame size less 8 KiB, which dead-lettering needs
// for what it adds. 0 means no limit. To stay under it our own diagnostics
// shrink, the user's headers never: first the lines of the history between the
// first and the last go, the oldest first, then the error text is cut to no
// less than 64 bytes, then the history goes, then the error, then its type.
// If the rest is still too large, it is returned so; HeaderSize tells.
func (r Record) Successor(p *amqp.Publishing, headerLimit int) amqp.Publishing {
	s := *p
	s.DeliveryMode = amqp.Persistent
	s.Expiration, s.UserId = "", ""

	// A map that is made too large costs more than its entries do, so a record
	// that is already among the headers is not counted twice.
	room := len(p.Headers) + recordHeaders
	if _, ok := p.Headers[HeaderQueue]; ok {
		room = max(len(p.Headers)+2, recordHeaders)
	}
	h := make(amqp.Table, room)
	size := copyUsers(h, p.Headers)
	s.Headers = h
	if headerLimit > 0 {
		r = r.fit(headerLimit - size - propertySize(&s))
	}
	r.put(h)
	return s
}

// Original gives the message as its producer published it: the record and what
// the broker added are removed, and delivery mode, expiration, user-id, CC and
// BCC are back. It is what a handler or a person should look at. Publishing it
// is another matter: CC and BCC would route copies, an expiration may end it at
// once, and RabbitMQ refuses another user's user-id; see Replay.
func (r Record) Original(p *amqp.Publishing) amqp.Publishing {
	o := *p
	o.DeliveryMode = r.originalMode()
	o.Expiration, o.UserId = r.Expiration, r.UserID
	h := make(amqp.Table, len(p.Headers))
	copyUsers(h, p.Headers)
	if len(r.CC) > 0 {
		h[headerCC] = list(r.CC)
	}
	if len(r.BCC) > 0 {
		h[headerBCC] = list(r.BCC)
	}
	o.Headers = nil // as amqp091-go delivers an empty table
	if len(h) > 0 {
		o.Headers = h
	}
	return o
}

// Replaying says how a person, or a tool for them, sends a parked message back.
type Replaying struct {
	// At is when; the zero time means now. Whoever replays many messages gives all
	// of them the same time: it then tells which of them came back (Entry.Replay).
	At time.Time
	// By names who, for the history: at most MaxEntryConsumer bytes.
	By string
	// KeepCount lets the message go on with the count that it has, instead of
	// beginning again at 0. One whose retries are used up then has a single attempt.
	KeepCount bool
}

// Replay gives the message that is published to the work queue when a person
// sends a parked one back: the user's headers and properties with the original
// delivery mode, and a record that begins again at 0. Identity and origin stay
// in it (ID, Exchange, RoutingKey, and what was taken off), and the history,
// which gains the line of the replay; count, times, error and reason go. The
// expiration starts anew when the message is read.
//
// headerLimit is the one of Successor.
func (r Record) Replay(p *amqp.Publishing, how Replaying, headerLimit int) amqp.Publishing {
	again := Record{
		Queue: r.Queue, ID: r.ID,
		Exchange: r.Exchange, RoutingKey: r.RoutingKey, OriginUnknown: r.OriginUnknown,
		CC: r.CC, BCC: r.BCC, Expiration: r.Expiration, UserID: r.UserID, DeliveryMode: r.DeliveryMode,
	}
	if how.KeepCount {
		again.Count = r.Count
	}
	again.history = appendHistory(r.history, line{
		At: Failure{At: how.At}.time().UnixMilli(), Error: replayed, Consumer: how.By,
	})
	s := again.Successor(p, headerLimit)
	s.DeliveryMode = r.originalMode()
	return s
}

// Headers gives the record alone as a header table, for a mechanism that adds
// it to a message instead of publishing a new one.
func (r Record) Headers() amqp.Table {
	h := make(amqp.Table, recordHeaders)
	r.put(h)
	return h
}

func (r *Record) originalMode() uint8 {
	switch r.DeliveryMode {
	case 0:
		return amqp.Persistent
	case DeliveryModeAbsent:
		return 0
	}
	return r.DeliveryMode
}

// copyUsers copies the headers that are not taken off into h and returns the
// bytes that they take, the table's length prefix included.
func copyUsers(h, from amqp.Table) int {
	size := 4
	for k, v := range from {
		if takenOff(k) {
			continue
		}
		v = clone(v)
		h[k] = v
		size += 1 + len(k) + fieldSize(v)
	}
	return size
}

// put writes the record. size counts exactly what it writes.
func (r *Record) put(h amqp.Table) {
	h[HeaderCount] = max(r.Count, 0)
	putText(h, HeaderQueue, r.Queue)
	putText(h, HeaderID, r.ID)
	if !r.OriginUnknown {
		h[HeaderExchange] = r.Exchange
		h[HeaderRoutingKey] = r.RoutingKey
	}
	putTime(h, HeaderFirstFailedAt, r.FirstFailedAt)
	putTime(h, HeaderFailedAt, r.FailedAt)
	putTime(h, HeaderDueAt, r.DueAt)
	putTime(h, HeaderDeadline, r.Deadline)
	if ms := r.Delay.Milliseconds(); ms > 0 {
		h[HeaderDelay] = ms
	}
	putText(h, HeaderError, bounded(r.Error, MaxError))
	putText(h, HeaderErrorType, bounded(r.ErrorType, MaxErrorType))
	putText(h, HeaderHistory, r.history)
	putText(h, HeaderReason, r.Reason)
	putText(h, HeaderPolicy, r.Policy)
	putText(h, HeaderThen, r.Then)
	if len(r.CC) > 0 {
		h[HeaderCC] = packKeys(r.CC)
	}
	if len(r.BCC) > 0 {
		h[HeaderBCC] = packKeys(r.BCC)
	}
	putText(h, HeaderExpiration, r.Expiration)
	putText(h, HeaderUserID, r.UserID)
	if mode := r.originalMode(); mode != amqp.Persistent {
		h[HeaderDeliveryMode] = int64(mode)
	}
}

func putText(h amqp.Table, key, s string) {
	if s != "" {
		h[key] = s
	}
}

func putTime(h amqp.Table, key string, t time.Time) {
	if t = milli(t); !t.IsZero() {
		h[key] = t.UnixMilli()
	}
}

// fit shrinks the diagnostics until the record takes at most budget bytes, or
// nothing is left to shrink.
func (r Record) fit(budget int) Record {
	// A first guess that is never too low: most records are far below.
	if r.roughly() <= budget {
		return r
	}
	r.Error, r.ErrorType = bounded(r.Error, MaxError), bounded(r.ErrorType, MaxErrorType)
	over := func() int { return Size(r.Headers()) - 4 - budget }
	excess := over()
	if excess <= 0 {
		return r
	}
	if regions, raw := historyLines(r.history, nil); len(regions) > 2 {
		for excess > 0 && len(regions) > 2 {
			excess -= regions[1].to - regions[1].from + 1 // and its comma
			regions = append(regions[:1], regions[2:]...)
		}
		r.history = joinHistory(raw, regions)
	}
	text := r.Error
	if excess = over(); excess > 0 {
		r.Error = cut(text, max(len(text)-excess, minError))
	}
	if over() > 0 {
		r.history, r.Error = "", text
		if excess = over(); excess > 0 {
			r.Error = cut(text, max(len(text)-excess, minError))
		}
	}
	if over() > 0 {
		r.Error = ""
	}
	if over() > 0 {
		r.ErrorType = ""
	}
	return r
}

// roughly is an upper bound of the bytes that the record takes. 640 is more
// than all keys, type bytes, lengths and numbers together; a routing key may
// grow sixfold when JSON escapes it.
func (r *Record) roughly() int {
	n := 640 + len(r.Queue) + len(r.ID) + len(r.Exchange) + len(r.RoutingKey) + len(r.Policy) +
		3*len(r.Error) + 3*len(r.ErrorType) + len(r.history) + len(r.Reason) + len(r.Then) +
		len(r.Expiration) + len(r.UserID)
	for _, keys := range [...][]string{r.CC, r.BCC} {
		for _, key := range keys {
			n += 6*len(key) + 5
		}
	}
	return n
}

func list(keys []string) []any {
	l := make([]any, len(keys))
	for i, key := range keys {
		l[i] = key
	}
	return l
}

// packKeys writes routing keys as a JSON array, since AMQP lists do not survive
// the way from AMQP 1.0 annotations to 0-9-1. A routing key may be any bytes;
// JSON holds only UTF-8, so others are written as an AMQP list.
func packKeys(keys []string) any {
	for _, key := range keys {
		if !utf8.ValidString(key) {
			return list(keys)
		}
	}
	b, err := json.Marshal(keys)
	if err != nil { // a list of strings has no way to fail
		return list(keys)
	}
	return string(b)
}
