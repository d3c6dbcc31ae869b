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
	"github.com/hopback/hopback/rabbittest"
)

// TestParked runs each script in a virtual host of its own.
func TestParked(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a broker")
	}
	b := rabbittest.Shared(t)
	var vhosts atomic.Int64
	testscript.Run(t, testscript.Params{
		Dir: "testdata/parked", RequireExplicitExec: true, RequireUniqueNames: true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"code": code, "rabbit": rabbit, "park": park, "drain": drain, "handle": handle, "same": same},
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
