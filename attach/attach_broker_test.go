package attach_test

import (
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/hopback/hopback/attach"
	"github.com/hopback/hopback/router"
	"github.com/hopback/hopback/topology"
)

// A queue without a dead-letter exchange of its own, beside policies of every kind:
// what is rejected is dropped before, all of it gets to the router once it is
// attached, and afterwards everything is as it was.
func TestByPolicy(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"classic", "quorum"} {
		for _, base := range []string{"none", "one", "many"} {
			t.Run(kind+" "+base, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				const name = "shop.orders+(eu)/é"
				w.declare(name, kind)
				w.declare(name+"2", kind)
				had := map[string]any{}
				if base != "none" {
					had = map[string]any{"max-length": 1000.0, "overflow": "reject-publish", "dead-letter-exchange": "old", "dead-letter-routing-key": "k"}
					w.policy("shop", "^shop", 7, had)
				}
				if base == "many" {
					w.policy("all", "^sh", 0, map[string]any{"message-ttl": 1})
					w.policy("high", "^other$", 1000, map[string]any{"message-ttl": 1})
					w.policy("ignored by its type", "^shop", 900, map[string]any{"max-age": "1h", "queue-mode": "lazy"})
				}
				before := w.state()
				w.reject("", name, name, 3)

				dry := w.plan(attach.Request{Queue: name})
				if after := w.state(); !reflect.DeepEqual(before, after) {
					t.Errorf("a plan changed something:\n%v\n%v", before, after)
				}
				if dry.Needs.Empty() || len(dry.Changes) != 1 || dry.How != attach.ByPolicy {
					t.Fatalf("the plan is\n%s", dry)
				}
				w.attach(attach.Request{Queue: name})
				w.reject("", name, name, 20)
				w.await("hop.failed", 20)

				var ours struct {
					Definition map[string]any `json:"definition"`
					Priority   int            `json:"priority"`
					ApplyTo    string         `json:"apply-to"`
				}
				w.must(w.b.Get(t.Context(), "/api/policies/"+url.PathEscape(w.vhost)+"/"+url.PathEscape("hop.attach."+name), &ours))
				want := map[string]any{}
				for k, v := range had {
					want[k] = v
				}
				delete(want, "dead-letter-routing-key")
				want["dead-letter-exchange"] = "hop.failed"
				if kind == "quorum" {
					want["dead-letter-strategy"], want["overflow"] = "at-least-once", "reject-publish"
				}
				if !reflect.DeepEqual(ours.Definition, want) || ours.Priority != 100 || ours.ApplyTo != "queues" {
					t.Errorf("the policy is %+v, want %v", ours, want)
				}
				if of := w.state().Of; of[name+"2"] != before.Of[name+"2"] {
					t.Errorf("the queue beside it goes by %v", of[name+"2"])
				}

				p := w.detach(attach.Request{Queue: name})
				if after := w.state(); !reflect.DeepEqual(before, after) {
					t.Errorf("after detaching it is\n%v\nand was\n%v", after, before)
				}
				if dropped := has(p.Notes, "dropped, as it was before"); dropped != (base == "none") {
					t.Errorf("the notes are %q", p.Notes)
				}
				w.reject("", name, name, 3)
				time.Sleep(200 * time.Millisecond) // for what must not come
				w.await("hop.failed", 20)
			})
		}
	}
}

// A policy that outranks ours is found, and so is one that has changed.
func TestPolicyChangesBehindOurBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.declare("orders", "quorum")
	w.policy("shop", "^orders", 7, map[string]any{"message-ttl": 60_000})
	w.attach(attach.Request{Queue: "orders"})
	problem := func() string {
		t.Helper()
		st, err := attach.Look(t.Context(), w.m, "")
		w.must(err)
		if len(st.Queues) != 1 || st.Queues[0].Name != "orders" {
			t.Fatalf("the status is %+v", st)
		}
		return st.Queues[0].Problem
	}
	if got := problem(); got != "" {
		t.Errorf("there is nothing wrong, and it says %s", got)
	}
	w.policy("shop", "^orders", 7, map[string]any{"message-ttl": 30_000})
	if got := problem(); !strings.Contains(got, "policy shop has changed") {
		t.Errorf("a policy has changed, and it says %q", got)
	}
	p := w.attach(attach.Request{Queue: "orders"})
	if len(p.Changes) != 1 || p.Changes[0].Verb != "replace" || !has(p.Changes[0].Diff, "+   message-ttl: 30000") {
		t.Errorf("the change is\n%s", p)
	}
	w.policy("newer", "^orders", 500, map[string]any{"message-ttl": 10_000})
	if got := problem(); !strings.Contains(got, `goes by the policy "newer"`) {
		t.Errorf("a policy outranks ours, and it says %q", got)
	}
	before := w.state()
	w.attach(attach.Request{Queue: "orders"})
	w.reject("", "orders", "orders", 5)
	w.await("hop.failed", 5)
	w.detach(attach.Request{Queue: "orders"})
	if of := w.state().Of["orders"]; of != "newer" {
		t.Errorf("the queue goes by %v", of)
	}
	if n := len(before.Policies) - 1; len(w.state().Policies) != n {
		t.Errorf("there are %d policies, want %d", len(w.state().Policies), n)
	}
}

// What a full queue does is not changed without being asked for, and an operator
// policy is seen.
func TestStrategy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.declare("plain", "quorum")
	w.declare("drops", "quorum", "x-max-length", int64(10))
	w.declare("refuses", "quorum", "x-max-length", int64(10), "x-overflow", "reject-publish")
	w.declare("fixed", "quorum", "x-dead-letter-strategy", "at-most-once")
	w.declare("classic", "classic")
	w.declare("operated", "quorum")
	operators := "/api/operator-policies/" + url.PathEscape(w.vhost)
	w.must(w.b.Put(t.Context(), operators+"/limit", map[string]any{"pattern": "^operated$", "definition": map[string]any{"max-length": 10}, "apply-to": "queues"}))
	cases := map[string]struct {
		strategy string
		want     string // of the policy
		note     string
	}{
		"plain":             {"", attach.AtLeastOnce, "the queue has no limit, so nothing changes"},
		"plain asked not":   {attach.AtMostOnce, "", "at most once, as was asked for"},
		"drops":             {"", "", "instead of dropping its oldest. Ask for"},
		"drops asked":       {attach.AtLeastOnce, attach.AtLeastOnce, "will refuse new messages"},
		"refuses":           {"", attach.AtLeastOnce, "slots of their own"},
		"fixed":             {"", "", "an argument beats a policy"},
		"classic":           {"", "", "from a classic queue"},
		"operated":          {"", "", "the queue has max-length 10"},
		"operated overflow": {"", "", "sets overflow drop-head"},
	}
	if !strings.HasPrefix(w.b.Version(), "3.") { // 3.10 has no such operator policy
		w.declare("operated overflow", "quorum")
		w.must(w.b.Put(t.Context(), operators+"/overflow", map[string]any{"pattern": "^operated overflow$", "definition": map[string]any{"overflow": "drop-head"}, "apply-to": "queues"}))
	} else {
		delete(cases, "operated overflow")
	}
	for name, c := range cases {
		queue := strings.TrimSuffix(strings.TrimSuffix(name, " asked not"), " asked")
		p := w.plan(attach.Request{Queue: queue, Strategy: c.strategy})
		diff := strings.Join(p.Changes[0].Diff, "\n")
		if got := strings.Contains(diff, "at-least-once"); got != (c.want != "") || got != strings.Contains(diff, "reject-publish") {
			t.Errorf("%s: the change is\n%s", name, diff)
		}
		if !has(p.Notes, c.note) {
			t.Errorf("%s: the notes have no %q:\n%s", name, c.note, strings.Join(p.Notes, "\n"))
		}
	}
	if p := w.plan(attach.Request{Queue: "classic", Strategy: attach.AtLeastOnce}); !p.Refused() {
		t.Errorf("at-least-once for a classic queue:\n%s", p)
	}
	p := w.attach(attach.Request{Queue: "drops", Strategy: attach.AtLeastOnce})
	w.reject("", "drops", "drops", 5)
	w.await("hop.failed", 5)
	w.detach(attach.Request{Queue: p.Queue})
}

// What is on its way when at-least-once ends would be deleted by the broker:
// detaching refuses as long as there is any.
func TestDetachWaitsForWhatIsOnItsWay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.declare("orders", "quorum")
	w.attach(attach.Request{Queue: "orders"})
	w.must(w.ch.QueueUnbind("hop.failed", "", "hop.failed", nil))
	w.reject("", "orders", "orders", 3)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		var q struct {
			N int `json:"messages_dlx"`
		}
		w.must(w.b.Get(t.Context(), "/api/queues/"+url.PathEscape(w.vhost)+"/orders?columns=name,messages_dlx", &q))
		if q.N == 3 {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("%d on their way, want 3", q.N)
		}
	}
	w.staysAttached("3 messages are on their way")
}

// What is attached in another way is left alone.
func TestForeign(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.declare("argument", "classic", "x-dead-letter-exchange", "hop.failed")
	w.declare("policy", "quorum")
	w.policy("by hand", "^policy$", 1, map[string]any{"dead-letter-exchange": "hop.failed"})
	for queue, how := range map[string]string{"argument": attach.ByArgument, "policy": attach.ByPolicy} {
		p := w.attach(attach.Request{Queue: queue}) // declares what the router needs
		if p.How != how || len(p.Changes) != 0 {
			t.Errorf("%s:\n%s", queue, p)
		}
		d, err := attach.MakeDetachPlan(t.Context(), w.m, attach.Request{Queue: queue})
		w.must(err)
		if !d.Refused() || d.How != how {
			t.Errorf("%s: detach:\n%s", queue, d)
		}
		w.reject("", queue, queue, 1)
	}
	w.await("hop.failed", 2)
}

// An account with the tag policymaker and the permissions that docs/attach.md names
// is enough, also where it may not read operator policies.
func TestPolicymaker(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	needs, err := router.Topology("")
	w.must(err)
	w.must(topology.Apply(t.Context(), w.conn, needs))
	w.must(w.ch.ExchangeDeclare("dlx", "fanout", true, false, false, false, nil))
	w.declare("plain", "quorum")
	w.declare("bound", "quorum", "x-dead-letter-exchange", "dlx")
	user := "maker-" + w.vhost
	w.must(w.b.AddUser(t.Context(), user, "s3cret", w.vhost, "^$", `^hop\.failed$`, `^dlx$`))
	w.must(w.b.Put(t.Context(), "/api/users/"+url.PathEscape(user), map[string]any{"password": "s3cret", "tags": "policymaker"}))
	u, err := url.Parse(w.b.ManagementURL())
	w.must(err)
	u.User = url.UserPassword(user, "s3cret")
	w.m.URL = u.String()
	for _, q := range []string{"plain", "bound"} {
		w.attach(attach.Request{Queue: q})
		w.reject("", q, q, 2)
	}
	w.await("hop.failed", 4)
	for _, q := range []string{"plain", "bound"} {
		w.detach(attach.Request{Queue: q})
	}
}
