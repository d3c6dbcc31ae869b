package router

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hopback/hopback/topology"
)

// prepare brings the topology into line. What is the router's own must be there;
// a route that cannot work is logged and stops no other.
func (r *Router) prepare(ctx context.Context, conn topology.Connection) error {
	if r.cfg.Client.SkipDeclare {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, topologyTimeout)
	defer cancel()
	if err := topology.Apply(ctx, conn, r.self.needs); err != nil {
		return fmt.Errorf("prepare the topology: %w", err)
	}
	return r.prepareRoutes(ctx, conn)
}

// prepareRoutes is an error only where nothing could be found out. It holds no lock
// while it asks the broker: that may take its time, and messages flow meanwhile.
func (r *Router) prepareRoutes(ctx context.Context, conn topology.Connection) error {
	var all topology.Topology
	needs := map[*source]topology.Topology{}
	r.mu.RLock()
	for _, s := range r.sources {
		s.mu.Lock()
		if !s.adopting {
			needs[s] = s.needs
			all = all.Merge(s.needs)
		}
		s.mu.Unlock()
	}
	r.mu.RUnlock()
	err := topology.Apply(ctx, conn, all)
	absent := absentBy(err)
	for s, t := range needs {
		s.mu.Lock()
		if !s.adopting { // else its own look is the newer one
			// A queue that has come has not been looked at: complete does that.
			s.incomplete = absent.touches(t) || s.incomplete && r.cfg.Client.Management != nil
		}
		s.mu.Unlock()
	}
	if ctx.Err() != nil {
		return fmt.Errorf("prepare the topology of the routes: %w", err)
	}
	r.stateMu.Lock()
	before := r.trouble
	r.trouble = err
	r.stateMu.Unlock()
	switch {
	case err != nil && (before == nil || before.Error() != err.Error()):
		r.log.Error("not all that the routes need is there; what can be served is", "error", err)
	case err == nil && before != nil:
		r.log.Info("all that the routes need is there")
	}
	return nil
}

// absence is what the errors of topology.Apply say is not there.
type absence struct {
	unknown bool // an error names nothing: anything may be missing
	names   map[string]bool
}

// absentBy reads the errors of topology.Apply. What is there with other arguments,
// or may not be looked at, is not absent: to try again soon would mend neither.
func absentBy(err error) absence {
	a := absence{names: map[string]bool{}}
	var walk func(err error)
	walk = func(err error) {
		switch e := err.(type) { //nolint:errorlint // this is what errors.As does, for all of them
		case nil, *topology.MismatchError, *topology.AccessError:
		case *topology.MissingError:
			a.names[e.Queue], a.names[e.Exchange] = true, true
		case interface{ Unwrap() []error }:
			for _, err := range e.Unwrap() {
				walk(err)
			}
		case interface{ Unwrap() error }:
			if inner := e.Unwrap(); inner != nil {
				walk(inner)
				return
			}
			a.unknown = true
		default:
			a.unknown = true
		}
	}
	walk(err)
	delete(a.names, "")
	return a
}

// touches reports whether a topology needs something that is absent.
func (a absence) touches(t topology.Topology) bool {
	return a.unknown ||
		slices.ContainsFunc(t.Queues, func(q topology.Queue) bool { return a.names[q.Name] }) ||
		slices.ContainsFunc(t.Exchanges, func(e topology.Exchange) bool { return a.names[e.Name] })
}

// complete makes what a route needs when a message of it arrives and not all was
// there when the router looked last: usually its work queue came later. Without the
// way back, what waits would come due into hop.lost.
func (s *source) complete() {
	ctx, cancel := context.WithTimeout(s.r.life, topologyTimeout)
	defer cancel()
	session, err := s.r.consume.Session(ctx)
	if err == nil {
		err = topology.Apply(ctx, session, s.needs)
	}
	to := s
	if err == nil {
		to, err = s.isolated(ctx, session)
	}
	if err != nil {
		s.r.log.Error("not all that a route needs is there", "queue", s.queue, "error", err)
	} else {
		s.r.log.Info("all that a route needs is there", "queue", s.queue)
	}
	s.mu.Lock()
	s.adopting, s.incomplete = false, absentBy(err).touches(s.needs)
	// A route that stays in trouble costs its messages a wait each time.
	s.pause = min(max(2*s.pause, time.Second), troubleEvery)
	s.notBefore = time.Now().Add(s.pause)
	if !s.incomplete {
		s.pause, s.notBefore = 0, time.Time{}
	}
	pending := s.pending
	s.pending = nil
	s.mu.Unlock()
	for _, h := range pending {
		h.to = to
		if ctx.Err() != nil && err != nil { // the router stops, or the broker does not answer
			h.hold(err)
			continue
		}
		h.decide()
	}
}

// isolated gives way to a source with slots of its own, where the work queue turns
// out to be one that can refuse messages: in shared slots it would stop those of all.
// It is the source itself where that is not so.
func (s *source) isolated(ctx context.Context, conn topology.Connection) (*source, error) {
	r := s.r
	route, why, err := r.resolve(ctx, s.route)
	if err != nil || route.Isolate == s.route.Isolate {
		return s, err
	}
	own, err := r.newSource(route, s.countDeaths)
	if err != nil {
		return s, err
	}
	own.publisher.Close(ctx) // has sent nothing
	own.publisher = s.publisher
	if err := topology.Apply(ctx, conn, own.needs); err != nil {
		return s, err
	}
	r.mu.Lock()
	if r.sources[s.queue] == s {
		r.sources[s.queue] = own
	}
	r.mu.Unlock()
	r.log.Info("a queue has delay slots of its own", "queue", s.queue, "isolated_why", why)
	return own, nil
}

// repair declares what is missing, after a publish found no queue or no exchange:
// somebody may have deleted it. One at a time, and one a second.
func (s *source) repair() {
	if s.r.cfg.Client.SkipDeclare {
		return
	}
	s.repairMu.Lock()
	defer s.repairMu.Unlock()
	if time.Since(s.repaired) < time.Second {
		return
	}
	defer func() { s.repaired = time.Now() }()
	ctx, cancel := context.WithTimeout(context.Background(), topologyTimeout)
	defer cancel()
	// Not over the publishing connection: an alarm would hold it up.
	session, err := s.r.consume.Session(ctx)
	if err == nil {
		err = topology.Apply(ctx, session, s.r.self.needs.Merge(s.needs))
	}
	if err != nil {
		s.r.log.Error("cannot repair the topology", "queue", s.queue, "error", err)
	}
}
