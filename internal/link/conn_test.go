package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/rabbittest"
)

// An answer that waiting does not mend is returned at once; a broker that is
// not there is waited for.
func TestSessionErrors(t *testing.T) {
	noLeaks(t)
	b := rabbittest.Shared(t)
	url := strings.Replace(b.Vhost(t), "guest:guest@", "guest:s3cret-pass@", 1)
	c := open(t, &told{}, url)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := c.Session(ctx)
	var e *amqp.Error
	if !errors.As(err, &e) || e.Code != amqp.AccessRefused {
		t.Errorf("wrong password: %v, want 403", err)
	}
	if err == nil || strings.Contains(err.Error(), "s3cret-pass") {
		t.Errorf("the password is in the error: %v", err)
	}

	away := open(t, &told{}, "amqp://guest:s3cret-pass@127.0.0.1:1/")
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = away.Session(short)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "refused") {
		t.Errorf("nobody listens: %v, want the deadline and the last error", err)
	}
	if strings.Contains(err.Error(), "s3cret-pass") {
		t.Errorf("the password is in the error: %v", err)
	}
}

// The next node is tried when one fails.
func TestFailover(t *testing.T) {
	noLeaks(t)
	b := rabbittest.Shared(t)
	url := b.Vhost(t)
	c := open(t, &told{}, "amqp://guest:guest@127.0.0.1:1/", url)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := c.Session(ctx); err != nil {
		t.Fatal(err)
	}
}

// Close returns by its deadline while a dial hangs in its handshake: a port that
// accepts and says nothing.
func TestCloseDuringHandshake(t *testing.T) {
	noLeaks(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.ReadFull(c, make([]byte, 8)) //nolint:errcheck // "AMQP" and the version: the handshake is under way
			accepted <- c
		}
	}()
	c := Open(config(&told{}, "amqp://guest:guest@"+l.Addr().String()+"/"))
	defer (<-accepted).Close()
	start := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	c.Close(ctx)
	// The handshake's own limit is 10 s: less than that shows that Close did not
	// wait for it.
	if took := time.Since(start); took > dialTimeout-time.Second {
		t.Errorf("Close took %s with a deadline of 200ms", took)
	}
}

// Close ends the connection in whatever moment of a reconnect it comes.
func TestCloseAtAnyMoment(t *testing.T) {
	noLeaks(t)
	b := rabbittest.Shared(t)
	url := b.Vhost(t)
	proxy := b.Proxy(t)
	r := rand.New(rand.NewPCG(1, 7))
	for i := range 60 {
		c := Open(config(&told{}, proxy.URL(url)))
		if i%2 == 0 {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			if _, err := c.Session(ctx); err != nil {
				t.Fatal(err)
			}
			cancel()
			proxy.Cut()
			time.Sleep(time.Duration(r.IntN(150)) * time.Millisecond)
		} else {
			time.Sleep(time.Duration(r.IntN(12_000)) * time.Microsecond)
		}
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			c.Close(ctx)
		}()
		select {
		case <-closed:
		case <-time.After(patience):
			t.Fatalf("round %d: Close hangs", i)
		}
		if _, err := c.Session(t.Context()); !errors.Is(err, ErrClosed) {
			t.Fatalf("round %d: a session after Close: %v", i, err)
		}
	}
}

// A session that ends is followed by another, and told of.
func TestReconnect(t *testing.T) {
	noLeaks(t)
	b := rabbittest.Shared(t)
	url := b.Vhost(t)
	proxy := b.Proxy(t)
	told := &told{}
	c := open(t, told, proxy.URL(url))
	var last *Session
	for i := range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		s, err := c.Session(ctx)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		if s == last {
			t.Fatal("the session that ended was handed out again")
		}
		last = s
		proxy.Cut()
		<-s.Done()
		if s.err == nil || errors.Is(s.err, ErrClosed) {
			t.Errorf("cut %d: the session's end is %v", i, s.err)
		}
	}
	waitFor(t, "five reconnects are told", func() bool { return told.reconnects.Load() == 5 })
	if c.Err() != nil {
		t.Errorf("connected, and Err is %v", c.Err())
	}
}

// Whatever is wrong with a URL: no part of the password is repeated, since it is
// wrong most often because of what is in the password.
func TestURLsKeepTheirSecrets(t *testing.T) {
	for _, tt := range []struct {
		url  string
		good bool
		want string
	}{
		{"amqp://guest:s3cret@host:5672/a%2Fb", true, "amqp://guest:xxxxx@host:5672/a%2Fb"},
		{"AMQPS://guest:s3cret@host", true, "amqps://guest:xxxxx@host"},
		{"amqp://guest:s3c@ret@host", true, "amqp://guest:xxxxx@host"},
		{"amqp://guest:s3cret@host?heartbeat=5&password=s3cret", true, "amqp://guest:xxxxx@host"},
		{"amqp://host", true, "amqp://host"},
		{"amqp:///", true, "amqp:///"},
		{"guest:s3cret@host:5672", false, ""},
		{"amqp:guest:s3cret@host", false, ""},
		{"amqp:/guest:s3cret@host", false, ""},
		{"http://guest:s3cret@host", false, ""},
		{"amqp://guest:s3cret#x@host", false, ""},
		{"amqp://guest:53#s3cret@host", false, ""},
		{"amqp://guest:53?s3cret@host", false, ""},
		{"amqp://guest:53/s3cret@host", false, ""},
		{"amqp://guest:s3cret%zz@host", false, ""},
		{"amqp://guest:x@s3cret/y@host", false, ""},
		{"amqp://guest:s3cret@host/a%40b", true, "amqp://guest:xxxxx@host/a%40b"},
		{"amqp://guest:s3cret x@host", false, ""},
		{"amqp://guest:s3cret@host?heartbeat=s3cret", false, ""},
		{"", false, ""},
	} {
		err := CheckURL(tt.url)
		if (err == nil) != tt.good {
			t.Errorf("%s: %v", tt.url, err)
		}
		shown := Redact(tt.url)
		if tt.want != "" && shown != tt.want {
			t.Errorf("%s is shown as %s, want %s", tt.url, shown, tt.want)
		}
		for _, text := range []string{fmt.Sprint(err), shown} {
			for _, part := range []string{"s3c", "cret", "53"} {
				if strings.Contains(text, part) {
					t.Errorf("%s: %q tells of the password", tt.url, text)
				}
			}
		}
	}
}
