package doctor

import (
	"fmt"
	"time"
)

// Watched is how long queues were watched.
func (s *Snapshot) Watched() time.Duration {
	if len(s.Samples) < 2 {
		return 0
	}
	return s.Samples[len(s.Samples)-1].At.Sub(s.Samples[0].At)
}

// seen are the figures of a queue over time; at least those of the snapshot.
func (s *Snapshot) seen(q *Queue) (all []Figures) {
	for _, sample := range s.Samples {
		if f, ok := sample.Queues[q.Name]; ok {
			all = append(all, f)
		}
	}
	if len(all) == 0 {
		all = []Figures{q.Figures}
	}
	return all
}

// leftAlone is how many messages left a queue while it was watched and nothing
// was delivered from it.
func (s *Snapshot) leftAlone(queue string) int64 {
	var first, last *Figures
	for _, sample := range s.Samples {
		f, ok := sample.Queues[queue]
		if !ok || f.Ready == nil {
			continue
		}
		if first == nil {
			first = &f
		}
		last = &f
	}
	if first == nil || first.Stats.Delivered != last.Stats.Delivered || *last.Ready >= *first.Ready {
		return 0
	}
	return *first.Ready - *last.Ready
}

// deadLetterStuck: messages_dlx counts what waits for a quorum queue's dead-letter
// worker. In a queue that flows it falls all the time; in one that is stuck it
// stands still, or grows. A passive declaration counts none of these messages.
func deadLetterStuck(v *view, report report) {
	for _, q := range v.Queues {
		seen := v.seen(q)
		fell := false
		for i, f := range seen {
			fell = fell || count(f.DeadLettering) == 0 || i > 0 && count(f.DeadLettering) < count(seen[i-1].DeadLettering)
		}
		if fell {
			continue
		}
		n := count(seen[len(seen)-1].DeadLettering)
		f := Finding{
			Severity: Error, Kind: "queue", Name: q.Name,
			Reason: fmt.Sprintf("%s wait for the dead-letter worker, and in %s none left: the queue that shall get them refuses or is missing "+
				"(the worker tries again every 3 minutes), or the worker is stuck. AMQP shows them nowhere, a passive declaration does not count them",
				plural(n, "message"), v.Watched().Round(time.Second)),
			Fix: "look at the queues behind " + v.behind(q) + ": are they there, full, or without a majority? If they are well, " +
				"move the leader of this queue (rabbitmq-queues rebalance quorum, or restart its node), which starts a new worker",
		}
		if len(seen) == 1 {
			f.Severity = Note
			f.Reason = fmt.Sprintf("%s wait for the dead-letter worker, which is in order if they are others a moment later; it was not watched", plural(n, "message"))
			f.Fix = "run hopback doctor --wait 30s"
		}
		report(f)
	}
}

func (v *view) behind(q *Queue) string {
	dlx, _ := q.dlx()
	if dlx == "" {
		return "the default exchange"
	}
	return fmt.Sprintf("the exchange %q", dlx)
}

// loops are the rates from which redeliveries look like a loop: more than a
// consumer that restarts would cause, and several for each message that is done.
const (
	loopRate  = 2.0
	loopRatio = 3.0
	loopCount = 50 // in all, from which a queue is watched although it is quiet now
)

// requeueLoop: nack or reject with requeue brings a message back at once, as often
// as the network allows.
func requeueLoop(v *view, report report) {
	for _, q := range v.Queues {
		redelivered, acked := v.rates(q)
		if !looping(redelivered, acked) {
			continue
		}
		f := Finding{
			Severity: Error, Kind: "queue", Name: q.Name,
			Reason: fmt.Sprintf("%.0f redeliveries a second and %.0f acknowledgements: somebody returns messages with requeue, and gets them again at once", redelivered, acked),
			Fix: "let the consumer reject without requeue and give the queue a way to wait: a route of Hopback; " +
				"if it only waits for something that is down, let it stop consuming meanwhile",
		}
		if w := v.Watched(); w > 0 {
			f.Reason += fmt.Sprintf(" (over %s)", w.Round(time.Second))
		}
		report(f)
	}
}

// rates are what the counters say over the time that a queue was watched. One that
// was not has the broker's own rates, of its last seconds. 0 is also what has come
// to an end meanwhile.
func (s *Snapshot) rates(q *Queue) (redelivered, acked float64) {
	seen := s.seen(q)
	first, last := seen[0].Stats, seen[len(seen)-1].Stats
	if len(seen) == 1 {
		return first.RedeliverRate.Rate, first.AckRate.Rate
	}
	// Statistics come every five seconds, so that each half of ten has some.
	if s.Watched() >= 10*time.Second && seen[len(seen)/2].Stats.Redelivered == last.Redelivered {
		return 0, 0
	}
	seconds := s.Watched().Seconds()
	return float64(last.Redelivered-first.Redelivered) / seconds, float64(last.Acked-first.Acked) / seconds
}

func looping(redelivered, acked float64) bool {
	return redelivered >= loopRate && redelivered >= loopRatio*acked
}

// Suspicious are the queues that are worth watching for a while: what they look
// like may be in order, or not, which only time tells.
func Suspicious(s *Snapshot) (names []string) {
	v := newView(s)
	for _, q := range s.Queues {
		_, ttl := q.ttl()
		_, dies := q.dlx()
		alone := dies && !ttl && q.Consumers != nil && *q.Consumers == 0 && count(q.Ready) > 0 && v.leadsToWork(q)
		loops := looping(q.Stats.RedeliverRate.Rate, q.Stats.AckRate.Rate) ||
			q.Stats.Redelivered >= loopCount && looping(float64(q.Stats.Redelivered), float64(q.Stats.Acked)) // it did
		if count(q.DeadLettering) > 0 || loops || alone {
			names = append(names, q.Name)
		}
	}
	return names
}

// prefetchUnlimited: without a limit of its own a consumer gets all that is in the
// queue, and when it ends all of it is returned, one more delivery each.
func prefetchUnlimited(v *view, report report) {
	for _, q := range v.with(work) {
		for _, c := range v.Consumers {
			// A consumer of AMQP 1.0 has credit instead, and no channel number.
			if c.Queue.Name != q.Name || !c.Acks || c.Prefetch != 0 || c.Channel.Number == 0 {
				continue
			}
			report(Finding{
				Severity: Note, Kind: "queue", Name: q.Name,
				Reason: fmt.Sprintf("the consumer %q on the connection %q has no prefetch of its own: it is sent all that is in the queue, "+
					"and when it ends, all of that counts as delivered once more", c.Tag, c.Channel.Connection),
				Fix: "set a prefetch (basic.qos), some hundreds at most",
			})
			break
		}
	}
}
