package hopback

import (
	"errors"
	"fmt"

	"github.com/hopback/hopback/delay"
	"github.com/hopback/hopback/topology"
)

// RetryPolicy is the policy of the broker that a route with the mechanism
// [NativeLinear] stands for, and false for every other. It is set by
// topology.Management.ApplyPolicy, which `hopback apply` does; the route must be
// valid.
func (r Route) RetryPolicy(prefix string) (topology.Policy, bool) {
	r = r.WithDefaults()
	if r.Mechanism != NativeLinear {
		return topology.Policy{}, false
	}
	if prefix == "" {
		prefix = DefaultPrefix
	}
	return r.linear(prefix).Policy(), true
}

func (r Route) linear(prefix string) *delay.Linear {
	return delay.NewLinear(delay.Names{Prefix: prefix}, r.Queue, r.Policy.Base, r.Policy.Max, r.Policy.retries())
}

// checkLinear refuses what the broker's own retry would not do: nobody shall get
// other delays than the ones that the policy says.
func (r Route) checkLinear() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, &ConfigError{Field: "mechanism", Value: r.Mechanism, Fix: fmt.Sprintf(format, args...)})
		}
	}
	p := r.Policy
	check(p.Backoff == Linear, "use a policy with backoff: linear, or another mechanism: the broker waits base × n, and this policy is %s", p.Backoff)
	check(p.Jitter == NoJitter, "use a policy with jitter: none, or another mechanism: the broker has no jitter, and this policy has %s", p.Jitter)
	check(!r.Isolate, "leave isolate out: messages wait in their own queue")
	check(len(p.PermanentTypes) == 0 && len(p.Permanent) == 0,
		"use a policy without permanent_types: the broker sees no errors; a consumer parks a message by rejecting it without requeue")
	if p.Backoff == Linear && p.Base > 0 && p.Max >= p.Base && p.MaxAge != Unlimited {
		total := r.linear(DefaultPrefix).Total()
		check(total <= p.MaxAge, "use a policy with max_age: unlimited, or with fewer retries: the broker does not look at the age, and these retries take %s in all, longer than %s",
			total, p.MaxAge)
	}
	return errors.Join(errs...)
}
