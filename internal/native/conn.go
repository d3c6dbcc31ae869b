package native

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	amqp10 "github.com/Azure/go-amqp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/internal/link"
)

// Config is how to reach the broker.
type Config struct {
	// URLs are tried in turn. They are those of AMQP 0-9-1: the virtual host is
	// the path, and TLS parameters may follow.
	URLs    []string
	Purpose string // "consume", in logs and in the broker's list
	Name    string // as the broker shows it
	// TLS is used for amqps URLs; nil takes what the URL's parameters say.
	TLS *tls.Config
	// Heartbeat is half of how long the broker may be silent, at least 1 s. 0
	// means 10 s.
	Heartbeat time.Duration
	Logger    *slog.Logger

	// OnReconnect is told from the connection's own goroutine; must not block.
	OnReconnect func(down time.Duration)

	// Now is our clock. nil means time.Now.
	Now func() time.Time

	// ClockQueue begins the name of the queue over which the broker's clock is
	// read; the rest is random. It is exclusive, so it ends with its connection,
	// and holds one message of ours. Empty: the clocks are not compared.
	ClockQueue string
	// ClockEvery is how often. 0 means every 30 s.
	ClockEvery time.Duration
}

func (c Config) withDefaults() Config {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.ClockEvery == 0 {
		c.ClockEvery = 30 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.OnReconnect == nil {
		c.OnReconnect = func(time.Duration) {}
	}
	if c.Heartbeat == 0 {
		c.Heartbeat = 10 * time.Second
	}
	// RabbitMQ closes a connection that asks for more than a frame a second.
	c.Heartbeat = max(c.Heartbeat, time.Second)
	return c
}

const dialTimeout = 10 * time.Second

// Session is one connection's life. It ends for good when the connection does.
type Session struct {
	conn *amqp10.Conn
	wire *wire
	cfg  *Config
	own  *Conn
	done chan struct{}
	cut  atomic.Bool // by us
	err  error       // why it ended; read after done

	clocks sync.WaitGroup // who compares them

	mu        sync.Mutex
	receivers map[*Receiver]struct{}
}

// Done is closed when the session has ended.
func (s *Session) Done() <-chan struct{} { return s.done }

// Err is why the session has ended; nil before.
func (s *Session) Err() error {
	select {
	case <-s.done:
		return s.err
	default:
		return nil
	}
}

// Broker is what the broker says of itself: its product ("RabbitMQ"), its
// version, and the name of the node, as "rabbit@host". Each may be empty.
func (s *Session) Broker() (product, version, node string) {
	get := func(k string) string { v, _ := s.conn.Properties()[k].(string); return v }
	return get("product"), get("version"), get("node")
}

// Cut ends the session without a handshake.
func (s *Session) Cut() {
	s.cut.Store(true)
	s.wire.Conn.Close()
}

// Conn keeps one AMQP 1.0 connection open, dialling again for ever.
type Conn struct {
	link.Kept[*Session]
	cfg    Config
	clock  clock
	cancel context.CancelFunc
	ended  chan struct{}
}

// Open starts to connect and returns at once.
func Open(cfg Config) *Conn {
	ctx, cancel := context.WithCancel(context.Background())
	cfg = cfg.withDefaults()
	c := &Conn{cfg: cfg, cancel: cancel, ended: make(chan struct{})}
	if cfg.ClockQueue == "" {
		c.clock.settled()
	}
	c.Begin("connect to the broker over AMQP 1.0")
	go func() {
		defer close(c.ended)
		link.Keeping[*Session]{
			URLs: cfg.URLs, Purpose: cfg.Purpose, Logger: cfg.Logger.With("protocol", "AMQP 1.0"), OnReconnect: cfg.OnReconnect,
			Dial: c.dial, Up: c.Up, Cut: (*Session).Cut, Live: c.live, Down: c.down,
		}.Keep(ctx)
	}()
	return c
}

// Drop ends a session that no longer answers, so that the next one is dialled,
// on the next node where there are several.
func (c *Conn) Drop(s *Session, why error) {
	c.cfg.Logger.Warn("dropping a connection that does not answer", "connection", c.cfg.Purpose, "error", why)
	s.Cut()
}

// Close closes the receivers that are left, so that what they hold does not
// count as crashed, says goodbye to the broker, within the context, and stops
// dialling.
func (c *Conn) Close(ctx context.Context) {
	c.cancel()
	if s := c.Current(); s != nil {
		if _, ok := ctx.Deadline(); !ok {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, dialTimeout)
			defer cancel()
		}
		s.close(ctx)
	}
	<-c.ended
}

func (s *Session) close(ctx context.Context) {
	s.mu.Lock()
	var all sync.WaitGroup
	for r := range s.receivers {
		all.Go(func() { r.Close(ctx) }) //nolint:errcheck // what is not settled comes again
	}
	s.mu.Unlock()
	all.Wait()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		s.conn.Close() //nolint:errcheck // nothing is left to lose: all is settled or stays unsettled
	}()
	select {
	case <-closed:
	case <-ctx.Done():
		s.Cut()
		<-closed
	}
}

// live compares clocks over a session and follows it to its end.
func (c *Conn) live(ctx context.Context, s *Session) (cut bool, err error) {
	if c.cfg.ClockQueue != "" {
		s.clocks.Go(func() { c.compareClocks(s) })
	}
	<-s.conn.Done()
	switch err := s.conn.Err(); {
	case ctx.Err() != nil:
		s.err = ErrClosed
	case s.cut.Load():
		s.err = errors.New("connection to the broker: cut, since it did not answer")
	case err != nil:
		s.err = fmt.Errorf("connection to the broker: %w", translate(err))
	default:
		s.err = errors.New("connection to the broker: closed by it")
	}
	close(s.done)
	return s.cut.Load(), s.err
}

// down waits for what still goes on over the session.
func (c *Conn) down(s *Session, err error) {
	c.Down(err)
	if s != nil {
		s.clocks.Wait()
	}
}

func (c *Conn) dial(ctx context.Context, rawURL string) (*Session, error) {
	if err := link.CheckURL(rawURL); err != nil {
		return nil, fmt.Errorf("connect to the broker: the URL: %w", err)
	}
	uri, err := amqp.ParseURI(rawURL)
	if err != nil {
		return nil, errors.New("connect to the broker: the URL cannot be read") // its words quote it
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	s, err := c.handshake(ctx, uri)
	if err != nil {
		return nil, fmt.Errorf("connect to %s over AMQP 1.0: %w", link.Redact(rawURL), translate(err))
	}
	return s, nil
}

func (c *Conn) handshake(ctx context.Context, uri amqp.URI) (*Session, error) {
	var dialer net.Dialer
	raw, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(uri.Host, fmt.Sprint(uri.Port)))
	if err != nil {
		return nil, err
	}
	if uri.Scheme == "amqps" {
		if raw, err = overTLS(ctx, raw, uri, c.cfg.TLS); err != nil {
			return nil, err
		}
	}
	w := newWire(raw)
	name := fmt.Sprintf("%s (%s)", c.cfg.Name, c.cfg.Purpose)
	opts := &amqp10.ConnOptions{
		// The broker lists connections by container; some versions allow each
		// container one connection, so it is not the name alone.
		ContainerID: fmt.Sprintf("%s %08x", name, rand.Uint32()),
		HostName:    "vhost:" + uri.Vhost,
		IdleTimeout: 2 * c.cfg.Heartbeat,
		SASLType:    mechanism(uri),
		Properties: map[string]any{
			"product": "Hopback", "connection_name": name, "platform": "Go",
		},
	}
	conn, err := amqp10.NewConn(ctx, w, opts)
	if err != nil {
		raw.Close()
		w.Close()
		return nil, err
	}
	return &Session{
		conn: conn, wire: w, cfg: &c.cfg, own: c, done: make(chan struct{}), receivers: map[*Receiver]struct{}{},
	}, nil
}

// mechanism is PLAIN, or EXTERNAL where the URL asks for it.
func mechanism(uri amqp.URI) amqp10.SASLType {
	for _, m := range uri.AuthMechanism {
		switch m {
		case "external":
			return amqp10.SASLTypeExternal("")
		case "plain":
			return amqp10.SASLTypePlain(uri.Username, uri.Password)
		}
	}
	return amqp10.SASLTypePlain(uri.Username, uri.Password)
}
