package attach_test

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attach"
)

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

// A queue that is gone leaves what is shared alone, too.
func TestTheQueueOfASharedBindingIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.must(w.ch.ExchangeDeclare("dlx", "fanout", true, false, false, false, nil))
	w.declare("a", "quorum", "x-dead-letter-exchange", "dlx")
	w.declare("b", "quorum", "x-dead-letter-exchange", "dlx")
	w.attach(attach.Request{Queue: "a", Others: true})
	_, err := w.ch.QueueDelete("a", false, false, false)
	w.must(err)
	p, err := attach.MakeDetachPlan(t.Context(), w.m, attach.Request{Queue: "a"})
	w.must(err)
	if !p.Refused() || !strings.HasSuffix(p.Refusals[0].Reason, ": b") {
		t.Errorf("b is attached by the same binding:\n%s", p)
	}
	w.reject("", "b", "b", 1)
	w.await("hop.failed", 1)
	if p, err = attach.MakeDetachPlan(t.Context(), w.m, attach.Request{Queue: "a", Others: true}); err != nil || p.Refused() || len(p.Changes) != 1 {
		t.Errorf("%v\n%s", err, p)
	}
}

// What was taken away may be bound again, by a consumer that declares it when it
// starts, or have been left by an attach that was interrupted: either is seen, and
// attaching again takes it away.
func TestBoundAgain(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"orders.dlq": "gets a copy of every failure", "orders.wait": "brings every failure back"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.must(w.ch.ExchangeDeclare("dlx", "direct", true, false, false, false, nil))
			w.declare("orders", "quorum", "x-dead-letter-exchange", "dlx", "x-dead-letter-routing-key", "dead")
			w.declare("orders.dlq", "classic")
			w.declare("orders.wait", "classic", "x-message-ttl", int64(600_000), "x-dead-letter-exchange", "", "x-dead-letter-routing-key", "orders")
			w.must(w.ch.QueueBind(name, "dead", "dlx", false, nil))
			before := w.state()
			problem := func() string {
				t.Helper()
				st, err := attach.Look(t.Context(), w.m, "")
				w.must(err)
				if len(st.Queues) != 1 {
					t.Fatalf("the status is %+v", st)
				}
				return st.Queues[0].Problem
			}
			w.attach(attach.Request{Queue: "orders", Copies: attach.Unbind})
			attached := w.state()
			if got := problem(); got != "" {
				t.Errorf("there is nothing wrong, and it says %s", got)
			}
			w.must(w.ch.QueueBind(name, "dead", "dlx", false, nil))
			if got := problem(); !strings.Contains(got, "dlx -> "+name) || !strings.Contains(got, want) {
				t.Errorf("it is bound again, and the status says %q", got)
			}
			if p := w.plan(attach.Request{Queue: "orders", Copies: attach.Keep}); !p.Refused() {
				t.Errorf("it was to be taken away, and now it is kept:\n%s", p)
			}
			w.attach(attach.Request{Queue: "orders"})
			if after := w.state(); !reflect.DeepEqual(attached, after) || problem() != "" {
				t.Errorf("after attaching again it is\n%v\nand was\n%v\n%s", after, attached, problem())
			}
			w.reject("", "orders", "orders", 2)
			w.await("hop.failed", 2)
			if n := w.depth(name); n != 0 {
				t.Errorf("%d copies in %s", n, name)
			}
			w.detach(attach.Request{Queue: "orders"})
			if after := w.state(); !reflect.DeepEqual(before, after) {
				t.Errorf("after detaching it is\n%v\nand was\n%v", after, before)
			}
		})
	}
}

// transport answers requests instead of the broker, where it knows an answer.
type transport func(*http.Request) *http.Response

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if answer := f(r); answer != nil {
		answer.Request = r
		return answer, nil
	}
	return http.DefaultTransport.RoundTrip(r)
}

// Two people at once: one attaches while the other detaches. What is to replace the
// old bindings is gone before these are taken away; then they stay.
func TestNothingIsTakenAwayWithoutItsReplacement(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.must(w.ch.ExchangeDeclare("dlx", "fanout", true, false, false, false, nil))
	w.declare("orders", "classic", "x-dead-letter-exchange", "dlx")
	w.declare("orders.dlq", "classic")
	w.must(w.ch.QueueBind("orders.dlq", "", "dlx", false, nil))
	before := w.state()
	w.m.HTTP = &http.Client{Transport: transport(func(r *http.Request) *http.Response {
		if r.Method == http.MethodPost { // made, and undone at once
			return &http.Response{StatusCode: http.StatusCreated, Body: http.NoBody}
		}
		return nil
	})}
	p := w.plan(attach.Request{Queue: "orders", Copies: attach.Unbind})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if err := p.Apply(ctx, w.conn); err == nil || errors.Is(err, attach.ErrRefused) {
		t.Errorf("attached with %v", err)
	}
	if after := w.state(); !reflect.DeepEqual(before, after) {
		t.Errorf("it is\n%v\nand was\n%v", after, before)
	}
}
