package router

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/delay"
	"github.com/hopback/hopback/internal/fate"
	"github.com/hopback/hopback/internal/link"
	"github.com/hopback/hopback/internal/sparse"
	"github.com/hopback/hopback/topology"
)

// source is a work queue whose failures arrive here. It has a publisher, which is
// a channel, of its own: a publish that the broker answers by closing the channel
// then costs its own queue and no other.
type source struct {
	r           *Router
	queue       string // for the router's own: hop.failed
	route       hopback.Route
	countDeaths bool
	limits      fate.Limits
	delays      delay.Mechanism
	needs       topology.Topology
	publisher   *link.Publisher

	stuck            atomic.Int64 // messages whose hand-off was refused
	refused, heldLog sparse.Limiter

	parking string // route's, which never changes

	mu         sync.Mutex
	incomplete bool          // something that it needs is not there: its work queue may come later
	notBefore  time.Time     // when to try again because of a message
	pause      time.Duration // then, if that fails too
	adopting   bool          // what it needs is being declared
	gone       bool          // it could not be adopted
	pending    []*handoff    // until it is

	repairMu sync.Mutex
	repaired time.Time
}

// newSource is a queue with its route, whose mechanism is settled.
func (r *Router) newSource(route hopback.Route, countDeaths bool) (*source, error) {
	needs, err := hopback.Topology(r.names.prefix, route)
	if err != nil {
		return nil, fmt.Errorf("route %q: %w", route.Queue, err)
	}
	route = route.WithDefaults()
	p := route.Policy
	s := &source{
		r: r, queue: route.Queue, route: route, parking: route.Parking, countDeaths: countDeaths, needs: needs,
		limits: fate.Limits{
			Schedule: p.Schedule, MaxRetries: int32(max(p.MaxRetries, 0)), MaxAge: p.MaxAge, MaxRetryAfter: p.MaxRetryAfter,
		},
	}
	s.delays = route.DelayMechanism(r.names.prefix)
	if route.Mechanism == hopback.Wheel { // with a load that all queues share
		n := delay.Names{Prefix: r.names.prefix}
		if route.Isolate {
			n.Owner = route.Queue
		}
		s.delays = delay.NewWheel(n, max(p.Max, p.MaxRetryAfter), route.Precision, &r.load)
	}
	s.publisher = link.NewPublisher(r.publish, r.cfg.Client.ConfirmTimeout)
	return s, nil
}

// route makes the sources of the routes.
func (r *Router) route(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sources = map[string]*source{}
	r.self = &source{
		r: r, queue: r.names.failed(), needs: base(r.names),
		publisher: link.NewPublisher(r.publish, r.cfg.Client.ConfirmTimeout),
	}
	for _, route := range r.cfg.Routes {
		resolved, why, err := r.resolve(ctx, route.held())
		if err != nil {
			return err
		}
		s, err := r.newSource(resolved, route.CountDeaths)
		if err != nil {
			return err
		}
		r.sources[route.Queue] = s
		r.log.Info("serving a queue", "queue", route.Queue, "policy", resolved.Policy.Name, "mechanism", resolved.Mechanism,
			"isolated", resolved.Isolate, "isolated_why", why)
		if asked := route.Mechanism; asked != hopback.Auto && asked != resolved.Mechanism {
			r.log.Warn("a router cannot hold messages as the route says", "queue", route.Queue, "asked", asked, "takes", resolved.Mechanism)
		}
	}
	return nil
}

// resolve finds out whether a queue needs slots of its own, which only the
// management API shows. The second result is the setting that asks for them.
func (r *Router) resolve(ctx context.Context, route hopback.Route) (hopback.Route, string, error) {
	if r.cfg.Client.Management == nil {
		return route, "", nil
	}
	info, found, err := r.cfg.Client.Management.Queue(ctx, route.Queue)
	switch {
	case err != nil:
		r.log.Warn("cannot look at a work queue over the management API", "queue", route.Queue, "error", err)
		return route, "", nil
	case !found:
		return route, "", nil
	case info.Type == "stream":
		return route, "", &hopback.ConfigError{
			Field: "queue", Value: route.Queue,
			Fix: "use a classic or quorum queue: a stream cannot take a message back for one consumer alone",
		}
	}
	setting, _ := info.Refuses()
	if setting != "" {
		route.Isolate = true
	}
	return route, setting, nil
}

// source finds a queue that has a route, or adopts one that has none. nil is
// neither.
func (r *Router) source(queue string) *source {
	r.mu.RLock()
	s := r.sources[queue]
	r.mu.RUnlock()
	if s != nil || r.cfg.Unrouted == nil || r.cfg.Client.SkipDeclare {
		return s
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.sources[queue]; s != nil || r.adopted >= maxAdopted || r.isParking(queue) {
		return s
	}
	route := hopback.Route{Queue: queue, Policy: *r.cfg.Unrouted, Mechanism: hopback.Wheel}
	s, err := r.newSource(route, false)
	if err != nil {
		r.log.Error("cannot serve a queue without a route by the policy for those", "queue", queue, "error", err)
		return nil
	}
	s.adopting = true
	r.sources[queue] = s
	r.adopted++
	r.background.Go(s.adopt)
	return s
}

// maxAdopted bounds how many queues somebody can name who may publish to
// hop.failed.
const maxAdopted = 1000

// isParking reports whether a queue is where a route parks: what dies there did
// not fail.
func (r *Router) isParking(queue string) bool {
	for _, s := range r.sources {
		if s.parking == queue {
			return true
		}
	}
	return false
}

// take decides on a message, once the queue's topology is there.
func (s *source) take(h *handoff) {
	h.to = s
	s.mu.Lock()
	if s.incomplete && !s.adopting && !time.Now().Before(s.notBefore) {
		s.adopting = true
		s.r.background.Go(s.complete)
	}
	adopting, gone := s.adopting, s.gone
	if adopting && len(s.pending) < s.r.share() {
		s.pending = append(s.pending, h)
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	switch {
	case gone: // a moment ago
		h.to = s.r.self
		h.hold(errNoRoute)
	case adopting:
		h.hold(errAdopting)
	default:
		h.decide()
	}
}

var errAdopting = errors.New("what its queue needs is still being declared")

// adopt makes what a queue without a route needs, provided that the queue exists.
func (s *source) adopt() {
	r := s.r
	ctx, cancel := context.WithTimeout(r.life, topologyTimeout)
	defer cancel()
	err := s.declare(ctx)
	if err != nil {
		r.mu.Lock()
		delete(r.sources, s.queue)
		r.adopted--
		r.mu.Unlock()
		defer func() { // when nothing can be handed to it any more
			closing, cancel := context.WithTimeout(context.Background(), closeTimeout)
			defer cancel()
			s.publisher.Close(closing)
		}()
		r.log.Error("cannot serve a queue without a route", "queue", s.queue, "error", err)
	} else {
		r.log.Warn("serving a queue without a route, by the policy for those", "queue", s.queue,
			"policy", s.route.Policy.Name, "parking", s.route.Parking)
	}
	s.mu.Lock()
	s.adopting, s.gone = false, err != nil
	pending := s.pending
	s.pending = nil
	s.mu.Unlock()
	for _, h := range pending {
		switch {
		case err == nil:
			h.decide()
		case errors.Is(err, topology.ErrMissing):
			h.to = r.self
			h.park(attempt.ReasonLostRoute, err)
		default:
			h.to = r.self
			h.hold(err)
		}
	}
}

func (s *source) declare(ctx context.Context) error {
	session, err := s.r.consume.Session(ctx)
	if err != nil {
		return err
	}
	route, _, err := s.r.resolve(ctx, s.route)
	if err != nil {
		return err
	}
	if route.Isolate { // and so has other slots
		isolated, err := s.r.newSource(route, false)
		if err != nil {
			return err
		}
		isolated.publisher.Close(ctx) // has sent nothing
		s.route, s.needs, s.delays = isolated.route, isolated.needs, isolated.delays
	}
	// The queue first, so that nothing is made for one that is not there.
	if err := topology.Apply(ctx, session, topology.Topology{Queues: []topology.Queue{{Name: s.queue, User: true}}}); err != nil {
		return err
	}
	return topology.Apply(ctx, session, s.needs)
}
