package doctor_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/cmd/hopback/internal/doctor"
	"github.com/hopback/hopback/rabbittest"
	"github.com/hopback/hopback/topology"
)

// The tests on a broker wait for its statistics, and for little else: they run
// side by side whatever the machine has of processors.
func TestMain(m *testing.M) {
	flag.Parse()
	_ = flag.Set("test.parallel", "12")
	os.Exit(m.Run())
}

// start starts the broker of a test and all its subtests, with statistics that
// come every second instead of every five.
func start(t *testing.T) *rabbittest.Broker {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a broker")
	}
	b := rabbittest.Start(t, rabbittest.Options{Config: []string{"collect_statistics_interval = 1000"}})
	if _, err := b.Ctl(t.Context(), "eval", "application:set_env(rabbit, quorum_tick_interval, 1000)."); err != nil {
		t.Fatal(err)
	}
	return b
}

// world is a virtual host of its own in which a fault is made.
type world struct {
	*testing.T
	*rabbittest.Broker
	conn       *amqp.Connection
	ch         *amqp.Channel
	vhost      string
	management *topology.Management
	options    doctor.Options
	scope      doctor.Scope
	settled    func(*snapshot) bool
}

func newWorld(t *testing.T, b *rabbittest.Broker) *world {
	t.Helper()
	uri, err := amqp.ParseURI(b.Vhost(t))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := amqp.Dial(b.VhostURL(uri.Vhost))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	w := &world{
		T: t, Broker: b, conn: conn, vhost: uri.Vhost,
		management: &topology.Management{URL: b.ManagementURL(), Vhost: uri.Vhost},
		settled:    func(*snapshot) bool { return true },
	}
	w.ch = w.channel()
	return w
}

func (w *world) from(major, minor int) bool {
	var a, b int
	fmt.Sscanf(w.Version(), "%d.%d", &a, &b)
	return a > major || a == major && b >= minor
}

func (w *world) channel() *amqp.Channel {
	w.T.Helper()
	ch, err := w.conn.Channel()
	w.must(err)
	return ch
}

func (w *world) must(err error) {
	w.T.Helper()
	if err != nil {
		w.T.Fatal(err)
	}
}

// queue declares a durable queue with pairs of arguments; integers become int64.
func (w *world) queue(name string, args ...any) {
	w.T.Helper()
	_, err := w.ch.QueueDeclare(name, true, false, false, false, table(args))
	w.must(err)
}

// quorum is queue with the type.
func (w *world) quorum(name string, args ...any) {
	w.T.Helper()
	w.queue(name, append([]any{"x-queue-type", "quorum"}, args...)...)
}

// work declares a work queue that has nothing wrong with it on any version.
func (w *world) work(name string, args ...any) {
	w.T.Helper()
	w.quorum(name, append([]any{"x-delivery-limit", 1_000_000}, args...)...)
}

func table(pairs []any) amqp.Table {
	t := amqp.Table{}
	for i := 0; i < len(pairs); i += 2 {
		v := pairs[i+1]
		if n, ok := v.(int); ok {
			v = int64(n)
		}
		t[pairs[i].(string)] = v
	}
	return t
}

func (w *world) exchange(name, kind string, args ...any) {
	w.T.Helper()
	w.must(w.ch.ExchangeDeclare(name, kind, true, false, false, false, table(args)))
}

func (w *world) bind(exchange, key, queue string, args ...any) {
	w.T.Helper()
	w.must(w.ch.QueueBind(queue, key, exchange, false, table(args)))
}

// publish waits for the confirm.
func (w *world) publish(exchange, key string, p amqp.Publishing) {
	w.T.Helper()
	ch := w.channel()
	defer ch.Close()
	w.must(ch.Confirm(false))
	p.DeliveryMode = amqp.Persistent
	d, err := ch.PublishWithDeferredConfirm(exchange, key, false, false, p)
	w.must(err)
	ctx, cancel := context.WithTimeout(w.T.Context(), 20*time.Second)
	defer cancel()
	if ok, err := d.WaitContext(ctx); err != nil || !ok {
		w.T.Fatalf("publish to %q %q: confirmed %t, %v", exchange, key, ok, err)
	}
}

// consume holds what it is sent.
func (w *world) consume(queue string, prefetch int) <-chan amqp.Delivery {
	w.T.Helper()
	ch := w.channel()
	w.must(ch.Qos(prefetch, 0, false))
	d, err := ch.Consume(queue, "tag-"+queue, false, false, false, false, nil)
	w.must(err)
	w.expect(func(s *snapshot) bool {
		q := find(s, queue)
		return q != nil && q.Consumers != nil && *q.Consumers > 0 &&
			slices.ContainsFunc(s.Consumers, func(c doctor.Consumer) bool { return c.Queue.Name == queue && c.Channel.Number > 0 })
	})
	return d
}

// expect adds to what must be visible before anything is judged.
func (w *world) expect(visible func(*snapshot) bool) {
	had := w.settled
	w.settled = func(s *snapshot) bool { return had(s) && visible(s) }
}

// ready expects a queue to show so many messages.
func (w *world) ready(queue string, n int64) {
	w.expect(func(s *snapshot) bool {
		q := find(s, queue)
		return q != nil && q.Ready != nil && *q.Ready == n
	})
}

func (w *world) setPolicy(name, pattern string, definition map[string]any) error {
	return w.Put(w.T.Context(), "/api/policies/"+url.PathEscape(w.vhost)+"/"+name, map[string]any{
		"pattern": pattern, "definition": definition, "apply-to": "all",
	})
}

// policy sets a policy and expects it to show on a queue; not where that is "".
func (w *world) policy(pattern, queue string, definition map[string]any) {
	w.T.Helper()
	w.must(w.setPolicy("p", pattern, definition))
	if queue != "" {
		w.expect(func(s *snapshot) bool {
			q := find(s, queue)
			return q != nil && q.PolicyName == "p" && len(q.Policy) > 0
		})
	}
}

// configured is a configuration with these routes, to be compared with.
func (w *world) configured(routes ...hopback.Route) {
	w.T.Helper()
	t, err := hopback.Topology("", routes...)
	w.must(err)
	w.options.Routes, w.options.Topology, w.options.RetryPolicies = routes, t, nil
	for _, r := range routes {
		if p, ok := r.RetryPolicy(""); ok {
			w.options.RetryPolicies = append(w.options.RetryPolicies, p)
		}
	}
}

// apply applies our own topology, as hopback apply does.
func (w *world) apply(routes ...hopback.Route) {
	w.T.Helper()
	t, err := hopback.Topology("", routes...)
	w.must(err)
	w.must(topology.Apply(w.T.Context(), w.conn, t))
}

// examine reads until everything shows that should, and diagnoses.
func (w *world) examine() ([]doctor.Finding, *snapshot) {
	w.T.Helper()
	ctx, cancel := context.WithTimeout(w.T.Context(), time.Minute)
	defer cancel()
	quick := w.options
	quick.Wait = 0
	for {
		s, err := doctor.Read(ctx, w.conn, w.management, quick)
		w.must(err)
		if !slices.ContainsFunc(s.Queues, func(q *doctor.Queue) bool { return q.Ready == nil }) && w.settled(s) {
			if w.options.Wait > 0 {
				s, err = doctor.Read(ctx, w.conn, w.management, w.options)
				w.must(err)
			}
			return doctor.Diagnose(s, w.scope), s
		}
		select {
		case <-ctx.Done():
			text, _ := json.MarshalIndent(s, "", " ")
			w.T.Fatalf("the broker does not show in a minute what should be there:\n%s", text)
		case <-time.After(400 * time.Millisecond):
		}
	}
}

type snapshot = doctor.Snapshot

func find(s *snapshot, queue string) *doctor.Queue {
	for _, q := range s.Queues {
		if q.Name == queue {
			return q
		}
	}
	return nil
}

func ready(s *snapshot, queue string) int64 {
	if q := find(s, queue); q != nil && q.Ready != nil {
		return *q.Ready
	}
	return 0
}

// short writes findings so that they can be compared: "error dlx-missing orders".
func short(findings []doctor.Finding) []string {
	all := []string{}
	for _, f := range findings {
		where := f.Queue
		if where == "" {
			where = f.Name
		}
		all = append(all, strings.TrimSpace(fmt.Sprintf("%s %s %s", f.Severity, f.Check, where)))
	}
	slices.Sort(all)
	return all
}

// finds checks that exactly these findings are made, each with a reason and a fix.
// What is watched on a busy machine may need a second look; what must not be found
// must not be found at once.
func (w *world) finds(want ...string) {
	w.T.Helper()
	slices.Sort(want)
	var findings []doctor.Finding
	var got []string
	for range 6 {
		findings, _ = w.examine()
		if got = short(findings); slices.Equal(got, want) || len(want) == 0 {
			break
		}
		time.Sleep(time.Second)
	}
	if !slices.Equal(got, want) {
		text, _ := json.MarshalIndent(findings, "", " ")
		w.T.Errorf("found\n  %s\nwant\n  %s\n%s", strings.Join(got, "\n  "), strings.Join(want, "\n  "), text)
	}
	for _, f := range findings {
		if f.Reason == "" || f.Fix == "" || f.Docs == "" {
			w.T.Errorf("incomplete: %+v", f)
		}
	}
}
