package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/rabbittest"
)

func TestMain(m *testing.M) {
	// Most tests wait for brokers and delays: more of them than processors can run. A
	// -parallel on the command line wins, since flags are parsed later.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	testscript.Main(m, map[string]func(){"hopback": main})
}

// clean takes out of a script's environment what the machine may have set.
func clean(env *testscript.Env) {
	for _, name := range []string{"HOPBACK_BROKER_URL", "HOPBACK_MANAGEMENT_URL", "HOPBACK_BROKER_USERNAME", "HOPBACK_BROKER_PASSWORD"} {
		env.Setenv(name, "")
	}
}

func TestOffline(t *testing.T) {
	example, err := os.ReadFile("../../hopback.yaml")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/offline", RequireExplicitExec: true, RequireUniqueNames: true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"code": code},
		Setup: func(env *testscript.Env) error {
			clean(env)
			return os.WriteFile(env.WorkDir+"/hopback.yaml", example, 0o644)
		},
	})
}

// TestOnABroker runs each script in a virtual host of its own, on the broker
// that $HOPBACK_TEST_BROKER names or the first that is installed.
func TestOnABroker(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("needs a broker")
	}
	b := rabbittest.Shared(t)
	var vhosts atomic.Int64
	testscript.Run(t, testscript.Params{
		Dir: "testdata/broker", RequireExplicitExec: true, RequireUniqueNames: true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"code": code, "rabbit": rabbit},
		Setup: func(env *testscript.Env) error {
			clean(env)
			n := vhosts.Add(1)
			vhost := fmt.Sprintf("script/%d", n) // a name that must be encoded
			reader := fmt.Sprintf("reader-%d", n)
			if err := b.AddVhost(context.Background(), vhost); err != nil {
				return err
			}
			env.Setenv("READER", reader)
			env.Setenv("HOPBACK_BROKER_URL", b.VhostURL(vhost))
			env.Setenv("MANAGEMENT", b.ManagementURL())
			if err := b.AddUser(context.Background(), reader, "geheim", vhost, "", "", ".*"); err != nil {
				return err
			}
			env.Defer(func() { _ = b.DeleteVhost(context.Background(), vhost) })
			return nil
		},
	})
}

// code runs a command and checks its exit code: code 2 hopback plan.
func code(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code N command args…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	if exit, ok := err.(interface{ ExitCode() int }); ok {
		got = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// rabbit does to the broker what an operator might:
//
//	rabbit declare QUEUE [key=value …]    integers and texts
//	rabbit delete QUEUE
//	rabbit unbind EXCHANGE QUEUE
//	rabbit lose QUEUE BODY                a message on its way back to a queue
//	rabbit depth QUEUE N
//	rabbit get QUEUE                      prints body, routing key and reason
func rabbit(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: rabbit verb queue …")
	}
	conn, err := amqp.Dial(ts.Getenv("HOPBACK_BROKER_URL"))
	ts.Check(err)
	defer conn.Close()
	ch, err := conn.Channel()
	ts.Check(err)
	switch args[0] {
	case "declare":
		table := amqp.Table{}
		for _, a := range args[2:] {
			k, v, _ := strings.Cut(a, "=")
			if n, err := strconv.ParseInt(v, 10, 64); err == nil {
				table[k] = n
			} else {
				table[k] = v
			}
		}
		_, err = ch.QueueDeclare(args[1], true, false, false, false, table)
	case "delete":
		_, err = ch.QueueDelete(args[1], false, false, false)
	case "lose":
		ts.Check(ch.Confirm(false))
		var dc *amqp.DeferredConfirmation
		dc, err = ch.PublishWithDeferredConfirm("hop.return", "order.create", true, false, amqp.Publishing{
			DeliveryMode: amqp.Persistent, Body: []byte(args[2]),
			Headers: amqp.Table{
				attempt.HeaderQueue: args[1], attempt.HeaderID: "id-" + args[2], attempt.HeaderCount: int32(2),
				attempt.HeaderExchange: "shop", attempt.HeaderRoutingKey: "order.create", attempt.HeaderError: "no \x1b[31mstock\nat all",
			},
		})
		ts.Check(err)
		if !dc.Wait() {
			ts.Fatalf("not confirmed")
		}
	case "get":
		d, ok, err := ch.Get(args[1], true)
		ts.Check(err)
		if !ok {
			ts.Fatalf("%s is empty", args[1])
		}
		_, _ = fmt.Fprintf(ts.Stdout(), "%s %s %v\n", d.Body, d.RoutingKey, d.Headers[attempt.HeaderReason])
	default:
		ts.Fatalf("unknown verb %s", args[0])
	}
	ts.Check(err)
}

func TestReferenceIsUpToDate(t *testing.T) {
	have, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != reference(rootCommand()) {
		t.Error("docs/cli.md differs from the commands: run go generate in cmd/hopback")
	}
}

// Every command says what it is for, how it is called and how it ends.
func TestHelp(t *testing.T) {
	walk(rootCommand(), func(c *cobra.Command) {
		if c.Short == "" || c.Long == "" {
			t.Errorf("%s has no help", c.CommandPath())
		}
		if c.HasSubCommands() || c.Name() == "version" || c.Name() == "schema" {
			return
		}
		if c.Example == "" || !strings.Contains(c.Long, "Exit status:") {
			t.Errorf("%s: the help has no example, or does not tell the exit status", c.CommandPath())
		}
		for _, line := range strings.Split(c.Long, "\n") {
			if len([]rune(line)) > 84 {
				t.Errorf("%s: the help has a line of %d columns: %s", c.CommandPath(), len([]rune(line)), line)
			}
		}
	})
}
