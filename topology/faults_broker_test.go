package topology_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/rabbittest"
	"github.com/hopback/hopback/topology"
)

// TestCompareIsTheBrokers: Compare and real brokers agree on every pair. (The
// arguments that Compare looks at and brokers do not are not among them.)
func TestCompareIsTheBrokers(t *testing.T) {
	s := newSpace(t)
	c := s.dial(t)
	for _, p := range topology.Comparisons {
		t.Run(p.Name, func(t *testing.T) {
			declareQueue(t, c, "q", p.Have)
			defer must(t, c, func(ch *amqp.Channel) error {
				_, err := ch.QueueDelete("q", false, false, false)
				return err
			})
			err := do(t, c, func(ch *amqp.Channel) error {
				_, err := ch.QueueDeclare("q", true, false, false, false, p.Want)
				return err
			})
			if same := len(topology.Compare(p.Want, p.Have)) == 0; same != (err == nil) {
				t.Errorf("Compare takes them for the same: %t; the broker says %v", same, err)
			}
			// And over HTTP, where the widths are lost.
			top := topology.Topology{Queues: []topology.Queue{{Name: "q", Args: p.Want}}}
			plan, planErr := topology.MakePlan(t.Context(), c, s.management, top)
			if planErr != nil || plan.Empty() != (err == nil) {
				t.Errorf("the broker says %v; %v, plan:\n%v", err, planErr, plan)
			}
		})
	}
}

// ours counts the goroutines of this package that are not the test's own.
func ours() (n int, stacks string) {
	buf := make([]byte, 1<<20)
	stacks = string(buf[:runtime.Stack(buf, true)])
	for _, g := range strings.Split(stacks, "\n\n") {
		if strings.Contains(g, "created by github.com/hopback/hopback/topology.") {
			n++
		}
	}
	return n, stacks
}

// TestDeadline: a broker that does not answer holds nobody longer than ctx, and
// nothing is left behind once it answers again, or the connection ends.
func TestDeadline(t *testing.T) {
	s := newSpace(t)
	admin := s.dial(t)
	if err := topology.Apply(t.Context(), admin, sample()); err != nil {
		t.Fatal(err)
	}
	for _, end := range []string{"answers again", "is cut"} {
		t.Run(end, func(t *testing.T) {
			proxy := s.Proxy(t)
			// Eight channels, so that a lost one would be missed.
			c, err := amqp.DialConfig(proxy.URL(s.url), amqp.Config{Vhost: s.vhost, ChannelMax: 8, Heartbeat: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			for _, call := range []func(ctx context.Context) error{
				func(ctx context.Context) error { return topology.Apply(ctx, c, sample()) },
				func(ctx context.Context) error {
					_, err := topology.MakePlan(ctx, c, nil, sample())
					return err
				},
			} {
				proxy.Freeze(true)
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				err := call(ctx)
				cancel()
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v", err)
				}
				if end == "answers again" {
					proxy.Freeze(false)
				} else {
					proxy.Cut()
				}
				deadline := time.Now().Add(time.Minute)
				for {
					n, stacks := ours()
					if n == 0 {
						break
					}
					if time.Now().After(deadline) {
						t.Fatalf("%d goroutines are left behind:\n%s", n, stacks)
					}
					time.Sleep(5 * time.Millisecond)
				}
				if end != "answers again" {
					return // the connection has gone
				}
				if err := topology.Apply(t.Context(), c, sample()); err != nil {
					t.Error(err)
				}
				var held []*amqp.Channel
				for range 8 {
					ch, err := c.Channel()
					if err != nil {
						t.Fatalf("a channel is lost: %v", err)
					}
					held = append(held, ch)
				}
				for _, ch := range held {
					ch.Close()
				}
			}
		})
	}
}

func TestCancelled(t *testing.T) {
	s := newSpace(t)
	c := s.dial(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the reason why"))
	err := topology.Apply(ctx, c, sample())
	if err == nil || !strings.Contains(err.Error(), "the reason why") {
		t.Errorf("got %v", err)
	}
	if exists(t, c, "hop.lost") {
		t.Error("something was declared")
	}
}

// TestFewChannels: a connection may be down to its last channel.
func TestFewChannels(t *testing.T) {
	s := newSpace(t)
	c, err := amqp.DialConfig(s.url, amqp.Config{Vhost: s.vhost, ChannelMax: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	used, err := c.Channel()
	if err != nil {
		t.Fatal(err)
	}
	defer used.Close()
	top := sample()
	declareQueue(t, s.dial(t), "hop.lost", amqp.Table{"x-queue-type": "classic"})
	err = topology.Apply(t.Context(), c, top)
	if joined, ok := err.(interface{ Unwrap() []error }); !ok || len(joined.Unwrap()) != 1 || !errors.Is(err, topology.ErrMismatch) {
		t.Errorf("got %v", err)
	}
	if p, err := topology.MakePlan(t.Context(), c, s.management, top); err != nil || len(p.Differences) != 1 {
		t.Errorf("%v, plan:\n%v", err, p)
	}
	// And none at all is an error, not a wait.
	last, err := c.Channel()
	if err != nil {
		t.Fatal(err)
	}
	defer last.Close()
	if err := topology.Apply(t.Context(), c, top); err == nil || !strings.Contains(err.Error(), "open a channel") {
		t.Errorf("got %v", err)
	}
}

func TestLostConnection(t *testing.T) {
	s := newSpace(t)
	proxy := s.Proxy(t)
	c := dial(t, proxy.URL(s.url))
	proxy.Cut()
	err := topology.Apply(t.Context(), c, sample())
	if err == nil || !strings.Contains(err.Error(), "apply topology") {
		t.Errorf("got %v", err)
	}
	if joined, ok := err.(interface{ Unwrap() []error }); !ok || len(joined.Unwrap()) != 1 {
		t.Errorf("the one fault is told more than once: %v", err)
	}
	if p, err := topology.MakePlan(t.Context(), c, nil, sample()); err == nil || !p.Empty() {
		t.Errorf("%v; what was not looked at is not missing:\n%v", err, p)
	}
}

// cutter resets the connection when its channels are used up.
type cutter struct {
	*amqp.Connection
	proxy    *rabbittest.Proxy
	channels atomic.Int32
}

func (c *cutter) Channel() (*amqp.Channel, error) {
	if c.channels.Add(-1) == -1 {
		c.proxy.Cut()
	}
	return c.Connection.Channel()
}

// TestConnectionLostMidway: what was found before is told, and the loss once.
func TestConnectionLostMidway(t *testing.T) {
	s := newSpace(t)
	proxy := s.Proxy(t)
	top := sample()
	must(t, s.dial(t), func(ch *amqp.Channel) error {
		return ch.ExchangeDeclare("hop.error", "topic", true, false, false, false, nil)
	})
	c := &cutter{Connection: dial(t, proxy.URL(s.url)), proxy: proxy}
	// One for each of the six bindings; the one after that replaces the channel that
	// the broker closes over hop.error.
	c.channels.Store(int32(len(top.Bindings)))
	err := topology.Apply(t.Context(), c, top)
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || len(joined.Unwrap()) != 2 || !errors.Is(err, topology.ErrMismatch) || !strings.Contains(err.Error(), "were not reached: the connection was lost") {
		t.Errorf("got %v", err)
	}
}

// TestUnknownExchangeType, such as that of a plugin which is not there. 3.10 ends
// the connection for it; from 4.0 it is an answer like any other.
func TestUnknownExchangeType(t *testing.T) {
	s := newSpace(t)
	c := s.dial(t)
	top := sample()
	top.Exchanges = append(top.Exchanges, topology.Exchange{Name: "odd", Kind: "x-no-such-type"})
	err := topology.Apply(t.Context(), c, top)
	if err == nil || !strings.Contains(err.Error(), "unknown exchange type 'x-no-such-type'") || errors.Is(err, topology.ErrMismatch) {
		t.Errorf("got %v", err)
	}
	if strings.HasPrefix(s.Version(), "3.") {
		return
	}
	if p, err := topology.MakePlan(t.Context(), c, s.management, top); err != nil || len(p.Differences) != 1 || p.Differences[0].Name != "odd" {
		t.Errorf("%v, plan:\n%v", err, p)
	}
}
