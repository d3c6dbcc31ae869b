package attach

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/hopback/hopback/router"
	"github.com/hopback/hopback/topology"
)

// What a queue's failures come by.
const (
	// ByArgument: its own argument x-dead-letter-exchange names the router's exchange.
	ByArgument = "argument"
	// ByPolicy: a policy of RabbitMQ names it.
	ByPolicy = "policy"
	// ByBinding: the exchange that its argument names is bound to the router's queue.
	ByBinding = "binding"
)

// What becomes of the queues that get a queue's dead letters so far, where they
// come from an exchange that an argument names.
const (
	// Keep leaves them: each gets a copy of every failure, each time that it fails.
	Keep = "keep"
	// Unbind takes their bindings away, and detaching puts them back.
	Unbind = "unbind"
)

// How a quorum queue hands its dead letters on.
const (
	// AtLeastOnce keeps a dead letter until the router's queue has it.
	AtLeastOnce = "at-least-once"
	// AtMostOnce drops it where the router's queue cannot take it.
	AtMostOnce = "at-most-once"
)

// Request says which queue to attach, and what to do where there is a choice.
type Request struct {
	Queue string

	// Prefix of the router's exchanges and queues. Empty means
	// hopback.DefaultPrefix.
	Prefix string

	// Strategy of a quorum queue that is attached by a policy: AtLeastOnce,
	// AtMostOnce, or empty for the first where it changes nothing else. It needs
	// overflow reject-publish, by which a queue with a limit refuses new messages
	// when it is full, instead of dropping its oldest.
	Strategy string

	// Copies is Keep or Unbind. Empty refuses where there is something to decide.
	Copies string

	// Others attaches also the other queues that dead-letter through the same
	// exchange and key, where one cannot be had without the others.
	Others bool

	// Keys are routing keys that messages of the queue have, for a direct exchange
	// that cannot be told all of them from the queue's bindings.
	Keys []string
}

// Plan is what it takes to attach or detach a queue.
type Plan struct {
	Queue string
	Type  string // "quorum" or "classic"; empty where the queue is not there
	// How the queue is attached once the plan is applied, or was until then: one of
	// ByArgument, ByPolicy and ByBinding; empty for not at all.
	How    string
	Detach bool

	// Needs is what the router needs and the broker lacks; Apply declares it first.
	Needs topology.Plan
	// Changes is what Apply does, in this order.
	Changes []Change
	// Notes are worth knowing before and after.
	Notes []string
	// Refusals are why the plan is not applied, each with a way out.
	Refusals []Refusal

	m      *topology.Management
	prefix string
	check  func(*queue) error // whether the queue goes by what was changed
	quiet  bool               // wait until nothing is between the queue and its exchange
}

// Refusal is a reason not to do it, and what to do about that.
type Refusal struct {
	Reason string `json:"reason"`
	Fix    string `json:"fix"`
}

// Change is one step.
type Change struct {
	Kind string // "policy" or "binding"
	Verb string // "create", "replace" or "delete"
	Name string
	// Diff tells it in lines that begin with "+ ", "- " or, for what stays, "  ".
	Diff []string

	policy  *topology.PolicyInfo
	binding *binding
}

// ErrRefused: a plan has refusals, a [*RefusedError].
var ErrRefused = errors.New("refused")

// RefusedError is why a plan was not applied.
type RefusedError struct {
	Queue    string
	Refusals []Refusal
}

func (e *RefusedError) Error() string {
	lines := make([]string, len(e.Refusals))
	for i, r := range e.Refusals {
		lines[i] = r.Reason + ": " + r.Fix
	}
	return fmt.Sprintf("queue %q: refused: %s", e.Queue, strings.Join(lines, "; "))
}

// Is makes errors.Is(err, ErrRefused) true.
func (e *RefusedError) Is(target error) bool { return target == ErrRefused }

// Empty reports whether there is nothing to do.
func (p *Plan) Empty() bool { return len(p.Changes) == 0 && p.Needs.Empty() }

// Refused reports whether the plan cannot be applied.
func (p *Plan) Refused() bool { return len(p.Refusals) > 0 }

// String tells the plan in lines, each ended.
func (p *Plan) String() string {
	var b strings.Builder
	if !p.Refused() && p.Empty() {
		b.WriteString("nothing to do\n")
	}
	if !p.Needs.Empty() {
		fmt.Fprintf(&b, "+ what a router needs: %d exchanges, queues and bindings of the prefix %q\n", len(p.Needs.Differences), p.prefix)
	}
	for _, c := range p.Changes {
		for _, line := range c.Diff {
			b.WriteString(line + "\n")
		}
	}
	for _, r := range p.Refusals {
		fmt.Fprintf(&b, "refused: %s\n  fix: %s\n", r.Reason, r.Fix)
	}
	for _, n := range p.Notes {
		fmt.Fprintf(&b, "note: %s\n", n)
	}
	return b.String()
}

func (p *Plan) refuse(fix, format string, args ...any) {
	p.Refusals = append(p.Refusals, Refusal{fmt.Sprintf(format, args...), fix})
}

func (p *Plan) note(format string, args ...any) {
	p.Notes = append(p.Notes, fmt.Sprintf(format, args...))
}

func (r Request) validate() error {
	switch {
	case r.Queue == "":
		return errors.New("attach: name a queue")
	case r.Strategy != "" && r.Strategy != AtLeastOnce && r.Strategy != AtMostOnce:
		return fmt.Errorf("attach: strategy %q cannot work: use %s, %s or none", r.Strategy, AtLeastOnce, AtMostOnce)
	case r.Copies != "" && r.Copies != Keep && r.Copies != Unbind:
		return fmt.Errorf("attach: copies %q cannot work: use %s, %s or none", r.Copies, Keep, Unbind)
	}
	return nil
}

// MakePlan finds out what it takes to attach a queue, and only reads. A plan that
// has nothing to do is empty: the queue is attached. One that must not be applied
// has refusals; that is no error.
func MakePlan(ctx context.Context, m *topology.Management, r Request) (*Plan, error) {
	if err := r.validate(); err != nil {
		return nil, err
	}
	r.Prefix = orDefault(r.Prefix)
	s, err := lookFor(ctx, m, r.Prefix)
	if err != nil {
		return nil, fmt.Errorf("attach %q: %w", r.Queue, err)
	}
	p := s.plan(r)
	p.m = m
	return p, nil
}

// lookFor is look, and what the router lacks.
func lookFor(ctx context.Context, m *topology.Management, prefix string) (*survey, error) {
	s, err := look(ctx, m, prefix)
	if err != nil {
		return nil, err
	}
	needs, err := router.Topology(prefix)
	if err != nil {
		return nil, err
	}
	s.missing, err = topology.MakePlan(ctx, nil, m, needs)
	return s, err
}

func orDefault(prefix string) string {
	return strings.TrimSuffix(router.Exchange(prefix), ".failed")
}

func (s *survey) failed() string { return router.Exchange(s.prefix) }

// plan is MakePlan without the reading.
func (s *survey) plan(r Request) *Plan {
	p := &Plan{Queue: r.Queue, prefix: s.prefix}
	q := s.queues[r.Queue]
	if q == nil {
		p.refuse("check its name and the virtual host, or create it first", "there is no queue %q", r.Queue)
		return p
	}
	p.Type = q.Type
	if s.unfit(p, q); p.Refused() {
		return p
	}
	for _, d := range s.missing.Differences {
		if d.State == topology.Differs {
			p.refuse("delete it once it is empty and unused, or use another prefix", "what the router needs is there, but otherwise: %s", d)
		}
	}
	s.limited(p)
	x, dead := q.dlx()
	own, argument := q.Args.text(argDLX)
	switch {
	case argument && own == s.failed():
		p.How = ByArgument
		p.note("the queue was declared with x-dead-letter-exchange %q: it is attached already", own)
		s.weakly(p, q)
	case argument:
		s.bind(p, q, own, r)
	case dead && x == s.failed() && q.PolicyName != s.policyName(q.Name):
		p.How = ByPolicy
		p.note("the policy %q has dead-letter-exchange %q: it is attached already", q.PolicyName, x)
		s.weakly(p, q)
	default:
		s.police(p, q, r)
	}
	p.Needs = s.missing
	s.warn(p, q)
	return p
}

// limited refuses where a policy that was meant for other queues takes messages out
// of the router's own, or keeps them out.
func (s *survey) limited(p *Plan) {
	f := &queue{Name: s.failed(), Type: quorum}
	o, _ := highest(s.policies, f, "")
	if o == nil {
		return
	}
	for _, name := range []string{"message-ttl", "expires", "max-length", "max-length-bytes"} {
		if v, ok := o.Definition[name]; ok {
			p.refuse(fmt.Sprintf("narrow its pattern, so that it leaves out what begins with %q", s.prefix+"."),
				"the policy %q matches the router's queue %q too, and its %s %v would lose messages that wait there", o.Name, f.Name, name, v)
		}
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

// slotName finds the names that package delay gives.
var slotName = regexp.MustCompile(`\.delay\.[0-9]+m?s$`)

// ours reports whether a queue is one that Hopback made for itself, and so none
// that has a consumer of its own which fails: the router's, a slot, or where
// messages are parked.
func (s *survey) ours(name string) bool {
	if strings.HasPrefix(name, s.prefix+".") {
		own := []string{".failed", ".failed.held", ".failed.quarantine", ".failed.parked", ".lost"}
		if slotName.MatchString(name) || slices.Contains(own, strings.TrimPrefix(name, s.prefix)) {
			return true
		}
	}
	return s.parking(name)
}

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
		p.refuse("take the route with native-linear out of the configuration and remove that policy first: rabbitmqctl clear_policy "+base.Name,
			"the broker itself retries what fails in %q, by the policy %q (mechanism native-linear)", q.Name, base.Name)
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
	_, inArgs := q.Args.integer("x-message-ttl")
	_, inPolicy := q.Effective.integer("message-ttl")
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

// least is a setting of which the smaller of argument and policy holds.
func least(q *queue, name string) (int64, bool) {
	a, inArgs := q.Args.integer("x-" + name)
	p, inPolicy := q.Effective.integer(name)
	switch {
	case inArgs && inPolicy:
		return min(a, p), true
	case inArgs:
		return a, true
	}
	return p, inPolicy
}

// bound is the queue's limit on its length, in words.
func (q *queue) bound() (string, bool) {
	for _, name := range []string{"max-length", "max-length-bytes"} {
		if n, ok := least(q, name); ok {
			return fmt.Sprintf("%s %d", name, n), true
		}
	}
	return "", false
}

// overflow is what happens to a message that is too many. On a quorum queue the
// policy's beats the argument (3.10.8, 4.0.5 and 4.3.6).
func (q *queue) overflow() string {
	return q.overflowWith(q.Effective)
}

func (q *queue) overflowWith(policy table) string {
	p, inPolicy := policy.text(keyOverflow)
	a, inArgs := q.Args.text("x-overflow")
	switch {
	case inPolicy && (q.Type == quorum || !inArgs):
		return p
	case inArgs:
		return a
	}
	return "drop-head"
}

// atLeastOnce reports whether the strategy is in effect.
func (s *survey) atLeastOnce(q *queue) bool { return q.atLeastOnceWith(q.Effective) }

func (q *queue) atLeastOnceWith(policy table) bool {
	_, own := q.Args.text(argDLX)
	_, named := policy.text(keyDLX)
	strategy, ok := q.Args.text("x-" + keyStrategy)
	if !ok {
		strategy, _ = policy.text(keyStrategy)
	}
	return q.Type == quorum && (own || named) && strategy == AtLeastOnce && q.overflowWith(policy) == "reject-publish"
}
