package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/delay"
	"github.com/hopback/hopback/topology"
)

// planPolicies adds to a plan in what the broker's policies differ from those of
// the routes with native-linear.
func (t *target) planPolicies(ctx context.Context, p *topology.Plan) error {
	for _, policy := range t.policies {
		if t.management == nil {
			p.Differences = append(p.Differences, topology.Difference{
				Kind: "policy", Name: policy.Name, State: topology.Unknown,
				Note: fmt.Sprintf("policy %s cannot be seen without the management API: %s", policy.Name, setManagement),
			})
			continue
		}
		more, err := t.management.PlanPolicy(ctx, policy)
		if err != nil {
			return fmt.Errorf("compare the broker's policies with %s: %w", t.config.File, err)
		}
		p.Differences = append(p.Differences, more.Differences...)
	}
	return nil
}

const setManagement = "set broker.management_url"

// applyPolicies sets the policies, when the queues are there.
func (t *target) applyPolicies(ctx context.Context) error {
	var errs []error
	for _, policy := range t.policies {
		if t.management == nil {
			errs = append(errs, fmt.Errorf("set policy %q: a policy is set over the management API: %s", policy.Name, setManagement))
			continue
		}
		errs = append(errs, t.management.ApplyPolicy(ctx, policy))
	}
	return errors.Join(errs...)
}

// changeable reports whether apply can change what differs.
func changeable(d topology.Difference) bool {
	return d.Kind == "policy" && d.State == topology.Differs
}

// warning is what people should know about a mechanism before they rely on it.
func warning(mechanism string) string {
	switch mechanism {
	case hopback.Plugin:
		return delay.PluginCost
	case hopback.NativeLinear:
		return delay.LinearCost
	}
	return ""
}

func (t *target) printWarnings(out io.Writer) {
	for _, d := range t.decisions {
		if w := warning(d.Mechanism); w != "" {
			fmt.Fprintf(out, "warning: %s uses %s: %s\n", d.Queue, d.Mechanism, w)
		}
	}
}
