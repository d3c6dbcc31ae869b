package native

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/rabbittest"
)

func contains(s, sub string) bool { return strings.Contains(s, sub) }

func brokerOf(t testing.TB) *rabbittest.Broker {
	t.Helper()
	old(t)
	return needs43(t, rabbittest.Shared(t, version()))
}

func withUser(t testing.TB, rawURL, user, password string) string {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(user, password)
	return u.String()
}

// URLs are those of AMQP 0-9-1, and passwords are nowhere to be read (B58).
func TestVhostsAndPasswords(t *testing.T) {
	b := brokerOf(t)
	const password = "p@ss/w:rd#?%&+ é"
	for i, vhost := range []string{"a/b", "a%2Fb", "é ü #?&"} {
		if err := b.AddVhost(t.Context(), vhost); err != nil {
			t.Fatal(err)
		}
		defer b.DeleteVhost(context.Background(), vhost) //nolint:errcheck // the broker ends with the tests
		user := fmt.Sprint("ü:ser", i)
		if err := b.AddUser(t.Context(), user, password, vhost, ".*", ".*", ".*"); err != nil {
			t.Fatal(err)
		}
		o := dial091(t, b.VhostURL(vhost))
		queue := "q/1 %2F é#?+&=;@:'\"<>"
		o.quorum(queue)
		o.publish("", queue, numbered(1)...)
		var log journal
		c := open(t, withUser(t, b.VhostURL(vhost), user, password), func(c *Config) {
			c.Logger, c.ClockQueue = log.logger(), "hop #?%2F"
		})
		r := receive(t, c, queue, 1)
		next(t, r).Accept()
		eventually(t, "the clocks are compared", func() bool { _, _, known := c.Skew(); return known })
		stop(t, r)

		if i > 0 {
			continue // RabbitMQ takes its time to refuse
		}
		wrong := open(t, withUser(t, b.VhostURL(vhost), user, password+"x"), func(c *Config) { c.Logger = log.logger() })
		_, err := wrong.Session(ctx(t))
		var e *amqp.Error
		if !errors.As(err, &e) || e.Code != amqp.AccessRefused {
			t.Errorf("%s, wrong password: %v", vhost, err)
		}
		for _, secret := range []string{password, url.QueryEscape(password), url.PathEscape(password), url.UserPassword(user, password).String()} {
			if contains(fmt.Sprint(err), secret) || contains(log.String(), secret) {
				t.Errorf("the password is told: %v\n%s", err, log.String())
			}
		}
	}
}

// What cannot work has the code that it has over AMQP 0-9-1.
func TestRefused(t *testing.T) {
	b := brokerOf(t)
	vhost := "refused"
	if err := b.AddVhost(t.Context(), vhost); err != nil {
		t.Fatal(err)
	}
	defer b.DeleteVhost(context.Background(), vhost) //nolint:errcheck // the broker ends with the tests
	if err := b.AddUser(t.Context(), "limited", "secret", vhost, "^$", "^$", "^mine"); err != nil {
		t.Fatal(err)
	}
	o := dial091(t, b.VhostURL(vhost))
	o.quorum("mine")
	o.quorum("theirs")
	if _, err := o.ch.QueueDeclare("mine.exclusive", false, false, true, false, nil); err != nil {
		t.Fatal(err)
	}
	c := open(t, withUser(t, b.VhostURL(vhost), "limited", "secret"))
	s, err := c.Session(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	for queue, code := range map[string]int{
		"mine": 0, "mine.not": amqp.NotFound, "theirs": amqp.AccessRefused, "mine.exclusive": amqp.ResourceLocked,
	} {
		r, err := s.Receive(ctx(t), queue, 1)
		var e *amqp.Error
		switch {
		case code == 0:
			if err != nil {
				t.Errorf("%s: %v", queue, err)
				continue
			}
			stop(t, r)
		case !errors.As(err, &e) || e.Code != code || !contains(err.Error(), queue):
			t.Errorf("%s: %v", queue, err)
		}
	}
	// One consumer's error leaves the connection to the others.
	if c.Err() != nil {
		t.Error(c.Err())
	}
	if product, version, node := s.Broker(); product != "RabbitMQ" || version != b.Version() || !contains(node, "@") {
		t.Errorf("the broker is %q %q %q", product, version, node)
	}
}

func TestUnreachable(t *testing.T) {
	c := open(t, "amqp://guest:secret@127.0.0.1:1/")
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := c.Session(short)
	if !errors.Is(err, context.DeadlineExceeded) || !contains(err.Error(), "connection refused") || contains(err.Error(), "secret") {
		t.Error(err)
	}
	if c.Err() == nil {
		t.Error("it is up")
	}
	c.Close(t.Context())
	if _, err := c.Session(t.Context()); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

// A connection that is cut, or that falls silent, is replaced, by one to the
// next node; what was unsettled comes again, and late settlements are void.
func TestReconnect(t *testing.T) {
	b := brokerOf(t)
	url := b.Vhost(t)
	o := dial091(t, url)
	o.quorum("work")
	o.publish("", "work", numbered(3)...)
	proxy := b.Proxy(t)
	var reconnects atomic.Int64
	c := open(t, proxy.URL(url), func(c *Config) {
		c.URLs = append(c.URLs, "amqp://guest:guest@127.0.0.1:1/") // a node that is down
		c.OnReconnect = func(time.Duration) { reconnects.Add(1) }
		c.Heartbeat = 2 * time.Second // so silence ends a connection after 4 s
	})
	for round, fault := range []func(){
		func() { proxy.Cut() },
		func() { proxy.Freeze(true) },
	} {
		r := receive(t, c, "work", 3)
		a, _, _ := next(t, r), next(t, r), next(t, r)
		fault()
		select {
		case <-r.Done():
		case <-time.After(30 * time.Second):
			t.Fatal("the end was not seen")
		}
		if _, ok := <-r.Deliveries(); ok || r.Err() == nil || errors.Is(r.Err(), ErrClosed) {
			t.Errorf("deliveries go on; %v", r.Err())
		}
		a.Accept()
		proxy.Freeze(false)
		proxy.Cut() // the broker need not wait for its own heartbeat
		eventually(t, "all are back", func() bool { return o.depth("work") == 3 })
		eventually(t, "connected again", func() bool { return reconnects.Load() == int64(round+1) })
	}
}

// A connection that is closed leaves no goroutine, whatever it was doing.
func TestNothingIsLeft(t *testing.T) {
	b := brokerOf(t)
	url := b.Vhost(t)
	o := dial091(t, url)
	o.quorum("work")
	o.publish("", "work", numbered(50)...)
	mine := func() int {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		n := 0
		for _, g := range strings.Split(string(stacks), "\n\n") {
			if contains(g, "Azure/go-amqp.") || contains(g, "internal/native.(*") {
				n++
			}
		}
		return n
	}
	eventually(t, "the tests before have ended", func() bool { return mine() == 0 })
	for _, end := range []func(c *Conn, r *Receiver){
		func(c *Conn, r *Receiver) { stop(t, r) },
		func(c *Conn, r *Receiver) {},
		func(c *Conn, r *Receiver) { r.s.Cut() },
	} {
		c := open(t, url, func(c *Config) { c.ClockQueue = "hop.clock" })
		r := receive(t, c, "work", 10)
		next(t, r).Release()
		if err := next(t, r).Delay(time.Now(), nil); err != nil {
			t.Fatal(err)
		}
		if mine() == 0 {
			t.Error("nothing is found")
		}
		end(c, r)
		c.Close(ctx(t))
		eventually(t, "all have ended", func() bool { return mine() == 0 })
	}
}
