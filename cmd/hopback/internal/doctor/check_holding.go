package doctor

import (
	"fmt"
	"strings"
)

// expiresOnDelay: a queue that expires is deleted with its messages; nothing is
// dead-lettered. On a quorum queue a redeclare does not renew the time (measured:
// of 30 messages 15 came back); on a classic queue it does.
func expiresOnDelay(v *view, report report) {
	for _, q := range append(v.with(holding), v.with(parking)...) {
		expires, ok := q.least("expires")
		if !ok {
			continue
		}
		f := Finding{
			Severity: Error, Kind: "queue", Name: q.Name,
			Reason: fmt.Sprintf("the queue expires after %d ms without use, and its messages are dropped with it, not dead-lettered", expires),
			Fix:    "leave x-expires out; delete such a queue when it is empty and unused instead",
		}
		ttl, waits := q.ttl()
		switch {
		case q.Type == quorum:
			f.Reason += "; on a quorum queue neither messages that wait nor a new declaration count as use"
		case waits && expires > ttl:
			f.Severity = Warning
			f.Reason += "; it outlives its messages only where every publisher declares it anew each time"
		}
		f.Reason += v.guessed(q)
		report(f)
	}
}

// mixedTTL: queues expire messages at the head only, so a message with a short
// expiration waits behind one with a long one. Nothing shows the messages'
// expirations without taking them out; what shows is a queue that nobody consumes
// from, that has no TTL, and that something leaves all the same.
func mixedTTL(v *view, report report) {
	for _, q := range v.Queues {
		_, ttl := q.ttl()
		_, dies := q.dlx()
		if q.Type == stream || ttl || !dies || q.Consumers == nil || *q.Consumers > 0 || v.slot(q.Name) {
			continue
		}
		left := v.leftAlone(q.Name)
		if count(q.Ready) == 0 && left == 0 || !v.leadsToWork(q) {
			continue
		}
		f := Finding{
			Severity: Note, Kind: "queue", Name: q.Name,
			Reason: fmt.Sprintf("%d messages are in a queue with a dead-letter exchange, without a TTL and without a consumer. ", count(q.Ready)),
			Fix:    "give the queue one fixed x-message-ttl and leave the messages' expiration out; for another delay use another queue",
		}
		headOfLine := "a queue expires messages at its head only: one that waits 4 s holds up one that waits 500 ms, on every version, classic and quorum"
		switch {
		case left > 0:
			f.Severity = Warning
			f.Reason += fmt.Sprintf("While it was watched, %d of them left and none was delivered: they carry expirations of their own. If those differ, they block each other: %s", left, headOfLine)
		case v.roles[q.Name] == holding:
			f.Severity = Warning
			f.Reason += "By its name it holds delays, so the messages must carry expirations of their own (a guess: only who takes a message out can see its expiration). If those differ, they block each other: " + headOfLine
		default:
			f.Reason += "Either its consumers are away, or the messages leave by expirations of their own (a guess). If those differ, they block each other: " + headOfLine
		}
		report(f)
	}
}

// leadsToWork reports whether what dies in q arrives in a queue that is worked on,
// and does not wait there for another delay, as in the retry queue of a work queue
// whose consumers are away.
func (v *view) leadsToWork(q *Queue) bool {
	for _, d := range v.deaths(q) {
		_, ttl := v.queues[d.queue].ttl()
		if d.sure && d.queue != q.Name && !ttl && v.roles[d.queue] == work && (count(v.queues[d.queue].Consumers) > 0 || v.roles[q.Name] == holding) {
			return true
		}
	}
	return false
}

// delayClassic: a classic queue is on one node, and dead-letters at-most-once.
// Measured with three nodes under kill -9: classic slots lost 624 of 20,000
// messages, quorum slots with at-least-once none.
func delayClassic(v *view, report report) {
	for _, q := range append(v.with(holding), v.with(parking)...) {
		if q.Type != classic {
			continue
		}
		what := "delays"
		risk := "and what dies in it is published once, without a confirm"
		if v.roles[q.Name] == parking {
			what, risk = "parked messages", "and a node that is gone takes them along"
		}
		report(Finding{
			Severity: Warning, Kind: "queue", Name: q.Name,
			Reason: fmt.Sprintf("a classic queue holds %s: it has one copy on one node, %s%s", what, risk, v.guessed(q)),
			Fix: "use a quorum queue; for delays with x-dead-letter-strategy at-least-once and x-overflow reject-publish. " +
				"A type cannot be changed: declare a queue of another name and let this one drain",
		})
	}
}

// delayNotDurable: what is not durable ends with the broker, what is deleted by
// itself with its last consumer.
func delayNotDurable(v *view, report report) {
	for _, q := range v.Queues {
		role := v.roles[q.Name]
		if q.Exclusive && (hinted(q.Name, holdingWords) || hinted(q.Name, parkingWords)) {
			role = holding // it had no role, since it is exclusive
		}
		if role != holding && role != parking {
			continue
		}
		var faults []string
		if !q.Durable {
			faults = append(faults, "not durable: it is gone, with its messages, when the broker restarts")
		}
		if q.AutoDelete {
			faults = append(faults, "auto-delete: it is gone, with its messages, when its last consumer leaves, and a look is a consumer")
		}
		if q.Exclusive {
			faults = append(faults, "exclusive: it is gone, with its messages, when the connection that declared it ends")
		}
		if len(faults) > 0 {
			report(Finding{
				Severity: Error, Kind: "queue", Name: q.Name,
				Reason: "a queue that holds what must not be lost is " + strings.Join(faults, "; ") + v.guessed(q),
				Fix:    "declare it durable, not exclusive and not auto-delete, and publish persistent messages into it",
			})
		}
	}
}

// delayDrops: a full queue with overflow drop-head dead-letters its oldest
// message, which comes back before its time.
func delayDrops(v *view, report report) {
	for _, q := range v.with(holding) {
		if !q.drops() {
			continue
		}
		report(Finding{
			Severity: Warning, Kind: "queue", Name: q.Name,
			Reason: fmt.Sprintf("%s with overflow drop-head on a queue that holds delays: when it is full, the message that has waited longest leaves early, "+
				"so that retries come at once just when many things fail%s", q.bound(), v.guessed(q)),
			Fix: "leave the limit out, or set overflow to reject-publish so that the publisher is told",
		})
	}
}

// parkingDrops: whatever lets go of parked messages.
func parkingDrops(v *view, report report) {
	for _, q := range v.with(parking) {
		where := "dropped"
		if _, dies := q.dlx(); dies {
			where = "dead-lettered"
		}
		if ttl, ok := q.ttl(); ok {
			report(Finding{
				Severity: Error, Kind: "queue", Name: q.Name,
				Reason: fmt.Sprintf("a TTL of %d ms on a parking queue: parked messages are %s before anybody has decided%s", ttl, where, v.guessed(q)),
				Fix:    "leave the TTL out; check policies whose pattern matches more than it should",
			})
		}
		switch {
		case q.drops():
			report(Finding{
				Severity: Error, Kind: "queue", Name: q.Name,
				Reason: fmt.Sprintf("%s with overflow drop-head on a parking queue: when it is full, the oldest parked message is %s%s", q.bound(), where, v.guessed(q)),
				Fix:    "leave the limit out, or set overflow to reject-publish: then what cannot be parked stays where it failed",
			})
		case q.Type == classic && q.refuses() && q.overflow() == "reject-publish-dlx":
			report(Finding{
				Severity: Warning, Kind: "queue", Name: q.Name,
				Reason: fmt.Sprintf("%s with overflow reject-publish-dlx on a parking queue: when it is full, what shall be parked is %s%s", q.bound(), where, v.guessed(q)),
				Fix:    "leave the limit out, or set overflow to reject-publish: then what cannot be parked stays where it failed",
			})
		}
	}
}

// consumerOnDelay: who takes from a delay queue ends the delay.
func consumerOnDelay(v *view, report report) {
	for _, q := range v.with(holding) {
		if n := count(q.Consumers); n > 0 {
			report(Finding{
				Severity: Error, Kind: "queue", Name: q.Name,
				Reason: fmt.Sprintf("%s on a queue that holds delays%s: messages leave it before their time, and what a consumer holds does not expire%s",
					plural(n, "consumer"), v.who(q.Name), v.guessed(q)),
				Fix: "stop it: consume from the work queue, to which the messages return",
			})
		}
	}
}

// consumerOnParking: it may be a person who looks, or a service that means to.
func consumerOnParking(v *view, report report) {
	for _, q := range v.with(parking) {
		n := count(q.Consumers)
		if n == 0 {
			continue
		}
		f := Finding{
			Severity: Warning, Kind: "queue", Name: q.Name,
			Reason: fmt.Sprintf("%s on a parking queue%s: what is parked waits for a person; a service that takes it retries without delay and without limit",
				plural(n, "consumer"), v.who(q.Name)),
			Fix: "stop it, unless it is somebody who is looking right now",
		}
		if !v.ours(q.Name) {
			f.Severity = Note
			f.Reason += v.guessed(q)
		}
		report(f)
	}
}

// who says where the consumers of a queue come from, as far as the account may
// see it: others' are only shown to one with the tag monitoring.
func (v *view) who(queue string) string {
	for _, c := range v.Consumers {
		if c.Queue.Name == queue && c.Channel.Connection != "" {
			return fmt.Sprintf(" (one is %q on the connection %q)", c.Tag, c.Channel.Connection)
		}
	}
	return ""
}

func plural(n int64, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}
