package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/attempt"
)

// clientRoute serves the delays that a worker asks for, too.
func clientRoute(retries int) hopback.Route {
	return hopback.Route{Queue: "work", Policy: quick(retries), Mechanism: hopback.Wheel}
}

// The workers of examples/ with the router beside them: each fails transiently, for
// good, asks for time and crashes, and every message is counted.
func TestClients(t *testing.T) {
	t.Parallel()
	eachLanguage(t, func(t *testing.T, w *world, lang language) {
		// The worker in Go has a limit of its own, 3, and what reaches it goes to its
		// own error exchange.
		retries := 3
		if lang.name == "go" {
			retries = 9
		}
		p := w.startWorker(lang, 1) // it declares its queue, so that the router finds it
		w.runRouter(w.routerConfig(clientRoute(retries)))
		l := newLedger()
		l.sendTypes(w, map[string]int{
			"fine": 20, "transient 1": 5, "transient 3": 5, "explained 2": 5, "later 700": 3, // are handled
			"transient 99": 4, "explained 99": 4, "permanent": 4, // are parked
			"crash": 1,
		})
		parked := w.look("work.parked", 12)
		eventually(t, "the others are handled", func() bool { return p.handledCount() == 39 })
		if n := p.endings(); n != 1 {
			t.Errorf("it ended %d times, want once", n)
		}
		p.stop()

		if got, want := fmt.Sprint(reasons(parked)), "map[exhausted:8 permanent:4]"; got != want {
			t.Errorf("parked: %s, want %s", got, want)
		}
		// A crash comes between: what was under way then comes twice.
		for id, want := range map[string]string{
			"fine": "[1]", "transient 1": "[1 2]", "transient 3": "[1 2 3 4]", "explained 2": "[1 2 3]", "later 700": "[1 2]",
			"transient 99": "[1 2 3 4]", "explained 99": "[1 2 3 4]", "permanent": "[1]", "crash": "[1]",
		} {
			if got := p.attempts(id + "/0"); distinct(got) != want {
				t.Errorf("%s: attempts %v, want %s", id, got, want)
			}
		}
		for id, d := range parked {
			want := amqp.Table{attempt.HeaderQueue: "work", attempt.HeaderCount: int32(3), attempt.HeaderError: "the warehouse does not answer"}
			switch {
			case strings.HasPrefix(id, "permanent"):
				want[attempt.HeaderError], want[attempt.HeaderCount] = "no such customer: Zoë", int32(0)
				want[attempt.HeaderExchange], want[attempt.HeaderRoutingKey] = "", "work"
			case strings.HasPrefix(id, "transient") && lang.name != "go":
				want[attempt.HeaderError] = "rejected by its consumer"
			}
			checkHeaders(t, id, d.Headers, want)
			if kind, _ := d.Headers[attempt.HeaderErrorType].(string); strings.HasPrefix(id, "permanent") && !strings.Contains(strings.ToLower(kind), "nosuchcustomer") {
				t.Errorf("%s: the error's type is %q", id, kind)
			}
		}
		l.tally(p)
		s := l.check(w)
		if s.Parked != 12 || s.Handled != 39 || s.Waiting != 0 {
			t.Errorf("%v, want 39 handled, 12 parked and none waiting", s)
		}
		if len(s.Duplicates) > 10 {
			t.Errorf("%d were handled twice, of a prefetch of 10 and one crash: %v", len(s.Duplicates), s.Duplicates)
		}
	})
}

// distinct is each attempt once, in their order: a crash repeats some, and of a
// failure that was published and not yet acknowledged there are two copies then.
func distinct(attempts []int) string {
	return fmt.Sprint(slices.Compact(slices.Sorted(slices.Values(attempts))))
}

// A worker whose failed message cannot be taken, since hop.failed has no queue
// behind it, does not acknowledge it: with a confirm alone it would be lost, and
// with a rejection too.
func TestClientsKeepWhatNobodyTakes(t *testing.T) {
	t.Parallel()
	eachLanguage(t, func(t *testing.T, w *world, lang language) {
		w.exchange("hop.failed", "fanout")
		p := w.startWorker(lang, 0)
		w.publish("", "work", amqp.Publishing{MessageId: "m", Type: "permanent", DeliveryMode: amqp.Persistent})
		eventually(t, "the worker gives up", func() bool { return p.endings() == 1 })
		if got := p.attempts("m"); len(got) != 1 || p.cmd.ProcessState.ExitCode() == 0 {
			t.Errorf("attempts %v, ended with %d", got, p.cmd.ProcessState.ExitCode())
		}
		eventually(t, "the message is back in its queue", func() bool { return w.depth("work") == 1 })
	})
}

// A consumer of the library and one in Python on the same queue share one count
// and one history.
func TestClientsShareTheCountWithTheLibrary(t *testing.T) {
	t.Parallel()
	lang := languageNamed(t, "python")
	w := newWorld(t)
	p := w.startWorker(lang, 0)
	w.runRouter(w.routerConfig(routedRoute("work", 5)))
	var mu sync.Mutex
	mine := map[string][]int{}
	w.runConsumerOn(w.newClient(func(c *hopback.Config) { c.Name = "in-go" }), hopback.ConsumerConfig{
		Route: routedRoute("work", 5), Prefetch: 10,
		Handler: hopback.HandlerFunc(func(_ context.Context, m *hopback.Message) error {
			mu.Lock()
			defer mu.Unlock()
			mine[m.MessageID] = append(mine[m.MessageID], m.Attempt)
			return errBusy
		}),
	})
	const n = 40
	l := newLedger()
	l.sendTypes(w, map[string]int{"transient 99": n / 2, "explained 99": n / 2})
	parked := w.look("work.parked", n)
	mu.Lock()
	defer mu.Unlock()
	both := 0
	for id, d := range parked {
		checkHeaders(t, id, d.Headers, amqp.Table{attempt.HeaderReason: "exhausted", attempt.HeaderCount: int32(5)})
		p.mu.Lock()
		by := map[int]string{}
		for _, a := range mine[id] {
			by[a] += "in-go"
		}
		for _, a := range p.seen[id] {
			by[a] += "router"
		}
		p.mu.Unlock()
		var history []struct {
			N        int
			Consumer string
		}
		if err := json.Unmarshal([]byte(d.Headers[attempt.HeaderHistory].(string)), &history); err != nil {
			t.Fatal(err)
		}
		if len(history) != 6 || len(by) != 6 {
			t.Errorf("%s: %d lines and the attempts %v, want 6", id, len(history), by)
			continue
		}
		names := map[string]bool{}
		for i, line := range history {
			name, _, _ := strings.Cut(line.Consumer, "@") // the rest is the machine
			names[name] = true
			if line.N != i+1 || name != by[i+1] {
				t.Errorf("%s: line %d is of attempt %d by %q, and attempt %d was by %q", id, i+1, line.N, name, i+1, by[i+1])
			}
		}
		if len(names) == 2 {
			both++
		}
	}
	if both == 0 {
		t.Errorf("of %d messages none failed with both consumers", n)
	}
	t.Logf("%d of %d failed with both", both, n)
}

// The snippets on the page are what the workers run.
func TestRichFailureSnippetsAreTheWorkers(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/rich-failures.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, lang := range languages {
		_, section, ok := strings.Cut(string(page), "\n## "+lang.heading+"\n")
		_, code, ok2 := strings.Cut(section, "\n```")
		_, code, ok3 := strings.Cut(code, "\n")
		code, _, ok4 := strings.Cut(code, "\n```")
		if !ok || !ok2 || !ok3 || !ok4 {
			t.Errorf("docs/rich-failures.md has no code under %q", lang.heading)
			continue
		}
		source, err := os.ReadFile(filepath.Join(examples, lang.file))
		if err != nil {
			t.Fatal(err)
		}
		if code = level(code); strings.Count(code, "\n") < 20 || !strings.Contains(level(string(source)), code) {
			t.Errorf("docs/rich-failures.md shows another program in %s than examples/%s runs:\n%s", lang.heading, lang.file, code)
		}
	}
}

// level takes the indentation off every line: a method stands deeper in its class
// than on the page.
func level(code string) string {
	lines := strings.Split(code, "\n")
	for i, l := range lines {
		lines[i] = strings.TrimSpace(l)
	}
	return strings.Join(lines, "\n")
}
