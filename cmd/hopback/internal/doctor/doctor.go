// Package doctor finds what is wrong with the retries on a RabbitMQ broker.
//
// It has two halves. [Read] asks a live broker and makes a [Snapshot]: a value
// that holds everything that was seen. [Diagnose] is a pure function from a
// Snapshot to findings, with one small function for each check; what a check
// knows about RabbitMQ, and from which version on, is said where it is used, and
// in docs/doctor.md.
//
// Nothing here writes to a broker: Read sends GET requests and nothing else.
package doctor

import (
	"cmp"
	"slices"
)

// Severity says how bad a finding is.
type Severity string

const (
	// Error: messages get lost, loop, or will not be retried as meant.
	Error Severity = "error"
	// Warning: it works until something else happens, such as an upgrade, a queue
	// that is deleted or a node that dies.
	Warning Severity = "warning"
	// Note: worth knowing; nothing to do, or not to be told from outside.
	Note Severity = "note"
)

func (s Severity) rank() int { return slices.Index([]Severity{Error, Warning, Note}, s) }

// Finding is one thing that is wrong, with what to do about it.
type Finding struct {
	Severity Severity `json:"severity"`
	// Check is the name of the check, such as "dlx-missing". Names are stable.
	Check string `json:"check"`
	// Kind is "queue", "exchange", "binding", "policy" or "broker".
	Kind string `json:"kind"`
	// Name is the name of that queue, exchange or policy; of a binding its source
	// and destination; and "" of the broker.
	Name string `json:"name"`
	// Queue is the queue that suffers, or "" where it is none in particular.
	Queue string `json:"queue"`
	// Reason says what was seen and why it matters.
	Reason string `json:"reason"`
	// Fix says what to do.
	Fix string `json:"fix"`
	// Docs is where more is said, a path in this repository.
	Docs string `json:"docs"`

	about []string // the queues that it concerns, beside Queue
}

// check is one of the things that are looked at.
type check struct {
	id  string // also its heading in docs/doctor.md
	run func(*view, report)
}

// report adds a finding. The name of the check and its place in the
// documentation are filled in.
type report func(Finding)

// checks are in the order of docs/doctor.md. A check's function may report under
// its own name alone.
var checks = []check{
	{"delivery-limit-default", deliveryLimitDefault},
	{"delivery-limit-drops", deliveryLimitDrops},
	{"delivery-limit-minus-one", deliveryLimitMinusOne},
	{"delayed-retry-ignored", delayedRetryIgnored},
	{"dead-letter-cycle", deadLetterCycle},
	{"dlx-missing", dlxMissing},
	{"dlx-empty-key", dlxEmptyKey},
	{"dlx-unroutable", dlxUnroutable},
	{"at-least-once-overflow", atLeastOnceOverflow},
	{"at-least-once-no-alternate", atLeastOnceNoAlternate},
	{"expires-on-delay", expiresOnDelay},
	{"mixed-ttl", mixedTTL},
	{"delay-classic", delayClassic},
	{"delay-not-durable", delayNotDurable},
	{"delay-drops", delayDrops},
	{"parking-drops", parkingDrops},
	{"parking-delivery-limit", parkingDeliveryLimit},
	{"consumer-on-delay", consumerOnDelay},
	{"consumer-on-parking", consumerOnParking},
	{"shared-slot-refused", sharedSlotRefused},
	{"plugin-exchange", pluginExchange},
	{"headers-match-x", headersMatchX},
	{"topic-catches-retry", topicCatchesRetry},
	{"drift", drift},
	{"dead-letter-stuck", deadLetterStuck},
	{"requeue-loop", requeueLoop},
	{"prefetch-unlimited", prefetchUnlimited},
	{"policy-skipped", policySkipped},
	{"mirror-policy", mirrorPolicy},
	{"not-seen", notSeen},
}

// Checks are the names of all checks, in the order of docs/doctor.md.
func Checks() []string {
	names := make([]string, len(checks))
	for i, c := range checks {
		names[i] = c.id
	}
	return names
}

// Diagnose runs every check and returns what it finds, the worst first. With a
// scope it keeps what concerns one of those queues, and what concerns the broker.
func Diagnose(s *Snapshot, scope Scope) []Finding {
	v := newView(s)
	within := v.within(scope)
	findings := []Finding{}
	for _, c := range checks {
		c.run(v, func(f Finding) {
			f.Check, f.Docs = c.id, "docs/doctor.md#"+c.id
			if f.Kind == "queue" && f.Queue == "" {
				f.Queue = f.Name
			}
			if concerns(f, within) {
				findings = append(findings, f)
			}
		})
	}
	slices.SortStableFunc(findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Severity.rank(), b.Severity.rank()), cmp.Compare(a.Queue, b.Queue))
	})
	return findings
}

// concerns reports whether a finding is about one of the queues; nil is all.
func concerns(f Finding, within map[string]bool) bool {
	if within == nil || f.Kind == "broker" || within[f.Queue] {
		return true
	}
	return slices.ContainsFunc(f.about, func(q string) bool { return within[q] })
}

// Count is how many findings have a severity.
func Count(findings []Finding, s Severity) (n int) {
	for _, f := range findings {
		if f.Severity == s {
			n++
		}
	}
	return n
}
