package hopback

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/delay"
	"github.com/hopback/hopback/topology"
)

// Offer is whether a broker has something.
type Offer int

// The zero value is not knowing: AMQP 0-9-1 shows little, and an account may not
// see more.
const (
	Unseen Offer = iota
	Offered
	NotOffered
)

// Capabilities is what a broker says about itself, as far as it matters for the
// choice of a mechanism.
type Capabilities struct {
	// Product, Version and Platform are the broker's own words, for example
	// "RabbitMQ", "4.3.6" and "Erlang/OTP 27". Each may be empty.
	Product, Version, Platform string

	// DelayedExchange is whether there is the exchange type x-delayed-message.
	DelayedExchange Offer
}

// ReadCapabilities takes what the broker said when the connection was opened. It
// asks nothing; DelayedExchange stays [Unseen].
func ReadCapabilities(conn *amqp.Connection) Capabilities {
	word := func(key string) string {
		s, _ := conn.Properties[key].(string)
		return s
	}
	return Capabilities{Product: word("product"), Version: word("version"), Platform: word("platform")}
}

// FetchCapabilities reads them over the management API, where there is no
// connection.
func FetchCapabilities(ctx context.Context, m *topology.Management) (Capabilities, error) {
	var overview struct {
		Product  string `json:"product_name"`
		Version  string `json:"product_version"`
		RabbitMQ string `json:"rabbitmq_version"`
		Erlang   string `json:"erlang_version"`
	}
	if err := m.Read(ctx, &overview, "", "overview"); err != nil {
		return Capabilities{}, fmt.Errorf("ask what broker it is: %w", err)
	}
	c := Capabilities{Product: overview.Product, Version: cmp.Or(overview.Version, overview.RabbitMQ)}
	if overview.Erlang != "" {
		c.Platform = "Erlang/OTP " + overview.Erlang
	}
	return c, nil
}

// RabbitMQ reports whether the broker is RabbitMQ itself, or a vendor's edition of
// it, which has the word in its name. Others speak AMQP 0-9-1 too, and differ in
// just what a retry needs.
func (c Capabilities) RabbitMQ() bool { return strings.Contains(c.Product, "RabbitMQ") }

// AtLeast reports whether the version is the given one or later, by the rules of
// semantic versioning: 4.3.0-rc.1 is before 4.3.0, 3.10 after 3.9. A version that
// cannot be read is before all.
func (c Capabilities) AtLeast(version string) bool {
	have, ok := parseVersion(c.Version)
	want, okWant := parseVersion(version)
	return ok && okWant && slices.Compare(have, want) >= 0
}

// String names product and version.
func (c Capabilities) String() string {
	return strings.TrimSpace(cmp.Or(c.Product, "an unnamed broker") + " " + c.Version)
}

// parseVersion gives major, minor, patch and a last number that is -1 for a
// pre-release. Missing numbers are 0.
func parseVersion(s string) ([]int, bool) {
	s, _, _ = strings.Cut(s, "+")
	numbers, pre, isPre := strings.Cut(s, "-")
	_ = pre // one pre-release is as good as another here
	v := make([]int, 4)
	for i, part := range strings.Split(numbers, ".") {
		n, err := strconv.Atoi(part)
		if err != nil || n < 0 {
			return nil, false
		}
		if i < 3 {
			v[i] = n
		}
	}
	if isPre {
		v[3] = -1
	}
	return v, true
}

// ReadExchangeTypes looks over the management API whether there is the exchange
// type x-delayed-message.
func (c *Capabilities) ReadExchangeTypes(ctx context.Context, m *topology.Management) error {
	types, err := m.ExchangeTypes(ctx)
	if err != nil {
		return fmt.Errorf("list the broker's exchange types: %w", err)
	}
	c.DelayedExchange = NotOffered
	if slices.Contains(types, delay.PluginType) {
		c.DelayedExchange = Offered
	}
	return nil
}

// ProbeExchangeType finds out over AMQP alone whether there is the exchange type
// x-delayed-message, and creates nothing. It declares an exchange that every
// virtual host has, amq.fanout, with that type. A broker that knows the type
// answers that the exchange has another (406), or that the account may not
// declare it (403). One that does not know it says so before it looks at either:
// 4.0 and later with 406, 3.10 with 503, which ends the connection. So dial must
// give a connection of its own, which is closed in any case.
func (c *Capabilities) ProbeExchangeType(ctx context.Context, dial func(context.Context) (*amqp.Connection, error)) error {
	conn, err := dial(ctx)
	if err != nil {
		return fmt.Errorf("probe for the exchange type %s: %w", delay.PluginType, err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	ch, err := conn.Channel()
	if err == nil {
		err = ch.ExchangeDeclare("amq.fanout", delay.PluginType, true, false, false, false, amqp.Table{"x-delayed-type": "fanout"})
	}
	var answer *amqp.Error
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("probe for the exchange type %s: %w", delay.PluginType, context.Cause(ctx))
	case errors.As(err, &answer) && strings.Contains(answer.Reason, "unknown exchange type"):
		c.DelayedExchange = NotOffered
	case errors.As(err, &answer) && (answer.Code == amqp.PreconditionFailed || answer.Code == amqp.AccessRefused):
		c.DelayedExchange = Offered
	default:
		return fmt.Errorf("probe for the exchange type %s: an answer that tells nothing: %w", delay.PluginType, err)
	}
	return nil
}

// The mechanisms that a broker may or may not be able to honour.
const (
	nativeFrom       = "4.3.0" // x-opt-delivery-time
	nativeLinearFrom = "4.3.1" // x-delayed-retry-* as keys of a policy
	atLeastOnceFrom  = "3.10.0"
)

// choose picks the mechanism of a route for a broker and the type of its work
// queue: "quorum", "classic", or "" where it could not be seen. wanted is what
// the route says, [Auto] or a name. Where a name cannot be honoured, the error is
// a *ConfigError that says what to do instead.
func choose(caps Capabilities, queueType, wanted string) (mechanism, why string, err error) {
	refuse := func(format string, args ...any) (string, string, error) {
		return "", "", &ConfigError{Field: "mechanism", Value: wanted, Fix: fmt.Sprintf(format, args...)}
	}
	if caps.Product == "LavinMQ" {
		// Its headers exchange refuses x-match all-with-x and leaves out keys that
		// begin with x- (source of 2026), so there is no way back to one queue.
		return refuse("use RabbitMQ: %s has no headers binding on keys that begin with x-, by which a message finds back to its own queue; "+
			"its own x-delayed-message exchange is untested here", caps)
	}
	unseen := caps.Version == "" || !caps.RabbitMQ()
	if !unseen && !caps.AtLeast(atLeastOnceFrom) {
		return refuse("use RabbitMQ 3.10 or later: %s has no at-least-once dead-lettering and no headers binding on keys that begin with x-", caps)
	}
	switch wanted {
	case Auto:
		mechanism, why = automatic(caps, queueType)
	case Plugin:
		switch {
		case caps.RabbitMQ() && caps.AtLeast(nativeFrom):
			return refuse("use auto or native: the delayed-message plugin does not run on %s (it was archived on 2026-01-29, for RabbitMQ up to 4.2)", caps)
		case caps.DelayedExchange == NotOffered:
			return refuse("enable the plugin rabbitmq_delayed_message_exchange on every node, or use auto or wheel, which need none: %s does not offer the exchange type %s",
				caps, delay.PluginType)
		case caps.DelayedExchange == Unseen:
			mechanism, why = Plugin, "named by the route; whether the broker offers it could not be seen"
		default:
			mechanism, why = Plugin, "named by the route, and offered by the broker"
		}
	case Native, NativeLinear:
		from := map[string]string{Native: nativeFrom, NativeLinear: nativeLinearFrom}[wanted]
		switch {
		case !caps.RabbitMQ() || !caps.AtLeast(from):
			return refuse("use auto or wheel, or RabbitMQ %s or later: %s cannot hold a message back on its own queue", from, caps)
		case queueType == "":
			mechanism, why = wanted, "named by the route; that the queue is a quorum queue could not be seen"
		case queueType != "quorum":
			return refuse("use auto or wheel, or make the work queue a quorum queue: a %s queue cannot hold a message back", queueType)
		default:
			mechanism, why = wanted, fmt.Sprintf("named by the route, and offered by %s for quorum queues", caps)
		}
	default:
		mechanism, why = wanted, "named by the route"
	}
	if unseen {
		why += fmt.Sprintf("; untested on %s", caps)
	}
	return mechanism, why, nil
}

// automatic is native where the broker has it for this queue, and else the
// wheel. The plugin is never chosen: what it gives up has to be wanted.
func automatic(caps Capabilities, queueType string) (mechanism, why string) {
	const wheel = "any delay on any broker, without a plugin"
	switch {
	case !caps.RabbitMQ():
		return Wheel, wheel
	case !caps.AtLeast(nativeFrom):
		return Wheel, fmt.Sprintf("%s (native needs RabbitMQ 4.3; this is %s)", wheel, cmp.Or(caps.Version, "of unknown version"))
	case queueType == "quorum":
		return Native, fmt.Sprintf("RabbitMQ %s holds a message back on its own quorum queue, without a publish", caps.Version)
	case queueType == "":
		return Wheel, wheel + " (native needs a quorum queue; the type of this one could not be seen)"
	}
	return Wheel, fmt.Sprintf("%s (native needs a quorum queue; this one is %s)", wheel, queueType)
}
