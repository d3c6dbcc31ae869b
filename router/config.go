package router

import (
	"errors"
	"fmt"
	"time"

	"github.com/hopback/hopback"
)

// Route is a work queue whose failures the router handles.
type Route struct {
	// Route says how. Its mechanism may be Auto, Wheel or Ladder; the others hold a
	// message in ways that a router cannot use, and it takes the wheel instead.
	hopback.Route

	// CountDeaths starts the count of a message that is seen for the first time
	// from what RabbitMQ counted in x-death for this queue, for queues whose retries
	// went through dead-lettering before. Otherwise such a message starts at 0.
	CountDeaths bool
}

// Config is what a router serves, and how it reaches the broker.
type Config struct {
	// Client is how to reach the broker and whom to tell. Its Observer hears of
	// Retried, Parked, Discarded, Reconnected and Blocked; one that is an Observer
	// of this package hears the rest too.
	Client hopback.Config

	// Routes are the queues that are served.
	Routes []Route

	// Unrouted is the policy for a queue that no route names and whose messages
	// arrive nevertheless. It is given a parking queue of its own, like a route. nil
	// parks such messages as no-route, in the router's own parking queue.
	Unrouted *hopback.Policy

	// Prefetch is how many unsettled messages the broker hands out; it is also the
	// most that one lost connection can retry twice. 0 means 500. Quorum queues
	// allow 2000.
	Prefetch int

	// ShutdownTimeout is how long Run waits for confirms once its context has
	// ended. What is not confirmed then stays in the queue. 0 means 30 s.
	ShutdownTimeout time.Duration
}

const maxPrefetch = 2000

// WithDefaults returns the configuration with every zero field replaced by its
// default.
func (c Config) WithDefaults() Config {
	c.Client = c.Client.WithDefaults()
	routes := make([]Route, len(c.Routes))
	for i, r := range c.Routes {
		r.Route = r.Route.WithDefaults()
		routes[i] = r
	}
	c.Routes = routes
	if c.Unrouted != nil {
		p := c.Unrouted.WithDefaults()
		c.Unrouted = &p
	}
	if c.Prefetch == 0 {
		c.Prefetch = 500
	}
	if c.ShutdownTimeout == 0 {
		c.ShutdownTimeout = 30 * time.Second
	}
	return c
}

// Validate reports every setting that cannot work.
func (c Config) Validate() error {
	c = c.WithDefaults()
	errs := []error{c.Client.Validate()}
	check := func(ok bool, field string, value any, fix string) {
		if !ok {
			errs = append(errs, &hopback.ConfigError{Field: field, Value: fmt.Sprint(value), Fix: fix})
		}
	}
	check(c.Prefetch > 0 && c.Prefetch <= maxPrefetch, "Prefetch", c.Prefetch, "use 1 to 2000: quorum queues allow no more")
	check(c.ShutdownTimeout > 0, "ShutdownTimeout", c.ShutdownTimeout, "use a positive duration")
	n, seen := names{c.Client.Prefix}, map[string]bool{}
	for i, r := range c.Routes {
		at := fmt.Sprintf("Routes[%d]", i)
		check(!seen[r.Queue], at+".queue", r.Queue, "name each queue once")
		seen[r.Queue] = true
		check(!n.ours(r.Queue), at+".queue", r.Queue, "choose another: queues of this name are Hopback's own")
		if err := r.held().Validate(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", at, err))
		}
	}
	if c.Unrouted != nil {
		if err := c.Unrouted.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("the policy Unrouted: %w", err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	_, err := Topology(c.Client.Prefix, c.Routes...)
	return err
}

// held is the route with a mechanism that a router can hold a message by. One that
// holds it in the work queue itself comes too late, since the message has left
// that; and what the delayed-message plugin takes cannot be known to be safe
// without the way back being watched.
func (r Route) held() hopback.Route {
	route := r.Route
	if route.Mechanism != hopback.Ladder {
		route.Mechanism = hopback.Wheel
	}
	return route
}
