package doctor

import "fmt"

// What a queue's settings are in effect: its arguments and its policies together.
// How the two are joined differs by setting (rabbit_quorum_queue and
// rabbit_amqqueue_process, 3.10 to 4.3):
//
//   - of two numbers the smaller one: message-ttl, expires, max-length, max-length-bytes
//   - dead-letter-exchange, -routing-key and -strategy: the argument
//   - overflow: the argument on a classic queue, the policy on a quorum queue
//   - delivery-limit: the smaller one, but from 4.0 the larger one when one of
//     them is negative

const (
	quorum  = "quorum"
	classic = "classic"
	stream  = "stream"
)

// argument is a setting that is text and whose argument wins.
func (q *Queue) argument(key string) (string, bool) {
	if s, ok := q.Args.Text("x-" + key); ok {
		return s, true
	}
	return q.Policy.Text(key)
}

// least is a setting that is a number and whose smaller value wins.
func (q *Queue) least(key string) (int64, bool) {
	a, inArgs := q.Args.Integer("x-" + key)
	p, inPolicy := q.Policy.Integer(key)
	switch {
	case inArgs && inPolicy:
		return min(a, p), true
	case inArgs:
		return a, true
	}
	return p, inPolicy
}

// dlx is the dead-letter exchange; "" is the default exchange. A stream has none.
func (q *Queue) dlx() (string, bool) {
	if q.Type == stream {
		return "", false
	}
	return q.argument("dead-letter-exchange")
}

// deadKey is the routing key of what dies, and false where a message keeps its own.
func (q *Queue) deadKey() (string, bool) { return q.argument("dead-letter-routing-key") }

func (q *Queue) ttl() (ms int64, ok bool) { return q.least("message-ttl") }

// overflow is what happens to a message that is too many.
func (q *Queue) overflow() string {
	arg, inArgs := q.Args.Text("x-overflow")
	policy, inPolicy := q.Policy.Text("overflow")
	how := "drop-head"
	switch {
	case q.Type == quorum && inPolicy:
		how = policy
	case inArgs:
		how = arg
	case inPolicy:
		how = policy
	}
	if q.Type == quorum && how == "reject-publish-dlx" {
		return "drop-head" // quorum queues do not know it
	}
	return how
}

// bound is the queue's limit on its length, in words, or "".
func (q *Queue) bound() string {
	for _, key := range []string{"max-length", "max-length-bytes"} {
		if n, ok := q.least(key); ok {
			return fmt.Sprintf("%s %d", key, n)
		}
	}
	return ""
}

// refuses reports whether a full queue refuses messages.
func (q *Queue) refuses() bool {
	return q.bound() != "" && (q.overflow() == "reject-publish" || q.overflow() == "reject-publish-dlx")
}

// drops reports whether a full queue lets go of messages that it holds.
func (q *Queue) drops() bool { return q.bound() != "" && q.overflow() == "drop-head" }

// atLeastOnce reports whether the strategy is asked for, whatever comes of it.
func (q *Queue) atLeastOnce() bool {
	_, dead := q.dlx()
	s, _ := q.argument("dead-letter-strategy")
	return q.Type == quorum && dead && s == "at-least-once"
}

// practically is where a delivery limit is as good as none: nobody looks at a
// message, or crashes on it, so many times.
const practically = 1000

// defaultLimit is the delivery limit of a quorum queue from 4.0 on.
const defaultLimit = 20

// deliveryLimit is the limit that a queue or a policy sets.
func (v *view) deliveryLimit(q *Queue) (limit int64, set bool) {
	a, inArgs := q.Args.Integer("x-delivery-limit")
	p, inPolicy := q.Policy.Integer("delivery-limit")
	switch {
	case inArgs && inPolicy && (a < 0 || p < 0) && v.from(4, 0, 0):
		return max(a, p), true
	case inArgs && inPolicy:
		return min(a, p), true
	case inArgs:
		return a, true
	}
	return p, inPolicy
}

// ends reports after how many returns a quorum queue lets go of a message, and
// false where it is never.
func (v *view) ends(q *Queue) (limit int64, ends bool) {
	if q.Type != quorum {
		return 0, false
	}
	limit, set := v.deliveryLimit(q)
	switch {
	case !set && v.from(4, 0, 0):
		return defaultLimit, true
	case !set:
		return 0, false
	case limit < 0:
		return 0, v.before(4, 0, 0) // 3.10 takes -1 for less than none
	}
	return limit, limit < practically
}
