package attach

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hopback/hopback/router"
	"github.com/hopback/hopback/topology"
)

// ErrNotInEffect: what was changed does not show on the broker.
var ErrNotInEffect = errors.New("not in effect")

// ErrChanged: since the plan was made, something has changed that it is about.
var ErrChanged = errors.New("the broker has changed since this was planned: plan it again")

const (
	// inEffect is how long to wait for a policy to show. The broker's own tables
	// have it at once, but in a cluster they may be another node's.
	inEffect = 30 * time.Second
	// onItsWay is how long to wait until nothing is between a quorum queue and its
	// dead-letter exchange. The figures are up to 5 s old.
	onItsWay = 20 * time.Second
)

// Apply does what the plan says, and returns when the broker shows it. conn is for
// what the router needs, and may be nil where p.Needs is empty. A plan that was
// refused is a [*RefusedError], and nothing is done. So it is with [ErrChanged]: a
// person who thinks about a plan takes their time, and a policy of ours that has what
// another one said before would undo what somebody else has changed. What is done
// already is not done again. Apply may be called again after an error, with a new
// plan.
func (p *Plan) Apply(ctx context.Context, conn topology.Connection) error {
	doing := "attach"
	if p.Detach {
		doing = "detach"
	}
	if p.Refused() {
		return &RefusedError{Queue: p.Queue, Refusals: p.Refusals}
	}
	now, err := p.again(ctx)
	switch {
	case err != nil:
		return err // it says which
	case now.Empty() && !now.Refused():
		return nil
	case now.Refused() || !slices.Equal(p.steps(), now.steps()):
		return fmt.Errorf("%s %q: %w", doing, p.Queue, ErrChanged)
	}
	if err := now.apply(ctx, conn); err != nil {
		return fmt.Errorf("%s %q: %w", doing, p.Queue, err)
	}
	return nil
}

// again makes the plan once more.
func (p *Plan) again(ctx context.Context) (*Plan, error) {
	if p.Detach {
		return MakeDetachPlan(ctx, p.m, p.made)
	}
	return MakePlan(ctx, p.m, p.made)
}

// steps are the changes in words.
func (p *Plan) steps() (lines []string) {
	for _, c := range p.Changes {
		lines = append(lines, c.Verb)
		lines = append(lines, c.Diff...)
	}
	return lines
}

func (p *Plan) apply(ctx context.Context, conn topology.Connection) error {
	if !p.Needs.Empty() {
		if conn == nil {
			return errors.New("the router's exchanges and queues are missing, and there is no connection to declare them with")
		}
		needs, err := router.Topology(p.prefix)
		if err != nil {
			return err
		}
		if err := topology.Apply(ctx, conn, needs, topology.WithManagement(p.m)); err != nil {
			return fmt.Errorf("declare what the router needs: %w", err)
		}
	}
	if p.quiet {
		if err := p.awaitQuiet(ctx); err != nil {
			return err
		}
	}
	looked := false
	for i, c := range p.Changes {
		if c.binding != nil && c.Verb == "delete" && !looked {
			// Somebody else may be undoing the same now: nothing is taken away before
			// what is there in its place.
			there := slices.Clone(p.Changes[:i])
			for _, b := range p.stays {
				there = append(there, Change{Verb: "create", Name: b.name(), binding: &b})
			}
			if err := p.verifyBindings(ctx, there); err != nil {
				return err
			}
			looked = true
		}
		if err := p.do(ctx, c); err != nil {
			return err
		}
	}
	return p.verify(ctx)
}

func (p *Plan) do(ctx context.Context, c Change) error {
	switch {
	case c.policy != nil && c.Verb == "delete":
		return p.m.DeletePolicy(ctx, c.policy.Name)
	case c.policy != nil:
		return p.m.SetPolicy(ctx, *c.policy)
	case c.Verb == "create":
		return p.m.Bind(ctx, c.binding.topology())
	}
	return p.m.Unbind(ctx, c.binding.topology(), c.binding.Properties)
}

func (p *Plan) vhost() string { return vhostOf(p.m) }

// awaitQuiet waits until nothing is between the queue and its dead-letter exchange.
func (p *Plan) awaitQuiet(ctx context.Context) error {
	var why *Refusal
	err := poll(ctx, onItsWay, func() error {
		var f figures
		found, err := p.m.Lookup(ctx, &f, figureQuery, "queues", p.vhost(), p.Queue)
		switch {
		case err != nil:
			return fmt.Errorf("look at the queue's figures: %w", err)
		case !found:
			why = nil
			return nil
		case f.DeadLettering == nil: // a broker that has just started, or collects none
			why = &Refusal{
				"the broker has no figures of the queue, so that nobody knows whether messages are on their way to its dead-letter exchange, which RabbitMQ would delete",
				"try again in some seconds; if the broker collects no statistics, stop the queue's consumers, wait a while, and " + p.byHand,
			}
		case *f.DeadLettering > 0:
			why = &Refusal{
				fmt.Sprintf("%d messages are on their way from the queue to its dead-letter exchange, and RabbitMQ would delete them", *f.DeadLettering),
				fmt.Sprintf("stop the queue's consumers, see that %s takes what is sent to it, and try again", router.Exchange(p.prefix)),
			}
		default:
			why = nil
			return nil
		}
		return ErrRefused
	})
	if why != nil {
		return &RefusedError{Queue: p.Queue, Refusals: []Refusal{*why}}
	}
	return err
}

// verify waits until the broker shows what was changed.
func (p *Plan) verify(ctx context.Context) error {
	if p.check != nil {
		err := poll(ctx, inEffect, func() error {
			var all []queue // a request for one queue tells no policy without the statistics
			if err := p.m.Read(ctx, &all, "?disable_stats=true&columns=name,policy", "queues", p.vhost()); err != nil {
				return fmt.Errorf("look at the queue: %w", err)
			}
			i := slices.IndexFunc(all, func(q queue) bool { return q.Name == p.Queue })
			switch {
			case i < 0 && p.Detach:
				return nil
			case i < 0:
				return errors.New("the queue is gone")
			}
			return p.check(&all[i])
		})
		if err != nil {
			return fmt.Errorf("the policy was changed, but is %w after %s: %w", ErrNotInEffect, inEffect, err)
		}
	}
	return p.verifyBindings(ctx, p.Changes)
}

// verifyBindings waits until the broker shows what was changed about bindings.
func (p *Plan) verifyBindings(ctx context.Context, changes []Change) error {
	bindings := slices.DeleteFunc(slices.Clone(changes), func(c Change) bool { return c.binding == nil })
	if len(bindings) == 0 {
		return nil
	}
	return poll(ctx, inEffect, func() error {
		var have []binding
		if err := p.m.Read(ctx, &have, "", "bindings", p.vhost()); err != nil {
			return fmt.Errorf("look at the bindings: %w", err)
		}
		for _, c := range bindings {
			if _, there := properties(have, *c.binding); there != (c.Verb == "create") {
				return fmt.Errorf("the binding %s is %w: to %s it had no result; is somebody else changing it?", c.Name, ErrNotInEffect, c.Verb)
			}
		}
		return nil
	})
}

// poll tries until there is no error, at most for so long, and then returns the
// last.
func poll(ctx context.Context, most time.Duration, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	wait := 20 * time.Millisecond
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
			wait = min(2*wait, time.Second)
		}
	}
}
