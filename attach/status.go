package attach

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hopback/hopback/router"
	"github.com/hopback/hopback/topology"
)

// Status is what is attached to the routers of a prefix, and what waits. Figures
// are some seconds old, and nil where the broker has none yet.
type Status struct {
	Prefix string
	// Queues are the attached ones, and those that were attached and are not any
	// more because something else won.
	Queues []Queue
	// Slots are the delay slots with something in them, the shortest first.
	Slots []Slot
	// Own are the router's own queues, by name.
	Own []Depth
	// Routers is how many consumers read the router's queue.
	Routers *int64
}

// Queue is an attached queue.
type Queue struct {
	Name string
	Type string
	// How is ByArgument, ByPolicy or ByBinding, or empty where it is not attached
	// in fact: Problem then says why.
	How string
	By  string // the policy, or the exchange that is bound
	// Ours says that MakePlan and Apply attached it.
	Ours bool
	// Problem is what keeps it from working as it should, or "".
	Problem string

	Consumers, Ready, Unacked *int64
	// Waiting is what is in delay slots of the queue's own, and nil where it has
	// none: then its messages wait in those that all share, where they cannot be
	// told apart without reading them.
	Waiting *int64
	Parking string // empty until a router or hopback apply has declared it
	Parked  *int64
}

// Slot is a delay slot.
type Slot struct {
	Queue    string // the slot's own name
	Owner    string // the work queue that it is for, empty where it is shared
	Delay    time.Duration
	Messages int64
}

// Depth is how many messages a queue of ours holds.
type Depth struct {
	Queue    string
	Messages int64
}

// Waiting is how many messages are in slots that all queues share, and in those of
// one queue alone.
func (s *Status) Waiting(queue string) (shared, own int64) {
	for _, slot := range s.Slots {
		switch slot.Owner {
		case "":
			shared += slot.Messages
		case queue:
			own += slot.Messages
		}
	}
	return shared, own
}

// Look lists what is attached, and what waits. It only reads, and reads no message.
func Look(ctx context.Context, m *topology.Management, prefix string) (*Status, error) {
	s, err := look(ctx, m, orDefault(prefix))
	if err != nil {
		return nil, fmt.Errorf("status: %w", err)
	}
	return s.status(), nil
}

func (s *survey) status() *Status {
	st := &Status{Prefix: s.prefix}
	slots := map[string]int64{}
	owners := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(s.queues)) {
		q := s.queues[name]
		if owner, d, ok := router.Slot(s.prefix, name); ok {
			owners[owner] = true
			if n := q.holds(); n > 0 {
				slots[owner] += n
				st.Slots = append(st.Slots, Slot{name, owner, d, n})
			}
		} else if router.Own(s.prefix, name) {
			st.Own = append(st.Own, Depth{name, q.holds()})
		}
	}
	slices.SortStableFunc(st.Slots, func(a, b Slot) int { return int(a.Delay/time.Millisecond) - int(b.Delay/time.Millisecond) })
	if f := s.queues[s.failed()]; f != nil {
		st.Routers = f.Consumers
	}
	for _, name := range slices.Sorted(maps.Keys(s.queues)) {
		q := s.queues[name]
		a := s.attachment(q)
		if a.how == "" && a.problem == "" || s.ours(name) {
			continue
		}
		out := Queue{
			Name: name, Type: q.Type, How: a.how, By: a.by, Ours: a.owner != "", Problem: a.problem,
			Consumers: q.Consumers, Ready: q.Ready, Unacked: q.Unacked,
		}
		if owners[name] {
			n := slots[name]
			out.Waiting = &n
		}
		for _, b := range s.bindings {
			if b.Source == s.prefix+".error" && b.Key == name && b.Kind == "queue" {
				out.Parking = b.Destination
				if p := s.queues[b.Destination]; p != nil && p.Ready != nil {
					n := p.holds()
					out.Parked = &n
				}
			}
		}
		st.Queues = append(st.Queues, out)
	}
	return st
}

// holds is all that is in a queue.
func (q *queue) holds() int64 {
	return count(q.Ready) + count(q.Unacked) + count(q.DeadLettering)
}

// attachment is how a queue is attached in fact.
type attachment struct {
	how, by string
	owner   string // for which queue we made it
	problem string
}

func (s *survey) attachment(q *queue) attachment {
	var a attachment
	ours := s.policy(s.policyName(q.Name))
	x, dead := q.dlx()
	own, argument := q.Args.Text(argDLX)
	switch {
	case argument && own == s.failed():
		a.how, a.by = ByArgument, argDLX
	case dead && x == s.failed():
		a.how, a.by = ByPolicy, q.PolicyName
		if ours != nil && q.PolicyName == ours.Name {
			a.owner = q.Name
			a.problem = s.stale(q, ours)
		}
	case dead && x != "":
		s.attachedBy(&a, q, x)
	}
	switch {
	case ours == nil || a.owner == q.Name && a.how == ByPolicy:
	case argument:
		a.problem = fmt.Sprintf("the policy %s has no effect: the queue has the argument x-dead-letter-exchange %q, which beats it. Detach it, and attach it again", ours.Name, own)
	case q.PolicyName != ours.Name:
		a.problem = fmt.Sprintf("the policy %s has no effect: the queue goes by the policy %q. Attach it again", ours.Name, q.PolicyName)
	}
	return a
}

// stale says in what our policy differs from the one that it extends.
func (s *survey) stale(q *queue, ours *topology.PolicyInfo) string {
	base, unread := s.base(q)
	for _, strategy := range []string{"", AtLeastOnce, AtMostOnce} {
		r := Request{Strategy: strategy}
		if same(*ours, s.extend(q, base, r)) || slices.ContainsFunc(unread, func(o topology.PolicyInfo) bool { return same(*ours, s.extend(q, &o, r)) }) {
			return ""
		}
	}
	if base == nil {
		return "the policy that it went by before is gone, or does not match it any more, and ours has its settings still. Attach it again"
	}
	return fmt.Sprintf("the policy %s has changed since, or is another than then. Attach it again", base.Name)
}

// attachedBy finds the bindings by which a queue's dead letters get to us.
func (s *survey) attachedBy(a *attachment, q *queue, x string) {
	kind := s.kind(x)
	keys := s.deadKeys(q)
	var mine []binding
	for _, b := range s.matching(x, keys) {
		if s.toUs(b) {
			mine = append(mine, b)
		}
	}
	if len(mine) == 0 {
		return
	}
	a.how, a.by = ByBinding, x
	for _, b := range mine {
		if owner, ok := b.Args.Text(argAttached); ok && (a.owner == "" || owner == q.Name) {
			a.owner = owner
		}
	}
	if a.owner == q.Name {
		if back, err := s.boundAgain(q, x); err != nil {
			a.problem = err.Error()
			return
		} else if len(back) > 0 {
			gets := "gets a copy of every failure"
			if _, comesBack := s.comesBack(back[0], q); comesBack {
				gets = "brings every failure back beside its retry, and more each time"
			}
			a.problem = fmt.Sprintf("the binding %s, which was to be taken away, is there and %s. Attaching was interrupted, or somebody "+
				"bound it again, such as a consumer that declares it when it starts: take that out, and attach again", back[0].name(), gets)
			return
		}
	}
	if kind == "direct" {
		return // which keys there are, nobody knows
	}
	for _, k := range keys {
		if !slices.ContainsFunc(mine, func(b binding) bool { return covers(kind, b, k) }) {
			a.problem = fmt.Sprintf("not all of its dead letters get here: those with the key %s do not. Attach it again", k.text)
			return
		}
	}
}

func sorted(names []string) []string {
	slices.Sort(names)
	return names
}
