// Package link keeps AMQP connections and channels alive and says honestly what
// became of each publish.
//
// amqp091-go can recover connections by itself. That is left off: after its
// recovery a late acknowledgement is sent on the new channel, where its tag
// belongs to another message, which is then lost (measured with 1.16.0). Here
// every loss starts a new generation, and what belongs to an older one is
// dropped.
package link

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Config is how to reach the broker.
type Config struct {
	URLs      []string // tried in turn
	Purpose   string   // "consume" or "publish"
	Name      string   // as the broker shows it
	TLS       *tls.Config
	Heartbeat time.Duration
	Logger    *slog.Logger

	// Told from the connection's own goroutine; must not block.
	OnReconnect func(down time.Duration)
	OnBlocked   func(active bool, reason string)
}

const dialTimeout = 10 * time.Second

// Session is one connection's life. It ends for good when the connection does.
type Session struct {
	*amqp.Connection
	done    chan struct{}
	raw     net.Conn
	cut     atomic.Bool // by us
	closed  <-chan *amqp.Error
	blocked <-chan amqp.Blocking
	err     error // why it ended; read after done
}

// Done is closed when the session has ended.
func (s *Session) Done() <-chan struct{} { return s.done }

// Conn keeps one connection open, dialling again for ever.
type Conn struct {
	Kept[*Session]
	cfg    Config
	cancel context.CancelFunc
	ended  chan struct{}

	// Guarded by Kept.mu.
	blocked bool
	resumed time.Time // when the last block ended
}

// Open starts to connect and returns at once.
func Open(cfg Config) *Conn {
	ctx, cancel := context.WithCancel(context.Background())
	c := &Conn{cfg: cfg, cancel: cancel, ended: make(chan struct{})}
	c.Begin("connect to the broker")
	go func() {
		defer close(c.ended)
		Keeping[*Session]{
			URLs: cfg.URLs, Purpose: cfg.Purpose, Logger: cfg.Logger, OnReconnect: cfg.OnReconnect,
			Dial: c.dial, Up: c.Up, Cut: (*Session).Cut, Live: c.live, Down: c.down,
		}.Keep(ctx)
	}()
	return c
}

// Blocked reports whether the broker refuses publishes because of an alarm; the
// channel is closed at the next change.
func (c *Conn) Blocked() (bool, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.blocked, c.changed
}

// flowing is since when publishes could be confirmed: the later of since and
// the end of the last block; false while blocked.
func (c *Conn) flowing(since time.Time) (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.resumed.After(since) {
		since = c.resumed
	}
	return since, !c.blocked
}

// Drop ends a session that no longer answers, without the closing handshake,
// so that the next one is dialled, on the next node where there are several.
func (c *Conn) Drop(s *Session, why error) {
	c.cfg.Logger.Warn("dropping a connection that does not answer", "connection", c.cfg.Purpose, "error", why)
	s.Cut()
}

// Cut ends the session without a handshake. It closes the socket first: a plain close would wait for the lock that a
// blocked write holds.
func (s *Session) Cut() {
	s.cut.Store(true)
	s.raw.Close()
	go s.Connection.CloseDeadline(time.Now()) //nolint:errcheck // the socket is gone
}

// Close says goodbye to the broker, within the context, and stops dialling.
func (c *Conn) Close(ctx context.Context) {
	c.cancel()
	if s := c.Current(); s != nil {
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			deadline, ok := ctx.Deadline()
			if !ok {
				deadline = time.Now().Add(dialTimeout)
			}
			s.Connection.CloseDeadline(deadline) //nolint:errcheck // nothing is left to lose: all is settled or stays unsettled
		}()
		select {
		case <-closed:
		case <-ctx.Done():
			s.raw.Close()
			<-closed
		}
	}
	<-c.ended
}

// live follows a session to its end.
func (c *Conn) live(ctx context.Context, s *Session) (cut bool, err error) {
	blocked := s.blocked
	for {
		select {
		case b, ok := <-blocked:
			if !ok {
				blocked = nil
				continue
			}
			c.block(b.Active)
			c.cfg.OnBlocked(b.Active, b.Reason)
		case err := <-s.closed:
			switch {
			case err != nil:
				s.err = fmt.Errorf("connection to the broker: %w", err)
			case ctx.Err() != nil:
				s.err = ErrClosed
			default: // by Cut: amqp091-go has no error for what we end ourselves
				s.err = errors.New("connection to the broker: cut, since it did not answer")
			}
			// amqp091-go tells of a missed heartbeat first and closes the socket
			// last, and between the two waits for a lock that a write holds which
			// nobody reads: that one hangs until the socket is closed.
			s.raw.Close()
			close(s.done)
			return s.cut.Load(), s.err
		}
	}
}

// down also ends a block: a session that is gone is told nothing more.
func (c *Conn) down(s *Session, err error) {
	c.mu.Lock()
	unblocked := s != nil && c.blocked
	if unblocked {
		c.blocked, c.resumed = false, time.Now()
	}
	c.lower(err)
	c.mu.Unlock()
	if unblocked {
		c.cfg.OnBlocked(false, "")
	}
}

func (c *Conn) block(active bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.blocked = active
	if !active {
		c.resumed = time.Now()
	}
	c.notify()
}

func (c *Conn) dial(ctx context.Context, rawURL string) (*Session, error) {
	if err := CheckURL(rawURL); err != nil {
		return nil, fmt.Errorf("connect to the broker: the URL: %w", err)
	}
	s := &Session{done: make(chan struct{})}
	dialer := net.Dialer{Timeout: dialTimeout}
	props := amqp.NewConnectionProperties()
	props.SetClientConnectionName(c.cfg.Name + " (" + c.cfg.Purpose + ")")
	stop := func() bool { return true }
	conn, err := amqp.DialConfig(rawURL, amqp.Config{
		// Cloned, because amqp091-go writes the host's name into it.
		Heartbeat: c.cfg.Heartbeat, TLSClientConfig: c.cfg.TLS.Clone(), Properties: props,
		Dial: func(network, addr string) (net.Conn, error) {
			raw, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			s.raw = raw
			stop = context.AfterFunc(ctx, func() { raw.Close() }) // a handshake knows no context
			// Bounds the handshake; amqp091-go lifts it when it is through.
			return raw, raw.SetDeadline(time.Now().Add(dialTimeout))
		},
	})
	stop()
	if err != nil {
		if s.raw != nil {
			s.raw.Close()
		}
		return nil, fmt.Errorf("connect to %s: %w", Redact(rawURL), err)
	}
	s.Connection = conn
	// Before anybody publishes: the broker tells a connection that it is blocked
	// once, at its first publish, and who misses that takes the silence that
	// follows for a dead broker.
	s.closed = conn.NotifyClose(make(chan *amqp.Error, 1))
	s.blocked = conn.NotifyBlocked(make(chan amqp.Blocking, 8))
	return s, nil
}

// Redact gives the parts of an AMQP URL that say which broker is meant. Of a URL
// that is none, and of parameters, nothing is shown: a password that was not
// percent-encoded may have ended up in any of them, amqp://user:p#ss@host in the
// fragment.
func Redact(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil || CheckURL(rawURL) != nil {
		return "the broker's URL"
	}
	shown := url.URL{Scheme: u.Scheme, User: u.User, Host: u.Host, Path: u.Path, RawPath: u.RawPath}
	return shown.Redacted()
}

// CheckURL says what is wrong with an AMQP URL, without repeating any of it: the
// words of net/url quote what they stumble over, which may be a password.
func CheckURL(rawURL string) error {
	u, parseErr := url.Parse(rawURL)
	_, err := amqp.ParseURI(rawURL)
	scheme, _, _ := strings.Cut(strings.ToLower(rawURL), "://")
	switch {
	case strings.ContainsAny(rawURL, " \t\r\n"):
		return errors.New("it holds a blank")
	case scheme != "amqp" && scheme != "amqps":
		return errors.New("it does not begin with amqp:// or amqps://")
	case parseErr != nil, err != nil && u.RawQuery == "", strings.Contains(rawURL, "@") && u.User == nil,
		parseErr == nil && strings.Contains(u.EscapedPath(), "@"): // a password with both "@" and "/" ends up there
		return errors.New("it cannot be read: percent-encode what is special in user and password")
	case err != nil:
		return errors.New("its parameters cannot be read")
	}
	return nil
}
