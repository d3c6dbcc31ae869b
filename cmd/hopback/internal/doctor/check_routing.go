package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hopback/hopback/internal/routingkey"
)

// pluginExchange: rabbitmq_delayed_message_exchange was archived by its authors in
// January 2026. Its last release is for 4.2, and it needs Mnesia, which 4.3 does
// not have.
func pluginExchange(v *view, report report) {
	for _, e := range v.Exchanges {
		if e.Type != delayedExchange {
			continue
		}
		f := Finding{
			Severity: Warning, Kind: "exchange", Name: e.Name, about: v.bound(e.Name),
			Reason: "the delayed-message exchange keeps what waits in one copy on one node, returns every mandatory message and routes delays of 2^32 ms and more at once; " +
				"it was archived by its authors, and RabbitMQ 4.3 cannot load it",
			Fix: "let what waits drain, and move the delays into queues (mechanism wheel) before the upgrade to 4.3",
		}
		if v.from(4, 3, 0) {
			f.Severity = Error
			f.Reason = "the exchange type x-delayed-message is of a plugin that cannot run on RabbitMQ " + v.Version + ": nothing that is published here is delayed"
			f.Fix = "move the delays into queues (mechanism wheel), and delete the exchange"
		}
		report(f)
	}
}

// bound are the queues that an exchange leads to.
func (v *view) bound(exchange string) (names []string) {
	for _, e := range v.route(exchange, anyKey) {
		names = append(names, e.queue)
	}
	return names
}

// headersMatchX: x-match all and any leave out every key of the binding that
// begins with "x-" (rabbit_exchange_type_headers; measured on 3.10.8, 4.0.5 and
// 4.3.6). With nothing left, all matches every message and any none.
func headersMatchX(v *view, report report) {
	for _, b := range v.Bindings {
		e := v.exchanges[b.Source]
		if e == nil || e.kind() != "headers" {
			continue
		}
		match, ok := b.Args.Text("x-match")
		if !ok {
			match = "all"
		}
		if match != "all" && match != "any" {
			continue
		}
		var ignored []string
		rest := 0
		for _, k := range slices.Sorted(maps.Keys(b.Args)) {
			switch {
			case k == "x-match":
			case strings.HasPrefix(k, "x-"):
				ignored = append(ignored, k)
			default:
				rest++
			}
		}
		if len(ignored) == 0 {
			continue
		}
		f := Finding{
			Severity: Error, Kind: "binding", Name: b.name(), about: []string{b.Destination},
			Fix: fmt.Sprintf("bind with x-match: %s-with-x, which looks at these keys on every version from 3.10 on, and remove this binding", match),
		}
		if b.Kind == "queue" {
			f.Queue = b.Destination
		}
		effect := "so this binding matches every message"
		switch {
		case rest > 0:
			f.Severity = Warning
			effect = "so this binding looks at the other keys alone"
		case match == "any":
			effect = "so this binding matches no message at all"
		}
		f.Reason = fmt.Sprintf("x-match: %s ignores the keys that begin with x- (%s), %s", match, strings.Join(ignored, ", "), effect)
		report(f)
	}
}

// topicCatchesRetry: where retries or parked messages go through a topic exchange,
// a pattern that matches their key too gets a copy of each: a work queue then
// handles a message while it waits, or after it was given up.
func topicCatchesRetry(v *view, report report) {
	for _, e := range v.Exchanges {
		if e.kind() != "topic" {
			continue
		}
		set := map[string]string{} // key: whose retries or parked messages
		for _, q := range v.Queues {
			if dlx, ok := q.dlx(); ok && dlx == e.Name {
				if k, ok := q.deadKey(); ok {
					set[k] = q.Name
				}
			}
		}
		for _, b := range v.leaving[e.Name] {
			r, known := v.roles[b.Destination]
			if b.Kind == "queue" && known && (r == holding || r == parking) && !routingkey.Wildcard(b.Key) && set[b.Key] == "" {
				set[b.Key] = b.Destination
			}
		}
		for _, k := range slices.Sorted(maps.Keys(set)) {
			v.caught(e.Name, k, report)
		}
	}
}

// caught reports the work queues that get a copy of what goes to a delay or
// parking queue by key k.
func (v *view) caught(exchange, k string, report report) {
	meant := ""
	for _, b := range v.leaving[exchange] {
		if r := v.roles[b.Destination]; b.Kind == "queue" && v.queues[b.Destination] != nil && routingkey.Overlap(k, b.Key) && (r == holding || r == parking) {
			meant = b.Destination
		}
	}
	if meant == "" {
		return // a key like any other
	}
	what := "a message that waits for its retry"
	if v.roles[meant] == parking {
		what = "a message that was given up"
	}
	for _, b := range v.leaving[exchange] {
		if b.Kind != "queue" || !routingkey.Wildcard(b.Key) || !routingkey.Overlap(k, b.Key) || v.roles[b.Destination] != work || v.queues[b.Destination] == nil {
			continue
		}
		report(Finding{
			Severity: Error, Kind: "binding", Name: b.name(), Queue: b.Destination, about: []string{meant},
			Reason: fmt.Sprintf("the pattern %q also matches %q, the key by which messages go to %s: this queue gets a copy of %s", b.Key, k, meant, what),
			Fix:    "lead retries and parked messages through an exchange of their own, or bind this queue with patterns that leave those keys out",
		})
	}
}
