package conformance

import (
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
)

// probe is one message and what must become of it.
type probe struct {
	id     string
	words  []string
	msg    amqp.Publishing
	first  int       // attempts that it has had before, by other people's count
	key    string    // published to the exchange of the run with it; empty: straight to the queue
	sent   time.Time // just before it was published
	exotic bool      // has headers that not every client library can keep
	left   bool      // found unsettled in the work queue at the end
}

// step is how one attempt must end.
type step struct {
	where string        // rejected or published
	word  string        // that asked for it
	after time.Duration // asked for
}

// fate is what must become of a message: the ends of its attempts but for one that
// handles it, and where it is in the end.
type fate struct {
	steps   []step
	first   int    // attempts before the first step
	parked  string // reason; empty where it is not parked
	handled bool   // in the end
}

// fate follows the words through the policy.
func (p *probe) fate(cfg Config) fate { return fateOf(p.words, p.first, cfg.Policy.MaxRetries) }

// fateOf is what the words lead to with so many retries, of which first are over.
func fateOf(words []string, first, retries int) fate {
	f := fate{first: first}
	for n := first + 1; ; n++ {
		word, after := wordOf(words, n)
		switch word {
		case Handle:
			f.handled = true
			return f
		case Crash:
			f.steps = append(f.steps, step{rejected, word, 0})
			f.parked = attempt.ReasonCrashLoop
			return f
		case Permanent, Discard:
			f.steps = append(f.steps, step{published, word, 0})
			if word == Permanent {
				f.parked = attempt.ReasonPermanent
			}
			return f
		case Reject, CrashOnce:
			f.steps = append(f.steps, step{rejected, word, 0})
		default:
			f.steps = append(f.steps, step{published, word, after})
		}
		if n > retries {
			f.parked = attempt.ReasonExhausted
			return f
		}
	}
}

// returns is how often it comes back to the work queue.
func (f fate) returns() int {
	if f.handled {
		return len(f.steps)
	}
	return len(f.steps) - 1
}

// over reports whether a message has got where it must, or where it must never.
func (f fate) over(events []event) bool {
	ends := failures(events)
	for i, e := range ends {
		if i >= len(f.steps) || e.where != f.steps[i].where {
			return true
		}
		if e.where == rejected && e.reason != died(f.steps[i].word) {
			return true
		}
	}
	if len(in(events, astray))+len(in(events, quarantined)) > 0 || len(in(events, returned)) > f.returns() {
		return true
	}
	for i, e := range in(events, returned) {
		if e.d.Headers[attempt.HeaderCount] != int32(f.first+i+1) {
			return true
		}
	}
	for _, e := range in(events, parked) {
		if n, _ := e.d.Headers[attempt.HeaderCount].(int32); int(n) != f.first+len(f.steps)-1 {
			return true // too early or too late: what is missing does not come any more
		}
	}
	wantParked := 0
	if f.parked != "" {
		wantParked = 1
	}
	if len(in(events, parked)) > wantParked {
		return true
	}
	return len(ends) == len(f.steps) && len(in(events, returned)) == f.returns() && len(in(events, parked)) == wantParked
}

// died is what a message dies of whose consumer does as the word says.
func died(word string) string {
	if word == Crash {
		return "delivery_limit"
	}
	return "rejected"
}

// describe says in a line what came out of the consumer.
func describe(events []event) string {
	var parts []string
	for i, e := range failures(events) {
		what := e.where
		if e.where == rejected && e.reason != "rejected" {
			what = "dead-lettered as " + e.reason
		}
		parts = append(parts, fmt.Sprintf("attempt %d %s", i+1, what))
	}
	if len(parts) > 6 {
		parts = append(parts[:5], fmt.Sprintf("… and %d more", len(parts)-5))
	}
	for _, where := range []string{parked, astray, quarantined} {
		for _, e := range in(events, where) {
			reason := text(e.d.Headers[attempt.HeaderReason])
			switch where {
			case parked:
				parts = append(parts, "parked as "+reason)
			case astray:
				parts = append(parts, "parked as nobody's ("+reason+")")
			default:
				parts = append(parts, "in the router's quarantine")
			}
		}
	}
	if len(parts) == 0 {
		return "nothing came out"
	}
	return strings.Join(parts, ", ")
}

// describe says in a line what must come out.
func (f fate) describe() string {
	var parts []string
	for i, s := range f.steps {
		what := s.where
		if s.word == Crash {
			what = "dead-lettered as delivery_limit"
		}
		parts = append(parts, fmt.Sprintf("attempt %d %s", i+1, what))
	}
	switch {
	case f.parked != "":
		parts = append(parts, "parked as "+f.parked)
	case f.handled && len(f.steps) == 0:
		return "nothing comes out"
	case f.handled:
		parts = append(parts, "then handled")
	default:
		parts = append(parts, "then dropped by the router")
	}
	return strings.Join(parts, ", ")
}

// text reads a header as a text, as loosely as a router does.
func text(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case []byte:
		return string(v)
	}
	return ""
}

// newProbe is a persistent message with an id, in its header, its property and its
// body.
func newProbe(id, words string) *probe {
	return &probe{
		id: id, words: strings.Split(words, ","),
		msg: amqp.Publishing{
			DeliveryMode: amqp.Persistent, MessageId: id, Body: []byte(id),
			Headers: amqp.Table{headerID: id, HeaderInstruction: words},
		},
	}
}
