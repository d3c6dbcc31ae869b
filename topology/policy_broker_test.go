package topology_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/topology"
)

// A policy is set, found in place, changed, and refused beside another that the
// queue would go by; the queue does what it says, on every version.
func TestPolicyOnABroker(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	c := s.dial(t)
	const queue = "q.1+ %é"
	declareQueue(t, c, queue, amqp.Table{"x-queue-type": "quorum"})
	declareQueue(t, c, "q.1++ %é", amqp.Table{"x-queue-type": "quorum"})
	p := topology.Policy{
		Name: "hop test/1", Queue: queue, Priority: 7,
		Definition: map[string]any{"delivery-limit": int64(9), "overflow": "reject-publish", "max-length": int64(1000)},
	}
	ctx := t.Context()
	if err := s.management.VerifyPolicy(ctx, p); !errors.Is(err, topology.ErrDrift) {
		t.Errorf("before: %v", err)
	}
	for range 2 {
		if err := s.management.ApplyPolicy(ctx, p); err != nil {
			t.Fatal(err)
		}
		if err := s.management.VerifyPolicy(ctx, p); err != nil {
			t.Fatal(err)
		}
	}
	p.Definition["delivery-limit"] = int64(8)
	plan, err := s.management.PlanPolicy(ctx, p)
	if err != nil || len(plan.Differences) != 1 || plan.Differences[0].State != topology.Differs || plan.Differences[0].Key != "delivery-limit" {
		t.Errorf("another limit: %v, %v", plan, err)
	}
	if err := s.management.ApplyPolicy(ctx, p); err != nil {
		t.Fatal(err)
	}
	// It is for this queue and no other.
	effective := func(queue string) (limit any, policy string) {
		var q struct {
			Policy    string         `json:"policy"`
			Effective map[string]any `json:"effective_policy_definition"`
		}
		err := s.Get(ctx, "/api/queues/"+url.PathEscape(s.vhost)+"/"+url.PathEscape(queue), &q)
		if err != nil && !strings.Contains(err.Error(), "effective_policy_definition") {
			t.Fatal(err) // none is [] on some versions
		}
		return q.Effective["delivery-limit"], q.Policy
	}
	deadline := time.Now().Add(time.Minute)
	for {
		if limit, policy := effective(queue); policy == p.Name && fmt.Sprint(limit) == "8" {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("the queue goes by %q, limit %v", policy, limit)
		}
		time.Sleep(100 * time.Millisecond)
	}
	if _, policy := effective("q.1++ %é"); policy != "" {
		t.Errorf("the other queue goes by %q", policy)
	}
	if err := s.Put(ctx, "/api/policies/"+url.PathEscape(s.vhost)+"/all", map[string]any{
		"pattern": ".*", "definition": map[string]any{"max-length": 5}, "apply-to": "queues", "priority": 8,
	}); err != nil {
		t.Fatal(err)
	}
	p.Definition["delivery-limit"] = int64(7)
	err = s.management.ApplyPolicy(ctx, p)
	var conflict *topology.ConflictError
	if !errors.As(err, &conflict) || !strings.Contains(err.Error(), `"all"`) {
		t.Errorf("beside another: %v", err)
	}
}

// An account with the tag management alone may look, and is told what it lacks.
func TestPolicyWithoutTheTag(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	declareQueue(t, s.dial(t), "q", nil)
	name := "looker-" + s.vhost
	user := "/api/users/" + url.PathEscape(name)
	if err := s.Put(t.Context(), user, map[string]any{"password": "secret-1", "tags": "management"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Delete(context.Background(), user) }) //nolint:errcheck // goes with the broker
	if err := s.Put(t.Context(), "/api/permissions/"+url.PathEscape(s.vhost)+"/"+url.PathEscape(name),
		map[string]any{"configure": ".*", "write": ".*", "read": ".*"}); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(s.ManagementURL())
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(name, "secret-1")
	m := &topology.Management{URL: u.String(), Vhost: s.vhost}
	p := topology.Policy{Name: "p", Queue: "q", Definition: map[string]any{"max-length": int64(9)}}
	err = m.ApplyPolicy(t.Context(), p)
	if err == nil || !strings.Contains(err.Error(), "policymaker") || strings.Contains(err.Error(), "secret-1") {
		t.Errorf("without the tag: %v", err)
	}
	if err := s.management.VerifyPolicy(t.Context(), p); !errors.Is(err, topology.ErrDrift) {
		t.Errorf("was it set? %v", err)
	}
}
