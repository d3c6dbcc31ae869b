package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hopback/hopback/topology"
)

// sharedSlotRefused: a slot keeps what its target refuses and tries again every
// 180 s (dead_letter_worker_publisher_confirm_timeout), with everything behind it
// waiting. Slots are shared by all routes of a prefix unless a route is isolated.
func sharedSlotRefused(v *view, report report) {
	for _, q := range v.Queues {
		route, configured := v.routes[q.Name]
		if !configured && !v.managed[q.Name] || !q.refuses() || configured && route.Isolate {
			continue
		}
		f := Finding{
			Severity: Error, Kind: "queue", Name: q.Name,
			Reason: fmt.Sprintf("the work queue refuses messages when it is full (%s with overflow %s), and its retries wait in slots that it shares with other queues: "+
				"a refused message blocks its slot for everyone, 3 minutes at a time", q.bound(), q.overflow()),
			Fix: "set isolate: true in its route, so that it gets slots of its own; or take the limit away",
		}
		if v.hasOwnSlots(q.Name) {
			if !configured {
				continue // its consumers may well use them
			}
			f.Severity = Warning
			f.Reason = fmt.Sprintf("the work queue refuses messages when it is full (%s with overflow %s). It has slots of its own, "+
				"but the route does not say isolate, so a consumer that cannot see the limit (without a management URL) uses the shared ones", q.bound(), q.overflow())
			f.Fix = "set isolate: true in its route"
		}
		report(f)
	}
}

func (v *view) hasOwnSlots(queue string) bool {
	return slices.ContainsFunc(v.Queues, func(s *Queue) bool {
		base, _, ok := strings.Cut(s.Name, ".delay.")
		return ok && slices.ContainsFunc(v.prefixes, func(p string) bool { return base == p+"."+queue })
	})
}

// drift is what the broker lacks, or has otherwise, of what the configuration's
// routes need.
func drift(v *view, report report) {
	missing := map[string][]string{} // slots by kind: dozens, for one reason
	for _, d := range v.Drift.Differences {
		if d.State == topology.Missing && d.Kind != "binding" && v.slot(d.Name) {
			missing[d.Kind] = append(missing[d.Kind], d.Name)
			continue
		}
		if d.State == topology.Missing && d.Kind == "binding" && slices.ContainsFunc(ends(d.Name), v.slot) {
			continue // of such a slot, which comes with its bindings
		}
		if d.Kind == "policy" {
			report(v.policyDiffers(d))
			continue
		}
		report(v.differs(d))
	}
	for _, kind := range []string{"exchange", "queue"} {
		names := missing[kind]
		if len(names) == 0 {
			continue
		}
		what := fmt.Sprintf("the %s of the delay slot %s is missing", kind, names[0])
		if len(names) > 1 {
			what = fmt.Sprintf("%d %ss of delay slots are missing, %s … %s", len(names), kind, names[0], names[len(names)-1])
		}
		report(Finding{
			Severity: Warning, Kind: kind, Name: names[0], about: append(names, v.routeNames()...),
			Reason: what + ": a retry that shall wait there is refused, and its message stays with the consumer until the slot is declared again",
			Fix:    "run hopback apply",
		})
	}
}

func (v *view) differs(d topology.Difference) Finding {
	f := Finding{Severity: Warning, Kind: d.Kind, Name: d.Name, about: ends(d.Name), Fix: "run hopback apply"}
	if d.Kind == "queue" {
		f.Queue = d.Name
	}
	_, route := v.routes[d.Name]
	switch d.State {
	case topology.Missing:
		f.Reason = "the configuration needs it, and it is missing"
		if d.Note != "" {
			f.Reason += ": " + d.Note
		}
		if d.Kind == "queue" && route {
			f.Severity = Error
			f.Fix = "create the work queue, or let its route declare it"
		}
		if d.Kind == "exchange" {
			// Shared by all: what it leads to belongs to whom the scope asks for.
			f.about = append(f.about, v.routeNames()...)
		}
		if d.Key != "" {
			f.Reason += fmt.Sprintf(" (there is one with %s %v, want %v)", d.Key, d.Have, d.Want)
		}
	case topology.Differs:
		f.Severity = Error
		f.Reason = fmt.Sprintf("%s is %v on the broker, and the configuration wants %v", d.Key, d.Have, d.Want)
		f.Fix = fmt.Sprintf("an existing %s cannot be changed: delete it once it is empty and unused and run hopback apply, or use another prefix", d.Kind)
		f.about = append(f.about, v.routeNames()...)
	case topology.Extra:
		f.Reason = d.Note
	default:
		f.Severity, f.Reason, f.Fix = Note, d.Note, "give the account the tag management"
	}
	return f
}

// policyDiffers is about the policy of a route with native-linear, without which the
// broker requeues at once what its consumer rejects.
func (v *view) policyDiffers(d topology.Difference) Finding {
	f := Finding{Severity: Error, Kind: "policy", Name: d.Name, Fix: "run hopback apply"}
	for queue, route := range v.routes {
		if p, ok := route.RetryPolicy(v.Prefix); ok && p.Name == d.Name {
			f.Queue, f.about = queue, []string{queue}
		}
	}
	switch d.State {
	case topology.Missing:
		f.Reason = "the policy by which the broker holds back this queue's failed messages is missing: they come back at once"
		if d.Note != "" {
			f.Reason, f.Fix = d.Note, "create the work queue, and run hopback apply"
		}
	case topology.Differs:
		f.Reason = fmt.Sprintf("%s is %v on the broker, and the configuration wants %v", d.Key, d.Have, d.Want)
	case topology.Conflict:
		f.Reason, f.Fix = cmp.Or(d.Note, fmt.Sprintf("%s is %v, and the configuration wants %v", d.Key, d.Have, d.Want)),
			"take away what is in the way, or choose another mechanism, and run hopback apply"
	default:
		f.Severity, f.Reason, f.Fix = Note, d.Note, "give the account the tag policymaker"
	}
	return f
}

// ends are the names of both ends of a binding, as a plan writes it, and its key,
// which of some is a work queue; or the name itself of anything else.
func ends(name string) []string {
	from, to, ok := strings.Cut(name, " -> ")
	if !ok {
		return []string{name}
	}
	to, rest, _ := strings.Cut(to, " (key ")
	key, err := strconv.Unquote(strings.TrimSuffix(rest, ")"))
	if err != nil {
		key = "" // it has none
	}
	return []string{from, strings.TrimPrefix(to, "exchange "), key}
}

func (v *view) routeNames() (names []string) {
	for name := range v.routes {
		names = append(names, name)
	}
	return names
}
