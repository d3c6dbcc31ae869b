package attach

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/hopback/hopback/internal/arguments"
	"github.com/hopback/hopback/topology"
)

const (
	quorum  = "quorum"
	classic = "classic"
	stream  = "stream"

	argDLX      = "x-dead-letter-exchange"
	argKey      = "x-dead-letter-routing-key"
	keyDLX      = "dead-letter-exchange"
	keyKey      = "dead-letter-routing-key"
	keyStrategy = "dead-letter-strategy"
	keyOverflow = "overflow"
)

// survey is what was seen of a virtual host. It is a value: plans are made of it
// without a broker.
type survey struct {
	prefix    string
	vhost     string
	version   string
	queues    map[string]*queue
	exchanges map[string]*exchange
	bindings  []binding // without those of the default exchange
	policies  []topology.PolicyInfo
	operators []topology.PolicyInfo
	// operatorsUnread says that the account may not read those.
	operatorsUnread bool
	missing         topology.Plan // of what a router needs
}

// queue is a queue as the management API shows it.
type queue struct {
	Name       string `json:"name"`
	Type       string `json:"type"`
	Durable    bool   `json:"durable"`
	AutoDelete bool   `json:"auto_delete"`
	Exclusive  bool   `json:"exclusive"`
	Args       table  `json:"arguments"`
	// PolicyName is that of the policy that the queue goes by.
	PolicyName string `json:"policy"`
	// Operator is the name of the operator policy, and Effective what the two say
	// together. Both are found here: the broker tells them with its statistics only.
	Operator  string `json:"-"`
	Effective table  `json:"-"`
	operator  table
	figures
}

// figures are some seconds old, and nil while the broker has none.
type figures struct {
	Consumers *int64 `json:"consumers"`
	Ready     *int64 `json:"messages_ready"`
	Unacked   *int64 `json:"messages_unacknowledged"`
	// DeadLettering is what a quorum queue has handed to its dead-letter worker.
	DeadLettering *int64 `json:"messages_dlx"`
	Delayed       *int64 `json:"messages_delayed"`
}

// seen is what the statistics say about a queue.
type seen struct {
	Name      string `json:"name"`
	Operator  string `json:"operator_policy"`
	Effective table  `json:"effective_policy_definition"`
	figures
}

type exchange struct {
	Name       string `json:"name"`
	Type       string `json:"type"`
	Args       table  `json:"arguments"`
	PolicyName string `json:"policy"`
}

type binding struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
	Kind        string `json:"destination_type"` // "queue" or "exchange"
	Key         string `json:"routing_key"`
	Args        table  `json:"arguments"`
	Properties  string `json:"properties_key"`
}

func (b binding) topology() topology.Binding {
	return topology.Binding{Source: b.Source, Destination: b.Destination, ToExchange: b.Kind == "exchange", Key: b.Key, Args: map[string]any(b.Args)}
}

// table is arguments, or the definition of a policy.
type table = arguments.Table

func count(p *int64) int64 {
	if p == nil {
		return 0
	}
	return *p
}

// With disable_stats the broker reads its own tables, in which a policy shows within
// 10 ms, and a message that is rejected then goes by it (3.10.8, 4.0.5 and 4.3.6).
// The statistics show it 8 to 9 s later. They alone have figures.
const (
	recordQuery = "?disable_stats=true&columns=name,type,durable,auto_delete,exclusive,arguments,policy"
	figureQuery = "?columns=name,consumers,messages_ready,messages_unacknowledged,messages_dlx,messages_delayed," +
		"operator_policy,effective_policy_definition"
)

func vhostOf(m *topology.Management) string { return cmp.Or(m.Vhost, "/") }

// look reads a virtual host, in seven requests.
func look(ctx context.Context, m *topology.Management, prefix string) (*survey, error) {
	vhost := vhostOf(m)
	s := &survey{prefix: prefix, vhost: vhost, queues: map[string]*queue{}, exchanges: map[string]*exchange{}}
	var overview struct {
		Version string `json:"rabbitmq_version"`
	}
	var queues []*queue
	var exchanges []*exchange
	var bindings []binding
	var statistics []seen
	for _, r := range []struct {
		into     any
		query    string
		segments []string
	}{
		{&overview, "?columns=rabbitmq_version", []string{"overview"}},
		{&queues, recordQuery, []string{"queues", vhost}},
		{&statistics, figureQuery, []string{"queues", vhost}},
		{&exchanges, "?columns=name,type,arguments,policy", []string{"exchanges", vhost}},
		{&bindings, "?columns=source,destination,destination_type,routing_key,arguments,properties_key", []string{"bindings", vhost}},
	} {
		if err := m.Read(ctx, r.into, r.query, r.segments...); err != nil {
			return nil, fmt.Errorf("look at the broker: %w", err)
		}
	}
	s.version = overview.Version
	for _, q := range queues {
		s.queues[q.Name] = q
	}
	for _, e := range exchanges {
		s.exchanges[e.Name] = e
	}
	for _, b := range bindings {
		if b.Source != "" { // those of the default exchange are no bindings
			s.bindings = append(s.bindings, b)
		}
	}
	var err error
	if s.policies, err = m.Policies(ctx); err != nil {
		return nil, fmt.Errorf("look at the broker's policies, which takes an account with the tag policymaker: %w", err)
	}
	var operators []struct {
		topology.PolicyInfo
		Definition table `json:"definition"`
	}
	if err := m.Read(ctx, &operators, "", "operator-policies", vhost); err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("look at the broker's operator policies: %w", err)
		}
		s.operatorsUnread = true // not every account may
	}
	for _, o := range operators {
		o.PolicyInfo.Definition = o.Definition
		s.operators = append(s.operators, o.PolicyInfo)
	}
	for _, f := range statistics {
		if q := s.queues[f.Name]; q != nil {
			q.figures = f.figures
			if s.operatorsUnread && f.Operator != "" {
				q.Operator, q.operator = f.Operator, f.Effective // with the policy's own, which does no harm
			}
		}
	}
	s.settle()
	return s, nil
}

// settle works out what each queue goes by.
func (s *survey) settle() {
	for _, q := range s.queues {
		if o, _ := highest(s.operators, q, ""); o != nil {
			q.Operator, q.operator = o.Name, o.Definition
		}
		q.Effective = table{}
		if p := s.policy(q.PolicyName); p != nil {
			q.Effective = q.with(p.Definition)
		} else {
			q.Effective = q.with(nil)
		}
	}
}

// with is a policy's definition together with that of the operator policy. Of two
// limits the lower one holds; of anything else what the operator says: from 4.0 on
// that can be overflow, and ends at-least-once without a word (4.0.5 and 4.3.6).
func (q *queue) with(policy map[string]any) table {
	all := table{}
	maps.Copy(all, policy)
	for name, v := range q.operator {
		o, number := q.operator.Integer(name)
		if p, ok := all.Integer(name); ok && number {
			if p > o {
				all[name] = v
			}
			continue
		}
		all[name] = v
	}
	return all
}

// from reports whether the broker is of a version or later.
func (s *survey) from(major, minor int) bool {
	text, _, _ := strings.Cut(s.version, "-")
	parts := strings.SplitN(text, ".", 3)
	if len(parts) < 2 {
		return false
	}
	x, _ := strconv.Atoi(parts[0])
	y, _ := strconv.Atoi(parts[1])
	return x > major || x == major && y >= minor
}

// name is how a binding is called in plans.
func (b binding) name() string {
	n := b.Source + " -> " + b.Destination
	if b.Kind == "exchange" {
		n = b.Source + " -> exchange " + b.Destination
	}
	if b.Key != "" {
		n += fmt.Sprintf(" (key %q)", b.Key)
	}
	return n
}
