package hopback

import (
	"context"
	"errors"
	"fmt"

	"github.com/hopback/hopback/topology"
)

// Decision says what was chosen for a route, and why.
type Decision struct {
	Queue     string `json:"queue"`
	Mechanism string `json:"mechanism"`
	Why       string `json:"why"`
	Isolated  bool   `json:"isolated"`
	// IsolatedWhy is the queue's setting that asks for slots of its own, or
	// empty where the route does.
	IsolatedWhy string `json:"isolated_why,omitempty"`
}

// View is what Resolve may look at. Each part may be missing; what it would have
// shown is then not known. With the zero View no broker is asked.
type View struct {
	// Capabilities are the broker's, from ReadCapabilities.
	Capabilities Capabilities
	// Management shows the type and the settings of the work queues.
	Management *topology.Management
	// Connection is asked for the type of a work queue where there is no
	// Management. That takes the configure permission on the queue.
	Connection topology.Connection
}

// Resolve replaces what routes leave open by what the broker offers and needs:
// the mechanism where it is Auto, and slots of its own for a work queue that can
// refuse messages. The latter is only visible to the management API; without it,
// routes are isolated where they ask for it.
//
// A mechanism that the broker cannot honour is a *ConfigError that says what to do
// instead, as is a work queue that is a stream. Any other error is something that
// could not be seen; what was chosen nevertheless is safe.
func Resolve(ctx context.Context, v View, routes ...Route) ([]Route, []Decision, error) {
	resolved := make([]Route, len(routes))
	decisions := make([]Decision, len(routes))
	var errs []error
	for i, r := range routes {
		r = r.WithDefaults()
		d := Decision{Queue: r.Queue}
		kind, setting, err := v.look(ctx, r)
		if err != nil {
			errs = append(errs, err)
		}
		if setting != "" {
			r.Isolate, d.IsolatedWhy = true, setting
		}
		if r.Mechanism, d.Why, err = v.choose(r, kind); err != nil {
			errs = append(errs, fmt.Errorf("route %q: %w", r.Queue, err))
		}
		d.Mechanism, d.Isolated = r.Mechanism, r.Isolate
		resolved[i], decisions[i] = r, d
	}
	return resolved, decisions, errors.Join(errs...)
}

func (v View) choose(r Route, kind string) (mechanism, why string, err error) {
	if v.Capabilities != (Capabilities{}) {
		mechanism, why, err = choose(v.Capabilities, kind, r.Mechanism)
		if err != nil {
			return r.Mechanism, "", err
		}
		return mechanism, why, nil
	}
	if r.Mechanism == Auto {
		return Wheel, "any delay on any broker, without a plugin; no broker was asked", nil
	}
	return r.Mechanism, "named by the route", nil
}

// look finds out the type of a work queue, "" where it cannot be seen, and the
// setting by which it can refuse messages. A queue that is missing is what the
// route would declare.
func (v View) look(ctx context.Context, r Route) (kind, refuses string, err error) {
	declared := ""
	if r.Declare != nil {
		declared = r.Declare.Type
	}
	if r.Queue == "" {
		return declared, "", nil
	}
	switch {
	case v.Management != nil:
		info, found, err := v.Management.Queue(ctx, r.Queue)
		if err != nil {
			return "", "", fmt.Errorf("look at queue %q: %w", r.Queue, err)
		}
		if !found {
			return declared, "", nil
		}
		kind = info.Type
		refuses, _ = info.Refuses()
	case v.Connection != nil && r.Mechanism == Auto && v.Capabilities.AtLeast(nativeFrom), v.Connection != nil && r.Mechanism == Native:
		kind, err = topology.QueueType(ctx, v.Connection, nil, r.Queue)
		if errors.Is(err, topology.ErrMissing) {
			return declared, "", nil
		}
		if err != nil {
			return "", "", err
		}
	}
	if kind == "stream" {
		return kind, "", &ConfigError{
			Field: "queue", Value: r.Queue,
			Fix: "use a classic or quorum queue: a stream cannot take a message back for one consumer alone",
		}
	}
	return kind, refuses, nil
}
