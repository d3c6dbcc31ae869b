package attach_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attach"
	"github.com/hopback/hopback/rabbittest"
	"github.com/hopback/hopback/router"
	"github.com/hopback/hopback/topology"
)

// world is a virtual host of a test's own.
type world struct {
	*testing.T
	b     *rabbittest.Broker
	m     *topology.Management
	vhost string
	conn  *amqp.Connection
	ch    *amqp.Channel
}

func newWorld(t *testing.T) *world {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a broker")
	}
	b := rabbittest.Shared(t)
	u := b.Vhost(t)
	uri, err := amqp.ParseURI(u)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := amqp.Dial(u)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return &world{t, b, &topology.Management{URL: b.ManagementURL(), Vhost: uri.Vhost}, uri.Vhost, conn, ch}
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) declare(name, kind string, args ...any) {
	w.Helper()
	t := amqp.Table{"x-queue-type": kind}
	for i := 0; i < len(args); i += 2 {
		t[args[i].(string)] = args[i+1]
	}
	_, err := w.ch.QueueDeclare(name, true, false, false, false, t)
	w.must(err)
}

func (w *world) policy(name, pattern string, priority int, definition map[string]any) {
	w.Helper()
	w.must(w.b.Put(w.Context(), "/api/policies/"+url.PathEscape(w.vhost)+"/"+url.PathEscape(name),
		map[string]any{"pattern": pattern, "definition": definition, "priority": priority, "apply-to": "queues"}))
}

// state is what detaching must give back.
type state struct {
	Policies []any
	Bindings []any
	Of       map[string]any // the policy of each queue
}

func (w *world) state() state {
	w.Helper()
	var s state
	var queues []map[string]any
	vhost := url.PathEscape(w.vhost)
	w.must(w.b.Get(w.Context(), "/api/policies/"+vhost, &s.Policies))
	w.must(w.b.Get(w.Context(), "/api/queues/"+vhost+"?disable_stats=true", &queues))
	var bindings []any
	w.must(w.b.Get(w.Context(), "/api/bindings/"+vhost, &bindings))
	for _, b := range bindings {
		if src := b.(map[string]any)["source"].(string); src != "" && !strings.HasPrefix(src, "hop.") {
			s.Bindings = append(s.Bindings, b)
		}
	}
	s.Of = map[string]any{}
	for _, q := range queues {
		if name := q["name"].(string); !strings.HasPrefix(name, "hop.") {
			s.Of[name] = q["policy"]
		}
	}
	return s
}

func (w *world) plan(r attach.Request) *attach.Plan {
	w.Helper()
	p, err := attach.MakePlan(w.Context(), w.m, r)
	w.must(err)
	return p
}

func (w *world) attach(r attach.Request) *attach.Plan {
	w.Helper()
	p := w.plan(r)
	if p.Refused() {
		w.Fatalf("refused:\n%s", p)
	}
	w.must(p.Apply(w.Context(), w.conn))
	if again := w.plan(r); !again.Empty() || again.Refused() || again.How != p.How {
		w.Errorf("attached twice is not nothing to do:\n%s", again)
	}
	return p
}

func (w *world) detach(r attach.Request) *attach.Plan {
	w.Helper()
	p, err := attach.MakeDetachPlan(w.Context(), w.m, r)
	w.must(err)
	if p.Refused() {
		w.Fatalf("refused:\n%s", p)
	}
	w.must(p.Apply(w.Context(), nil))
	again, err := attach.MakeDetachPlan(w.Context(), w.m, r)
	w.must(err)
	if !again.Empty() || again.Refused() {
		w.Errorf("detached twice is not nothing to do:\n%s", again)
	}
	return p
}

func (w *world) depth(queue string) int {
	w.Helper()
	q, err := w.ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	w.must(err)
	return q.Messages
}

func (w *world) await(queue string, n int) {
	w.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if have := w.depth(queue); have == n {
			return
		} else if time.Now().After(deadline) {
			w.Fatalf("%d messages in %q, want %d", have, queue, n)
		}
	}
}

// reject publishes n messages to an exchange, and takes them from a queue and
// rejects them.
func (w *world) reject(exchange, key, queue string, n int) {
	w.Helper()
	for i := range n {
		w.must(w.ch.Publish(exchange, key, true, false, amqp.Publishing{Body: []byte(fmt.Sprint(i))}))
	}
	for done := 0; done < n; {
		d, ok, err := w.ch.Get(queue, false)
		w.must(err)
		if ok {
			w.must(d.Reject(false))
			done++
		}
	}
}

func has(lines []string, text string) bool {
	for _, l := range lines {
		if strings.Contains(l, text) {
			return true
		}
	}
	return false
}

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
	p, err := attach.MakeDetachPlan(t.Context(), w.m, attach.Request{Queue: "orders"})
	w.must(err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := p.Apply(ctx, nil); !errors.Is(err, attach.ErrRefused) || !strings.Contains(err.Error(), "3 messages are on their way") {
		t.Errorf("detached with %v", err)
	}
	if w.state().Of["orders"] != "hop.attach.orders" {
		t.Error("it was detached all the same")
	}
}

// A queue that was declared with a dead-letter exchange, of each kind.
func TestByBinding(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"direct", "topic", "fanout", "headers"} {
		for _, copies := range []string{attach.Keep, attach.Unbind} {
			t.Run(kind+" "+copies, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.must(w.ch.ExchangeDeclare("dlx", kind, true, false, false, false, nil))
				w.declare("orders", "classic", "x-dead-letter-exchange", "dlx", "x-dead-letter-routing-key", "dead/orders#1")
				w.declare("orders.dlq", "classic")
				var args amqp.Table
				if kind == "headers" {
					args = amqp.Table{"x-match": "all"}
				}
				w.must(w.ch.QueueBind("orders.dlq", "dead/orders#1", "dlx", false, args))
				before := w.state()
				w.reject("", "orders", "orders", 4)
				w.await("orders.dlq", 4)

				undecided := w.plan(attach.Request{Queue: "orders"})
				if !undecided.Refused() || !errors.Is(undecided.Apply(t.Context(), w.conn), attach.ErrRefused) {
					t.Errorf("it does not ask what becomes of the dead letter queue:\n%s", undecided)
				}
				w.attach(attach.Request{Queue: "orders", Copies: copies})
				st, err := attach.Look(t.Context(), w.m, "")
				w.must(err)
				if len(st.Queues) != 1 || st.Queues[0].How != attach.ByBinding || st.Queues[0].By != "dlx" || !st.Queues[0].Ours || st.Queues[0].Problem != "" {
					t.Errorf("the status is %+v", st.Queues)
				}
				w.reject("", "orders", "orders", 5)
				w.await("hop.failed", 5)
				want := 4
				if copies == attach.Keep {
					want += 5
				}
				w.await("orders.dlq", want)

				w.detach(attach.Request{Queue: "orders"})
				if after := w.state(); !reflect.DeepEqual(before, after) {
					t.Errorf("after detaching it is\n%v\nand was\n%v", after, before)
				}
				w.reject("", "orders", "orders", 2)
				w.await("orders.dlq", want+2)
				w.await("hop.failed", 5)
			})
		}
	}
}

// Queues that share a dead-letter exchange and key are attached together or not.
func TestOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.must(w.ch.ExchangeDeclare("dlx", "topic", true, false, false, false, nil))
	w.must(w.ch.ExchangeDeclare("shop", "topic", true, false, false, false, nil))
	for _, q := range []string{"a", "b", "c"} {
		w.declare(q, "quorum", "x-dead-letter-exchange", "dlx")
		key := "orders." + q
		if q == "b" {
			key = "orders.*"
		}
		w.must(w.ch.QueueBind(q, key, "shop", false, nil))
	}
	p := w.plan(attach.Request{Queue: "a"})
	if len(p.Refusals) != 1 || !strings.HasSuffix(strings.Split(p.Refusals[0].Reason, ". ")[0], "takes: b") {
		t.Errorf("a shares its keys with b, and not with c:\n%s", p)
	}
	w.attach(attach.Request{Queue: "a", Others: true})
	w.reject("shop", "orders.a", "a", 1)
	w.reject("", "a", "a", 1)
	w.await("hop.failed", 2)
	other, err := attach.MakeDetachPlan(t.Context(), w.m, attach.Request{Queue: "b"})
	w.must(err)
	if !other.Refused() || !has([]string{other.Refusals[0].Fix}, "hopback detach a") {
		t.Errorf("b is attached by what was made for a:\n%s", other)
	}
	alone, err := attach.MakeDetachPlan(t.Context(), w.m, attach.Request{Queue: "a"})
	w.must(err)
	if !alone.Refused() {
		t.Errorf("b is detached with a, and nobody asked:\n%s", alone)
	}
	w.detach(attach.Request{Queue: "a", Others: true})
}

// What cannot be attached, and why.
func TestRefusals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	needs, err := router.Topology("")
	w.must(err)
	w.must(topology.Apply(t.Context(), w.conn, needs))
	for _, x := range []string{"direct", "topic", "fanout"} {
		w.must(w.ch.ExchangeDeclare(x, x, true, false, false, false, nil))
	}
	w.declare("lost dlx", "quorum", "x-dead-letter-exchange", "nowhere")
	w.declare("default dlx", "quorum", "x-dead-letter-exchange", "", "x-dead-letter-routing-key", "default dlx.dlq")
	w.declare("unknown keys", "quorum", "x-dead-letter-exchange", "direct")
	w.must(w.ch.QueueBind("unknown keys", "a.*", "topic", false, nil))
	w.declare("orders", "quorum", "x-dead-letter-exchange", "fanout")
	w.declare("orders.wait", "classic", "x-message-ttl", int64(600_000), "x-dead-letter-exchange", "", "x-dead-letter-routing-key", "orders")
	w.must(w.ch.QueueBind("orders.wait", "", "fanout", false, nil))
	w.declare("parked", "quorum")
	w.must(w.ch.QueueBind("parked", "somequeue", "hop.error", false, nil))
	w.declare("hop.delay.3s", "quorum")
	w.declare("loops", "quorum")
	w.must(w.ch.QueueBind("loops", "", "hop.failed", false, nil))
	w.declare("stream", "stream")
	w.declare("linear", "quorum")
	w.policy("hop.native-linear.linear", "^linear$", 100, map[string]any{"delivery-limit": 5})
	_, err = w.ch.QueueDeclare("temporary", true, true, false, false, nil)
	w.must(err)
	_, err = w.ch.QueueDeclare("mine", false, false, true, false, nil)
	w.must(err)
	before := w.state()
	for queue, want := range map[string]string{
		"nosuch": "there is no queue", "lost dlx": `there is no such exchange`, "default dlx": "the default exchange takes no binding",
		"unknown keys": "which ones there are", "orders": "come back to", "orders.wait": "wait for their retry",
		"parked": "parked after their last retry", "hop.delay.3s": "Hopback's own", "hop.failed": "Hopback's own",
		"loops": "in a hot loop", "stream": "is a stream", "temporary": "is auto-delete", "mine": "is exclusive", "linear": "native-linear",
	} {
		p := w.plan(attach.Request{Queue: queue})
		if len(p.Refusals) != 1 || !strings.Contains(p.Refusals[0].Reason, want) || p.Refusals[0].Fix == "" {
			t.Errorf("%s: the plan is\n%s", queue, p)
			continue
		}
		if err := p.Apply(t.Context(), w.conn); !errors.Is(err, attach.ErrRefused) {
			t.Errorf("%s: applied with %v", queue, err)
		}
	}
	w.declare("fine", "quorum")
	w.policy("everything", "", 0, map[string]any{"message-ttl": 1000})
	if p := w.plan(attach.Request{Queue: "fine"}); len(p.Refusals) != 1 || !strings.Contains(p.Refusals[0].Reason, `"everything" matches the router's queue "hop.failed" too`) {
		t.Errorf("a policy lets messages expire in the router's queue, and the plan is\n%s", p)
	}
	w.must(w.m.DeletePolicy(t.Context(), "everything"))
	_, err = w.ch.QueueDelete("fine", false, false, false)
	w.must(err)
	if after := w.state(); !reflect.DeepEqual(before, after) {
		t.Errorf("something was changed:\n%v\n%v", before, after)
	}
	w.attach(attach.Request{Queue: "unknown keys", Keys: []string{"a.1"}})
	w.must(w.ch.QueueUnbind("loops", "", "hop.failed", nil))
	w.reject("topic", "a.1", "unknown keys", 2)
	w.await("hop.failed", 2)
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
