package attach_test

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"testing"

	"github.com/hopback/hopback/attach"
	"github.com/hopback/hopback/router"
	"github.com/hopback/hopback/topology"
)

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
	w.declare("copies", "classic", "x-max-length", int64(5), "x-overflow", "reject-publish-dlx")
	before := w.state()
	for queue, want := range map[string]string{
		"nosuch": "there is no queue", "lost dlx": `there is no such exchange`, "default dlx": "the default exchange takes no binding",
		"unknown keys": "which ones there are", "orders": "come back to", "orders.wait": "wait for their retry",
		"parked": "parked after their last retry", "hop.delay.3s": "Hopback's own", "hop.failed": "Hopback's own",
		"loops": "in a hot loop", "stream": "is a stream", "temporary": "is auto-delete", "mine": "is exclusive", "linear": "native-linear",
		"copies": "dead-letter a copy",
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

// A policy that was meant for other queues takes messages out of those that they
// pass through, or has them drop what at-least-once would keep.
func TestPoliciesOnTheWay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.declare("fine", "quorum")
	operators := "/api/operator-policies/" + url.PathEscape(w.vhost)
	operate := func(pattern string) {
		t.Helper()
		w.must(w.b.Put(t.Context(), operators+"/limit", map[string]any{"pattern": pattern, "definition": map[string]any{"max-length": 10}, "apply-to": "queues"}))
	}
	refused := func(want string) {
		t.Helper()
		p := w.plan(attach.Request{Queue: "fine"})
		if want == "" && p.Refused() || want != "" && (len(p.Refusals) != 1 || !strings.Contains(p.Refusals[0].Reason, want)) {
			t.Errorf("want %q, and the plan is\n%s", want, p)
		}
	}
	operate("failed$")
	refused(`operator policy "limit" matches the router's queue "hop.failed" too, and its max-length 10`)
	operate(`\.delay\.`)
	refused(`matches the router's queue "hop.delay.1s" too`)
	operate("^nothing$")
	refused("")
	w.policy("drops", "^hop", 1, map[string]any{"overflow": "drop-head"})
	refused(`policy "drops" matches the router's queue "hop.failed" too, and its overflow drop-head`)
	w.policy("drops", "^hop", 1, map[string]any{"overflow": "reject-publish"})
	refused("")
	w.declare("hop.a.delay.3s", "quorum")
	w.policy("drops", "^hop[.]a", 1, map[string]any{"message-ttl": 5})
	refused(`matches the router's queue "hop.a.delay.3s" too`)
	w.policy("drops", "parked$", 1, map[string]any{"message-ttl": 5}) // who parks may forget
	refused("")
}

// A policy of ours that somebody made one for other queues too is left alone, and so
// are those.
func TestAnEditedPolicy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.declare("orders", "classic")
	w.declare("orders2", "classic")
	w.attach(attach.Request{Queue: "orders"})
	w.policy("hop.attach.orders", "^orders", 100, map[string]any{"dead-letter-exchange": "hop.failed"})
	d, err := attach.MakeDetachPlan(t.Context(), w.m, attach.Request{Queue: "orders"})
	w.must(err)
	for _, p := range []*attach.Plan{d, w.plan(attach.Request{Queue: "orders"})} {
		if len(p.Refusals) != 1 || !strings.Contains(p.Refusals[0].Reason, "changed the pattern") ||
			!strings.HasSuffix(p.Refusals[0].Fix, "rabbitmqctl clear_policy -p "+w.vhost+" hop.attach.orders") {
			t.Errorf("the plan is\n%s", p)
		}
	}
}

// What ends at-least-once is told, also while attaching; and a promise that is kept
// by other means is not taken back by ours.
func TestTheEndOfAtLeastOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.declare("orders", "quorum")
	w.attach(attach.Request{Queue: "orders"})
	const ends = "when at-least-once ends"
	if p := w.plan(attach.Request{Queue: "orders", Strategy: attach.AtMostOnce}); len(p.Changes) != 1 || !has(p.Notes, ends) {
		t.Errorf("the plan is\n%s", p)
	}
	w.policy("limit", "^orders$", 1, map[string]any{"max-length": 10})
	if p := w.plan(attach.Request{Queue: "orders"}); len(p.Changes) != 1 || !has(p.Notes, ends) {
		t.Errorf("the plan is\n%s", p)
	}
	w.declare("kept", "quorum")
	w.policy("kept", "^kept$", 1, map[string]any{"dead-letter-exchange": "old", "dead-letter-strategy": "at-least-once", "overflow": "reject-publish"})
	if p := w.plan(attach.Request{Queue: "kept", Strategy: attach.AtMostOnce}); !p.Refused() {
		t.Errorf("the plan is\n%s", p)
	}
	w.declare("half", "quorum")
	w.policy("half", "^half$", 1, map[string]any{"max-length": 10, "dead-letter-exchange": "old", "dead-letter-strategy": "at-least-once"})
	if p := w.plan(attach.Request{Queue: "half"}); !has(p.Notes, "at most once, since at-least-once takes overflow reject-publish") {
		t.Errorf("without overflow reject-publish it is at most once, and the plan is\n%s", p)
	}
}

// Without figures nobody knows what is on its way.
func TestDetachWithoutFigures(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.declare("orders", "quorum")
	w.attach(attach.Request{Queue: "orders"})
	w.m.HTTP = &http.Client{Transport: transport(func(r *http.Request) *http.Response {
		if strings.HasSuffix(r.URL.Path, "/orders") && r.Method == http.MethodGet {
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(`{"name": "orders"}`))}
		}
		return nil
	})}
	w.staysAttached("rabbitmqctl clear_policy -p " + w.vhost + " hop.attach.orders")
}

// A plan that somebody thinks about for long is about a broker of before.
func TestAnOldPlan(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.declare("orders", "classic")
	w.policy("shop", "^orders", 7, map[string]any{"message-ttl": 60_000})
	old, same := w.plan(attach.Request{Queue: "orders"}), w.plan(attach.Request{Queue: "orders"})
	w.policy("shop", "^orders", 7, map[string]any{"message-ttl": 30_000})
	before := w.state()
	if err := old.Apply(t.Context(), w.conn); !errors.Is(err, attach.ErrChanged) {
		t.Errorf("applied with %v", err)
	}
	if after := w.state(); !reflect.DeepEqual(before, after) {
		t.Errorf("it is\n%v\nand was\n%v", after, before)
	}
	w.policy("shop", "^orders", 7, map[string]any{"message-ttl": 60_000})
	w.must(old.Apply(t.Context(), w.conn))
	attached := w.state()
	w.must(same.Apply(t.Context(), w.conn)) // somebody else has done it
	if after := w.state(); !reflect.DeepEqual(attached, after) {
		t.Errorf("it is\n%v\nand was\n%v", after, attached)
	}
	detach, err := attach.MakeDetachPlan(t.Context(), w.m, attach.Request{Queue: "orders"})
	w.must(err)
	w.policy("shop", "^orders", 9, map[string]any{"message-ttl": 60_000})
	if err := detach.Apply(t.Context(), nil); !errors.Is(err, attach.ErrChanged) {
		t.Errorf("applied with %v", err)
	}
	w.detach(attach.Request{Queue: "orders"})
}
