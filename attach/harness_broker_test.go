package attach_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attach"
	"github.com/hopback/hopback/rabbittest"
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

// staysAttached tries to detach the queue orders, which is attached by a policy, and
// expects a refusal of its execution that says why.
func (w *world) staysAttached(why string) {
	w.Helper()
	p, err := attach.MakeDetachPlan(w.Context(), w.m, attach.Request{Queue: "orders"})
	w.must(err)
	ctx, cancel := context.WithTimeout(w.Context(), 2*time.Second)
	defer cancel()
	if err := p.Apply(ctx, nil); !errors.Is(err, attach.ErrRefused) || !strings.Contains(err.Error(), why) {
		w.Errorf("detached with %v", err)
	}
	if w.state().Of["orders"] != "hop.attach.orders" {
		w.Error("it was detached all the same")
	}
}
