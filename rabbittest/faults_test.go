package rabbittest

import (
	"net/url"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func TestMemoryAlarm(t *testing.T) {
	b := Shared(t) // no test of this package runs beside another
	u := b.Vhost(t)
	conn := dialTest(t, u)
	blocked := conn.NotifyBlocked(make(chan amqp.Blocking, 4))
	ch := confirming(t, conn)
	declare(t, ch, "q", "classic")
	for range 2 { // on and off, and on and off again
		if err := b.MemoryAlarm(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		d := send(t, ch, "q", "m")
		if n := receive(t, "connection.blocked", blocked); !n.Active {
			t.Fatalf("first notice under the alarm: %+v, want blocked", n)
		}
		select {
		case <-d.Done():
			t.Fatal("a message was confirmed under the alarm")
		default:
		}
		if n, err := b.Depth(t.Context(), u, "q"); err != nil || n != 0 {
			t.Fatalf("%d messages in the queue under the alarm, error %v, want 0", n, err)
		}
		if err := b.MemoryAlarm(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		if n := receive(t, "connection.blocked", blocked); n.Active {
			t.Fatalf("notice after the alarm: %+v, want unblocked", n)
		}
		confirmed(t, d)
		take(t, ch, "q", "m")
	}
}

func TestCloseConnections(t *testing.T) {
	b := Shared(t)
	u := b.Vhost(t)
	vhost, _ := vhostOf(u)
	if err := b.AddUser(t.Context(), "a/b c", "secret", vhost, ".*", ".*", ".*"); err != nil {
		t.Fatal(err)
	}
	at, _ := url.Parse(u)
	at.User = url.UserPassword("a/b c", "secret")
	for range 5 {
		// Closed at once, though the management's list of connections is seconds late.
		var closed []chan *amqp.Error
		for _, u := range []string{u, b.URL(), u, at.String(), u} {
			closed = append(closed, dialTest(t, u).NotifyClose(make(chan *amqp.Error, 1)))
		}
		if err := b.CloseConnections(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i, c := range closed {
			if err := receive(t, "the end of the connection", c); err == nil || err.Code != amqp.ConnectionForced {
				t.Errorf("connection %d ended with %v, want 320", i, err)
			}
		}
	}
}

func TestProxy(t *testing.T) {
	b := Shared(t)
	u := b.Vhost(t)
	p := b.Proxy(t)
	conn := dialTest(t, p.URL(u))
	ch := confirming(t, conn)
	declare(t, ch, "q", "classic")

	// Delay: a round trip takes at least twice the delay of one way.
	const delay = 50 * time.Millisecond
	p.Delay(delay)
	before := time.Now()
	confirmed(t, send(t, ch, "q", "slow"))
	if d := time.Since(before); d < 2*delay {
		t.Errorf("a round trip through a proxy with %s each way took %s", delay, d)
	}
	p.Delay(0)
	take(t, ch, "q", "slow")

	// Freeze: what is sent does not arrive, and then it does.
	p.Freeze(true)
	d := send(t, ch, "q", "frozen")
	dialed := make(chan error, 1)
	go func() {
		c, err := amqp.Dial(p.URL(u)) // accepted, and hears nothing
		if err == nil {
			c.Close()
		}
		dialed <- err
	}()
	time.Sleep(200 * time.Millisecond) // time for it to arrive if it could
	if n, err := b.Depth(t.Context(), u, "q"); err != nil || n != 0 {
		t.Errorf("%d messages came through a frozen proxy, error %v", n, err)
	}
	select {
	case err := <-dialed:
		t.Errorf("a connection through a frozen proxy: %v, want silence", err)
	default:
	}
	p.Freeze(false)
	confirmed(t, d)
	take(t, ch, "q", "frozen")
	if err := receive(t, "the connection", dialed); err != nil {
		t.Errorf("a connection that was opened under a freeze, afterwards: %v", err)
	}

	// Refuse: new connections fail, open ones go on.
	p.Refuse(true)
	if c, err := amqp.Dial(p.URL(u)); err == nil {
		c.Close()
		t.Error("a refusing proxy let a connection through")
	}
	confirmed(t, send(t, ch, "q", "open"))
	take(t, ch, "q", "open")
	p.Refuse(false)

	// Cut: all connections, without the broker's farewell.
	conns := []*amqp.Connection{conn, dialTest(t, p.URL(u))}
	var closed []chan *amqp.Error
	for _, c := range conns {
		closed = append(closed, c.NotifyClose(make(chan *amqp.Error, 1)))
	}
	eventually(t, "the connections that ended are forgotten", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.pairs) == len(conns)
	})
	if n := p.Cut(); n != len(conns) {
		t.Errorf("Cut() cut %d connections, want %d", n, len(conns))
	}
	for i, c := range closed {
		if err := receive(t, "the end of the connection", c); err == nil || err.Code == amqp.ConnectionForced {
			t.Errorf("cut connection %d ended with %v, want a network error", i, err)
		}
	}
	if n := p.Cut(); n != 0 {
		t.Errorf("the second Cut() cut %d connections", n)
	}
	confirming(t, dialTest(t, p.URL(u))) // and the next one is let through
}

// A frozen connection can be cut, and a proxy closed while frozen.
func TestProxyCutWhileFrozen(t *testing.T) {
	b := Shared(t)
	p := b.Proxy(t)
	conn := dialTest(t, p.URL(b.URL()))
	closed := conn.NotifyClose(make(chan *amqp.Error, 1))
	p.Freeze(true)
	if n := p.Cut(); n != 1 {
		t.Errorf("Cut() cut %d connections, want 1", n)
	}
	receive(t, "the end of the connection", closed)
	p.Close()
	if c, err := amqp.Dial(p.URL(b.URL())); err == nil {
		c.Close()
		t.Error("a closed proxy let a connection through")
	}
}
