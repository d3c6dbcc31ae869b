package attach

import "fmt"

// least is a setting of which the smaller of argument and policy holds.
func least(q *queue, name string) (int64, bool) { return q.leastWith(q.Effective, name) }

func (q *queue) leastWith(policy table, name string) (int64, bool) {
	a, inArgs := q.Args.Integer("x-" + name)
	p, inPolicy := policy.Integer(name)
	switch {
	case inArgs && inPolicy:
		return min(a, p), true
	case inArgs:
		return a, true
	}
	return p, inPolicy
}

// bound is the queue's limit on its length, in words.
func (q *queue) bound() (string, bool) { return q.boundWith(q.Effective) }

func (q *queue) boundWith(policy table) (string, bool) {
	for _, name := range []string{"max-length", "max-length-bytes"} {
		if n, ok := q.leastWith(policy, name); ok {
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
	p, inPolicy := policy.Text(keyOverflow)
	a, inArgs := q.Args.Text("x-overflow")
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
	_, own := q.Args.Text(argDLX)
	_, named := policy.Text(keyDLX)
	strategy, ok := q.Args.Text("x-" + keyStrategy)
	if !ok {
		strategy, _ = policy.Text(keyStrategy)
	}
	return q.Type == quorum && (own || named) && strategy == AtLeastOnce && q.overflowWith(policy) == "reject-publish"
}
