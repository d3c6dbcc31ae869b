package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/hopback/hopback"
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
	made   Request
	prefix string
	check  func(*queue) error // whether the queue goes by what was changed
	quiet  bool               // wait until nothing is between the queue and its exchange
	byHand string             // how to do it without that
	stays  []binding          // without which nothing may be taken away
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
	if _, err := router.Topology(r.Prefix); err != nil {
		return fmt.Errorf("attach: prefix %q cannot work: %w", r.Prefix, err)
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
	p.m, p.made = m, r
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

func orDefault(prefix string) string { return cmp.Or(prefix, hopback.DefaultPrefix) }

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
	own, argument := q.Args.Text(argDLX)
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
