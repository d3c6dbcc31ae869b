package integration

import (
	"context"
	"errors"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/topology"
)

// offers is whether the broker has the delayed exchange, over AMQP alone and over
// HTTP.
func offers(t *testing.T, w *world) (seen [2]hopback.Offer) {
	t.Helper()
	conn, err := amqp.Dial(w.url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	caps := hopback.ReadCapabilities(conn)
	if !caps.RabbitMQ() || caps.Version != w.broker.Version() || caps.Platform == "" || !caps.AtLeast("3.10") || caps.AtLeast("99") {
		t.Errorf("the broker says %+v", caps)
	}
	if caps.DelayedExchange != hopback.Unseen {
		t.Errorf("known before it was asked: %+v", caps)
	}
	if err := caps.ProbeExchangeType(t.Context(), func(context.Context) (*amqp.Connection, error) { return amqp.Dial(w.url) }); err != nil {
		t.Error(err)
	}
	seen[0] = caps.DelayedExchange
	caps.DelayedExchange = hopback.Unseen
	if err := caps.ReadExchangeTypes(t.Context(), &topology.Management{URL: w.broker.ManagementURL(), Vhost: w.vhost}); err != nil {
		t.Error(err)
	}
	seen[1] = caps.DelayedExchange
	return seen
}

// On a broker without the plugin its mechanism is refused by name, with what to
// do, and nothing has been declared.
func TestPluginRefusedWhereItIsNot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.declare("work", "quorum")
	if seen := offers(t, w); seen != [2]hopback.Offer{hopback.NotOffered, hopback.NotOffered} {
		t.Fatalf("over AMQP and HTTP: %v", seen)
	}
	for name, m := range map[string]*topology.Management{
		"over AMQP alone": nil,
		"over HTTP":       {URL: w.broker.ManagementURL(), Vhost: w.vhost},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := w.newClient(func(c *hopback.Config) { c.Management = m }).NewConsumer(hopback.ConsumerConfig{
				Route:   pluginRoute(1),
				Handler: hopback.HandlerFunc(func(context.Context, *hopback.Message) error { return nil }),
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			err = c.Run(ctx)
			var refused *hopback.ConfigError
			if !errors.As(err, &refused) || refused.Field != "mechanism" || refused.Value != "plugin" || !strings.Contains(refused.Fix, "auto") {
				t.Errorf("Run: %v", err)
			}
		})
	}
	for _, q := range w.queues() {
		if q.Name != "work" {
			t.Errorf("queue %q was declared", q.Name)
		}
	}
}

// The same without the right to declare anything.
func TestDelayedExchangeSeenWithoutRights(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	name := "no-rights-" + strings.ReplaceAll(w.vhost, "/", "-")
	if err := w.broker.AddUser(t.Context(), name, "secret", w.vhost, "", "", ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.broker.Delete(context.Background(), "/api/users/"+name) }) //nolint:errcheck // goes with the broker
	u, err := amqp.ParseURI(w.url)
	if err != nil {
		t.Fatal(err)
	}
	u.Username, u.Password = name, "secret"
	var caps hopback.Capabilities
	if err := caps.ProbeExchangeType(t.Context(), func(context.Context) (*amqp.Connection, error) { return amqp.Dial(u.String()) }); err != nil {
		t.Fatal(err)
	}
	if caps.DelayedExchange != hopback.NotOffered {
		t.Errorf("seen: %v", caps.DelayedExchange)
	}
}

// A consumer of ours has better ways than the broker's own linear retry.
func TestNativeLinearIsNotForConsumers(t *testing.T) {
	client, err := hopback.New(hopback.Config{URL: "amqp://localhost/"})
	if err != nil {
		t.Fatal(err)
	}
	p := hopback.Policy{Schedule: hopback.Schedule{Backoff: hopback.Linear, Jitter: hopback.NoJitter}}
	_, err = client.NewConsumer(hopback.ConsumerConfig{
		Route:   hopback.Route{Queue: "work", Policy: p, Mechanism: hopback.NativeLinear},
		Handler: hopback.HandlerFunc(func(context.Context, *hopback.Message) error { return nil }),
	})
	var refused *hopback.ConfigError
	if !errors.As(err, &refused) || refused.Field != "mechanism" || !strings.Contains(refused.Fix, "native") {
		t.Errorf("a consumer with native-linear: %v", err)
	}
}
