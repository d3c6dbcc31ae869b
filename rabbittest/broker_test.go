package rabbittest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestVersion(t *testing.T) {
	b := Shared(t)
	if want := os.Getenv("HOPBACK_TEST_BROKER"); want != "" && !(Installation{Version: b.Version()}).matches(want) {
		t.Errorf("Version() is %q, want one of %s", b.Version(), want)
	}
	c := dialTest(t, b.URL())
	if got := c.Properties["version"]; got != b.Version() {
		t.Errorf("the server says it is %v, Version() says %q", got, b.Version())
	}
}

// What this package promises to set differently from the broker's own defaults.
func TestSettings(t *testing.T) {
	b := Shared(t)
	out, err := b.Ctl(t.Context(), "eval", `[application:get_env(rabbit, dead_letter_worker_consumer_prefetch),
		application:get_env(kernel, inet_dist_use_interface)].`)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"{ok,512}", "{ok,{127,0,0,1}}"} {
		if got := strings.Join(strings.Fields(string(out)), ""); !strings.Contains(got, want) {
			t.Errorf("settings are %s, want %s in it", got, want)
		}
	}
}

func TestListensOnLoopbackOnly(t *testing.T) {
	b := Shared(t)
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		ip := a.(*net.IPNet).IP
		if ip.IsLoopback() || ip.IsLinkLocalUnicast() {
			continue
		}
		for _, port := range []int{b.ports.amqp, b.ports.management, b.ports.epmd, b.ports.dist} {
			c, err := net.Dial("tcp", net.JoinHostPort(ip.String(), fmt.Sprint(port)))
			if err == nil {
				c.Close()
				t.Errorf("port %d is reachable at %s", port, ip)
			}
		}
	}
}

func TestVhost(t *testing.T) {
	b := Shared(t)
	var inner string
	t.Run("sub/with spaces & ümlauts", func(t *testing.T) {
		inner = b.Vhost(t)
		declare(t, confirming(t, dialTest(t, inner)), "q", "classic")
		other := b.Vhost(t)
		if other == inner {
			t.Fatalf("two calls gave the same virtual host %s", inner)
		}
		_, err := b.Depth(t.Context(), other, "q")
		var aerr *amqp.Error
		if !errors.As(err, &aerr) || aerr.Code != amqp.NotFound {
			t.Errorf("the queue of one virtual host, looked for in the other: %v, want 404", err)
		}
	})
	if _, err := amqp.Dial(inner); err == nil {
		t.Errorf("%s is still there after the test that made it", inner)
	}
}

func TestDepth(t *testing.T) {
	b := Shared(t)
	u := b.Vhost(t)
	ch := confirming(t, dialTest(t, u))
	declare(t, ch, "q", "quorum")
	for range 3 {
		confirmed(t, send(t, ch, "q", "m"))
	}
	vhost, err := vhostOf(u)
	if err != nil {
		t.Fatal(err)
	}
	for _, where := range []string{u, vhost} {
		// A quorum queue counts a message a moment after it is confirmed.
		eventually(t, "Depth is 3", func() bool {
			n, err := b.Depth(t.Context(), where, "q")
			if err != nil {
				t.Fatal(err)
			}
			return n == 3
		})
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Depth(cancelled, u, "q"); !errors.Is(err, context.Canceled) {
		t.Errorf("Depth with a cancelled context: %v, want context.Canceled", err)
	}
	if _, err := b.Depth(t.Context(), "amqp://me:secret@%zz", "q"); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("Depth with a bad URL: %v, want an error without its password", err)
	}
}

func TestManagementAPI(t *testing.T) {
	b := Shared(t)
	vhost, _ := vhostOf(b.Vhost(t))
	path := "/api/queues/" + url.PathEscape(vhost) + "/q%2F1"
	if err := b.Put(t.Context(), path, map[string]any{"durable": true}); err != nil {
		t.Fatal(err)
	}
	var q struct{ Name, Vhost string }
	for _, p := range []string{path, strings.TrimPrefix(path, "/"), strings.TrimPrefix(path, "/api")} {
		if err := b.Get(t.Context(), p, &q); err != nil {
			t.Fatal(err)
		}
		if q.Name != "q/1" || q.Vhost != vhost {
			t.Errorf("GET %s: %+v, want queue q/1 in %s", p, q, vhost)
		}
	}
	var routed struct{ Routed bool }
	err := b.Post(t.Context(), "/api/exchanges/"+url.PathEscape(vhost)+"/amq.default/publish", map[string]any{
		"routing_key": "q/1", "payload": "m", "payload_encoding": "string", "properties": map[string]any{},
	}, &routed)
	if err != nil || !routed.Routed {
		t.Errorf("POST of a message: routed %v, error %v", routed.Routed, err)
	}
	if err := b.Delete(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	var st *StatusError
	if err := b.Get(t.Context(), path, nil); !errors.As(err, &st) || st.Status != 404 {
		t.Errorf("GET of a deleted queue: %v, want a StatusError 404", err)
	}
}

func TestAddUser(t *testing.T) {
	b := Shared(t)
	u := b.Vhost(t)
	vhost, _ := vhostOf(u)
	for _, password := range []string{"first", "p@ss/word"} { // the second call changes it
		if err := b.AddUser(t.Context(), "limited", password, vhost, "^mine", ".*", ""); err != nil {
			t.Fatal(err)
		}
	}
	at, _ := url.Parse(u)
	at.User = url.UserPassword("limited", "p@ss/word")
	conn := dialTest(t, at.String())
	declare(t, confirming(t, conn), "mine", "classic")
	_, err := confirming(t, conn).QueueDeclare("yours", true, false, false, false, nil)
	var aerr *amqp.Error
	if !errors.As(err, &aerr) || aerr.Code != amqp.AccessRefused {
		t.Errorf("declaring without permission: %v, want 403", err)
	}
}

func TestWithoutManagement(t *testing.T) {
	var out bytes.Buffer
	b := Start(t, Options{NoManagement: true, Log: &out, DeadLetterPrefetch: 77, Config: []string{"channel_max = 123"}})
	if u := b.ManagementURL(); u != "" {
		t.Errorf("ManagementURL() is %q, want none", u)
	}
	if err := b.Get(t.Context(), "/api/overview", nil); err == nil {
		t.Error("Get succeeds without the management plugin")
	}
	u := b.Vhost(t)
	vhost, _ := vhostOf(u)
	if err := b.AddUser(t.Context(), "someone", "secret", vhost, ".*", ".*", ".*"); err != nil {
		t.Fatal(err)
	}
	at, _ := url.Parse(u)
	at.User = url.UserPassword("someone", "secret")
	conn := dialTest(t, at.String())
	if got := conn.Config.ChannelMax; got != 123 {
		t.Errorf("channel_max is %d, want the 123 of Options.Config", got)
	}
	closed := conn.NotifyClose(make(chan *amqp.Error, 1))
	if err := b.CloseConnections(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, "the end of the connection", closed); err == nil || err.Code != amqp.ConnectionForced {
		t.Errorf("the connection ended with %v, want 320", err)
	}
	got, err := b.Ctl(t.Context(), "eval", "application:get_env(rabbit, dead_letter_worker_consumer_prefetch).")
	if err != nil || strings.TrimSpace(string(got)) != "{ok,77}" {
		t.Errorf("dead-letter prefetch is %s, error %v, want 77", got, err)
	}
	if _, err := b.Ctl(t.Context(), "no_such_command"); err == nil {
		t.Error("rabbitmqctl no_such_command succeeds")
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "RabbitMQ") {
		t.Errorf("Options.Log got %q, want the broker's output", out.String())
	}
}
