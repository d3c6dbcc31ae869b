package doctor_test

import (
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/backoff"
	"github.com/hopback/hopback/rabbittest"
)

// fault is something that can be wrong. It is made on a real broker twice: broken,
// where exactly want must be found, and mended as the finding says, where nothing
// must be.
type fault struct {
	name string
	// make makes it. A version that cannot show the fault, or is not harmed by it,
	// returns nothing to find.
	make func(w *world, broken bool) (want []string)
}

// faults are in the order of the checks. A name begins with that of its check.
var faults = []fault{
	{"delivery-limit-default", func(w *world, broken bool) []string {
		if !broken {
			w.work("orders")
			return nil
		}
		w.quorum("orders")
		if !w.from(4, 0) {
			return nil // no default
		}
		return []string{"error delivery-limit-default orders"}
	}},
	{"delivery-limit-default/by policy", func(w *world, broken bool) []string {
		w.quorum("orders")
		if !broken {
			w.policy("^orders$", "orders", map[string]any{"delivery-limit": 1_000_000})
		}
		if !broken || !w.from(4, 0) {
			return nil
		}
		return []string{"error delivery-limit-default orders"}
	}},
	{"delivery-limit-drops", func(w *world, broken bool) []string {
		if broken {
			w.quorum("orders", "x-delivery-limit", 5)
			return []string{"warning delivery-limit-drops orders"}
		}
		w.quorum("orders", "x-delivery-limit", 5, "x-dead-letter-exchange", "", "x-dead-letter-routing-key", "orders.parked")
		w.work("orders.parked")
		return nil
	}},
	{"delivery-limit-minus-one", func(w *world, broken bool) []string {
		if !broken {
			w.quorum("orders", "x-delivery-limit", 1_000_000)
			return nil
		}
		w.quorum("orders", "x-delivery-limit", -1)
		if w.from(4, 0) {
			return nil // there it means what it says
		}
		return []string{"error delivery-limit-minus-one orders"}
	}},
	{"delayed-retry-ignored", func(w *world, broken bool) []string {
		if !broken {
			w.work("orders")
			return nil
		}
		w.work("orders", "x-delayed-retry-type", "all", "x-delayed-retry-min", 1000, "x-delayed-retry-max", 3000)
		if w.from(4, 3) {
			return nil // there it works
		}
		return []string{"error delayed-retry-ignored orders"}
	}},
	{"dead-letter-cycle/two delays", func(w *world, broken bool) []string {
		next := "delay.1s"
		if !broken {
			next = "orders"
		}
		w.work("orders")
		w.quorum("delay.1s", "x-message-ttl", 1000, "x-dead-letter-exchange", "", "x-dead-letter-routing-key", "delay.2s")
		w.quorum("delay.2s", "x-message-ttl", 2000, "x-dead-letter-exchange", "", "x-dead-letter-routing-key", next)
		if !broken {
			return nil
		}
		return []string{"error dead-letter-cycle delay.1s"}
	}},
	{"dead-letter-cycle/limit", func(w *world, broken bool) []string {
		// A work queue with its retry queue, through exchanges.
		limit := 5
		if !broken {
			limit = 1_000_000
		}
		w.exchange("retry", "direct")
		w.exchange("work", "topic")
		w.quorum("orders", "x-delivery-limit", limit, "x-dead-letter-exchange", "retry", "x-dead-letter-routing-key", "orders")
		w.quorum("orders.retry", "x-message-ttl", 5000, "x-dead-letter-exchange", "work", "x-dead-letter-routing-key", "back.orders")
		w.bind("retry", "orders", "orders.retry")
		w.bind("work", "*.orders", "orders")
		if !broken {
			return nil
		}
		return []string{"error dead-letter-cycle orders"}
	}},
	{"dlx-missing", func(w *world, broken bool) []string {
		w.work("orders", "x-dead-letter-exchange", "nowhere")
		if broken {
			return []string{"error dlx-missing orders"}
		}
		w.exchange("nowhere", "fanout")
		w.work("orders.parked")
		w.bind("nowhere", "", "orders.parked")
		return nil
	}},
	{"dlx-missing/by policy", func(w *world, broken bool) []string {
		w.work("orders")
		w.policy("^orders$", "orders", map[string]any{"dead-letter-exchange": "nowhere"})
		if broken {
			return []string{"error dlx-missing orders"}
		}
		w.exchange("nowhere", "fanout")
		w.work("orders.parked")
		w.bind("nowhere", "", "orders.parked")
		return nil
	}},
	{"dlx-empty-key", func(w *world, broken bool) []string {
		w.work("orders.parked")
		key := "orders.parked"
		if broken {
			key = ""
		}
		w.work("orders", "x-dead-letter-exchange", "", "x-dead-letter-routing-key", key)
		if !broken {
			return nil
		}
		return []string{"error dlx-empty-key orders"}
	}},
	{"dlx-empty-key/none", func(w *world, broken bool) []string {
		w.exchange("shop", "topic")
		if !broken {
			// A delay for all queues: the key is the name of the queue to return to.
			w.exchange("later", "fanout")
			w.quorum("delay.5s", "x-message-ttl", 5000, "x-dead-letter-exchange", "")
			w.bind("later", "", "delay.5s")
			return nil
		}
		w.work("loops", "x-dead-letter-exchange", "")
		w.work("drops", "x-dead-letter-exchange", "")
		w.bind("shop", "order.create", "drops")
		return []string{"error dlx-empty-key drops", "error dlx-empty-key loops"}
	}},
	{"dlx-unroutable/no binding", func(w *world, broken bool) []string {
		w.exchange("dead", "direct")
		w.work("orders", "x-dead-letter-exchange", "dead", "x-dead-letter-routing-key", "orders")
		w.work("orders.parked")
		if broken {
			return []string{"error dlx-unroutable orders"}
		}
		w.bind("dead", "orders", "orders.parked")
		return nil
	}},
	{"dlx-unroutable/other key", func(w *world, broken bool) []string {
		w.exchange("shop", "topic")
		w.exchange("dead", "direct")
		w.work("orders.parked")
		w.work("orders", "x-dead-letter-exchange", "dead") // dead letters keep their key
		w.bind("shop", "order.create", "orders")
		w.bind("dead", "orders", "orders.parked")
		if broken {
			return []string{"warning dlx-unroutable orders"}
		}
		w.bind("dead", "order.create", "orders.parked")
		return nil
	}},
	{"dlx-unroutable/no queue", func(w *world, broken bool) []string {
		w.work("orders", "x-dead-letter-exchange", "", "x-dead-letter-routing-key", "orders.parked")
		if broken {
			return []string{"error dlx-unroutable orders"}
		}
		w.work("orders.parked")
		return nil
	}},
	{"at-least-once-overflow", func(w *world, broken bool) []string {
		overflow := "reject-publish"
		if broken {
			overflow = "drop-head"
		}
		w.work("orders")
		w.quorum("delay.5s", "x-message-ttl", 5000, "x-dead-letter-exchange", "", "x-dead-letter-routing-key", "orders",
			"x-dead-letter-strategy", "at-least-once", "x-overflow", overflow)
		if !broken {
			return nil
		}
		return []string{"error at-least-once-overflow delay.5s"}
	}},
	{"at-least-once-overflow/by policy", func(w *world, broken bool) []string {
		// On a quorum queue the policy's overflow beats the argument's.
		overflow := "reject-publish"
		if broken {
			overflow = "drop-head"
		}
		other := map[string]string{"reject-publish": "drop-head", "drop-head": "reject-publish"}[overflow]
		w.work("orders")
		w.quorum("delay.5s", "x-message-ttl", 5000, "x-dead-letter-exchange", "", "x-dead-letter-routing-key", "orders",
			"x-dead-letter-strategy", "at-least-once", "x-overflow", other)
		w.policy("^delay", "delay.5s", map[string]any{"overflow": overflow})
		if !broken {
			return nil
		}
		return []string{"error at-least-once-overflow delay.5s"}
	}},
	{"at-least-once-no-alternate", func(w *world, broken bool) []string {
		var alternate []any
		if !broken {
			alternate = []any{"alternate-exchange", "lost"}
		}
		w.exchange("back", "direct", alternate...)
		w.exchange("lost", "fanout")
		w.exchange("later", "fanout")
		w.work("lost")
		w.work("orders")
		w.bind("lost", "", "lost")
		w.bind("back", "orders", "orders")
		w.quorum("delay.5s", "x-message-ttl", 5000, "x-dead-letter-exchange", "back",
			"x-dead-letter-strategy", "at-least-once", "x-overflow", "reject-publish")
		w.bind("later", "", "delay.5s")
		if !broken {
			return nil
		}
		return []string{"warning at-least-once-no-alternate delay.5s"}
	}},
	{"expires-on-delay", func(w *world, broken bool) []string {
		args := []any{"x-message-ttl", 5000, "x-dead-letter-exchange", "", "x-dead-letter-routing-key", "orders"}
		if broken {
			args = append(args, "x-expires", 3_600_000)
		}
		w.work("orders")
		w.quorum("delay.5s", args...)
		if !broken {
			return nil
		}
		return []string{"error expires-on-delay delay.5s"}
	}},
	{"mixed-ttl/by its name", func(w *world, broken bool) []string {
		args := []any{"x-dead-letter-exchange", "", "x-dead-letter-routing-key", "orders"}
		expiration := "600000"
		if !broken {
			args, expiration = append(args, "x-message-ttl", 600_000), ""
		}
		w.work("orders")
		w.quorum("orders.delay", args...)
		w.publish("", "orders.delay", amqp.Publishing{Expiration: expiration})
		w.publish("", "orders.delay", amqp.Publishing{Expiration: "500"})
		w.ready("orders.delay", 2)
		if !broken {
			return nil
		}
		// Both would be there for ten minutes, the one with 500 ms too.
		return []string{"warning mixed-ttl orders.delay"}
	}},
	{"mixed-ttl/a guess", func(w *world, broken bool) []string {
		w.work("orders")
		w.consume("orders", 10)
		w.quorum("pending", "x-delivery-limit", 1_000_000, "x-dead-letter-exchange", "", "x-dead-letter-routing-key", "orders")
		w.publish("", "pending", amqp.Publishing{Expiration: "600000"})
		if broken {
			w.ready("pending", 1)
			return []string{"note mixed-ttl pending"}
		}
		w.consume("pending", 1)
		w.ready("pending", 0)
		return nil
	}},
	{"mixed-ttl/seen", func(w *world, broken bool) []string {
		w.work("orders")
		w.consume("orders", 500)
		w.quorum("pending", "x-delivery-limit", 1_000_000, "x-dead-letter-exchange", "", "x-dead-letter-routing-key", "orders")
		if broken {
			// One leaves every 300 ms, whenever it is looked at.
			for i := range 200 {
				w.publish("", "pending", amqp.Publishing{Expiration: fmt.Sprint(3000 + 300*i)})
			}
			w.expect(func(s *snapshot) bool { return ready(s, "pending") > 50 })
			w.options.Wait = 5 * time.Second
			return []string{"warning mixed-ttl pending"}
		}
		return nil
	}},
	{"delay-classic", func(w *world, broken bool) []string {
		args := []any{"x-message-ttl", 5000, "x-dead-letter-exchange", "", "x-dead-letter-routing-key", "orders"}
		w.work("orders", "x-dead-letter-exchange", "", "x-dead-letter-routing-key", "orders.dlq")
		if broken {
			w.queue("delay.5s", args...)
			w.queue("orders.dlq")
			return []string{"warning delay-classic delay.5s", "warning delay-classic orders.dlq"}
		}
		w.quorum("delay.5s", args...)
		w.work("orders.dlq")
		return nil
	}},
	{"delay-not-durable", func(w *world, broken bool) []string {
		args := table([]any{"x-message-ttl", 5000, "x-dead-letter-exchange", "", "x-dead-letter-routing-key", "orders"})
		w.work("orders")
		if !broken {
			w.quorum("delay.5s", "x-message-ttl", 5000, "x-dead-letter-exchange", "", "x-dead-letter-routing-key", "orders")
			return nil
		}
		want := []string{
			"error delay-not-durable delay.auto", "warning delay-classic delay.auto",
			"error delay-not-durable delay.exclusive",
		}
		_, err := w.ch.QueueDeclare("delay.auto", true, true, false, false, args)
		w.must(err)
		_, err = w.ch.QueueDeclare("delay.exclusive", false, false, true, false, args)
		w.must(err)
		if !w.from(4, 3) { // which refuses it
			_, err = w.ch.QueueDeclare("delay.transient", false, false, false, false, args)
			w.must(err)
			want = append(want, "error delay-not-durable delay.transient", "warning delay-classic delay.transient")
		}
		return want
	}},
	{"delay-drops", func(w *world, broken bool) []string {
		overflow := "reject-publish"
		if broken {
			overflow = "drop-head"
		}
		w.work("orders")
		w.quorum("delay.5s", "x-message-ttl", 5000, "x-dead-letter-exchange", "", "x-dead-letter-routing-key", "orders",
			"x-max-length", 10, "x-overflow", overflow)
		if !broken {
			return nil
		}
		return []string{"warning delay-drops delay.5s"}
	}},
	{"parking-drops", func(w *world, broken bool) []string {
		w.work("orders", "x-dead-letter-exchange", "", "x-dead-letter-routing-key", "orders.parked")
		w.work("orders.parked")
		if !broken {
			w.policy("^orders$", "orders", map[string]any{"max-length": 1000, "overflow": "reject-publish"})
			return nil
		}
		// The pattern matches more than it should.
		w.policy("^orders", "orders.parked", map[string]any{"max-length": 1000, "message-ttl": 86_400_000})
		return []string{"error parking-drops orders.parked", "error parking-drops orders.parked"}
	}},
	{"parking-delivery-limit", func(w *world, broken bool) []string {
		w.work("orders", "x-dead-letter-exchange", "", "x-dead-letter-routing-key", "orders.parked")
		if !broken {
			w.work("orders.parked")
			return nil
		}
		w.quorum("orders.parked")
		w.work("mails", "x-dead-letter-exchange", "", "x-dead-letter-routing-key", "mails.dlq")
		w.quorum("mails.dlq", "x-delivery-limit", 3)
		want := []string{"error parking-delivery-limit mails.dlq"}
		if w.from(4, 0) {
			want = append(want, "error parking-delivery-limit orders.parked")
		}
		return want
	}},
	{"consumer-on-delay", func(w *world, broken bool) []string {
		w.work("orders", "x-dead-letter-exchange", "", "x-dead-letter-routing-key", "orders.retry")
		w.quorum("orders.retry", "x-message-ttl", 5000, "x-dead-letter-exchange", "", "x-dead-letter-routing-key", "orders")
		if !broken {
			w.consume("orders", 1)
			return nil
		}
		w.consume("orders.retry", 1)
		return []string{"error consumer-on-delay orders.retry"}
	}},
	{"consumer-on-parking", func(w *world, broken bool) []string {
		w.apply(hopback.Route{Queue: "orders", Policy: small, Declare: &hopback.Declare{}})
		w.work("mails", "x-dead-letter-exchange", "", "x-dead-letter-routing-key", "mails.dlq")
		w.work("mails.dlq")
		if !broken {
			return nil
		}
		w.consume("orders.parked", 1)
		w.consume("mails.dlq", 1)
		return []string{"warning consumer-on-parking orders.parked", "note consumer-on-parking mails.dlq"}
	}},
	{"shared-slot-refused", func(w *world, broken bool) []string {
		w.apply(hopback.Route{Queue: "orders", Policy: small, Isolate: !broken, Declare: &hopback.Declare{
			Args: amqp.Table{"x-max-length": int64(10), "x-overflow": "reject-publish"},
		}})
		if !broken {
			return nil
		}
		return []string{"error shared-slot-refused orders"}
	}},
	{"shared-slot-refused/by policy, the route says nothing", func(w *world, broken bool) []string {
		route := hopback.Route{Queue: "orders", Policy: small, Isolate: true, Declare: &hopback.Declare{}}
		w.apply(route)
		w.policy("^orders$", "orders", map[string]any{"max-length": 10, "overflow": "reject-publish"})
		w.configured(route)
		w.options.Routes[0].Isolate = !broken // the topology is what was resolved
		if !broken {
			return nil
		}
		return []string{"warning shared-slot-refused orders"}
	}},
	{"headers-match-x", func(w *world, broken bool) []string {
		w.exchange("back", "headers")
		w.work("orders")
		w.work("mails")
		w.work("sms")
		with := ""
		if !broken {
			with = "-with-x"
		}
		w.bind("back", "", "orders", "x-match", "all"+with, "x-queue", "orders")
		w.bind("back", "", "mails", "x-match", "any"+with, "x-queue", "mails")
		w.bind("back", "", "sms", "x-match", "all"+with, "x-queue", "sms", "country", "fr")
		// All takes what is for another queue, any takes nothing.
		w.publish("back", "", amqp.Publishing{Headers: amqp.Table{"x-queue": "nobody", "country": "it"}})
		if !broken {
			w.publish("back", "", amqp.Publishing{Headers: amqp.Table{"x-queue": "mails"}})
			w.ready("orders", 0)
			w.ready("mails", 1)
			return nil
		}
		w.ready("orders", 1)
		w.ready("mails", 0)
		return []string{"error headers-match-x orders", "error headers-match-x mails", "warning headers-match-x sms"}
	}},
	{"topic-catches-retry", func(w *world, broken bool) []string {
		pattern := "orders.#"
		if !broken {
			pattern = "orders.new.#"
		}
		w.exchange("shop", "topic")
		w.work("orders", "x-dead-letter-exchange", "shop", "x-dead-letter-routing-key", "orders.error")
		w.work("orders.parked")
		w.quorum("orders.retry", "x-message-ttl", 5000, "x-dead-letter-exchange", "", "x-dead-letter-routing-key", "orders")
		w.bind("shop", pattern, "orders")
		w.bind("shop", "orders.retry", "orders.retry")
		w.bind("shop", "orders.error", "orders.parked")
		if !broken {
			return nil
		}
		return []string{"error topic-catches-retry orders", "error topic-catches-retry orders"}
	}},
	{"drift", func(w *world, broken bool) []string {
		route := hopback.Route{Queue: "orders", Policy: small, Declare: &hopback.Declare{}}
		w.apply(route)
		w.configured(route)
		w.scope.Routes = true
		if !broken {
			return nil
		}
		for _, q := range []string{"orders.parked", "hop.delay.1s", "hop.delay.2s"} {
			_, err := w.ch.QueueDelete(q, false, false, false)
			w.must(err)
		}
		w.quorum("hop.delay.2s", "x-message-ttl", 2500, "x-dead-letter-exchange", "hop.then.1s",
			"x-dead-letter-strategy", "at-least-once", "x-overflow", "reject-publish")
		w.bind("hop.delay.2s", "", "hop.delay.2s")
		return []string{
			"error drift hop.delay.2s", "warning drift hop.delay.1s",
			"warning drift orders.parked", "warning drift hop.error -> orders.parked (key \"orders\")",
		}
	}},
	{"drift/native-linear", func(w *world, broken bool) []string {
		if !w.from(4, 3) {
			return nil
		}
		linear := hopback.Policy{MaxRetries: 3, MaxAge: hopback.Unlimited, Schedule: hopback.Schedule{
			Backoff: hopback.Linear, Jitter: hopback.NoJitter, Base: time.Second, Max: 3 * time.Second,
		}}
		route := hopback.Route{Queue: "orders", Mechanism: hopback.NativeLinear, Policy: linear, Declare: &hopback.Declare{}}
		w.apply(route)
		w.configured(route)
		w.scope.Routes = true
		set, _ := route.RetryPolicy("")
		if !broken {
			w.must(w.management.ApplyPolicy(w.T.Context(), set))
			return nil
		}
		set.Definition["delayed-retry-min"] = int64(2000) // as an earlier configuration had it
		w.must(w.management.ApplyPolicy(w.T.Context(), set))
		return []string{"error drift orders"}
	}},
	{"dead-letter-stuck", func(w *world, broken bool) []string {
		w.exchange("back", "fanout")
		w.work("orders")
		w.quorum("delay.1s", "x-message-ttl", 1000, "x-dead-letter-exchange", "back",
			"x-dead-letter-strategy", "at-least-once", "x-overflow", "reject-publish")
		w.options.Wait = 4 * time.Second
		if !broken {
			w.bind("back", "", "orders")
			w.publish("", "delay.1s", amqp.Publishing{})
			w.ready("orders", 1)
			return nil
		}
		for range 3 {
			w.publish("", "delay.1s", amqp.Publishing{})
		}
		w.expect(func(s *snapshot) bool {
			q := find(s, "delay.1s")
			return q != nil && q.DeadLettering != nil && *q.DeadLettering == 3
		})
		return []string{"error dead-letter-stuck delay.1s", "error dlx-unroutable delay.1s"}
	}},
	{"requeue-loop", func(w *world, broken bool) []string {
		w.queue("orders")
		deliveries := w.consume("orders", 1)
		if broken {
			w.publish("", "orders", amqp.Publishing{})
		} else {
			for range 400 {
				w.publish("", "orders", amqp.Publishing{})
			}
		}
		go func() {
			for d := range deliveries {
				time.Sleep(40 * time.Millisecond) // as work would; and not to be a load for other tests
				if broken {
					_ = d.Nack(false, true)
				} else {
					_ = d.Ack(false)
				}
			}
		}()
		w.options.Wait = 6 * time.Second
		if !broken {
			w.expect(func(s *snapshot) bool { q := find(s, "orders"); return q != nil && q.Stats.Acked > 10 })
			return nil
		}
		w.expect(func(s *snapshot) bool { q := find(s, "orders"); return q != nil && q.Stats.Redelivered > 60 })
		return []string{"error requeue-loop orders"}
	}},
	{"prefetch-unlimited", func(w *world, broken bool) []string {
		w.work("orders")
		if broken {
			w.consume("orders", 0)
			return []string{"note prefetch-unlimited orders"}
		}
		w.consume("orders", 10)
		return nil
	}},
	{"policy-skipped", func(w *world, broken bool) []string {
		w.queue("orders")
		w.work("orders.parked")
		definition := map[string]any{"dead-letter-exchange": "", "dead-letter-routing-key": "orders.parked"}
		if broken {
			definition["dead-letter-strategy"] = "at-least-once"
			w.policy("^orders$", "", definition)
			return []string{"error policy-skipped orders"}
		}
		w.policy("^orders$", "orders", definition)
		return nil
	}},
	{"mirror-policy", func(w *world, broken bool) []string {
		w.queue("orders")
		if !broken {
			return nil
		}
		err := w.setPolicy("mirrors", "^orders$", map[string]any{"ha-mode": "all"})
		if w.from(4, 0) {
			if err == nil {
				w.T.Error("the broker took a policy for mirrored queues: test the warning here")
			}
			return nil // it can only be there from before an upgrade
		}
		w.must(err)
		return []string{"note mirror-policy mirrors"}
	}},
}

// small has few slots, so that many virtual hosts can have them.
var small = hopback.Policy{Schedule: backoff.Schedule{Max: 5 * time.Second}, MaxRetryAfter: 5 * time.Second}

func TestOnABroker(t *testing.T) {
	b := start(t)
	t.Run("fault", func(t *testing.T) { eachFault(t, b) })
	t.Run("healthy", func(t *testing.T) { healthy(t, b) })
	t.Run("overflow", func(t *testing.T) { overflow(t, b) })
}

func eachFault(t *testing.T, b *rabbittest.Broker) {
	t.Parallel()
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			for _, broken := range []bool{true, false} {
				name := "broken"
				if !broken {
					name = "mended"
				}
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					w := newWorld(t, b)
					w.finds(f.make(w, broken)...)
				})
			}
		})
	}
}

// overflow shows which half of the setting acts: a full queue refuses messages
// where it is reject-publish, and never where it is drop-head.
func overflow(t *testing.T, b *rabbittest.Broker) {
	t.Parallel()
	w := newWorld(t, b)
	w.quorum("quorum", "x-max-length", 1, "x-overflow", "drop-head")
	w.queue("classic", "x-max-length", 1, "x-overflow", "drop-head")
	w.policy("^(quorum|classic)$", "quorum", map[string]any{"overflow": "reject-publish"})
	w.expect(func(s *snapshot) bool { q := find(s, "classic"); return q != nil && q.PolicyName == "p" })
	w.examine()
	w.must(w.ch.Confirm(false))
	refused := map[string]int{}
	for range 50 { // a quorum queue counts late, and takes some too many
		for _, queue := range []string{"quorum", "classic"} {
			d, err := w.ch.PublishWithDeferredConfirm("", queue, false, false, amqp.Publishing{})
			w.must(err)
			if ok, err := d.WaitContext(t.Context()); err != nil {
				t.Fatal(err)
			} else if !ok {
				refused[queue]++
			}
		}
	}
	if refused["quorum"] == 0 || refused["classic"] != 0 {
		t.Errorf("refused: %v; want that the policy acts on the quorum queue, and the argument on the classic one", refused)
	}
}
