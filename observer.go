package hopback

import "time"

// Observer is told what happens to messages and connections, so that metrics
// and tracing can live outside this module. Embed NopObserver and write the
// methods you need; later versions may add more.
//
// The methods must be quick and safe for concurrent use. Received, Handled and
// Discarded are called by the worker that ran the handler; Retried and Parked by
// the one goroutine that reads all confirms of the client: one that blocks there
// holds up the hand-offs of all its consumers. One that panics is logged and
// harms nothing.
type Observer interface {
	// Received: a message reached this process and is about to be handled.
	Received(Received)
	// Handled: the handler returned nil.
	Handled(Handled)
	// Retried: the message is safe in a slot, and waits there.
	Retried(Retried)
	// Parked: the message is safe in the parking queue.
	Parked(Parked)
	// Discarded: the handler asked to drop the message.
	Discarded(Discarded)
	// Reconnected: a connection was lost and is there again.
	Reconnected(Reconnected)
	// Blocked: the broker stopped or resumed taking publishes, by an alarm.
	Blocked(Blocked)
}

// Event is what all events about a message tell.
type Event struct {
	Queue     string // work queue
	MessageID string // the application's own id; may be empty
	RetryID   string // ours; empty before the first failure
	Attempt   int    // from 1
}

// Received is told before the handler runs.
type Received struct {
	Event
	Redelivered bool
}

// Handled is told after a success.
type Handled struct {
	Event
	Took time.Duration // of the handler
}

// Why a message was retried.
const (
	ReasonError      = "error"
	ReasonRetryAfter = "retry-after"
	ReasonSnooze     = "snooze"
)

// Retried is told once the broker has confirmed the message in its slot.
type Retried struct {
	Event
	Reason string        // ReasonError, ReasonRetryAfter or ReasonSnooze
	Delay  time.Duration // that it waits
	Err    error
	Took   time.Duration
}

// Parked is told once the broker has confirmed the message in its parking
// queue.
type Parked struct {
	Event
	Reason string // exhausted, permanent, expired, crash-loop, too-large, bad-counter
	Err    error  // the last failure; where no handler ran, what is wrong with the message
}

// Discarded is told when a handler dropped a message with Discard.
type Discarded struct {
	Event
	Err error
}

// Reconnected is told when a lost connection is back.
type Reconnected struct {
	Connection string // "consume" or "publish"
	Down       time.Duration
}

// Blocked is told when the broker blocks the publishing connection, and again
// when it stops doing so.
type Blocked struct {
	Active bool
	Reason string // the broker's word, such as "low on memory"
}

// NopObserver does nothing. Embed it in an Observer of yours.
type NopObserver struct{}

// Received does nothing.
func (NopObserver) Received(Received) {}

// Handled does nothing.
func (NopObserver) Handled(Handled) {}

// Retried does nothing.
func (NopObserver) Retried(Retried) {}

// Parked does nothing.
func (NopObserver) Parked(Parked) {}

// Discarded does nothing.
func (NopObserver) Discarded(Discarded) {}

// Reconnected does nothing.
func (NopObserver) Reconnected(Reconnected) {}

// Blocked does nothing.
func (NopObserver) Blocked(Blocked) {}

var _ Observer = NopObserver{}
