package main

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/parking"
	"github.com/hopback/hopback/rabbittest"
)

// TestParked runs each script in a virtual host of its own.
func TestParked(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("needs a broker")
	}
	b := rabbittest.Shared(t)
	var vhosts atomic.Int64
	testscript.Run(t, testscript.Params{
		Dir: "testdata/parked", RequireExplicitExec: true, RequireUniqueNames: true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"code": code, "rabbit": rabbit, "park": park, "drain": drain, "handle": handle, "same": same, "goon": goOnWith},
		Setup: func(env *testscript.Env) error {
			clean(env)
			for _, name := range []string{"VISUAL", "EDITOR"} {
				env.Setenv(name, "")
			}
			vhost := fmt.Sprintf("parked/%d", vhosts.Add(1))
			if err := b.AddVhost(context.Background(), vhost); err != nil {
				return err
			}
			env.Setenv("HOPBACK_BROKER_URL", b.VhostURL(vhost))
			env.Setenv("MANAGEMENT", b.ManagementURL())
			env.Defer(func() { _ = b.DeleteVhost(context.Background(), vhost) })
			return nil
		},
	})
}

// broker opens a channel that confirms.
func broker(ts *testscript.TestScript) (*amqp.Channel, func()) {
	conn, err := amqp.Dial(ts.Getenv("HOPBACK_BROKER_URL"))
	ts.Check(err)
	ch, err := conn.Channel()
	ts.Check(err)
	ts.Check(ch.Confirm(false))
	return ch, func() { conn.Close() }
}

// park parks messages of a work queue, as Hopback does, and waits until they are
// counted:
//
//	park QUEUE FIRST LAST TYPE ERROR     # %d in ERROR is the message's number
//
// Message n has the ID of n repeated, and was parked n minutes after noon.
func park(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 5 {
		ts.Fatalf("usage: park QUEUE FIRST LAST TYPE ERROR")
	}
	first, err := strconv.Atoi(args[1])
	ts.Check(err)
	last, err := strconv.Atoi(args[2])
	ts.Check(err)
	ch, end := broker(ts)
	defer end()
	noon := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	count := func() int {
		q, err := ch.QueueDeclarePassive(args[0]+".parked", true, false, false, false, nil)
		ts.Check(err)
		return q.Messages
	}
	before := count()
	for n := first; n <= last; n++ {
		text := strings.ReplaceAll(args[4], "%d", strconv.Itoa(n))
		p := amqp.Publishing{
			MessageId: fmt.Sprint("m", n), ContentType: "application/json", DeliveryMode: amqp.Persistent,
			Headers: amqp.Table{"tenant": "acme", "weight": int16(n)}, Body: fmt.Appendf(nil, `{"order": %d, "customer": {"id": %d}}`, n, n%10),
		}
		r := attempt.Record{Queue: args[0], ID: strings.Repeat(fmt.Sprintf("%04x", 0x7f3a+n-1), 8), Exchange: "shop", RoutingKey: "order.create"}
		at := noon.Add(time.Duration(n) * time.Minute)
		f := attempt.Failure{At: at.Add(-time.Second), Error: text, ErrorType: args[3], Consumer: "worker-1"}
		r = r.Retry(f, time.Second, time.Time{}, "standard")
		f.At = at
		dc, err := ch.PublishWithDeferredConfirm("hop.error", args[0], true, false, r.Park(f, attempt.ReasonExhausted).Successor(&p, 0))
		ts.Check(err)
		if !dc.Wait() {
			ts.Fatalf("not confirmed")
		}
	}
	for deadline := time.Now().Add(time.Minute); count() < before+last-first+1; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			ts.Fatalf("%d messages, want %d", count(), before+last-first+1)
		}
	}
}

// drain waits for messages in a queue, takes them out, and writes their message
// ids, their retries and their bodies to standard output:
//
//	drain QUEUE N
func drain(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: drain QUEUE N")
	}
	want, err := strconv.Atoi(args[1])
	ts.Check(err)
	ch, end := broker(ts)
	defer end()
	for got, deadline := 0, time.Now().Add(time.Minute); got < want; {
		d, ok, err := ch.Get(args[0], true)
		ts.Check(err)
		if ok {
			got++
			_, _ = fmt.Fprintf(ts.Stdout(), "%s %v %s %s\n", d.MessageId, d.Headers[attempt.HeaderCount], d.RoutingKey, d.Body)
			continue
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%s holds %d messages, want %d", args[0], got, want)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if d, ok, err := ch.Get(args[0], false); err != nil || ok {
		ts.Fatalf("%s holds more than %d messages: %s, %v", args[0], want, d.MessageId, err)
	}
}

// handle consumes a work queue until the script ends: it parks the orders that it
// is given again, and handles the others.
//
//	handle QUEUE [MESSAGEID …]
func handle(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: handle QUEUE [MESSAGEID …]")
	}
	ch, end := broker(ts)
	deliveries, err := ch.Consume(args[0], "handler", false, false, false, false, nil)
	ts.Check(err)
	ended := make(chan struct{})
	ts.Defer(func() { end(); <-ended })
	fails := " " + strings.Join(args[1:], " ") + " "
	go func() {
		defer close(ended)
		for d := range deliveries {
			if strings.Contains(fails, " "+d.MessageId+" ") {
				p := attempt.FromDelivery(&d)
				r, _ := attempt.Read(&p, attempt.Source{Queue: args[0]})
				r = r.Park(attempt.Failure{Error: "still down", ErrorType: "TimeoutError"}, attempt.ReasonPermanent)
				dc, err := ch.PublishWithDeferredConfirm("hop.error", args[0], true, false, r.Successor(&p, 0))
				if err != nil || !dc.Wait() {
					return
				}
			}
			_ = d.Ack(false)
		}
	}()
}

// goOnWith runs the command that an interrupted replay has told on standard error.
func goOnWith(ts *testscript.TestScript, neg bool, args []string) {
	_, line, ok := strings.Cut(ts.ReadFile("stderr"), "go on with: ")
	if neg || len(args) > 0 || !ok {
		ts.Fatalf("nothing to go on with")
	}
	line, _, _ = strings.Cut(line, "\n")
	words := append(strings.Fields(line), "--yes", "--wait", "0s")
	ts.Check(ts.Exec(words[0], words[1:]...))
}

// same compares two exports but for the times at which they were made, and for
// what RabbitMQ notes at each delivery:
//
//	same A B
func same(ts *testscript.TestScript, neg bool, args []string) {
	read := func(name string) string {
		s := ts.ReadFile(name)
		s = regexp.MustCompile(`"exported_at":"[^"]*",?`).ReplaceAllString(s, "")
		return regexp.MustCompile(`"x-(delivery|acquired)-count":\{[^}]*\},?`).ReplaceAllString(s, "")
	}
	if neg || len(args) != 2 {
		ts.Fatalf("usage: same A B")
	}
	if a, b := read(args[0]), read(args[1]); a != b || a == "" {
		ts.Fatalf("%s and %s differ:\n%s\n%s", args[0], args[1], a, b)
	}
}

// The line that goes on has the same set and the same ways, whatever time it is
// then.
func TestGoOn(t *testing.T) {
	cmd := parkedReplayCommand()
	if err := cmd.ParseFlags([]string{
		"--since", "2h", "--until", "1h", "--limit", "100", "--keep-count", "--force", "-c", "other file.yaml", "--error", "it's", "--header", "a=b c", "--yes",
	}); err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 11, 30, 12, 0, 0, 500_000_000, time.UTC)
	o := parking.Replay{Filter: parking.Filter{Since: at.Add(-2 * time.Hour), Until: at.Add(-time.Hour), IDs: []string{"7f3a"}}, Limit: 100}
	got := goOn(cmd, place{work: "orders"}, o, parking.ReplayReport{Started: at, Replayed: 60})
	want := `replay orders --config='other file.yaml' --error='it'\''s' --force=true --header='a=b c' --id=7f3a --keep-count=true --limit=40 ` +
		`--since=2026-11-30T10:00:00.5Z --until=2026-11-30T11:00:00.5Z --resume 2026-11-30T12:00:00.5Z`
	if got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
}

func TestReplayLine(t *testing.T) {
	for want, r := range map[string]parking.ReplayReport{
		"[██████████░░░░░░░░░░] 50 of 100, 5.0/s, 10s left sent":                        {Replayed: 50, Seen: 50, Total: 100},
		"[█████░░░░░░░░░░░░░░░] 25 of 100, 2.5/s, 30s left read, 5 sent":                {Replayed: 5, Seen: 25, NotPicked: 20, Total: 100},
		"[██████████░░░░░░░░░░] 50 of 100, 5.0/s, 10s left sent, at most 10/s":          {Replayed: 50, Seen: 50, Total: 100, Rate: 10},
		"[██░░░░░░░░░░░░░░░░░░] 10 of 100, 1.0/s, 1m30s left read, 8 sent, 2 stay":      {Replayed: 8, Seen: 10, Failed: 2, Total: 100},
		"[██████████░░░░░░░░░░] 50 of 100, 5.0/s, 10s left sent, paused: Enter goes on": {Replayed: 50, Seen: 50, Total: 100, Rate: 10, Paused: true},
	} {
		if got := replayLine(r, 0, 10*time.Second); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := replayLine(parking.ReplayReport{Replayed: 5, Seen: 25, NotPicked: 20, Total: 100}, 10, 10*time.Second); got != "[██████████░░░░░░░░░░] 5 of 10, 0.5/s, 10s left sent" {
		t.Errorf("counted before: %q", got)
	}
}

// Every command of the runbook is run by a script, with the same words.
func TestRunbook(t *testing.T) {
	doc, err := os.ReadFile("../../docs/parking.md")
	if err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile("testdata/parked/runbook.txtar")
	if err != nil {
		t.Fatal(err)
	}
	run := map[string]bool{}
	for _, line := range strings.Split(string(script), "\n") {
		words := strings.Fields(strings.TrimSuffix(line, " &tail&"))
		switch {
		case len(words) > 2 && words[0] == "code":
			run[strings.Join(words[2:], " ")] = true
		case len(words) > 1 && words[0] == "exec":
			run[strings.Join(words[1:], " ")] = true
		}
	}
	n := 0
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(doc), -1) {
		for _, line := range strings.Split(block[1], "\n") {
			command, _, _ := strings.Cut(line, " #")
			command = strings.Join(strings.Fields(command), " ")
			if !strings.HasPrefix(command, "hopback ") {
				continue
			}
			n++
			if !run[command] {
				t.Errorf("docs/parking.md has a command that testdata/parked/runbook.txtar does not run: %s", command)
			}
		}
	}
	if n < 20 {
		t.Errorf("only %d commands found in docs/parking.md", n)
	}
}
