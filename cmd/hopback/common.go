package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"

	"github.com/hopback/hopback/cmd/hopback/internal/config"
	"github.com/hopback/hopback/topology"
)

// choice is a flag that takes one of a few words.
type choice struct {
	value string
	of    []string
}

func (c *choice) String() string { return c.value }
func (c *choice) Type() string   { return strings.Join(c.of, "|") }

func (c *choice) Set(s string) error {
	if !slices.Contains(c.of, s) {
		return fmt.Errorf("%q cannot work: use %s", s, strings.Join(c.of, " or "))
	}
	c.value = s
	return nil
}

// asJSON reports whether --output json was asked for.
func asJSON(cmd *cobra.Command) bool {
	f := cmd.Flags().Lookup("output")
	return f != nil && f.Value.String() == "json"
}

func printJSON(cmd *cobra.Command, v any) error {
	e := json.NewEncoder(cmd.OutOrStdout())
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}

// fileFlag adds -c.
func fileFlag(cmd *cobra.Command) *string {
	file := cmd.Flags().StringP("config", "c", config.DefaultFile, "the configuration file; - is standard input")
	must(cmd.MarkFlagFilename("config", "yaml", "yml"))
	return file
}

func load(cmd *cobra.Command, file string) (*config.Config, error) {
	return config.Load(file, cmd.InOrStdin(), os.Getenv)
}

// loadAny reads the file, or makes do without one where the environment says where
// the broker is.
func loadAny(cmd *cobra.Command, file string) (*config.Config, error) {
	c, err := load(cmd, file)
	if errors.Is(err, os.ErrNotExist) && file == config.DefaultFile && os.Getenv(config.EnvBrokerURL) != "" {
		return config.FromEnvironment(os.Getenv)
	}
	return c, err
}

// connectTimeout bounds the way to a connection. A broker that is there answers
// in milliseconds.
const connectTimeout = 15 * time.Second

// connect dials the broker of a configuration.
func connect(ctx context.Context, cmd *cobra.Command, c *config.Config) (*amqp.Connection, error) {
	if err := c.NeedBroker(); err != nil {
		return nil, err
	}
	props := amqp.NewConnectionProperties()
	props.SetClientConnectionName(cmd.CommandPath())
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := amqp.DialConfig(c.Broker.URL, amqp.Config{
		Heartbeat: 10 * time.Second, Properties: props,
		Dial: func(network, addr string) (net.Conn, error) {
			raw, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			// For the handshake; amqp091-go lifts it when that is over.
			return raw, raw.SetDeadline(time.Now().Add(connectTimeout))
		},
	})
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", where(c.Broker.URL), explainDial(err))
	}
	return conn, nil
}

// explainDial adds what to do about the errors that people meet first.
func explainDial(err error) error {
	var e *amqp.Error
	var dns *net.DNSError
	var quoted *url.Error
	switch {
	case errors.As(err, &quoted):
		return quoted.Err // its own text quotes the URL, password and all
	case errors.As(err, &e) && e.Code == amqp.AccessRefused:
		return fmt.Errorf("%w: check the user and the password (%s, %s)", err, config.EnvUsername, config.EnvPassword)
	case errors.As(err, &e) && e.Code == amqp.NotAllowed:
		return fmt.Errorf("%w: check the name of the vhost, the part behind the host in the URL", err)
	case errors.As(err, &dns):
		return fmt.Errorf("%w: check the host's name", err)
	}
	return err
}

// where is a URL to show: host and vhost, and no credentials.
func where(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		return "the broker"
	}
	u.User, u.RawQuery = nil, ""
	return u.String()
}

// management is the management API of a configuration, or nil. It looks into
// the vhost of the AMQP URL.
func management(c *config.Config) (*topology.Management, error) {
	if c.Broker.ManagementURL == "" {
		return nil, nil //nolint:nilnil // none is a value here
	}
	vhost, err := vhostOf(c)
	if err != nil {
		return nil, err
	}
	return &topology.Management{URL: c.Broker.ManagementURL, Vhost: vhost}, nil
}

// vhostOf is the plain name of the vhost in the AMQP URL.
func vhostOf(c *config.Config) (string, error) {
	if c.Broker.URL == "" {
		return "/", nil
	}
	uri, err := amqp.ParseURI(c.Broker.URL)
	if err != nil {
		return "", fmt.Errorf("read the broker's URL: %w", explainDial(err))
	}
	return uri.Vhost, nil
}

// plural writes a number with its noun.
func plural(n int, one string) string {
	switch {
	case n == 1:
		return "1 " + one
	case strings.HasSuffix(one, "y"):
		return fmt.Sprintf("%d %sies", n, strings.TrimSuffix(one, "y"))
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// short writes a duration as a configuration file would: 1m30s, 2h, 550ms.
func short(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		d = d.Round(10 * time.Millisecond)
	default:
		d = d.Round(time.Millisecond)
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// firstLine is for a table, which a text with line breaks would break.
func firstLine(s string, most int) string {
	s, _, more := strings.Cut(s, "\n")
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	if more {
		s += " …"
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' ' // no control sequence of a stranger's error reaches the terminal
		}
		return r
	}, s)
}

func ignore(c io.Closer) { _ = c.Close() }
