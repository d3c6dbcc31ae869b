package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// delayedExchange is the exchange type of the plugin
// rabbitmq_delayed_message_exchange.
const delayedExchange = "x-delayed-message"

// raise is the fix for a limit that should be as good as none.
func raise(pattern string) string {
	return fmt.Sprintf(`set a limit that is never reached, by a policy, which needs no redeclare: `+
		`rabbitmqctl set_policy retry-limit '^%s$' '{"delivery-limit":1000000}' --apply-to queues `+
		`(only the policy of the highest priority applies to a queue: merge it with the one that is there)`, quoteRegexp(pattern))
}

func quoteRegexp(s string) string {
	return strings.NewReplacer(`.`, `\.`, `+`, `\+`, `*`, `\*`, `?`, `\?`, `(`, `\(`, `)`, `\)`, `[`, `\[`, `]`, `\]`, `|`, `\|`, `^`, `\^`, `$`, `\$`, `{`, `\{`, `}`, `\}`).Replace(s)
}

// deliveryLimitDefault: from 4.0 a quorum queue that sets no limit has one of 20,
// and what reaches it without a dead-letter exchange is dropped. A consumer of
// ours parks a message as crash-loop at its 11th delivery, so a queue of a
// route is safe.
func deliveryLimitDefault(v *view, report report) {
	for _, q := range v.with(work) {
		_, dies := q.dlx()
		_, set := v.deliveryLimit(q)
		_, route := v.routes[q.Name]
		if q.Type != quorum || dies || set || !v.from(4, 0, 0) || route || v.managed[q.Name] {
			continue
		}
		counts := "every return counts, by nack, reject, or a lost connection"
		if v.from(4, 3, 0) {
			counts = "each reject and each lost connection counts"
		}
		report(Finding{
			Severity: Error, Kind: "queue", Name: q.Name,
			Reason: fmt.Sprintf("a quorum queue without a dead-letter exchange, with the default delivery limit of RabbitMQ %s: "+
				"a message that is returned for the 21st time is dropped, silently (%s)", v.Version, counts),
			Fix: "give the queue a dead-letter exchange, so that such messages are parked; or " + raise(q.Name),
		})
	}
}

// deliveryLimitDrops is the same for a limit that somebody chose.
func deliveryLimitDrops(v *view, report report) {
	for _, q := range v.with(work) {
		_, dies := q.dlx()
		limit, set := v.deliveryLimit(q)
		if q.Type != quorum || dies || !set || limit < 0 || limit >= practically {
			continue
		}
		report(Finding{
			Severity: Warning, Kind: "queue", Name: q.Name,
			Reason: fmt.Sprintf("delivery limit %d and no dead-letter exchange: a message that reaches the limit is dropped, silently", limit),
			Fix:    "give the queue a dead-letter exchange, so that such messages are parked",
		})
	}
}

// deliveryLimitMinusOne: 4.0 takes a negative limit for none at all. 3.10 takes it
// for one that is reached before the first return.
func deliveryLimitMinusOne(v *view, report report) {
	for _, q := range v.Queues {
		limit, set := v.deliveryLimit(q)
		if q.Type != quorum || !set || limit >= 0 || !v.before(4, 0, 0) {
			continue
		}
		what := "dropped"
		if _, dies := q.dlx(); dies {
			what = "dead-lettered"
		}
		report(Finding{
			Severity: Error, Kind: "queue", Name: q.Name,
			Reason: fmt.Sprintf("delivery limit %d means unlimited from RabbitMQ 4.0 on; %s takes it for a limit that is reached at once: "+
				"a message is %s when it is first returned", limit, v.Version, what),
			Fix: "use 1000000 instead, which is right on every version; an argument can only be changed by declaring the queue anew",
		})
	}
}

// delayedRetryIgnored: the broker's own delayed retry is for quorum queues from
// 4.3 on; arguments that a broker does not know are accepted and ignored.
func delayedRetryIgnored(v *view, report report) {
	for _, q := range v.Queues {
		kind, ok := q.Args.Text("x-delayed-retry-type")
		keys := slices.Sorted(maps.Keys(q.Args))
		keys = slices.DeleteFunc(keys, func(k string) bool { return !strings.HasPrefix(k, "x-delayed-retry-") })
		if len(keys) == 0 || ok && kind == "disabled" {
			continue
		}
		why := ""
		switch {
		case v.before(4, 3, 0):
			why = "RabbitMQ " + v.Version + " accepts them and ignores them (they work from 4.3 on)"
		case q.Type != quorum && v.from(4, 3, 0):
			why = "only quorum queues know them, and this is a " + q.Type + " queue"
		default:
			continue
		}
		report(Finding{
			Severity: Error, Kind: "queue", Name: q.Name,
			Reason: fmt.Sprintf("the arguments %s shall delay what is returned, but %s: a returned message is delivered again at once, in a hot loop",
				strings.Join(keys, ", "), why),
			Fix: "let the consumer hand failures to a delay in queues (a route of Hopback with mechanism wheel), or upgrade to 4.3 and use a quorum queue",
		})
	}
}

// parkingDeliveryLimit: to look at a message is to take it and to return it.
// Measured: from 4.0 a message leaves a queue with the default limit at its 22nd
// look; 4.3 carries the count along when it dead-letters, and may let go of the
// message at the first.
func parkingDeliveryLimit(v *view, report report) {
	for _, q := range v.with(parking) {
		limit, ends := v.ends(q)
		if !ends || limit == 0 && v.before(4, 0, 0) { // delivery-limit-minus-one has said it
			continue
		}
		_, set := v.deliveryLimit(q)
		name := fmt.Sprintf("a delivery limit of %d", limit)
		if !set {
			name = fmt.Sprintf("the default delivery limit of %d", limit)
		}
		severity, what := Error, "dropped"
		if _, dies := q.dlx(); dies {
			severity, what = Warning, "dead-lettered"
		}
		looks := fmt.Sprintf("a message that has been looked at some %d times, in the management UI too, is %s", limit+1, what)
		if v.from(4, 3, 0) {
			looks += "; and since 4.3 carries the count of the queue before along, that can be the first look"
		}
		report(Finding{
			Severity: severity, Kind: "queue", Name: q.Name,
			Reason: "a parking queue with " + name + ": " + looks + v.guessed(q),
			Fix:    raise(q.Name),
		})
	}
}
