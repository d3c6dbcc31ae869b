package conformance

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hopback/hopback/attempt"
)

// check collects what is wrong in one case.
type check struct {
	cfg      Config
	failures []Failure
}

// mostFailures of one case are told; the rest would say the same again.
const mostFailures = 6

func (c *check) add(attempt int, what, expected, actual, fix string) {
	if len(c.failures) < mostFailures {
		c.failures = append(c.failures, Failure{attempt, what, cut(expected), cut(actual), fix})
	}
}

// what to change, where several cases have the same advice.
const (
	fixReject  = "settle what failed by basic.reject or basic.nack with requeue false, at once: with requeue true it comes back without a delay, and with auto-ack it is gone"
	fixFail    = "publish the message to the exchange in " + EnvExchange + ", mandatory and confirmed, then acknowledge it (docs/rich-failures.md)"
	fixAttempt = "read the attempt from x-retry-count (+ 1), and from nothing else: not from redelivered, x-death or memory"
	fixSettle  = "acknowledge a message when it is handled, and after the confirm of its rich failure"
	fixQueue   = "set x-retry-queue to the name of the queue that you read from"
	fixCopy    = "copy the properties, headers and body of the delivery, and change nothing but what docs/rich-failures.md names"
)

// came checks where a message has been, by what its words say.
func (c *check) came(p *probe, events []event) {
	f := p.fate(c.cfg)
	ends := failures(events)
	told := false
	tell := func(attempt int, what, fix string) {
		if !told {
			c.add(attempt, what, f.describe(), describe(events), fix)
			told = true
		}
	}
	for i, s := range f.steps {
		n := p.first + i + 1
		if i >= len(ends) {
			tell(n, fmt.Sprintf("the word is %q, and nothing came out", s.word), fixOf(s))
			break
		}
		switch e := ends[i]; {
		case e.reason == "delivery_limit" && s.word != Crash && s.where == published:
			tell(n, fmt.Sprintf("the word is %q, and the message came back unsettled until its delivery limit", s.word),
				"find out what closes the worker's channel: a property user-id of another user does, and an exchange that does not exist")
		case e.where != s.where:
			tell(n, fmt.Sprintf("the word is %q, and the message was %s", s.word, e.where), fixOf(s))
		case e.where == rejected && e.reason != died(s.word):
			tell(n, fmt.Sprintf("the word is %q, and the message died of %s", s.word, e.reason), fixOf(s))
		case e.where == published && verdictOf(s.word) != text(e.d.Headers[attempt.HeaderVerdict]):
			c.add(n, "another verdict", show(verdictOf(s.word)), show(e.d.Headers[attempt.HeaderVerdict]),
				"set x-retry-verdict to permanent or discard where the word says so, and leave it out otherwise")
		}
	}
	if len(ends) > len(f.steps) {
		tell(p.first+len(f.steps)+1, "more attempts failed than were told to", fixAttempt)
	}
	switch rests := in(events, parked); {
	case len(in(events, astray)) > 0:
		tell(0, "the router could not tell whose message it is", fixQueue)
	case len(in(events, quarantined)) > 0:
		tell(0, "the message ended in the router's quarantine", "leave the property expiration as it was delivered, and do not add headers without end")
	case f.parked == "" && len(rests) > 0:
		tell(0, "the message was parked", fixAttempt)
	case f.parked != "" && len(rests) != 1:
		tell(0, fmt.Sprintf("the message is in the parking queue %d times", len(rests)), fixAttempt)
	case f.parked != "" && text(rests[0].d.Headers[attempt.HeaderReason]) != f.parked:
		tell(0, "it was parked for another reason", "leave the headers x-retry-* of your own queue as they were delivered")
	}
	if back := len(in(events, returned)); back != f.returns() {
		tell(0, fmt.Sprintf("it came back to the work queue %d times, and not %d times", back, f.returns()), fixAttempt)
	}
	if p.left {
		tell(0, "the message was left unsettled: it was back in the work queue when the worker had ended", fixSettle)
	}
	c.record(p, f, events)
}

func fixOf(s step) string {
	switch {
	case s.word == Crash, s.word == CrashOnce:
		return "end the process, or close the connection, without settling anything"
	case s.where == rejected:
		return fixReject
	}
	return fixFail
}

func verdictOf(word string) string {
	switch word {
	case Permanent:
		return attempt.VerdictPermanent
	case Discard:
		return attempt.VerdictDiscard
	}
	return ""
}

// record checks the record of the message where it comes back and where it is
// parked. A router writes it from what the consumer gave it.
func (c *check) record(p *probe, f fate, events []event) {
	id := ""
	waited := time.Duration(0)
	for i, e := range in(events, returned) {
		if i >= len(f.steps) {
			return
		}
		n := p.first + i + 1
		h := e.d.Headers
		if h[attempt.HeaderCount] != int32(n) {
			c.add(n, "another x-retry-count after this attempt", fmt.Sprintf("int32 %d", n), show(h[attempt.HeaderCount]),
				"leave x-retry-count as it was delivered: the router counts")
		}
		if this := text(h[attempt.HeaderID]); id == "" {
			id = this
		} else if this != id {
			c.add(n, "the message has another x-retry-id", show(id), show(this), "leave x-retry-id as it was delivered: it is the same for the message's whole life")
		}
		least := min(f.steps[i].after, c.cfg.Policy.MaxRetryAfter)
		waited += max(least, c.cfg.Policy.Schedule.MinDelay)
		if gone := e.at.Sub(p.sent); gone < waited {
			c.add(n, "the message was back too early", "not before "+waited.String()+" after it was published", gone.String(),
				"let the router send it back; publish nothing to the work queue yourself")
		}
		if ms, ok := numeric(h[attempt.HeaderDelay]); least > 0 && (!ok || ms.(int64) < least.Milliseconds()) {
			c.add(n, "the delay is shorter than the one that was asked for", fmt.Sprintf("x-retry-delay of %d or more", least.Milliseconds()),
				show(h[attempt.HeaderDelay]), "set x-retry-after to the number of milliseconds")
		}
	}
	for _, e := range in(events, parked) {
		if this := text(e.d.Headers[attempt.HeaderID]); id != "" && this != id {
			c.add(0, "the message was parked with another x-retry-id", show(id), show(this), "leave x-retry-id as it was delivered: it is the same for the message's whole life")
		}
	}
}

// kept checks that a message is still what it was when it was published: as it came
// out of each attempt, as it came back, and as it was parked. What is wrong is told
// once, where it is first seen.
func (c *check) kept(p *probe, events []event, strictly bool) {
	seen := map[string]bool{}
	for i, e := range failures(events) {
		c.content(p, seen, "as it came out", p.first+i+1, e, strictly)
		if want := c.cfg.Queue; p.key == "" && e.d.RoutingKey != want && !seen["routing key"] {
			seen["routing key"] = true
			c.add(p.first+i+1, "another routing key", show(want), show(e.d.RoutingKey), "publish with the routing key of the delivery")
		}
	}
	for where, when := range map[string]string{returned: "as it came back", parked: "as it was parked"} {
		for _, e := range in(events, where) {
			c.content(p, seen, when, 0, e, strictly)
		}
	}
}

func (c *check) content(p *probe, seen map[string]bool, when string, n int, e event, strictly bool) {
	wrong := func(what, name, expected, actual, fix string) {
		if !seen[name] {
			seen[name] = true
			c.add(n, fmt.Sprintf("%s %s, %s", what, name, when), expected, actual, fix)
		}
	}
	for _, prop := range properties(&p.msg, &e.d) {
		if prop.is != prop.was {
			wrong("another", prop.name, show(prop.was), show(prop.is), fixCopy)
		}
	}
	if string(e.d.Body) != string(p.msg.Body) {
		wrong("another", "body", fmt.Sprintf("%d bytes %s", len(p.msg.Body), show(p.msg.Body)), fmt.Sprintf("%d bytes %s", len(e.d.Body), show(e.d.Body)),
			"publish the bytes of the body as they were delivered, without decoding them")
	}
	for _, k := range slices.Sorted(maps.Keys(p.msg.Headers)) {
		was := p.msg.Headers[k]
		is, there := e.d.Headers[k]
		switch {
		case strings.HasPrefix(k, "x-retry-") && !strings.HasPrefix(k, theirs):
		case !there:
			wrong("no", "header "+k, show(was), "no such header", fixCopy)
		case !same(was, is, strictly):
			fix := fixCopy
			if p.exotic {
				fix = "where your client library reads or writes this type wrongly, reject the message instead of publishing it: the broker keeps it as it is"
			}
			wrong("another", "header "+k, show(was), show(is), fix)
		}
	}
}

// theirs begins the name of a header that looks like one of ours and is not.
const theirs = "x-retry-note"

// eachPublished calls f for what the consumer published, with the number of the
// attempt.
func eachPublished(p *probe, events []event, f func(n int, e event)) {
	for i, e := range failures(events) {
		if e.where == published {
			f(p.first+i+1, e)
		}
	}
}
