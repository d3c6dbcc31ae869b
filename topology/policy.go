package topology

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Policy is a policy of RabbitMQ for one queue: settings that the broker applies
// to a queue that exists, without a redeclare. Unlike everything else here it is
// written over the management API, since AMQP 0-9-1 knows no policies.
//
// A queue goes by one policy, that of the highest priority: policies do not merge.
// So a policy beside another that matches the same queue either has no effect or
// takes the effect of that other away, and is refused ([*ConflictError]).
type Policy struct {
	Name     string
	Queue    string
	Priority int64
	// ApplyTo is "queues", or from RabbitMQ 3.12 on "quorum_queues" or
	// "classic_queues". Empty means "queues".
	ApplyTo string
	// Definition is the settings. Numbers must be int64.
	Definition map[string]any
}

// Conflict is the state of a [Difference] that keeps a policy from being set, or
// from meaning what it says.
const Conflict = "conflict"

// ErrConflict: a policy cannot be set beside what is there, a [*ConflictError].
var ErrConflict = errors.New("something else has a say about this queue")

// ConflictError is why a policy was not set.
type ConflictError struct{ Plan Plan }

func (e *ConflictError) Error() string {
	return ErrConflict.Error() + ":\n" + strings.TrimSuffix(e.Plan.String(), "\n")
}

// Is makes errors.Is(err, ErrConflict) true.
func (e *ConflictError) Is(target error) bool { return target == ErrConflict }

// Pattern is the regular expression that matches the queue and no other.
func (p Policy) Pattern() string { return "^" + regexp.QuoteMeta(p.Queue) + "$" }

func (p Policy) applyTo() string {
	if p.ApplyTo == "" {
		return "queues"
	}
	return p.ApplyTo
}

// Validate reports what no broker could take.
func (p Policy) Validate() error {
	var errs []error
	if err := checkName(p.Name); err != nil {
		errs = append(errs, fmt.Errorf("policy %q: name %w", p.Name, err))
	}
	if err := checkName(p.Queue); err != nil {
		errs = append(errs, fmt.Errorf("policy %q: queue %q %w", p.Name, p.Queue, err))
	}
	if len(p.Definition) == 0 {
		errs = append(errs, fmt.Errorf("policy %q: the definition is empty: say at least one setting", p.Name))
	}
	if err := checkArgs(p.Definition, false); err != nil {
		errs = append(errs, fmt.Errorf("policy %q: %w", p.Name, err))
	}
	return errors.Join(errs...)
}

// PlanPolicy compares a policy with the broker, and only reads. The plan is empty
// when the policy is there as it is said and the queue can go by it. Its
// differences are of the kind "policy":
//
//   - [Missing]: there is no policy of that name, or no such queue
//   - [Differs]: it is there with other settings, which [Management.ApplyPolicy]
//     replaces
//   - [Conflict]: another policy matches the queue too, or an argument of the queue
//     beats a setting, or an operator policy does; nothing here changes that
//   - [Unknown]: another policy has a pattern that cannot be read here
func (m *Management) PlanPolicy(ctx context.Context, p Policy) (Plan, error) {
	if err := p.Validate(); err != nil {
		return Plan{}, fmt.Errorf("plan policy: %w", err)
	}
	var plan Plan
	q, found, err := m.policedQueue(ctx, p.Queue)
	if err != nil {
		return Plan{}, fmt.Errorf("plan policy %q: %w", p.Name, err)
	}
	if found {
		plan.add("policy", p.Name, q.against(p)...)
	} else {
		plan.add("policy", p.Name, Difference{State: Missing, Note: fmt.Sprintf("there is no queue %q, so its type and arguments cannot be checked", p.Queue)})
	}
	there := false
	err = each(ctx, m, "", func(o policyState) {
		if o.Name == p.Name {
			there = true
			plan.add("policy", p.Name, o.differences(p)...)
			return
		}
		plan.add("policy", p.Name, o.beside(p, q)...)
	}, "policies", m.vhost())
	if err != nil {
		return Plan{}, fmt.Errorf("plan policy %q: %w", p.Name, err)
	}
	if !there {
		plan.add("policy", p.Name, Difference{State: Missing, Want: valueOf(p.Definition)})
	}
	return plan, nil
}

// ApplyPolicy sets a policy, or replaces the one of its name, and does nothing
// when it is there as it is said. It takes an account with the tag policymaker or
// administrator. When something else has a say about the queue it sets nothing and
// returns a [*ConflictError]; when the queue is not there, a [*MissingError]. The
// broker takes a moment to go by it, and its answers over HTTP some seconds to show
// it.
func (m *Management) ApplyPolicy(ctx context.Context, p Policy) error {
	plan, err := m.PlanPolicy(ctx, p)
	if err != nil {
		return err
	}
	change := false
	for _, d := range plan.Differences {
		switch {
		case d.State == Conflict:
			return fmt.Errorf("set policy %q: %w", p.Name, &ConflictError{Plan: plan})
		case d.State == Missing && d.Note != "":
			return fmt.Errorf("set policy %q: %w", p.Name, &MissingError{Queue: p.Queue, Err: errNotThere})
		case d.State == Missing || d.State == Differs:
			change = true
		}
	}
	if !change {
		return nil
	}
	body := map[string]any{
		"pattern": p.Pattern(), "definition": p.Definition, "priority": p.Priority, "apply-to": p.applyTo(),
	}
	if err := m.put(ctx, body, "policies", m.vhost(), p.Name); err != nil {
		return fmt.Errorf("set policy %q: %w", p.Name, err)
	}
	return nil
}

// VerifyPolicy returns nil when the policy is there and the queue can go by it,
// and else a [*DriftError] with the plan.
func (m *Management) VerifyPolicy(ctx context.Context, p Policy) error {
	plan, err := m.PlanPolicy(ctx, p)
	if err == nil && !plan.Empty() {
		err = &DriftError{Plan: plan}
	}
	return err
}

// PolicyInfo is a policy as the broker has it, for whatever it is.
type PolicyInfo struct {
	Name     string `json:"name"`
	Pattern  string `json:"pattern"`
	ApplyTo  string `json:"apply-to"`
	Priority int64  `json:"priority"`
	// Definition is the settings; its numbers are json.Number when it was read.
	Definition map[string]any `json:"definition"`
}

// Policies lists the policies of the virtual host. It takes an account with the tag
// policymaker or administrator.
func (m *Management) Policies(ctx context.Context) ([]PolicyInfo, error) {
	var all []PolicyInfo
	err := each(ctx, m, "", func(o policyState) {
		all = append(all, PolicyInfo{o.Name, o.Pattern, o.ApplyTo, o.Priority, o.Definition})
	}, "policies", m.vhost())
	return all, err
}

// SetPolicy sets a policy, or replaces the one of its name, whatever else is there:
// see [Management.ApplyPolicy] for one that looks first.
func (m *Management) SetPolicy(ctx context.Context, p PolicyInfo) error {
	body := map[string]any{
		"pattern": p.Pattern, "definition": p.Definition, "priority": p.Priority, "apply-to": p.ApplyTo,
	}
	if err := m.put(ctx, body, "policies", m.vhost(), p.Name); err != nil {
		return fmt.Errorf("set policy %q: %w", p.Name, err)
	}
	return nil
}

// DeletePolicy removes a policy. One that is not there is no error.
func (m *Management) DeletePolicy(ctx context.Context, name string) error {
	if err := m.write(ctx, http.MethodDelete, nil, "policies", m.vhost(), name); err != nil && !errors.Is(err, errNotThere) {
		return fmt.Errorf("delete policy %q: %w", name, err)
	}
	return nil
}

// Bind makes a binding over HTTP, where its arguments are what JSON can say. One
// that is there already is no error.
func (m *Management) Bind(ctx context.Context, b Binding) error {
	args := map[string]any(b.Args)
	if args == nil {
		args = map[string]any{}
	}
	body := map[string]any{"routing_key": b.Key, "arguments": args}
	if err := m.write(ctx, http.MethodPost, body, "bindings", m.vhost(), "e", b.Source, b.letter(), b.Destination); err != nil {
		return fmt.Errorf("make binding %s: %w", b.name(), err)
	}
	return nil
}

// Unbind removes a binding, whatever the types of its arguments are. properties is
// what the API calls it among those with the same ends: its properties_key. One that
// is not there is no error.
func (m *Management) Unbind(ctx context.Context, b Binding, properties string) error {
	err := m.write(ctx, http.MethodDelete, nil, "bindings", m.vhost(), "e", b.Source, b.letter(), b.Destination, properties)
	if err != nil && !errors.Is(err, errNotThere) {
		return fmt.Errorf("remove binding %s: %w", b.name(), err)
	}
	return nil
}

// letter is what a path of the API calls the kind of a binding's destination.
func (b Binding) letter() string {
	if b.ToExchange {
		return "e"
	}
	return "q"
}

// policyState is a policy as the API shows it.
type policyState struct {
	Name       string `json:"name"`
	Pattern    string `json:"pattern"`
	ApplyTo    string `json:"apply-to"`
	Priority   int64  `json:"priority"`
	Definition table  `json:"definition"`
}

// differences are between what is there under the name and what is wanted.
func (o policyState) differences(p Policy) []Difference {
	var diffs []Difference
	text := func(key, want, have string) {
		if want != have {
			diffs = append(diffs, Difference{State: Differs, Key: key, Want: Value{"string", want}, Have: Value{"string", have}})
		}
	}
	text("pattern", p.Pattern(), o.Pattern)
	text("apply-to", p.applyTo(), o.ApplyTo)
	if o.Priority != p.Priority {
		diffs = append(diffs, Difference{State: Differs, Key: "priority", Want: valueOf(p.Priority), Have: valueOf(o.Priority)})
	}
	diffs = append(diffs, Compare(p.Definition, amqp.Table(o.Definition))...)
	for i := range diffs {
		diffs[i].Note = "apply changes it"
	}
	return diffs
}

// beside says what another policy means for p.
func (o policyState) beside(p Policy, q policedQueue) []Difference {
	switch o.ApplyTo {
	case "exchanges":
		return nil
	case "quorum_queues", "classic_queues", "streams":
		if kind := strings.TrimSuffix(strings.TrimSuffix(o.ApplyTo, "s"), "_queue"); q.Type != "" && q.Type != kind {
			return nil
		}
	}
	pattern, err := regexp.Compile(o.Pattern)
	if err != nil && q.Policy != o.Name {
		return []Difference{{State: Unknown, Key: "pattern", Note: fmt.Sprintf("whether policy %q matches queue %q too cannot be seen here: its pattern %q is not understood", o.Name, p.Queue, o.Pattern)}}
	}
	if err == nil && !pattern.MatchString(p.Queue) {
		return nil
	}
	rank := "it would have no effect any more"
	if o.Priority > p.Priority {
		rank = "this one would have no effect"
	} else if o.Priority == p.Priority {
		rank = "which of the two has effect would be chance"
	}
	return []Difference{{
		State: Conflict, Key: "priority", Want: valueOf(p.Priority), Have: valueOf(o.Priority),
		Note: fmt.Sprintf("policy %q matches queue %q too, and policies do not merge: %s. Add the settings to one of them, or narrow the other's pattern", o.Name, p.Queue, rank),
	}}
}

// policedQueue is what has a say about a queue besides policies.
type policedQueue struct {
	Type      string `json:"type"`
	Args      table  `json:"arguments"`
	Policy    string `json:"policy"`
	Operator  string `json:"operator_policy"`
	Effective table  `json:"effective_policy_definition"`
}

func (m *Management) policedQueue(ctx context.Context, name string) (q policedQueue, found bool, err error) {
	found, err = m.one(ctx, "", &q, "queues", m.vhost(), name)
	return q, found, err
}

// against finds what beats the settings of a policy.
func (q policedQueue) against(p Policy) []Difference {
	var diffs []Difference
	conflict := func(key string, want, have any, note string) {
		diffs = append(diffs, Difference{State: Conflict, Key: key, Want: valueOf(want), Have: valueOf(have), Note: note})
	}
	if to := p.applyTo(); to != "queues" && strings.TrimSuffix(to, "_queues") != q.Type {
		conflict("type", strings.TrimSuffix(to, "_queues"), q.Type, fmt.Sprintf("the policy is for another type of queue than %q is", p.Queue))
	}
	for _, key := range sortedKeys(p.Definition) {
		want := p.Definition[key]
		if have, ok := q.Args["x-"+key]; ok && !equivalent(want, have) {
			conflict(key, want, have, fmt.Sprintf("the queue was declared with x-%s, and an argument beats a policy: only another queue can change it", key))
		}
		// Limits of an operator policy hold where they are lower.
		if have, ok := q.Effective[key]; ok && q.Operator != "" && q.Policy == p.Name && !equivalent(want, have) {
			conflict(key, want, have, fmt.Sprintf("the operator policy %q says otherwise, and is what the queue goes by", q.Operator))
		}
	}
	if _, ok := p.Definition["overflow"]; ok && q.Args["x-overflow"] == nil {
		for _, limit := range []string{"x-max-length", "x-max-length-bytes"} {
			if have, ok := q.Args[limit]; ok {
				conflict("overflow", p.Definition["overflow"], "drop-head",
					fmt.Sprintf("the queue was declared with %s %v and drops its oldest messages when it is full; this policy would make it refuse new ones instead", limit, have))
			}
		}
	}
	return diffs
}

// put writes one resource.
func (m *Management) put(ctx context.Context, body any, segments ...string) error {
	return m.write(ctx, http.MethodPut, body, segments...)
}

// write makes a request that changes something; all that do so over HTTP are this
// one. body may be nil.
func (m *Management) write(ctx context.Context, method string, body any, segments ...string) error {
	var text io.Reader
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("management API: write %s: %w", strings.Join(segments, "/"), err)
		}
		text = bytes.NewReader(encoded)
	}
	doing := "write"
	if method == http.MethodDelete {
		doing = "delete"
	}
	res, fail, err := m.send(ctx, doing, method, "", text, segments...)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	answer, _ := io.ReadAll(io.LimitReader(res.Body, 1024))
	switch {
	case res.StatusCode/100 == 2:
		return nil
	case res.StatusCode == http.StatusNotFound:
		return fail(errNotThere)
	case res.StatusCode == http.StatusUnauthorized || res.StatusCode == http.StatusForbidden:
		return fail(fmt.Errorf("answered %s: the account needs the tag policymaker or administrator, and access to vhost %q: %s", res.Status, m.vhost(), bytes.TrimSpace(answer)))
	}
	return fail(fmt.Errorf("answered %s: %s", res.Status, bytes.TrimSpace(answer)))
}
