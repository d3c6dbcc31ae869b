package attach

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"

	"github.com/hopback/hopback/topology"
)

// policyName is what our policy for a queue is called.
func (s *survey) policyName(queue string) string {
	name := s.prefix + ".attach." + queue
	if len(name) > 255 {
		sum := sha256.Sum256([]byte(queue))
		name = s.prefix + ".attach." + hex.EncodeToString(sum[:])
	}
	return name
}

// leastPriority is the priority of our policy where no other matches the queue, so
// that one for all queues, which mostly has 0, does not outrank it later.
const leastPriority = 100

// police attaches by a policy.
func (s *survey) police(p *Plan, q *queue, r Request) {
	p.How = ByPolicy
	name := s.policyName(q.Name)
	base, unread := s.base(q)
	want := s.extend(q, base, r)
	have := s.policy(name)
	if have != nil && q.PolicyName == name && same(*have, want) {
		return
	}
	if have != nil && q.PolicyName == name {
		for _, o := range unread {
			if same(*have, s.extend(q, &o, r)) {
				return
			}
			p.note("whether the policy %q matches the queue too cannot be told here, since its pattern %q is not understood", o.Name, o.Pattern)
		}
	}
	if r.Strategy == AtLeastOnce && q.Type != quorum {
		p.refuse("leave the strategy out, or use a quorum queue",
			"a classic queue knows no dead-letter-strategy, and ignores a whole policy that names one")
		return
	}
	if r.Strategy == AtMostOnce && q.atLeastOnceWith(q.with(want.Definition)) {
		p.refuse("leave the strategy out", "the queue hands its dead letters on at least once by itself, by its arguments or by the policy that it goes by")
		return
	}
	c := Change{Kind: "policy", Verb: "create", Name: name, policy: &want}
	if have != nil {
		c.Verb = "replace"
		if s.edited(p, *have); p.Refused() {
			return
		}
	}
	c.Diff = diffPolicies(q, have, base, want)
	p.Changes = append(p.Changes, c)
	p.check = func(q *queue) error { return follows(q, name) }
	s.endsAtLeastOnce(p, q, want.Definition)
	s.explain(p, q, base, want, r)
}

// base is the policy that the queue goes by, or would without ours. The broker
// itself says it, unless ours is in effect; then unread are policies of which it
// cannot be told here whether they match.
func (s *survey) base(q *queue) (base *topology.PolicyInfo, unread []topology.PolicyInfo) {
	ours := s.policyName(q.Name)
	if q.PolicyName != ours {
		return s.policy(q.PolicyName), nil
	}
	return highest(s.policies, q, ours)
}

// highest finds the policy that a queue goes by; unread are those of which it cannot
// be told.
func highest(all []topology.PolicyInfo, q *queue, but string) (best *topology.PolicyInfo, unread []topology.PolicyInfo) {
	for i := range all {
		o := &all[i]
		if o.Name == but || !applies(*o, q.Type) {
			continue
		}
		pattern, err := regexp.Compile(o.Pattern)
		switch {
		case err != nil:
			unread = append(unread, *o)
		case pattern.MatchString(q.Name) && (best == nil || o.Priority > best.Priority):
			best = o
		}
	}
	return best, unread
}

func (s *survey) policy(name string) *topology.PolicyInfo {
	if i := slices.IndexFunc(s.policies, func(o topology.PolicyInfo) bool { return o.Name == name }); i >= 0 && name != "" {
		return &s.policies[i]
	}
	return nil
}

// applies reports whether a policy is for queues of a type. One with a setting that
// a type does not know is skipped whole there.
func applies(o topology.PolicyInfo, kind string) bool {
	if !slices.Contains([]string{"all", "queues", kind + "_queues"}, o.ApplyTo) {
		return false
	}
	for name := range o.Definition {
		if slices.Contains(unsupported[kind], name) {
			return false
		}
	}
	return true
}

// unsupported are the settings that make a broker skip a policy (the capabilities
// of rabbit_classic_queue and rabbit_quorum_queue, 3.10 to 4.3).
var unsupported = map[string][]string{
	classic: {
		"max-age", "stream-max-segment-size-bytes", "initial-cluster-size", "delivery-limit", keyStrategy,
		"target-group-size", "delayed-retry-type", "delayed-retry-min", "delayed-retry-max",
	},
	quorum: {
		"max-age", "stream-max-segment-size-bytes", "initial-cluster-size", "max-priority", "queue-mode",
		"ha-mode", "ha-params", "ha-sync-mode", "ha-promote-on-shutdown", "ha-promote-on-failure", "queue-master-locator",
	},
}

// extend is a policy for this one queue: what it goes by, and our settings.
func (s *survey) extend(q *queue, base *topology.PolicyInfo, r Request) topology.PolicyInfo {
	p := topology.PolicyInfo{
		Name: s.policyName(q.Name), Pattern: topology.Policy{Queue: q.Name}.Pattern(), ApplyTo: "queues",
		Priority: leastPriority, Definition: map[string]any{},
	}
	was := table{}
	if base != nil {
		was = table(base.Definition)
		p.Priority = max(p.Priority, base.Priority+1)
		maps.Copy(p.Definition, base.Definition)
	}
	p.Definition[keyDLX] = s.failed()
	delete(p.Definition, keyKey) // dead letters keep the key that they had for their consumer
	if q.Type != quorum || r.Strategy == AtMostOnce {
		return p
	}
	// An operator's limit is a limit too. What the queue goes by now may be ours
	// already, and older than the policy that it extends.
	_, bounded := q.boundWith(q.with(was))
	harmless := !bounded || q.overflowWith(was) == "reject-publish"
	if o, ok := q.operator.Text(keyOverflow); ok && o != "reject-publish" {
		return p // what the operator says holds
	}
	if a, ok := q.Args.Text("x-" + keyStrategy); ok && a != AtLeastOnce {
		return p // it beats ours
	}
	if harmless || r.Strategy == AtLeastOnce {
		p.Definition[keyStrategy] = AtLeastOnce
		p.Definition[keyOverflow] = "reject-publish"
	}
	return p
}

// explain notes what the settings mean.
func (s *survey) explain(p *Plan, q *queue, base *topology.PolicyInfo, want topology.PolicyInfo, r Request) {
	if base != nil {
		p.note("policies do not merge, and the queue goes by the one of the highest priority: ours has all that %q says, as it is now. "+
			"When that changes, attach again (hopback status tells)", base.Name)
		if x, ok := base.Definition[keyDLX].(string); ok {
			p.note("until now dead letters went to the exchange %q, by the policy %q: they do not any more while the queue is attached", x, base.Name)
		}
	}
	was := table{}
	if base != nil {
		was = base.Definition
	}
	limit, bounded := q.boundWith(q.with(was))
	switch {
	case q.Type == classic:
		p.note("the step from a classic queue to %s is at most once, on every version: should that not take a message, it is dropped", s.failed())
	case !q.atLeastOnceWith(q.with(want.Definition)):
		why := "as was asked for"
		if r.Strategy != AtMostOnce {
			why = q.whyAtMostOnce(was)
		}
		p.note("the step from the queue to %s is at most once, %s", s.failed(), why)
	case bounded && q.overflowWith(was) != "reject-publish":
		p.note("when the queue is full (%s) it will refuse new messages, instead of dropping its oldest: its publishers must use confirms and see to it", limit)
	case !bounded && q.overflowWith(was) != "reject-publish":
		p.note("overflow reject-publish is what at-least-once needs; the queue has no limit, so nothing changes for its publishers")
	}
	if q.Operator != "" {
		p.note("the operator policy %q goes on to apply", q.Operator)
	}
}

// whyAtMostOnce says what keeps a quorum queue from at-least-once.
func (q *queue) whyAtMostOnce(was table) string {
	if o, ok := q.operator.Text(keyOverflow); ok && o != "reject-publish" {
		return fmt.Sprintf("since the operator policy %q sets overflow %s, which at-least-once cannot have", q.Operator, o)
	}
	if a, ok := q.Args.Text("x-" + keyStrategy); ok && a != AtLeastOnce {
		return fmt.Sprintf("since the queue was declared with x-%s %s, and an argument beats a policy", keyStrategy, a)
	}
	limit, _ := q.boundWith(q.with(was))
	return fmt.Sprintf("since at-least-once takes overflow reject-publish: the queue has %s, and when it is full it would refuse new messages "+
		"instead of dropping its oldest. Ask for strategy at-least-once to have that", limit)
}

// follows reports whether a queue goes by a policy.
func follows(q *queue, name string) error {
	if q.PolicyName != name {
		return fmt.Errorf("it goes by the policy %q", q.PolicyName)
	}
	return nil
}

// same compares what is set, not where it came from: a number read is json.Number.
func same(a, b topology.PolicyInfo) bool {
	return a.Pattern == b.Pattern && a.ApplyTo == b.ApplyTo && a.Priority == b.Priority && sameSettings(a.Definition, b.Definition)
}

func sameSettings(a, b map[string]any) bool {
	return len(a) == len(b) && (len(a) == 0 || reflect.DeepEqual(plain(a), plain(b)))
}

// plain is a definition as it would be read.
func plain(v map[string]any) any {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var out any
	if err := json.Unmarshal(text, &out); err != nil {
		return err
	}
	return out
}

// diffPolicies tells what changes for the queue.
func diffPolicies(q *queue, have, base *topology.PolicyInfo, want topology.PolicyInfo) []string {
	head := fmt.Sprintf("+ policy %s: pattern %s, priority %d, apply-to %s", want.Name, want.Pattern, want.Priority, want.ApplyTo)
	from := base
	if have != nil {
		head = fmt.Sprintf("~ policy %s: pattern %s, priority %d, apply-to %s", want.Name, want.Pattern, want.Priority, want.ApplyTo)
		if q.PolicyName == have.Name {
			from = have
		}
	}
	was := map[string]any{}
	if from != nil {
		head += fmt.Sprintf("; compared with %s, priority %d", from.Name, from.Priority)
		was = from.Definition
	}
	return append([]string{head}, diffSettings(was, want.Definition)...)
}

func diffSettings(was, is map[string]any) (lines []string) {
	names := slices.Collect(maps.Keys(was))
	for name := range is {
		if _, ok := was[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	line := func(mark, name string, v any) {
		text, _ := json.Marshal(v)
		lines = append(lines, fmt.Sprintf("%s   %s: %s", mark, name, text))
	}
	for _, name := range names {
		old, had := was[name]
		now, has := is[name]
		if had && has && sameSettings(map[string]any{"": old}, map[string]any{"": now}) {
			line(" ", name, now)
			continue
		}
		if had {
			line("-", name, old)
		}
		if has {
			line("+", name, now)
		}
	}
	return lines
}
