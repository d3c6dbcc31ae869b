package conformance

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
)

// The headers by which a message says what its consumer shall do.
const (
	// HeaderInstruction holds one word for each attempt, separated by commas; the
	// last holds for all further ones.
	HeaderInstruction = "x-conformance"
	// HeaderError holds the error text of a rich failure.
	HeaderError = "x-conformance-error"
	// headerID says which message it is, whatever becomes of its properties.
	headerID = "x-conformance-id"
)

// The words of an instruction. After is followed by a colon and a number of ms.
const (
	Handle    = "handle"     // acknowledge
	Reject    = "reject"     // reject, without requeue
	Crash     = "crash"      // end without settling anything
	CrashOnce = "crash-once" // Crash; Reject where the delivery is flagged as redelivered
	Fail      = "fail"       // a rich failure
	Permanent = "permanent"  // a rich failure with that verdict
	Discard   = "discard"    // a rich failure with that verdict
	After     = "after"      // a rich failure with x-retry-after
)

// The environment variables that tell a worker what it needs to know.
const (
	EnvURL      = "HOPBACK_BROKER_URL"
	EnvQueue    = "HOPBACK_QUEUE"
	EnvExchange = "HOPBACK_EXCHANGE"
)

// Instruction reads what a consumer of the queue shall do with a message of these
// headers: the word, and the delay of an After. A message without an instruction,
// or with one that cannot be read, is to be handled.
func Instruction(h amqp.Table, queue string) (word string, after time.Duration) {
	text, _ := h[HeaderInstruction].(string)
	if text == "" {
		return Handle, 0
	}
	rec, err := attempt.Read(&amqp.Publishing{Headers: h}, attempt.Source{Queue: queue})
	if err != nil {
		return Handle, 0
	}
	return wordOf(strings.Split(text, ","), int(rec.Count)+1)
}

// wordOf is the word for attempt n, from 1.
func wordOf(words []string, n int) (string, time.Duration) {
	word, number, timed := strings.Cut(words[min(n, len(words))-1], ":")
	ms, err := strconv.ParseInt(number, 10, 32)
	switch {
	case !timed:
		return word, 0
	case word != After || err != nil:
		return Handle, 0
	}
	return word, time.Duration(ms) * time.Millisecond
}

// The levels, each with the cases of those before it.
const (
	Basic = "basic" // rejects what failed
	Rich  = "rich"  // publishes rich failures
	Exact = "exact" // and keeps every header's type when it does
)

// Levels lists them in their order.
func Levels() []string { return []string{Basic, Rich, Exact} }

func levelNumber(level string) int {
	for i, l := range Levels() {
		if l == level {
			return i
		}
	}
	return -1
}

func afterWord(d time.Duration) string { return fmt.Sprintf("%s:%d", After, d.Milliseconds()) }
