package hopback

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hopback/hopback/delay"
	"github.com/hopback/hopback/internal/link"
	"github.com/hopback/hopback/internal/native"
	"github.com/hopback/hopback/internal/sparse"
	"github.com/hopback/hopback/topology"
)

// Config is how a Client reaches the broker and whom it tells.
type Config struct {
	// URL is the broker's AMQP URL, amqp:// or amqps://. FailoverURLs are other
	// nodes of the same cluster, tried in turn when a connection fails.
	URL          string
	FailoverURLs []string

	// TLS is used for amqps URLs; nil takes what the URL's parameters say.
	TLS *tls.Config

	// Management, where set, lets consumers see what AMQP does not show: that a
	// work queue can refuse messages, and so needs slots of its own. Without it
	// such a route must say Isolate itself.
	Management *topology.Management

	// Prefix begins the name of every exchange and queue of ours. Empty means
	// "hop".
	Prefix string

	// Name is how the broker shows the connections. Empty means the program's
	// name.
	Name string

	// Logger gets what people should know: lost connections, refused
	// hand-offs, parked crash loops. nil means slog.Default().
	Logger *slog.Logger

	// Observer is told of every message. nil means nobody is.
	Observer Observer

	// Heartbeat of the connections. 0 means 10 s.
	Heartbeat time.Duration

	// ConfirmTimeout is how long a publish may stay unconfirmed before the
	// connection is given up. 0 means 20 s.
	ConfirmTimeout time.Duration

	// SkipDeclare leaves the topology to `hopback apply`, for accounts without
	// the configure permission.
	SkipDeclare bool

	now func() time.Time // for tests; nil means time.Now
}

// WithDefaults returns the configuration with every zero field replaced by its
// default.
func (c Config) WithDefaults() Config {
	if c.Prefix == "" {
		c.Prefix = DefaultPrefix
	}
	if c.Name == "" {
		c.Name = filepath.Base(os.Args[0])
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Observer == nil {
		c.Observer = NopObserver{}
	}
	if c.Heartbeat == 0 {
		c.Heartbeat = 10 * time.Second
	}
	if c.ConfirmTimeout == 0 {
		c.ConfirmTimeout = 20 * time.Second
	}
	return c
}

// Validate reports every setting that cannot work as a *ConfigError. URLs are
// never repeated in it, since they hold passwords.
func (c Config) Validate() error {
	var errs []error
	for i, u := range append([]string{c.URL}, c.FailoverURLs...) {
		field := "URL"
		if i > 0 {
			field = fmt.Sprintf("FailoverURLs[%d]", i-1)
		}
		if err := link.CheckURL(u); err != nil {
			errs = append(errs, &ConfigError{
				Field: field, Value: link.Redact(u),
				Fix: fmt.Sprintf("use amqp://user:password@host:5672/vhost (%v)", err),
			})
		}
	}
	if len(c.Prefix) > 100 {
		errs = append(errs, &ConfigError{Field: "Prefix", Value: c.Prefix, Fix: "use at most 100 bytes"})
	}
	if c.ConfirmTimeout < 0 || c.Heartbeat < 0 {
		errs = append(errs, &ConfigError{
			Field: "ConfirmTimeout, Heartbeat",
			Value: fmt.Sprint(c.ConfirmTimeout, ", ", c.Heartbeat), Fix: "use positive durations",
		})
	}
	return errors.Join(errs...)
}

// Client holds the two connections that its consumers share: one consumes, one
// publishes. During a memory alarm RabbitMQ stops reading from a connection
// that has published, so on a single one acknowledgements would wait too.
type Client struct {
	cfg      Config
	load     delay.Load
	panicked sparse.Limiter // observers

	mu         sync.Mutex
	consume    *link.Conn
	publish    *link.Conn
	natives    []*native.Conn    // AMQP 1.0; one for each consumer that needs it
	publishers []*link.Publisher // one for each consumer
	closed     bool
}

// ErrClosed is returned by a Client or Consumer that was closed.
var ErrClosed = errors.New("hopback: the client is closed")

// New checks the configuration. It connects when the first consumer runs.
func New(cfg Config) (*Client, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("configure the client: %w", err)
	}
	return &Client{cfg: cfg}, nil
}

// connect opens the connections at first use, and gives each consumer a
// publisher, which is a channel, of its own: a publish that the broker answers
// by closing the channel, into an exchange that is missing or refused, then
// costs its own route and no other.
func (c *Client) connect(consumer *Consumer) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	if c.consume == nil {
		c.consume = c.open("consume")
		c.publish = c.open("publish")
	}
	if consumer.publisher == nil {
		consumer.publisher = link.NewPublisher(c.publish, c.cfg.ConfirmTimeout)
		c.publishers = append(c.publishers, consumer.publisher)
	}
	return nil
}

// connectNative gives a consumer a connection over AMQP 1.0, at first use. It is
// the consumer's own: a message that the broker cannot show costs the connection,
// and counts as a crash of all that was handed out on it.
func (c *Client) connectNative(consumer *Consumer) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	if consumer.native != nil {
		return nil
	}
	const purpose = "consume, AMQP 1.0"
	consumer.native = native.Open(native.Config{
		URLs: append([]string{c.cfg.URL}, c.cfg.FailoverURLs...), Purpose: purpose, Name: c.cfg.Name,
		TLS: c.cfg.TLS, Heartbeat: c.cfg.Heartbeat, Logger: c.cfg.Logger,
		ClockQueue: c.cfg.Prefix + ".clock", Now: c.cfg.now,
		OnReconnect: func(down time.Duration) {
			c.observe(func(o Observer) { o.Reconnected(Reconnected{Connection: purpose, Down: down}) })
		},
	})
	c.natives = append(c.natives, consumer.native)
	return nil
}

// ClockSkew is how far the broker's clock is ahead of this machine's, and within
// what the true value lies. The mechanism native names the time at which a message
// is to come back, and corrects it by this. known is false where no consumer of
// this client is native, or the clocks could not be compared.
func (c *Client) ClockSkew() (ahead, within time.Duration, known bool) {
	c.mu.Lock()
	conns := c.natives
	c.mu.Unlock()
	for _, conn := range conns {
		if ahead, within, known = conn.Skew(); known {
			return ahead, within, true
		}
	}
	return 0, 0, false
}

func (c *Client) open(purpose string) *link.Conn {
	return link.Open(link.Config{
		URLs: append([]string{c.cfg.URL}, c.cfg.FailoverURLs...), Purpose: purpose, Name: c.cfg.Name,
		TLS: c.cfg.TLS, Heartbeat: c.cfg.Heartbeat, Logger: c.cfg.Logger,
		OnReconnect: func(down time.Duration) {
			c.observe(func(o Observer) { o.Reconnected(Reconnected{Connection: purpose, Down: down}) })
		},
		OnBlocked: func(active bool, reason string) {
			c.cfg.Logger.Warn("the broker changed what it takes", "connection", purpose, "blocked", active, "reason", reason)
			c.observe(func(o Observer) { o.Blocked(Blocked{Active: active, Reason: reason}) })
		},
	})
}

// Close closes the connections. Stop the consumers first, by ending the
// context of their Run: what they still hold goes back to its queue. Close
// returns when ctx ends, or after 20 s where ctx has no deadline, even while the
// broker is blocked.
func (c *Client) Close(ctx context.Context) error {
	c.mu.Lock()
	consume, publish, natives, publishers, closed := c.consume, c.publish, c.natives, c.publishers, c.closed
	c.closed = true
	c.mu.Unlock()
	if closed {
		return nil
	}
	if consume == nil {
		return nil
	}
	if _, ok := ctx.Deadline(); !ok {
		// A blocked broker confirms nothing, and an alarm may last for days.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
	}
	var all sync.WaitGroup
	all.Go(func() { consume.Close(ctx) })
	for _, conn := range natives {
		all.Go(func() { conn.Close(ctx) })
	}
	all.Go(func() {
		var sent sync.WaitGroup
		for _, p := range publishers {
			sent.Go(func() { p.Close(ctx) })
		}
		sent.Wait()
		publish.Close(ctx)
	})
	all.Wait()
	return nil
}

// clock is the time by this machine.
func (c *Client) clock() time.Time {
	if c.cfg.now != nil {
		return c.cfg.now()
	}
	return time.Now()
}

// observe calls the user's observer; its panics are its own.
func (c *Client) observe(tell func(Observer)) {
	defer func() {
		if r := recover(); r != nil {
			if others, ok := c.panicked.May(); ok {
				c.cfg.Logger.Error("the observer panicked", "panic", r, "others", others)
			}
		}
	}()
	tell(c.cfg.Observer)
}
