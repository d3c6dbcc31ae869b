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

// Resolve replaces what routes leave open by what the broker needs: the
// mechanism where it is Auto, and slots of its own for a work queue that can
// refuse messages. The latter is only visible to the management API; m may be
// nil, then routes are isolated where they ask for it.
func Resolve(ctx context.Context, m *topology.Management, routes ...Route) ([]Route, []Decision, error) {
	resolved := make([]Route, len(routes))
	decisions := make([]Decision, len(routes))
	var errs []error
	for i, r := range routes {
		r = r.WithDefaults()
		d := Decision{Queue: r.Queue, Mechanism: r.Mechanism, Why: "named by the route"}
		if r.Mechanism == Auto {
			r.Mechanism = Wheel
			d.Mechanism, d.Why = Wheel, "any delay on any broker, without a plugin"
		}
		if m != nil && r.Queue != "" {
			setting, err := refuses(ctx, m, r.Queue)
			if err != nil {
				errs = append(errs, err)
			}
			if setting != "" {
				r.Isolate, d.IsolatedWhy = true, setting
			}
		}
		d.Isolated = r.Isolate
		resolved[i], decisions[i] = r, d
	}
	return resolved, decisions, errors.Join(errs...)
}

func refuses(ctx context.Context, m *topology.Management, queue string) (string, error) {
	info, found, err := m.Queue(ctx, queue)
	switch {
	case err != nil:
		return "", fmt.Errorf("look at queue %q: %w", queue, err)
	case !found:
		return "", nil
	case info.Type == "stream":
		return "", &ConfigError{
			Field: "queue", Value: queue,
			Fix: "use a classic or quorum queue: a stream cannot take a message back for one consumer alone",
		}
	}
	setting, _ := info.Refuses()
	return setting, nil
}
