// Package serve runs a router as a service: health and metrics over HTTP, a new
// configuration on request, an end in good order.
package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/hopback/hopback/router"
)

// Options say what is served and how.
type Options struct {
	// Load reads the configuration, at the start and for each reload.
	Load func() (router.Config, error)

	// Reload asks for a new configuration. nil never does.
	Reload <-chan struct{}

	// Listen is the address for /healthz, /readyz and /metrics; empty for none.
	Listen string

	Logger *slog.Logger

	// Listening is told the address that was taken, where Listen leaves the port
	// open. nil is told nothing.
	Listening func(net.Addr)
}

const (
	// readyWithin is how long a new configuration may take until its router is
	// subscribed. Then the old one stays.
	readyWithin = time.Minute

	httpTimeout = 10 * time.Second
)

// service is the router that runs now, and what looks at it.
type service struct {
	o       Options
	log     *slog.Logger
	metrics *metrics

	mu  sync.Mutex
	now *generation
}

// generation is one router with one configuration.
type generation struct {
	*router.Router
	cancel context.CancelFunc
	ended  chan struct{}
	err    error // of Run; read after ended
}

// stop ends a generation in good order.
func (g *generation) stop() error {
	g.cancel()
	<-g.ended
	return g.err
}

// Run serves until ctx ends, and returns nil when all that was in flight was
// finished. A router that cannot work from the start ends it with its error.
func Run(ctx context.Context, o Options) error {
	s := &service{o: o, log: o.Logger, metrics: newMetrics()}
	cfg, err := o.Load()
	if err != nil {
		return err
	}
	if o.Listen != "" {
		stop, err := s.listen()
		if err != nil {
			return err
		}
		defer stop()
	}
	first, err := s.start(cfg)
	if err != nil {
		return err
	}
	s.set(first)
	for {
		now := s.current()
		select {
		case <-ctx.Done():
			s.log.Info("shutting down", "in_flight", now.InFlight())
			return now.stop()
		case <-now.ended:
			if now.err == nil {
				now.err = errors.New("the router ended by itself")
			}
			return now.err
		case <-o.Reload:
			s.reload(ctx)
		}
	}
}

func (s *service) current() *generation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

func (s *service) set(g *generation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = g
}

// start runs a router with a configuration.
func (s *service) start(cfg router.Config) (*generation, error) {
	cfg.Client.Observer = s.metrics
	r, err := router.New(cfg)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	g := &generation{Router: r, cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(g.ended)
		g.err = r.Run(ctx)
	}()
	return g, nil
}

// reload puts a router with a new configuration beside the one that runs, and ends
// that one when the new one is subscribed. Two of them disturb each other as little
// as two processes do. Where the new one cannot work, the old one stays.
func (s *service) reload(ctx context.Context) {
	cfg, err := s.o.Load()
	var next *generation
	if err == nil {
		next, err = s.start(cfg)
	}
	if err == nil {
		err = awaitReady(ctx, next)
	}
	if err != nil {
		s.metrics.reloads.WithLabelValues("failed").Inc()
		s.log.Error("the new configuration does not work; going on with the one before", "error", err)
		if next != nil {
			next.stop() //nolint:errcheck // why it does not work has been told
		}
		return
	}
	before := s.current()
	s.set(next)
	if err := before.stop(); err != nil {
		s.log.Warn("the router of the configuration before did not end in good order; what it had is delivered again", "error", err)
	}
	s.metrics.reloads.WithLabelValues("done").Inc()
	s.log.Info("serving with the new configuration", "routes", len(cfg.Routes))
}

func awaitReady(ctx context.Context, g *generation) error {
	limit := time.NewTimer(readyWithin)
	defer limit.Stop()
	for !g.Ready() {
		select {
		case <-g.ended:
			return g.err
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-limit.C:
			return fmt.Errorf("not subscribed within %s: %w", readyWithin, g.Healthy())
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// listen serves health and metrics, and returns how to stop that.
func (s *service) listen() (stop func(), err error) {
	l, err := net.Listen("tcp", s.o.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen for health and metrics: %w", err)
	}
	if s.o.Listening != nil {
		s.o.Listening(l.Addr())
	}
	s.log.Info("listening for /healthz, /readyz and /metrics", "address", l.Addr().String())
	server := &http.Server{Handler: s.handler(), ReadHeaderTimeout: httpTimeout, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelWarn)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		server.Serve(l) //nolint:errcheck // ErrServerClosed, or a listener that is gone
	}()
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), httpTimeout)
		defer cancel()
		server.Shutdown(ctx) //nolint:errcheck // it ends with the process
		<-ended
	}, nil
}

func (s *service) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "ok") // the process serves; whether it can do its work is another question
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		g := s.current()
		err := errors.New("starting")
		if g != nil {
			err = g.Healthy()
		}
		if err != nil {
			http.Error(w, "not subscribed: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "subscribed")
	})
	mux.Handle("GET /metrics", s.metrics.handler(s.current))
	return mux
}
