package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"

	"github.com/hopback/hopback/rabbittest"
)

type devOptions struct {
	version, data string
	management    bool
	port          int
}

func devCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a private RabbitMQ until Ctrl-C",
		Long: `Starts a private RabbitMQ on free loopback ports, prints its URLs, and stops it at
Ctrl-C. Its data is in a temporary folder that is removed at the end, or in the
one that --data names. No other broker is touched, and it needs no rights but to
run RabbitMQ's own programs, or a container engine where there is none.

Of several installed versions, the machine's own is taken, or the one that
--version picks by its leading numbers.

Exit status: 0 after Ctrl-C; 1 it could not start, or ended by itself.

With --output json one line goes to standard output as soon as it is up: version,
url, management_url, data.`,
		Example: `  hopback dev
  hopback dev --version 4.3 --management
  hopback dev --port 5673     # always amqp://guest:guest@127.0.0.1:5673/`,
		Args: cobra.NoArgs,
	}
	var o devOptions
	f := cmd.Flags()
	f.StringVar(&o.version, "version", "", "which of the installed versions, such as 4.3")
	f.BoolVar(&o.management, "management", false, "with the management API and its pages")
	f.IntVar(&o.port, "port", 0, "the AMQP port; 0 is a free one")
	f.StringVar(&o.data, "data", "", "keep the data in this folder, and use what is in it")
	must(cmd.MarkFlagDirname("data"))
	must(cmd.RegisterFlagCompletionFunc("version", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return installed(), cobra.ShellCompDirectiveNoFileComp
	}))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return runDev(cmd, o) }
	return cmd
}

func installed() []string {
	var vs []string
	for _, i := range rabbittest.Installed() {
		vs = append(vs, i.Version)
	}
	return vs
}

func runDev(cmd *cobra.Command, o devOptions) (err error) {
	ctx := cmd.Context()
	if o.port < 0 || o.port > 65535 {
		return fmt.Errorf("--port: %d cannot work: use a number from 1 to 65535, or 0 for a free one", o.port)
	}
	var front net.Listener
	if o.port != 0 {
		// Before the broker is started, which takes seconds.
		if front, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(o.port))); err != nil {
			return fmt.Errorf("--port: %d cannot work: %w", o.port, err)
		}
		defer ignore(front)
	}
	if !asJSON(cmd) {
		fmt.Fprintln(cmd.ErrOrStderr(), "starting a private RabbitMQ …")
	}
	b, err := rabbittest.Run(ctx, rabbittest.Options{Version: o.version, NoManagement: !o.management, Dir: o.data})
	if err != nil {
		if ctx.Err() != nil {
			return &coded{exitInterrupted, fmt.Errorf("interrupted while it started: %w", context.Cause(ctx))}
		}
		return fmt.Errorf("start a private broker: %w", err)
	}
	defer func() {
		if cerr := b.Close(); cerr != nil {
			err = errors.Join(err, fmt.Errorf("stop the broker: %w", cerr))
		}
	}()
	amqpURL := b.URL()
	if front != nil {
		target, err := url.Parse(amqpURL)
		if err != nil {
			return err
		}
		f := newForwarder(front, target.Host)
		defer f.close()
		target.Host = front.Addr().String()
		amqpURL = target.String()
	}
	if err := announce(cmd, b, amqpURL, o.data); err != nil {
		return err
	}
	return untilItEnds(ctx, b)
}

// untilItEnds waits for Ctrl-C, or for the broker to end by itself.
func untilItEnds(ctx context.Context, b *rabbittest.Broker) error {
	for ctx.Err() == nil {
		// A connection tells at once when the broker is gone.
		conn, err := amqp.DialConfig(b.URL(), amqp.Config{Properties: amqp.Table{"connection_name": "hopback dev"}})
		if err != nil {
			if ctx.Err() != nil {
				break
			}
			return fmt.Errorf("the broker has ended by itself: %w\n%s", err, b.LogTail(2000))
		}
		closed := conn.NotifyClose(make(chan *amqp.Error, 1))
		select {
		case <-ctx.Done():
		case <-closed: // by an operator, perhaps: look again
		}
		ignore(conn)
	}
	return nil
}

func announce(cmd *cobra.Command, b *rabbittest.Broker, amqpURL, data string) error {
	out := cmd.OutOrStdout()
	if asJSON(cmd) {
		return json.NewEncoder(out).Encode(struct {
			Version       string `json:"version"`
			URL           string `json:"url"`
			ManagementURL string `json:"management_url,omitempty"`
			Data          string `json:"data"`
		}{b.Version(), amqpURL, b.ManagementURL(), b.Dir()})
	}
	fate := "removed at the end"
	if data != "" {
		fate = "kept"
	}
	var text strings.Builder
	fmt.Fprintf(&text, "RabbitMQ %s is up. In another terminal:\n\n  export HOPBACK_BROKER_URL=%s\n", b.Version(), amqpURL)
	if u := b.ManagementURL(); u != "" {
		fmt.Fprintf(&text, "  export HOPBACK_MANAGEMENT_URL=%s\n", u)
	}
	fmt.Fprintf(&text, "\nIts data is in %s, and %s. Ctrl-C stops it.\n", b.Dir(), fate)
	_, err := io.WriteString(out, text.String())
	return err
}

// forwarder gives the broker a second, chosen port: the broker's own is free to
// be any.
type forwarder struct {
	in     net.Listener
	target string
	wg     sync.WaitGroup

	mu     sync.Mutex
	closed bool
	open   map[net.Conn]bool
}

func newForwarder(in net.Listener, target string) *forwarder {
	f := &forwarder{in: in, target: target, open: map[net.Conn]bool{}}
	f.wg.Go(f.accept)
	return f
}

func (f *forwarder) accept() {
	for {
		c, err := f.in.Accept()
		if err != nil {
			return
		}
		f.wg.Go(func() { f.serve(c) })
	}
}

func (f *forwarder) serve(client net.Conn) {
	defer ignore(client)
	broker, err := net.Dial("tcp", f.target)
	if err != nil {
		return
	}
	defer ignore(broker)
	if !f.track(client, broker) {
		return
	}
	defer f.forget(client, broker)
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{client, broker}, {broker, client}} {
		both.Go(func() {
			_, _ = io.Copy(way[0], way[1])
			ignore(way[0]) // ends the other way too
			ignore(way[1])
		})
	}
	both.Wait()
}

func (f *forwarder) track(cs ...net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range cs {
		f.open[c] = true
	}
	return !f.closed
}

func (f *forwarder) forget(cs ...net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range cs {
		delete(f.open, c)
	}
}

func (f *forwarder) close() {
	f.mu.Lock()
	f.closed = true
	ignore(f.in)
	for c := range f.open {
		ignore(c)
	}
	f.mu.Unlock()
	f.wg.Wait()
}
