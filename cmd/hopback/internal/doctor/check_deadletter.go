package doctor

import (
	"fmt"
	"slices"
	"strings"
)

// reasons are those for which a queue lets go of a message by itself, without a
// consumer that rejects it.
func (v *view) reasons(q *Queue) (all []string) {
	if _, ok := q.dlx(); !ok {
		return nil
	}
	if _, ok := q.ttl(); ok {
		all = append(all, "expired")
	}
	if q.drops() || q.Type == classic && q.refuses() && q.overflow() == "reject-publish-dlx" {
		all = append(all, "maxlen")
	}
	if limit, ends := v.ends(q); ends && limit > 0 {
		all = append(all, "delivery_limit")
	}
	return all
}

// deadLetterCycle: a broker drops a message that would come into a queue that it
// has died in before, when nobody rejected it in between (rabbit_dead_letter,
// detect_cycles). It is logged once, and nothing else tells.
func deadLetterCycle(v *view, report report) {
	seen := map[string]bool{}
	for _, start := range v.Queues {
		for _, cycle := range v.cyclesFrom(start) {
			names := make([]string, len(cycle))
			for i, q := range cycle {
				names[i] = q.Name
			}
			sorted := slices.Sorted(slices.Values(names))
			id := strings.Join(sorted, "\x00")
			if seen[id] {
				continue
			}
			seen[id] = true
			report(v.cycle(cycle, names))
		}
	}
}

func (v *view) cycle(cycle []*Queue, names []string) Finding {
	// The queue that people know comes first: they look for its messages.
	first := max(0, slices.IndexFunc(cycle, func(q *Queue) bool { return v.roles[q.Name] == work }))
	cycle = append(slices.Clone(cycle[first:]), cycle[:first]...)
	var path []string
	limited := false
	for _, q := range cycle {
		why := v.reasons(q)
		limited = limited || len(why) == 1 && why[0] == "delivery_limit"
		path = append(path, fmt.Sprintf("%s (%s)", q.Name, strings.Join(why, ", ")))
	}
	f := Finding{
		Severity: Error, Kind: "queue", Name: cycle[0].Name, about: names,
		Reason: "dead letters go round without anybody rejecting them: " + strings.Join(append(path, cycle[0].Name), " -> ") +
			". RabbitMQ drops a message silently when it would come into a queue that it died in before, and no consumer rejected it since",
		Fix: "break the ring: dead-letter one of these queues elsewhere, or let the consumer publish the message anew (without x-death) instead",
	}
	if limited {
		f.Fix = "let what reaches the delivery limit park instead of return; or " + raise(cycle[0].Name)
	}
	return f
}

// cyclesFrom finds the ways on which a message that came into a queue comes back
// to it, by deaths without a reject.
func (v *view) cyclesFrom(start *Queue) (cycles [][]*Queue) {
	type place struct {
		queue string
		key   key
	}
	seen := map[place]bool{}
	var walk func(q *Queue, k key, path []*Queue)
	walk = func(q *Queue, k key, path []*Queue) {
		if seen[place{q.Name, k}] || len(v.reasons(q)) == 0 {
			return
		}
		seen[place{q.Name, k}] = true
		path = append(path, q)
		dlx, _ := q.dlx()
		if dead, ok := q.deadKey(); ok {
			k = key{dead, false}
		}
		for _, e := range v.route(dlx, k) {
			switch {
			case !e.sure:
			case e.queue == start.Name:
				cycles = append(cycles, slices.Clone(path))
			default:
				walk(v.queues[e.queue], k, path)
			}
		}
	}
	for _, k := range v.keysInto(start) {
		walk(start, k, nil)
	}
	return cycles
}

// dlxMissing: an exchange that is not there takes nothing. At-most-once drops the
// message; at-least-once keeps it, and 32 of them block the queue.
func dlxMissing(v *view, report report) {
	for _, q := range v.Queues {
		dlx, ok := q.dlx()
		if !ok || dlx == "" || v.exchanges[dlx] != nil {
			continue
		}
		report(Finding{
			Severity: Error, Kind: "queue", Name: q.Name,
			Reason: fmt.Sprintf("the dead-letter exchange %q does not exist: %s", dlx, q.unroutable()),
			Fix:    fmt.Sprintf("create the exchange %q and bind it, or change the queue's dead-letter exchange", dlx),
		})
	}
}

// unroutable says what becomes of a dead letter that finds no queue.
func (q *Queue) unroutable() string {
	if q.atLeastOnce() && q.overflow() == "reject-publish" {
		return "what dies here stays and is tried again every 3 minutes, and 32 such messages block everything behind them"
	}
	return "what dies here is dropped, silently"
}

// dlxEmptyKey: the default exchange takes the routing key for the name of a queue.
func dlxEmptyKey(v *view, report report) {
	for _, q := range v.Queues {
		dlx, ok := q.dlx()
		if !ok || dlx != "" {
			continue
		}
		dead, set := q.deadKey()
		if set && dead == "" {
			report(Finding{
				Severity: Error, Kind: "queue", Name: q.Name,
				Reason: "dead letters go to the default exchange with an empty routing key, and no queue has an empty name: " + q.unroutable(),
				Fix:    "name the queue that shall get them in x-dead-letter-routing-key",
			})
			continue
		}
		if set {
			continue
		}
		keys, all := exact(v.keysInto(q))
		home := slices.Contains(keys, q.Name)
		nowhere := slices.DeleteFunc(keys, func(k string) bool { return v.queues[k] != nil })
		switch {
		case home:
			report(Finding{
				Severity: Error, Kind: "queue", Name: q.Name,
				Reason: "dead letters go to the default exchange and keep their routing key, which is the name of this very queue: " +
					"what is rejected comes back at once, in a hot loop, and what expires is dropped",
				Fix: "name the queue that shall get them in x-dead-letter-routing-key",
			})
		case all && len(nowhere) > 0:
			report(Finding{
				Severity: Error, Kind: "queue", Name: q.Name,
				Reason: fmt.Sprintf("dead letters go to the default exchange and keep their routing key, and no queue is called %s: %s",
					quoted(nowhere), q.unroutable()),
				Fix: "name the queue that shall get them in x-dead-letter-routing-key",
			})
		}
	}
}

func quoted(names []string) string {
	q := make([]string, len(names))
	for i, n := range names {
		q[i] = fmt.Sprintf("%q", n)
	}
	return strings.Join(q, " or ")
}

// dlxUnroutable: the exchange is there, and leads nowhere.
func dlxUnroutable(v *view, report report) {
	for _, q := range v.Queues {
		dlx, ok := q.dlx()
		if !ok || dlx != "" && v.exchanges[dlx] == nil {
			continue
		}
		dead, set := q.deadKey()
		if dlx == "" {
			if set && dead != "" && v.queues[dead] == nil {
				report(Finding{
					Severity: Error, Kind: "queue", Name: q.Name,
					Reason: fmt.Sprintf("dead letters go to the queue %q, which does not exist: %s", dead, q.unroutable()),
					Fix:    fmt.Sprintf("create the queue %q, or change x-dead-letter-routing-key", dead),
				})
			}
			continue
		}
		if len(v.route(dlx, anyKey)) == 0 {
			report(Finding{
				Severity: Error, Kind: "queue", Name: q.Name,
				Reason: fmt.Sprintf("the dead-letter exchange %q leads to no queue: %s", dlx, q.unroutable()),
				Fix:    fmt.Sprintf("bind the queue that shall get the dead letters to %q", dlx),
			})
			continue
		}
		lost, _ := exact(v.deadKeys(q))
		lost = slices.DeleteFunc(lost, func(k string) bool { return len(v.route(dlx, key{k, false})) > 0 })
		if len(lost) == 0 {
			continue
		}
		f := Finding{
			Severity: Warning, Kind: "queue", Name: q.Name,
			Reason: fmt.Sprintf("the dead-letter exchange %q leads to no queue for the routing key %s, which a binding of this queue brings: %s",
				dlx, quoted(lost), q.unroutable()),
			Fix: fmt.Sprintf("bind the queue that shall get the dead letters to %q with that key, or set x-dead-letter-routing-key", dlx),
		}
		if set {
			f.Severity = Error
			f.Reason = fmt.Sprintf("the dead-letter exchange %q leads to no queue for the dead-letter routing key %q: %s", dlx, dead, q.unroutable())
			f.Fix = fmt.Sprintf("bind the queue that shall get the dead letters to %q with that key", dlx)
		}
		report(f)
	}
}

// atLeastOnceOverflow: the strategy needs overflow reject-publish. Without it
// every version from 3.10 on accepts the strategy and falls back to at-most-once.
func atLeastOnceOverflow(v *view, report report) {
	for _, q := range v.Queues {
		if !q.atLeastOnce() || q.overflow() == "reject-publish" {
			continue
		}
		report(Finding{
			Severity: Error, Kind: "queue", Name: q.Name,
			Reason: fmt.Sprintf("dead-letter-strategy at-least-once with overflow %s: RabbitMQ falls back to at-most-once without an error, "+
				"and a dead letter that finds no queue, or a full one, is dropped", q.overflow()),
			Fix: "set overflow to reject-publish beside it; a policy can, without declaring the queue anew",
		})
	}
}

// atLeastOnceNoAlternate: at-least-once keeps what finds no queue. Where each
// message says by itself where it goes, one queue that is deleted is enough to
// block everything for everyone.
func atLeastOnceNoAlternate(v *view, report report) {
	for _, q := range v.Queues {
		dlx, _ := q.dlx()
		e := v.exchanges[dlx]
		if !q.atLeastOnce() || q.overflow() != "reject-publish" || e == nil || e.kind() == "fanout" {
			continue
		}
		if _, set := q.deadKey(); set && e.kind() != "headers" {
			continue // one way for all, which dlx-unroutable has looked at
		}
		if len(v.route(dlx, anyKey)) == 0 {
			continue // dlx-unroutable
		}
		alternate, ok := v.alternate(e)
		if ok && len(v.route(alternate, anyKey)) > 0 {
			continue
		}
		why := "has no alternate exchange"
		if ok {
			why = fmt.Sprintf("has the alternate exchange %q, which leads to no queue", alternate)
		}
		report(Finding{
			Severity: Warning, Kind: "queue", Name: q.Name,
			Reason: fmt.Sprintf("dead letters go at-least-once to the exchange %q, where each message finds its own way, and it %s: "+
				"as soon as 32 messages find no queue, because one was deleted, everything behind them waits, 3 minutes at a time", dlx, why),
			Fix: fmt.Sprintf("give %q an alternate exchange with a queue that catches what finds none; a policy can: "+
				`rabbitmqctl set_policy catch '^%s$' '{"alternate-exchange":"…"}' --apply-to exchanges`, dlx, quoteRegexp(dlx)),
		})
	}
}
