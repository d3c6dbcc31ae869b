package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/cmd/hopback/internal/config"
	"github.com/hopback/hopback/cmd/hopback/internal/serve"
	"github.com/hopback/hopback/router"
)

type serveOptions struct {
	file, listen    *string
	prefetch        int
	shutdownTimeout time.Duration
	load            func(*cobra.Command, string) (*config.Config, error)
}

func serveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the router: retries for consumers in any language",
		Long: `Reads what consumers in any language reject (basic.reject with requeue false) from
the queue <prefix>.failed, applies the policy of the queue that it failed in, and
sends it back there after its delay, or to its parking queue after its last retry.
A work queue takes part when its dead-letter exchange is <prefix>.failed.

Without a file, where $HOPBACK_BROKER_URL says where the broker is, every queue goes
by the policy "default".

Queues that no route names are served too, by the policy "default"; with
--unrouted park their messages rest in <prefix>.failed.parked instead. What the
routes need is declared; work queues are not touched.

Any number of these run side by side. All state is in the broker: one can be
killed, moved or doubled at any time.

SIGHUP reads the configuration again. The new one is in place before the old one
ends, and one that does not work changes nothing. SIGTERM and Ctrl-C finish what
is in flight, within --shutdown-timeout.

On --listen there are /healthz (the process serves), /readyz (it is subscribed)
and /metrics for Prometheus. None of them asks for a password: keep the address
on loopback, or behind something that does.

The log goes to standard error.

Exit status: 0 after SIGTERM or Ctrl-C; 1 an error, or not all was finished in time.`,
		Example: `  hopback serve
  hopback serve -c /etc/hopback/hopback.yaml --log-format json
  kill -HUP $(pidof hopback)`,
		Args: cobra.NoArgs,
	}
	var o serveOptions
	o.file = fileFlag(cmd)
	f := cmd.Flags()
	o.listen = f.String("listen", "127.0.0.1:8467", "address of /healthz, /readyz and /metrics; empty for none")
	format := &choice{value: "text", of: []string{"text", "json"}}
	level := &choice{value: "info", of: []string{"debug", "info", "warn", "error"}}
	unrouted := &choice{value: "retry", of: []string{"retry", "park"}}
	f.Var(format, "log-format", "how to log: text or json")
	f.Var(level, "log-level", "what to log: debug, info, warn or error")
	f.Var(unrouted, "unrouted", "messages of queues without a route: retry by the policy default, or park")
	f.IntVar(&o.prefetch, "prefetch", 0, "messages in flight at most, up to 2000 (default 500)")
	f.DurationVar(&o.shutdownTimeout, "shutdown-timeout", 30*time.Second, "how long to finish what is in flight")
	for name, c := range map[string]*choice{"log-format": format, "log-level": level, "unrouted": unrouted} {
		must(cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(c.of, cobra.ShellCompDirectiveNoFileComp)))
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		o.load = load
		if _, err := os.Stat(*o.file); err != nil {
			o.load = loadAny // a file that goes while the router runs is an error, though
		}
		log := serveLogger(cmd.ErrOrStderr(), format.value, level.value)
		reload, stop := reloads(cmd.Context())
		defer stop()
		return serve.Run(cmd.Context(), serve.Options{
			Load:   func() (router.Config, error) { return routerConfig(cmd, o, unrouted.value == "retry", log) },
			Reload: reload, Listen: *o.listen, Logger: log,
		})
	}
	return cmd
}

func serveLogger(to io.Writer, format, level string) *slog.Logger {
	var l slog.Level
	must(l.UnmarshalText([]byte(level)))
	o := &slog.HandlerOptions{
		Level: l,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			switch v := a.Value.Any().(type) {
			case error:
				return slog.String(a.Key, config.Redact(v.Error()))
			case time.Duration:
				return slog.String(a.Key, short(v))
			}
			return a
		},
	}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(to, o))
	}
	return slog.New(slog.NewTextHandler(to, o))
}

// reloads passes SIGHUP on. One that comes while another is being worked on is kept,
// since the file may have changed meanwhile; more are one.
func reloads(ctx context.Context) (<-chan struct{}, func()) {
	signals, asked := make(chan os.Signal, 1), make(chan struct{}, 1)
	signal.Notify(signals, syscall.SIGHUP)
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-signals:
				select {
				case asked <- struct{}{}:
				default:
				}
			}
		}
	}()
	return asked, func() {
		signal.Stop(signals)
		cancel()
	}
}

// routerConfig reads the configuration file as what a router shall do.
func routerConfig(cmd *cobra.Command, o serveOptions, retryUnrouted bool, log *slog.Logger) (router.Config, error) {
	c, err := o.load(cmd, *o.file)
	if err == nil {
		err = c.NeedBroker()
	}
	if err != nil {
		return router.Config{}, err
	}
	m, err := management(c)
	if err != nil {
		return router.Config{}, err
	}
	cfg := router.Config{
		Client:   hopback.Config{URL: c.Broker.URL, Management: m, Prefix: c.Prefix, Name: "hopback serve", Logger: log},
		Prefetch: o.prefetch, ShutdownTimeout: o.shutdownTimeout,
	}
	for _, r := range c.Routes {
		if r.Mechanism == "native-linear" {
			log.Info("the broker itself serves this queue", "queue", r.Queue, "mechanism", r.Mechanism)
			continue
		}
		cfg.Routes = append(cfg.Routes, router.Route{Route: r, CountDeaths: c.CountsDeaths(r.Queue)})
	}
	if retryUnrouted {
		p, err := c.PolicyOf(config.DefaultPolicy)
		if err != nil {
			return router.Config{}, fmt.Errorf("read the policy for queues without a route: %w", err)
		}
		cfg.Unrouted = &p
	}
	return cfg, nil
}
