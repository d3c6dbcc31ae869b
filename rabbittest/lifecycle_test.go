package rabbittest

import (
	"context"
	"errors"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// What was confirmed is there after a polite restart, after kill -9 and after a
// crash of the broker alone, on the same URL, and at once: no wait, no retry.
func TestDataOutlivesTheBroker(t *testing.T) {
	b := Start(t)
	u := b.Vhost(t)
	ctx := t.Context()
	for _, end := range []struct {
		name string
		do   func() error
	}{
		{"restart", func() error { return b.Restart(ctx) }},
		{"stop", func() error { return b.Stop(ctx) }},
		{"kill", func() error { return b.Kill(ctx) }},
		{"crash", func() error { return killVM(b) }},
	} {
		conn := dialTest(t, u)
		ch := confirming(t, conn)
		for _, kind := range []string{"classic", "quorum"} {
			declare(t, ch, kind, kind)
			confirmed(t, send(t, ch, kind, end.name))
		}
		closed := conn.NotifyClose(make(chan *amqp.Error, 1))
		if err := end.do(); err != nil {
			t.Fatalf("%s: %v", end.name, err)
		}
		if err := receive(t, "the end of the connection", closed); end.name == "stop" && (err == nil || err.Code != amqp.ConnectionForced) {
			t.Errorf("%s: the connection ended with %v, want 320", end.name, err)
		}
		if end.name != "restart" {
			receive(t, "the end of the broker", b.Exited())
			if _, err := amqp.Dial(u); err == nil {
				t.Fatalf("%s: the broker still answers", end.name)
			}
		}
		if err := b.Start(ctx); err != nil {
			t.Fatalf("starting after %s: %v", end.name, err)
		}
		ch = confirming(t, dialTest(t, u))
		for _, kind := range []string{"classic", "quorum"} {
			take(t, ch, kind, end.name)
		}
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	for name, do := range map[string]func(context.Context) error{"Start": b.Start, "Stop": b.Stop, "Kill": b.Kill, "Restart": b.Restart} {
		if err := do(ctx); !errors.Is(err, errClosed) {
			t.Errorf("%s after Close: %v, want an error that says so", name, err)
		}
	}
	if err := b.Close(); err != nil {
		t.Errorf("the second Close: %v", err)
	}
}

// Two brokers side by side know nothing of each other, and Close leaves nothing.
func TestTwoBrokersAndNothingLeft(t *testing.T) {
	a, b := Start(t, Options{NoManagement: true}), Start(t, Options{NoManagement: true})
	if a.URL() == b.URL() || a.Dir() == b.Dir() || a.node == b.node {
		t.Fatalf("two brokers share %s and %s, %s and %s", a.URL(), b.URL(), a.Dir(), b.Dir())
	}
	declare(t, confirming(t, dialTest(t, a.URL())), "only-a", "classic")
	if _, err := b.Depth(t.Context(), "/", "only-a"); err == nil {
		t.Error("a queue of one broker is seen in the other")
	}
	if len(processesOf(t, a)) == 0 || len(processesOf(t, b)) == 0 {
		t.Fatal("the processes of a running broker are not found: this test can see nothing")
	}
	// A port mapper that the command-line tools might start is the broker's too.
	if _, err := a.Ctl(t.Context(), "status"); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if left := processesOf(t, a); len(left) > 0 {
		t.Errorf("Close left processes:\n%s", strings.Join(left, "\n"))
	}
	if _, err := os.Stat(a.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Close left the data folder %s: %v", a.Dir(), err)
	}
	declare(t, confirming(t, dialTest(t, b.URL())), "b-goes-on", "classic")
}

func TestDataFolderOfOnesOwn(t *testing.T) {
	dir := t.TempDir()
	o := Options{Dir: dir, NoManagement: true}
	b := Start(t, o)
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a second broker in the same folder: %v, want an error", err)
	}
	ch := confirming(t, dialTest(t, b.URL()))
	declare(t, ch, "kept", "quorum")
	confirmed(t, send(t, ch, "kept", "m"))
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	b = Start(t, o)
	take(t, confirming(t, dialTest(t, b.URL())), "kept", "m")
}

func TestStartFails(t *testing.T) {
	t.Run("the broker refuses its configuration", func(t *testing.T) {
		before := time.Now()
		_, err := Run(t.Context(), Options{Config: []string{"no.such.key = 1"}})
		skipIfMissing(t, err)
		if err == nil || !strings.Contains(err.Error(), "no.such.key") {
			t.Errorf("Run: %v, want the broker's own words about the key", err)
		}
		if d := time.Since(before); d > startTimeout {
			t.Errorf("Run gave up after %s: it did not see that the broker had ended", d)
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		tmp := t.TempDir()
		t.Setenv("TMPDIR", tmp)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(300*time.Millisecond, cancel)
		b, err := Run(ctx, Options{})
		skipIfMissing(t, err)
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("Run with a cancelled context: %v, %v", b, err)
		}
		if left, _ := os.ReadDir(tmp); len(left) > 0 {
			t.Errorf("a cancelled start left %s", left[0].Name())
		}
	})
	t.Run("options", func(t *testing.T) {
		for _, o := range []Options{
			{Version: "latest"},
			{Port: 65536},
			{ManagementPort: -1},
			{Config: []string{"a = 1\nb = 2"}},
			{Config: []string{"no equals sign"}},
			{Plugins: []string{"rabbitmq_stream]. ["}},
		} {
			if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "want") && !strings.Contains(err.Error(), "give") {
				t.Errorf("Run(%+v): %v, want an error that says what is right", o, err)
			}
		}
	})
}

func TestPorts(t *testing.T) {
	p, err := freePorts(2)
	if err != nil {
		t.Fatal(err)
	}
	b := Start(t, Options{Port: p[0], ManagementPort: p[1]})
	for _, want := range []struct{ url, port string }{{b.URL(), strconv.Itoa(p[0])}, {b.ManagementURL(), strconv.Itoa(p[1])}} {
		if u, _ := url.Parse(want.url); u.Port() != want.port {
			t.Errorf("URL %s, want port %s", want.url, want.port)
		}
	}
	if _, err := Run(t.Context(), Options{Port: p[0]}); err == nil || !strings.Contains(err.Error(), strconv.Itoa(p[0])) {
		t.Errorf("a second broker on the same port: %v, want an error that names it", err)
	}
}

func skipIfMissing(t *testing.T, err error) {
	t.Helper()
	if missing := new(NotInstalledError); errors.Is(err, errNone) || errors.As(err, &missing) {
		giveUp(t, err)
	}
}
