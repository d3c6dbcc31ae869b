package attempt

// Version is the version of the contract. New headers do not change it: readers
// pass over what they do not know. A header whose meaning or type changes does,
// and then gets a new name, since messages of both versions wait side by side.
const Version = 1

// Headers of the contract. Every number that we write is an int64 of
// milliseconds, but for HeaderCount, which is an int32 because consumers in
// the wild type-assert it.
const (
	// HeaderCount (int32): retries so far. Absent means 0.
	HeaderCount = "x-retry-count"
	// HeaderQueue (string): the work queue that the record belongs to and that
	// the message returns to.
	HeaderQueue = "x-retry-queue"
	// HeaderID (string): 32 hexadecimal digits, the same for the message's
	// whole life.
	HeaderID = "x-retry-id"
	// HeaderExchange (string): the exchange the message was first published
	// to; "" is the default exchange, an absent header means unknown.
	HeaderExchange = "x-retry-exchange"
	// HeaderRoutingKey (string): the routing key it was first published with.
	HeaderRoutingKey = "x-retry-routing-key"
	// HeaderFirstFailedAt (int64, epoch ms): when it first failed.
	HeaderFirstFailedAt = "x-retry-first-failed-at"
	// HeaderFailedAt (int64, epoch ms): when it last failed.
	HeaderFailedAt = "x-retry-failed-at"
	// HeaderDueAt (int64, epoch ms): when it is meant to come back.
	HeaderDueAt = "x-retry-due-at"
	// HeaderDelay (int64, ms): the delay chosen for this retry.
	HeaderDelay = "x-retry-delay"
	// HeaderError (string, at most MaxError bytes): the last error.
	HeaderError = "x-retry-error"
	// HeaderErrorType (string, at most MaxErrorType bytes): its type.
	HeaderErrorType = "x-retry-error-type"
	// HeaderHistory (string holding a JSON array): the first failure and the
	// last nine, see Entry.
	HeaderHistory = "x-retry-history"
	// HeaderReason (string): on a parked message, why; see the Reason constants.
	HeaderReason = "x-retry-reason"
	// HeaderVerdict (string): from a consumer to the router, see ReadAdvice.
	HeaderVerdict = "x-retry-verdict"
	// HeaderAfter (int64, ms): from a consumer to the router, see ReadAdvice.
	HeaderAfter = "x-retry-after"
	// HeaderPolicy (string): the name of the policy that chose the delay.
	HeaderPolicy = "x-retry-policy"
	// HeaderThen (string): the second slot that the message waits in; wheel only.
	HeaderThen = "x-retry-then"
	// HeaderCC (string holding a JSON array of strings): the CC header that was
	// taken off.
	HeaderCC = "x-retry-cc"
	// HeaderBCC (string holding a JSON array of strings): the BCC header that
	// was taken off.
	HeaderBCC = "x-retry-bcc"
	// HeaderExpiration (string): the expiration property that was taken off, in
	// ms as AMQP writes it.
	HeaderExpiration = "x-retry-expiration"
	// HeaderUserID (string): the user-id property that was taken off.
	HeaderUserID = "x-retry-user-id"
	// HeaderDeliveryMode (int64): the original delivery mode, only where it was
	// not 2; 0 means that the property was absent, which is transient.
	HeaderDeliveryMode = "x-retry-delivery-mode"
	// HeaderDeadline (int64, epoch ms): when the original expiration runs out.
	HeaderDeadline = "x-retry-deadline-at"
)

// Reasons for parking, the values of HeaderReason.
const (
	// ReasonExhausted: the policy's max_retries are used up.
	ReasonExhausted = "exhausted"
	// ReasonPermanent: the handler or the policy said that no retry can help.
	ReasonPermanent = "permanent"
	// ReasonExpired: the deadline of the message's own expiration has passed, or
	// the next retry would come after it or after the policy's max_age.
	ReasonExpired = "expired"
	// ReasonCrashLoop: the message keeps killing the process that handles it.
	ReasonCrashLoop = "crash-loop"
	// ReasonLostRoute: the work queue it should return to is gone.
	ReasonLostRoute = "lost-route"
	// ReasonTooLarge: the producer's headers fill the frame so far that the
	// message could not be read any more after waiting, when RabbitMQ has added
	// its own.
	ReasonTooLarge = "too-large"
	// ReasonBadCounter: HeaderCount holds something that is no count.
	ReasonBadCounter = "bad-counter"
	// ReasonUnknownOrigin: nothing tells which work queue it failed in.
	ReasonUnknownOrigin = "unknown-origin"
	// ReasonNoRoute: the work queue it failed in is not one that the router serves.
	ReasonNoRoute = "no-route"
	// ReasonOverflow: its work queue was full and dropped it, and would again.
	ReasonOverflow = "overflow"
)

// Limits of what we write into a message.
const (
	// MaxError is the most bytes of HeaderError.
	MaxError = 1024
	// MaxErrorType is the most bytes of HeaderErrorType.
	MaxErrorType = 256
	// MaxEntryError is the most bytes of an error in a line of the history,
	// before JSON escapes it.
	MaxEntryError = 200
	// MaxEntryConsumer is the most bytes of a consumer's name in a line of the
	// history, before JSON escapes it.
	MaxEntryConsumer = 128
	// MaxHistory is the most lines of the history: the first and the last nine.
	MaxHistory = 10
)
