package router

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/topology"
)

// Which routes lack something is read from what was found out about all together:
// to ask for each alone would take a minute for some hundreds of them.
func TestAbsentBy(t *testing.T) {
	missing := func(queue string) error {
		return &topology.MissingError{Queue: queue, Err: &amqp.Error{Code: amqp.NotFound}}
	}
	mismatch := &topology.MismatchError{Kind: "queue", Name: "orders.parked", Err: &amqp.Error{Code: amqp.PreconditionFailed}}
	access := &topology.AccessError{Kind: "queue", Name: "orders.parked", Err: &amqp.Error{Code: amqp.AccessRefused}}
	binding := fmt.Errorf("make binding %q: %w", "b", &topology.MissingError{Exchange: "hop.error", Err: &amqp.Error{Code: amqp.NotFound}})
	for name, c := range map[string]struct {
		err           error
		orders, mails bool
	}{
		"nothing":                       {nil, false, false},
		"one":                           {errors.Join(missing("orders")), true, false},
		"both":                          {fmt.Errorf("prepare: %w", errors.Join(missing("mails"), fmt.Errorf("x: %w", missing("orders")))), true, true},
		"another":                       {missing("bills"), false, false},
		"what all need":                 {errors.Join(binding), true, true},
		"there, with other arguments":   {errors.Join(mismatch, access), false, false},
		"other arguments, and missing":  {errors.Join(mismatch, missing("mails")), false, true},
		"the connection is gone":        {fmt.Errorf("apply topology: %w", amqp.ErrClosed), true, true},
		"no time":                       {fmt.Errorf("apply topology: not finished: %w", context.DeadlineExceeded), true, true},
		"one, and then no time for all": {errors.Join(missing("orders"), context.DeadlineExceeded), true, true},
	} {
		a := absentBy(c.err)
		for queue, want := range map[string]bool{"orders": c.orders, "mails": c.mails} {
			needs, err := hopback.Topology("", hopback.Route{Queue: queue})
			if err != nil {
				t.Fatal(err)
			}
			if got := a.touches(needs); got != want {
				t.Errorf("%s: %s lacks something is %t, want %t", name, queue, got, want)
			}
		}
	}
}

// refusing is a connection that gives no channel, and looks whether the router's
// lock is free meanwhile.
type refusing struct {
	t     *testing.T
	r     *Router
	asked int
}

func (c *refusing) Channel() (*amqp.Channel, error) {
	if c.asked++; c.r.mu.TryLock() {
		c.r.mu.Unlock()
	} else {
		c.t.Error("the router's lock is held while the broker is asked")
	}
	return nil, errors.New("no channel")
}

// A broker that is slow to answer holds up no message: the feed takes the lock for
// each queue that it sees first.
func TestPrepareRoutesHoldsNoLock(t *testing.T) {
	route := func(queue string) Route { return Route{Route: hopback.Route{Queue: queue}} }
	r, err := New(Config{Client: hopback.Config{URL: "amqp://localhost"}, Routes: []Route{route("orders"), route("mails")}})
	if err != nil {
		t.Fatal(err)
	}
	r.sources = map[string]*source{}
	for _, o := range r.cfg.Routes {
		needs, err := hopback.Topology("", o.Route)
		if err != nil {
			t.Fatal(err)
		}
		needs.Exchanges = needs.Exchanges[:1] // one item, so that one channel is asked for at a time
		needs.Queues, needs.Bindings = nil, nil
		r.sources[o.Queue] = &source{r: r, queue: o.Queue, needs: needs}
	}
	c := &refusing{t: t, r: r}
	if err := r.prepareRoutes(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if c.asked != 1 {
		t.Errorf("asked %d times for two routes, want once", c.asked)
	}
	for name, s := range r.sources {
		if !s.incomplete {
			t.Errorf("nothing is known of %s, and it counts as complete", name)
		}
	}
}

// A queue that came later has not been looked at, if the router can look: one that
// refuses messages needs slots of its own.
func TestCameLaterIsLookedAt(t *testing.T) {
	for _, management := range []*topology.Management{nil, {URL: "http://localhost:1"}} {
		r, err := New(Config{Client: hopback.Config{URL: "amqp://localhost", Management: management}})
		if err != nil {
			t.Fatal(err)
		}
		s := &source{r: r, queue: "orders", incomplete: true}
		r.sources = map[string]*source{"orders": s}
		if err := r.prepareRoutes(t.Context(), &refusing{t: t, r: r}); err != nil { // nothing to ask for
			t.Fatal(err)
		}
		if want := management != nil; s.incomplete != want {
			t.Errorf("with %v it is left to complete: %t, want %t", management, s.incomplete, want)
		}
	}
}

// A route that stays in trouble is not tried for every message, and one whose
// completion is due is.
func TestCompletionPauses(t *testing.T) {
	r, err := New(Config{Client: hopback.Config{URL: "amqp://localhost"}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop() // so that nothing is asked
	r.life = ctx
	r.consume, r.publish = r.open("consume"), r.open("publish")
	defer r.disconnect()
	needs, err := hopback.Topology("", hopback.Route{Queue: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	s := &source{r: r, queue: "orders", needs: needs, incomplete: true}
	for _, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, troubleEvery, troubleEvery} {
		s.adopting = true
		s.complete()
		if s.pause != want || !s.incomplete || s.adopting || time.Until(s.notBefore) > want {
			t.Errorf("pauses for %s, want %s: %+v", s.pause, want, s)
		}
	}
}
