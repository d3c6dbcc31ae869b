package doctor

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// policySkipped: a policy applies to a queue only when the queue's type knows all
// of its keys. A classic queue does not know dead-letter-strategy, and does
// without the dead-letter exchange beside it too (measured on 3.10.8, 4.0.5, 4.3.6).
func policySkipped(v *view, report report) {
	for _, p := range v.Policies {
		_, strategy := p.Definition["dead-letter-strategy"]
		dlx, dies := p.Definition.Text("dead-letter-exchange")
		pattern, err := regexp.Compile(p.Pattern)
		if !strategy || !dies || err != nil || !slices.Contains([]string{"all", "queues", "classic_queues"}, p.ApplyTo) {
			continue
		}
		for _, q := range v.Queues {
			if q.Type != classic || !pattern.MatchString(q.Name) || v.outranked(p, q) {
				continue
			}
			if _, own := q.Args.Text("x-dead-letter-exchange"); own {
				continue // the policy is not what it dies by
			}
			report(Finding{
				Severity: Error, Kind: "policy", Name: p.Name, Queue: q.Name,
				Reason: fmt.Sprintf("the policy matches the classic queue %q and does nothing there: classic queues do not know dead-letter-strategy, "+
					"and RabbitMQ leaves out a whole policy that has a key they do not know. Its dead letters do not reach %q", q.Name, dlx),
				Fix: "make a policy for this queue without dead-letter-strategy, with a higher priority; or use a quorum queue",
			})
		}
	}
}

// outranked reports whether another policy of at least the priority matches too.
func (v *view) outranked(p Policy, q *Queue) bool {
	return slices.ContainsFunc(v.Policies, func(o Policy) bool {
		if o.Name == p.Name || o.Priority < p.Priority || !slices.Contains([]string{"all", "queues", "classic_queues"}, o.ApplyTo) {
			return false
		}
		r, err := regexp.Compile(o.Pattern)
		return err == nil && r.MatchString(q.Name)
	})
}

// mirrorPolicy: 4.0 removed mirrored classic queues. A policy that was imported
// from before promises copies that nobody makes.
func mirrorPolicy(v *view, report report) {
	for _, p := range v.Policies {
		keys := slices.Sorted(maps.Keys(p.Definition))
		keys = slices.DeleteFunc(keys, func(k string) bool { return !strings.HasPrefix(k, "ha-") })
		if len(keys) == 0 {
			continue
		}
		var about []string
		if r, err := regexp.Compile(p.Pattern); err == nil {
			for _, q := range v.Queues {
				if q.Type == classic && r.MatchString(q.Name) {
					about = append(about, q.Name)
				}
			}
		}
		f := Finding{
			Severity: Note, Kind: "policy", Name: p.Name, about: about,
			Reason: fmt.Sprintf("the policy mirrors classic queues (%s), which RabbitMQ 4.0 removed: after the upgrade they have one copy, on one node", strings.Join(keys, ", ")),
			Fix:    "move to quorum queues before the upgrade",
		}
		if v.from(4, 0, 0) {
			f.Severity = Warning
			f.Reason = fmt.Sprintf("the policy asks for mirrored classic queues (%s), which RabbitMQ 4.0 removed: the queues that it matches have one copy, on one node", strings.Join(keys, ", "))
			f.Fix = "use quorum queues, and delete the policy"
		}
		report(f)
	}
}

// notSeen says what the answer does not rest on.
func notSeen(v *view, report report) {
	for _, what := range v.Unseen {
		report(Finding{Severity: Note, Kind: "broker", Reason: what, Fix: "give the management account the tag monitoring"})
	}
	if v.Product != "" && v.Product != "RabbitMQ" {
		report(Finding{
			Severity: Note, Kind: "broker",
			Reason: fmt.Sprintf("the broker is %s %s: what depends on a version of RabbitMQ was not looked at, and the rest is untested there", v.Product, v.Version),
			Fix:    "take what is said here for a hint",
		})
	}
	if len(v.Queues) > 0 && !slices.ContainsFunc(v.Queues, func(q *Queue) bool { return q.Ready != nil }) {
		report(Finding{
			Severity: Note, Kind: "broker",
			Reason: "the broker tells no figures of queues: consumers, waiting messages and rates were not looked at",
			Fix:    "leave management_agent.disable_metrics_collector and management.disable_stats unset, or wait some seconds when the queues are new",
		})
	}
}
