package attach

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hopback/hopback/delay"
	"github.com/hopback/hopback/router"
	"github.com/hopback/hopback/topology"
)

// limited refuses where a policy that was meant for other queues takes messages out
// of those that they pass through on their way, or keeps them out. What a policy
// does to queues that people look into, such as parking queues, is theirs to say.
func (s *survey) limited(p *Plan) {
	names := []string{s.failed(), s.failed() + ".held", delay.Names{Prefix: s.prefix}.Slot(time.Second)}
	for _, name := range slices.Sorted(maps.Keys(s.queues)) {
		if _, _, slot := router.Slot(s.prefix, name); slot {
			names = append(names, name)
		}
	}
	told := map[string]bool{}
	tell := func(kind string, o *topology.PolicyInfo, name string) {
		if o == nil || told[kind+o.Name] {
			return
		}
		for _, setting := range []string{"message-ttl", "expires", "max-length", "max-length-bytes", keyOverflow} {
			v, ok := o.Definition[setting]
			if !ok || setting == keyOverflow && v == "reject-publish" {
				continue
			}
			told[kind+o.Name] = true
			p.refuse(fmt.Sprintf("narrow its pattern, so that it leaves out what begins with %q", s.prefix+"."),
				"the %s %q matches the router's queue %q too, and its %s %v would lose messages that wait there", kind, o.Name, name, setting, v)
		}
	}
	for _, name := range names {
		q := &queue{Name: name, Type: quorum}
		o, _ := highest(s.policies, q, "")
		if have := s.queues[name]; have != nil {
			o = s.policy(have.PolicyName)
		}
		tell("policy", o, name)
		o, _ = highest(s.operators, q, "")
		tell("operator policy", o, name)
	}
}

// weakly notes that the step to the router is at most once, where it need not be.
func (s *survey) weakly(p *Plan, q *queue) {
	if q.Type != quorum || s.atLeastOnce(q) {
		return
	}
	p.note("the step from this quorum queue to %s is at most once: a rejected message is dropped where that cannot take it. "+
		`At-least-once takes "dead-letter-strategy": "at-least-once" and "overflow": "reject-publish" in the policy`, s.failed())
}

// ours reports whether a queue is one that Hopback made for itself, and so none
// that has a consumer of its own which fails: the router's, a slot, or where
// messages are parked.
func (s *survey) ours(name string) bool { return router.Own(s.prefix, name) || s.parking(name) }

// parking reports whether routes park in a queue.
func (s *survey) parking(name string) bool {
	return slices.ContainsFunc(s.bindings, func(b binding) bool {
		return b.Source == s.prefix+".error" && b.Kind == "queue" && b.Destination == name
	})
}

// unfit refuses what no attached queue may be.
func (s *survey) unfit(p *Plan, q *queue) {
	switch {
	case s.parking(q.Name):
		p.refuse("attach the work queue; of what is parked a person decides: hopback parked replay",
			"%q is where messages are parked after their last retry: what is rejected there would be retried into it for ever", q.Name)
	case s.ours(q.Name):
		p.refuse("attach a work queue, which its consumers read", "%q is one of Hopback's own queues", q.Name)
	case q.Type == stream:
		p.refuse("use a quorum queue for what shall be retried, fed from the stream",
			"%q is a stream: nothing is taken out of it, and so nothing is rejected or dead-lettered", q.Name)
	case q.Type != quorum && q.Type != classic:
		p.refuse("use a quorum queue or a classic one",
			"%q is a queue of the type %q, of which it is not known how it dead-letters", q.Name, q.Type)
	case q.Exclusive:
		p.refuse("use a queue that is durable and not exclusive",
			"%q is exclusive: it is deleted with its connection, and what waits could not come back", q.Name)
	case q.AutoDelete:
		p.refuse("use a queue that is durable and not auto-delete",
			"%q is auto-delete: it is deleted with its last consumer, and what waits could not come back", q.Name)
	}
	if p.Refused() {
		return
	}
	for _, end := range s.ends(s.failed(), anyKey, map[string]bool{}) {
		if end == q.Name {
			p.refuse(fmt.Sprintf("unbind it from %q", s.failed()),
				"%q is bound to %q itself: what it rejects would come back at once, in a hot loop, beside its retries", q.Name, s.failed())
		}
	}
	if base, _ := s.base(q); base != nil && strings.HasPrefix(base.Name, s.prefix+".native-linear.") {
		p.refuse("take the route with native-linear out of the configuration and remove that policy first: "+s.clearPolicy(base.Name),
			"the broker itself retries what fails in %q, by the policy %q (mechanism native-linear)", q.Name, base.Name)
	}
	if limit, bounded := q.bound(); bounded && q.Type == classic && q.overflow() == "reject-publish-dlx" {
		p.refuse("use overflow reject-publish, which refuses and keeps no copy; where an argument says otherwise, declare the queue anew",
			"the queue has %s and overflow reject-publish-dlx: of a message that comes back while it is full it would dead-letter a copy, "+
				"each time that it refuses it", limit)
	}
	if ring := s.waits(q); ring != "" {
		p.refuse("attach "+ring+" instead",
			"%q looks like a queue in which messages wait for their retry: they expire in it on purpose and go on to %q. "+
				"Attached, they would be parked as expired", q.Name, ring)
	}
}

// waits is the work queue of which q is the delay queue, or "".
func (s *survey) waits(q *queue) string {
	x, dead := q.dlx()
	_, inArgs := q.Args.Integer("x-message-ttl")
	_, inPolicy := q.Effective.Integer("message-ttl")
	if !dead || !inArgs && !inPolicy || x == s.failed() {
		return ""
	}
	for _, k := range s.deadKeys(q) {
		for _, end := range s.ends(x, k, map[string]bool{}) {
			if end == q.Name || s.ours(end) {
				continue
			}
			if _, back := s.leadsBack(end, q.Name); back {
				return end
			}
		}
	}
	return ""
}

// defaultLimit is the delivery limit of a quorum queue from 4.0 on.
const defaultLimit = 20

// warn says what else dies in the queue, and what it is that reads the router's.
func (s *survey) warn(p *Plan, q *queue) {
	if p.Refused() {
		return
	}
	if q.Type == quorum {
		limit, set := least(q, "delivery-limit")
		if !set && s.from(4, 0) {
			limit, set = defaultLimit, true
		}
		if set && limit >= 0 && limit < 1000 {
			p.note("a message that comes back to the queue unsettled more than %d times (delivery limit) is parked as crash-loop, not retried", limit)
		}
	}
	if ttl, ok := least(q, "message-ttl"); ok {
		p.note("messages expire in this queue after %s: those are parked as expired, not retried, and one that waited for a retry has that time again",
			time.Duration(ttl)*time.Millisecond)
	}
	limit, bounded := q.bound()
	switch overflow := q.overflow(); {
	case bounded && overflow == "drop-head":
		p.note("the queue has %s and drops its oldest messages when it is full: those are parked as overflow, not retried", limit)
	case bounded:
		p.note("the queue has %s and refuses messages when it is full: its retries wait in slots of their own, "+
			"where the router has broker.management_url to see this, or the route has isolate: true", limit)
	}
	if expires, ok := least(q, "expires"); ok {
		p.note("the queue is deleted when it is unused for %s: what waits then rests in %s.lost", time.Duration(expires)*time.Millisecond, s.prefix)
	}
	if !q.Durable {
		p.note("the queue is not durable: it is gone after a restart of the broker, and what waits then rests in %s.lost", s.prefix)
	}
	if f := s.queues[s.failed()]; f == nil || f.Consumers != nil && *f.Consumers == 0 {
		p.note("no router reads %s (as of some seconds ago): what is rejected waits there until hopback serve runs", s.failed())
	}
}
