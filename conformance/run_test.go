package conformance_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/conformance"
	"github.com/hopback/hopback/rabbittest"
)

func TestMain(m *testing.M) {
	// The tests wait for delays and for patience more than they work. A -parallel on
	// the command line wins, since flags are parsed later.
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

func config(t *testing.T, b *rabbittest.Broker, k consumer) conformance.Config {
	t.Helper()
	return conformance.Config{
		URL: b.Vhost(t), Worker: k.run, Patience: 90 * time.Second, StartTimeout: 90 * time.Second,
		Progress: func(p conformance.Progress) {
			if p.Text != "" {
				t.Log(p.Text)
			}
		},
	}
}

func run(t *testing.T, cfg conformance.Config) *conformance.Report {
	t.Helper()
	report, err := conformance.Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func describe(r conformance.Result) string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s: %s %s", r.Case, r.Status, r.Skipped)
	for _, f := range r.Failures {
		fmt.Fprintf(&s, "\n  attempt %d: %s\n    expected %s\n    actual   %s\n    %s", f.Attempt, f.What, f.Expected, f.Actual, f.Fix)
	}
	return s.String()
}

// leavesNothing checks that a virtual host is as empty as it was.
func leavesNothing(t *testing.T, b *rabbittest.Broker, amqpURL string) {
	t.Helper()
	uri, err := amqp.ParseURI(amqpURL)
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"queues", "exchanges"} {
		var all []struct {
			Name string `json:"name"`
		}
		if err := b.Get(t.Context(), "/api/"+kind+"/"+url.PathEscape(uri.Vhost)+"?disable_stats=true", &all); err != nil {
			t.Fatal(err)
		}
		for _, e := range all {
			if e.Name != "" && !strings.HasPrefix(e.Name, "amq.") {
				t.Errorf("it leaves one of the %s: %s", kind, e.Name)
			}
		}
	}
}

// A correct consumer passes everything, whether it rejects or leaves what it could
// not hand over.
func TestCorrectConsumer(t *testing.T) {
	t.Parallel()
	b := rabbittest.Shared(t)
	for _, kind := range []string{"quorum", "classic"} {
		for _, k := range []consumer{nil, {"leaves what was not taken"}} {
			t.Run(kind+" "+strings.Join(k, " "), func(t *testing.T) {
				t.Parallel()
				cfg := config(t, b, k)
				cfg.QueueType, cfg.Level = kind, conformance.Exact
				if k != nil {
					cfg.Cases = []string{"returned", "refused"}
				}
				report := run(t, cfg)
				for _, r := range report.Results {
					allowed := r.Case == "user-id" || r.Case == "crash-loop" && kind == "classic"
					if r.Status != conformance.Passed && !(r.Status == conformance.Skipped && allowed) {
						t.Error(describe(r))
					}
				}
				if k == nil && len(report.Results) != len(conformance.Cases()) {
					t.Errorf("%d results, want one for each of %d cases", len(report.Results), len(conformance.Cases()))
				}
				if len(report.Notes) > 0 {
					t.Error(report.Notes)
				}
				leavesNothing(t, b, cfg.URL)
			})
		}
	}
}

// silent are the faults of which nothing comes out, so that patience must end.
var silent = []string{"swallows failures", "swallows crashes", "counts only with a record", "acknowledges on delivery", "sleeps on failures", "drops headers"}

// Each wrong consumer is found by the cases that are meant for it.
func TestWrongConsumers(t *testing.T) {
	t.Parallel()
	b := rabbittest.Shared(t)
	for _, w := range wrongConsumers {
		t.Run(strings.Join(w.faults, ", "), func(t *testing.T) {
			t.Parallel()
			cfg := config(t, b, w.faults)
			cfg.Cases = slices.Sorted(maps.Keys(w.cases))
			if slices.ContainsFunc(w.faults, func(f string) bool { return slices.Contains(silent, f) }) {
				cfg.Patience = 4 * time.Second
			}
			if w.faults.is("keeps user-id") {
				cfg.WorkerURL = otherUser(t, b, cfg.URL)
			}
			report := run(t, cfg)
			for _, r := range report.Results {
				if text := describe(r); r.Status != conformance.Failed || !strings.Contains(text, w.cases[r.Case]) {
					t.Errorf("want a failure with %q:\n%s", w.cases[r.Case], text)
				}
				for _, f := range r.Failures {
					if f.What == "" || f.Expected == "" || f.Actual == "" || f.Fix == "" {
						t.Errorf("%s: the failure does not say all: %+v", r.Case, f)
					}
				}
			}
			if len(report.Results) != len(w.cases) {
				t.Errorf("%d results of %d cases", len(report.Results), len(w.cases))
			}
			leavesNothing(t, b, cfg.URL)
		})
	}
}

// otherUser is a URL with another user, who may do everything.
func otherUser(t *testing.T, b *rabbittest.Broker, amqpURL string) string {
	t.Helper()
	uri, err := amqp.ParseURI(amqpURL)
	if err != nil {
		t.Fatal(err)
	}
	name := "of " + uri.Vhost // users are the broker's, not a virtual host's
	if err := b.AddUser(t.Context(), name, "geheim", uri.Vhost, ".*", ".*", ".*"); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(amqpURL)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(name, "geheim")
	return u.String()
}

func TestUserID(t *testing.T) {
	t.Parallel()
	b := rabbittest.Shared(t)
	cfg := config(t, b, consumer{})
	cfg.Cases, cfg.WorkerURL = []string{"user-id"}, otherUser(t, b, cfg.URL)
	if report := run(t, cfg); report.Passed != 1 {
		t.Error(describe(report.Results[0]))
	}
}

// Every case has a wrong consumer that fails it, so that none can only pass.
func TestEveryCaseCanFail(t *testing.T) {
	caught := map[string]bool{}
	for _, w := range wrongConsumers {
		for name := range w.cases {
			caught[name] = true
		}
	}
	for _, c := range conformance.Cases() {
		if !caught[c.Name] {
			t.Errorf("no wrong consumer is meant to fail the case %s", c.Name)
		}
		if c.About == "" || !slices.Contains(conformance.Levels(), c.Level) {
			t.Errorf("the case %s does not say what it is about, or has no level", c.Name)
		}
	}
}

// What cannot work is told as an error, and nothing is left behind.
func TestErrors(t *testing.T) {
	t.Parallel()
	b := rabbittest.Shared(t)
	for name, tt := range map[string]struct {
		change func(t *testing.T, cfg *conformance.Config)
		says   string
	}{
		"a worker that does not start": {func(_ *testing.T, cfg *conformance.Config) {
			cfg.Worker = func(context.Context, conformance.Env) error { return errors.New("no such module") }
		}, "no such module"},
		"a case that there is not": {func(_ *testing.T, cfg *conformance.Config) { cfg.Cases = []string{"hadle"} }, "hadle"},
		"no consumer": {func(_ *testing.T, cfg *conformance.Config) {
			cfg.Worker, cfg.StartTimeout = nil, 300*time.Millisecond
		}, "nobody consumes"},
		"a queue with messages": {func(t *testing.T, cfg *conformance.Config) {
			cfg.Queue, cfg.Prefix = "mine", "hop"
			withQueue(t, cfg.URL, "mine", 3)
		}, "it has 3 messages"},
		"a queue of another router": {func(t *testing.T, cfg *conformance.Config) {
			cfg.Queue = "mine"
			withQueue(t, cfg.URL, "mine", 0)
		}, "prefix"},
		"no router": {func(_ *testing.T, cfg *conformance.Config) { cfg.RouterRuns = true }, "nobody reads"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config(t, b, consumer{})
			tt.change(t, &cfg)
			report, err := conformance.Run(t.Context(), cfg)
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Fatalf("got %+v, %v; want an error that says %q", report, err, tt.says)
			}
			if cfg.Queue == "" {
				leavesNothing(t, b, cfg.URL)
			}
		})
	}
}

// withQueue makes a work queue with messages, or a parking queue.
func withQueue(t *testing.T, amqpURL, name string, messages int) {
	t.Helper()
	conn, err := amqp.Dial(amqpURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err == nil {
		err = ch.Confirm(false)
	}
	if err == nil {
		args := amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "hop.failed"}
		if strings.HasSuffix(name, ".parked") {
			args = amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1_000_000)}
		}
		_, err = ch.QueueDeclare(name, true, false, false, false, args)
	}
	for i := 0; i < messages && err == nil; i++ {
		var c *amqp.DeferredConfirmation
		if c, err = ch.PublishWithDeferredConfirm("", name, true, false, amqp.Publishing{MessageId: fmt.Sprint("order ", i)}); err == nil && !c.Wait() {
			err = errors.New("not confirmed")
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}
