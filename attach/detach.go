package attach

import (
	"context"
	"fmt"
	"strings"

	"github.com/hopback/hopback/topology"
)

// MakeDetachPlan finds out what it takes to detach a queue, and only reads. It is
// empty when the queue is not attached. Only what MakePlan and Apply made is taken
// back; what somebody else made is refused, with how to go about it.
func MakeDetachPlan(ctx context.Context, m *topology.Management, r Request) (*Plan, error) {
	if err := r.validate(); err != nil {
		return nil, err
	}
	r.Prefix = orDefault(r.Prefix)
	s, err := look(ctx, m, r.Prefix)
	if err != nil {
		return nil, fmt.Errorf("detach %q: %w", r.Queue, err)
	}
	p := s.detachPlan(r)
	p.m, p.made = m, r
	return p, nil
}

func (s *survey) detachPlan(r Request) *Plan {
	p := &Plan{Queue: r.Queue, Detach: true, prefix: s.prefix}
	q := s.queues[r.Queue]
	if q != nil {
		p.Type = q.Type
	}
	ours := s.policy(s.policyName(r.Queue))
	bound := s.mine(r.Queue)
	if ours != nil {
		s.takePolicy(p, q, *ours)
	}
	if len(bound) > 0 {
		s.takeBindings(p, q, bound, r)
	}
	switch {
	case ours != nil || len(bound) > 0:
	case q == nil:
		p.refuse("check its name and the virtual host", "there is no queue %q, and nothing was attached by that name", r.Queue)
	default:
		s.foreign(p, q)
	}
	return p
}

func (s *survey) takePolicy(p *Plan, q *queue, ours topology.PolicyInfo) {
	p.How = ByPolicy
	if s.edited(p, ours); p.Refused() {
		return
	}
	c := Change{Kind: "policy", Verb: "delete", Name: ours.Name, policy: &ours, Diff: []string{"- policy " + ours.Name}}
	if q == nil {
		p.note("the queue %q is gone; the policy that attached it is left over", p.Queue)
		p.Changes = append(p.Changes, c)
		return
	}
	if q.PolicyName != ours.Name {
		p.note("the policy has no effect now: the queue goes by the policy %q", q.PolicyName)
		p.Changes = append(p.Changes, c)
		return
	}
	base, unread := s.base(q)
	var was table
	switch {
	case len(unread) > 0:
		c.Diff[0] += "; what the queue goes by then cannot be told here, since the pattern of " + unread[0].Name + " is not understood"
	case base != nil:
		was = base.Definition
		c.Diff[0] += fmt.Sprintf("; the queue then goes by %s, priority %d", base.Name, base.Priority)
	default:
		c.Diff[0] += "; the queue then goes by no policy"
	}
	if len(unread) == 0 {
		c.Diff = append(c.Diff, diffSettings(ours.Definition, was)...)
	}
	p.Changes = append(p.Changes, c)
	p.check = func(q *queue) error {
		if q.PolicyName == ours.Name {
			return fmt.Errorf("it goes by the policy %q still", ours.Name)
		}
		return nil
	}
	if x, ok := was.Text(keyDLX); !ok && len(unread) == 0 {
		p.note("what is rejected from now on is dropped, as it was before: the queue has no dead-letter exchange any more")
	} else if ok {
		p.note("what is rejected from now on goes to the exchange %q again", x)
	}
	s.endsAtLeastOnce(p, q, was)
}

// endsAtLeastOnce waits where another policy of the queue means the end of
// at-least-once.
func (s *survey) endsAtLeastOnce(p *Plan, q *queue, next map[string]any) {
	if !s.atLeastOnce(q) || q.atLeastOnceWith(q.with(next)) {
		return
	}
	p.quiet, p.byHand = true, s.clearPolicy(s.policyName(q.Name))
	p.note("RabbitMQ deletes what is on its way from a quorum queue to its dead-letter exchange when at-least-once ends. " +
		"This waits until nothing is, as far as the figures show; to rule it out, stop the queue's consumers meanwhile")
}

// edited refuses to touch our policy where it is for other queues too by now: they
// would lose what is rejected.
func (s *survey) edited(p *Plan, ours topology.PolicyInfo) {
	if want := (topology.Policy{Queue: p.Queue}).Pattern(); ours.Pattern != want {
		p.refuse("set the pattern back, giving other queues a policy of another name first; or remove it: "+s.clearPolicy(ours.Name),
			"somebody has changed the pattern of the policy %q from %s to %s, so that it may be for other queues too", ours.Name, want, ours.Pattern)
	}
}

// clearPolicy is a command that removes a policy.
func (s *survey) clearPolicy(name string) string {
	return fmt.Sprintf("rabbitmqctl clear_policy -p %s %s", shellWord(s.vhost), shellWord(name))
}

// shellWord writes a word so that a shell reads it as one.
func shellWord(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-/:@", r)
	}
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !plain(r) }) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func (s *survey) takeBindings(p *Plan, q *queue, bound []binding, r Request) {
	p.How = ByBinding
	x := bound[0].Source
	if !r.Others { // also where the queue itself is gone
		var names []string
		for name, o := range s.queues {
			to, ok := o.dlx()
			if !ok || o == q {
				continue
			}
			for _, b := range bound {
				if b.Source == to && takesAny(s.kind(to), b, s.deadKeys(o)) {
					names = append(names, name)
					break
				}
			}
		}
		if len(names) > 0 {
			p.refuse("detach them together, by --with-others",
				"other queues are attached by the same binding, since they dead-letter through %q too: %s", x, strings.Join(sorted(names), ", "))
		}
	}
	for _, b := range bound {
		taken, err := b.taken()
		if err != nil {
			p.refuse("put back by hand what was bound before, then remove that binding", "%v", err)
			continue
		}
		for _, t := range taken {
			name := t.name()
			_, isQueue := s.queues[t.Destination]
			_, isExchange := s.exchanges[t.Destination]
			switch {
			case t.Kind == "queue" && !isQueue, t.Kind == "exchange" && !isExchange:
				p.note("the binding %s cannot be put back, since its destination is gone", name)
			default:
				p.Changes = append(p.Changes, Change{Kind: "binding", Verb: "create", Name: name, Diff: []string{"+ binding " + name}, binding: &t})
			}
		}
	}
	for _, b := range bound {
		name := b.name()
		p.Changes = append(p.Changes, Change{Kind: "binding", Verb: "delete", Name: name, Diff: []string{"- binding " + name}, binding: &b})
	}
	p.note("what is rejected from now on goes by the exchange %q to where it is bound, as it was before", x)
}

func takesAny(kind string, b binding, keys []key) bool {
	for _, k := range keys {
		if takes(kind, b, k) {
			return true
		}
	}
	return false
}

// foreign refuses to take back what somebody else made.
func (s *survey) foreign(p *Plan, q *queue) {
	a := s.attachment(q)
	p.How = a.how
	switch a.how {
	case ByArgument:
		p.refuse("declare the queue anew without that argument, when it is empty",
			"the queue was declared with x-dead-letter-exchange %q, and arguments cannot be changed", s.failed())
	case ByPolicy:
		p.refuse("change it, or remove it: "+s.clearPolicy(a.by),
			"the queue is attached by the policy %q, which hopback attach did not make", a.by)
	case ByBinding:
		if a.owner != "" {
			p.refuse("detach that one, by hopback detach "+a.owner+" --with-others",
				"the queue is attached by a binding on %q that was made for the queue %q", a.by, a.owner)
			return
		}
		p.refuse("unbind it yourself", "the queue is attached by a binding of %q on the exchange %q, which hopback attach did not make", s.failed(), a.by)
	}
}
