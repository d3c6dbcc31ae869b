package attempt

import (
	"encoding/hex"
	"math"
	"math/rand/v2"
	"time"
)

// DeliveryModeAbsent is the Record.DeliveryMode of a message that had no
// delivery-mode property. RabbitMQ treats it as transient.
const DeliveryModeAbsent uint8 = 255

// Record is the retry state that a message carries. The zero Record, like the
// one that Read gives for a message without a record, never failed: Count is 0
// and ID is empty.
//
// A Record is a value: Retry, Snooze and Park return a new one. Times are UTC
// and have whole milliseconds, as on the wire; the zero time means absent.
type Record struct {
	// Count is the number of retries so far. The attempt that runs now is
	// number Count+1.
	Count int32
	// Queue is the work queue that the record belongs to.
	Queue string
	// ID identifies the message for its whole life: 32 hexadecimal digits,
	// given at the first failure. Together with Count it lets a handler
	// recognise a duplicate. It does not depend on the message-id property,
	// which producers leave out or use twice.
	ID string
	// Exchange and RoutingKey say where the message was first published. They
	// are set once and never overwritten. An empty Exchange is the default
	// exchange, unless OriginUnknown is set.
	Exchange, RoutingKey string
	// OriginUnknown says that nobody knows Exchange and RoutingKey any more:
	// the headers are gone, or the message was moved by hand before it failed.
	OriginUnknown bool
	// Policy is the name of the policy that chose the last delay.
	Policy string

	// FirstFailedAt is when the message first failed, or was first snoozed.
	FirstFailedAt time.Time
	// FailedAt is when it last failed, was snoozed or was parked.
	FailedAt time.Time
	// DueAt is when it is meant to come back; absent on a parked message.
	// Clocks differ between machines, so it informs people and never decides.
	DueAt time.Time
	// Deadline is when the message's own expiration runs out, see Expired.
	Deadline time.Time
	// Delay is the delay chosen last, in whole ms; 0 on a parked message.
	Delay time.Duration

	// Error and ErrorType describe the last failure.
	Error, ErrorType string
	// Reason is why the message is parked, one of the Reason constants.
	Reason string

	// CC and BCC are the routing keys of the headers of these names. They are
	// taken off, since a republish that keeps them sends a copy to every
	// queue they name.
	CC, BCC []string
	// Expiration is the property of this name, in ms as AMQP writes it. It is
	// taken off, since it would cut the delay short.
	Expiration string
	// UserID is the property of this name. It is taken off, since RabbitMQ
	// closes the channel (406) of a publisher that is another user.
	UserID string
	// DeliveryMode is the original delivery mode where it was not persistent:
	// 0 means that it was persistent (2), 1 transient, and DeliveryModeAbsent
	// that there was none.
	DeliveryMode uint8

	// Then is the second slot of a delay that waits in two; wheel only. Retry,
	// Snooze and Park clear it: the mechanism that publishes sets it.
	Then string

	// history is HeaderHistory as it stands, decoded on demand: appending a
	// line needs no decoding, and most attempts never look.
	history string
}

// Failure describes an attempt that did not succeed.
type Failure struct {
	// At is when it failed; the zero time means now.
	At time.Time
	// Error is the text of the error. It is written in at most MaxError bytes
	// of valid UTF-8.
	Error string
	// ErrorType is the type or class of the error, at most MaxErrorType bytes.
	ErrorType string
	// Consumer names who ran the attempt, for the history.
	Consumer string
}

// Retry gives the record of a message that failed and is to be tried again
// after delay, due at the given time (zero: delay after the failure). The count
// goes up by one and stays at 2147483647 once there; the history gets a line;
// the first failure gives the message its ID.
func (r Record) Retry(f Failure, delay time.Duration, due time.Time, policy string) Record {
	r.failed(f)
	r.wait(delay, due, policy)
	r.Error = bounded(f.Error, MaxError)
	r.ErrorType = bounded(f.ErrorType, MaxErrorType)
	r.addLine(f)
	if r.Count < math.MaxInt32 {
		r.Count++
	}
	return r
}

// Snooze gives the record of a message that is to be tried again after delay
// without using up a retry: neither count nor history change. It counts as the
// first failure for FirstFailedAt, so that a limit on the age since then also
// ends a message that is snoozed again and again. The last error stays unless
// f has one.
func (r Record) Snooze(f Failure, delay time.Duration, due time.Time, policy string) Record {
	r.failed(f)
	r.wait(delay, due, policy)
	r.lastError(f)
	return r
}

// Park gives the record of a message that goes to the parking queue for the
// given reason. The count does not change. The history gets a line if f has an
// error; the last error stays if it has none.
func (r Record) Park(f Failure, reason string) Record {
	r.failed(f)
	r.Delay, r.DueAt = 0, time.Time{}
	r.Reason = reason
	r.lastError(f)
	if f.Error != "" {
		r.addLine(f)
	}
	return r
}

// Expired reports whether the message's own deadline has passed at now: the
// end of the expiration that its producer gave it. A message without one never
// expires.
func (r Record) Expired(now time.Time) bool {
	return !r.Deadline.IsZero() && !now.Before(r.Deadline)
}

// failed is what every failure has in common. It and the steps below change the
// copy that Retry, Snooze and Park return: a record is half a kilobyte, so
// copying it for each step would cost more than the step.
func (r *Record) failed(f Failure) {
	at := f.time()
	r.FailedAt = at
	if r.FirstFailedAt.IsZero() {
		r.FirstFailedAt = at
	}
	if r.ID == "" {
		r.ID = newID()
	}
	if r.Deadline.IsZero() && r.Expiration != "" {
		r.Deadline = deadline(r.Expiration, at)
	}
	r.Reason, r.Then = "", ""
}

func (r *Record) wait(delay time.Duration, due time.Time, policy string) {
	r.Delay = max(delay, 0).Truncate(time.Millisecond)
	if due.IsZero() {
		due = r.FailedAt.Add(r.Delay)
	}
	r.DueAt = milli(due)
	r.Policy = policy
}

func (r *Record) lastError(f Failure) {
	if f.Error != "" {
		r.Error = bounded(f.Error, MaxError)
		r.ErrorType = bounded(f.ErrorType, MaxErrorType)
	}
}

// addLine gives the history the line of the attempt that just failed. It needs
// Count as it was during the attempt, and Delay as it is now.
func (r *Record) addLine(f Failure) {
	n := r.Count
	if n < math.MaxInt32 {
		n++
	}
	r.history = appendHistory(r.history, line{
		N: n, At: r.FailedAt.UnixMilli(), Delay: r.Delay.Milliseconds(), Error: f.Error, Consumer: f.Consumer,
	})
}

func (f Failure) time() time.Time {
	if at := milli(f.At); !at.IsZero() {
		return at
	}
	return milli(time.Now())
}

// newID makes an ID of 128 random bits. An ID must be unique, not secret:
// nothing is granted to who knows it. So the runtime's generator (ChaCha8,
// seeded by the operating system, one per process) is enough, and it needs no
// system call for each failure.
func newID() string {
	var id [16]byte
	for i, word := range [...]uint64{rand.Uint64(), rand.Uint64()} {
		for j := range 8 {
			id[8*i+j] = byte(word >> (8 * j))
		}
	}
	return hex.EncodeToString(id[:])
}

// deadline is the end of an expiration property that starts at the given time;
// zero if the property is no number of ms.
func deadline(expiration string, start time.Time) time.Time {
	ms, ok := digits(expiration)
	if !ok || start.IsZero() || ms > maxMillis {
		return time.Time{}
	}
	// Added as ms: as a duration the longest expirations would overflow.
	ms += start.UnixMilli()
	if ms <= 0 || ms > maxMillis {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}
