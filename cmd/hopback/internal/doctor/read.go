package doctor

import (
	"context"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/topology"
)

// Options say what to read beside the broker's own lists.
type Options struct {
	// Prefix of our exchanges and queues. Empty means hopback.DefaultPrefix.
	Prefix string
	// Routes of the configuration, as it has them, to know what is a work queue.
	Routes []hopback.Route
	// Topology is what the routes need, to compare the broker with.
	Topology topology.Topology
	// RetryPolicies are those of routes with the mechanism native-linear, as
	// hopback.Route.RetryPolicy gives them.
	RetryPolicies []topology.Policy
	// Wait is how long queues are watched that look stuck, or as if messages went
	// round in them. Nothing is waited for where none does. 0 does not watch.
	Wait time.Duration
	// Watching, where set, is told the queues that are going to be watched.
	Watching func(queues []string, d time.Duration)
}

// The columns keep the answer small: a broker may have 100,000 queues.
const (
	figureColumns = "consumers,messages_ready,messages_dlx,message_stats.deliver_get," +
		"message_stats.redeliver,message_stats.redeliver_details,message_stats.ack,message_stats.ack_details"
	queueColumns = "name,type,durable,auto_delete,exclusive,arguments,policy,effective_policy_definition," + figureColumns
)

// Read asks a broker for everything that the checks look at. Only GET requests go
// to the management API, and none at all over the AMQP connection, which tells
// product and version.
func Read(ctx context.Context, conn *amqp.Connection, m *topology.Management, o Options) (*Snapshot, error) {
	s := &Snapshot{Vhost: m.Vhost, Prefix: o.Prefix, Routes: o.Routes}
	s.Product, _ = conn.Properties["product"].(string)
	s.Version, _ = conn.Properties["version"].(string)
	if s.Vhost == "" {
		s.Vhost = "/"
	}
	for _, list := range []struct {
		into     any
		query    string
		resource string
	}{
		{&s.Queues, "?columns=" + queueColumns, "queues"},
		{&s.Exchanges, "?columns=name,type,arguments,policy", "exchanges"},
		{&s.Bindings, "?columns=source,destination,destination_type,routing_key,arguments", "bindings"},
	} {
		if err := m.Read(ctx, list.into, list.query, list.resource, s.Vhost); err != nil {
			return nil, err
		}
	}
	if err := s.readMore(ctx, m); err != nil {
		return nil, err
	}
	if err := s.compare(ctx, conn, m, o); err != nil {
		return nil, err
	}
	return s, s.watch(ctx, m, o)
}

// readMore reads what not every account may see. What it may not is noted.
func (s *Snapshot) readMore(ctx context.Context, m *topology.Management) error {
	var overview struct {
		Types []struct {
			Name string `json:"name"`
		} `json:"exchange_types"`
	}
	for _, more := range []struct {
		into     any
		query    string
		segments []string
		what     string
	}{
		{&overview, "?columns=exchange_types", []string{"overview"}, "exchange types"},
		{&s.Policies, "", []string{"policies", s.Vhost}, "policies"},
		{&s.Consumers, "", []string{"consumers", s.Vhost}, "consumers"},
	} {
		err := m.Read(ctx, more.into, more.query, more.segments...)
		if ctx.Err() != nil {
			return fmt.Errorf("read %s: %w", more.what, ctx.Err())
		}
		if err != nil {
			s.Unseen = append(s.Unseen, fmt.Sprintf("%s could not be read: %v", more.what, err))
		}
	}
	for _, t := range overview.Types {
		s.ExchangeTypes = append(s.ExchangeTypes, t.Name)
	}
	return nil
}

// compare makes the plan of what the configuration's routes need.
func (s *Snapshot) compare(ctx context.Context, conn *amqp.Connection, m *topology.Management, o Options) (err error) {
	if len(s.Routes) == 0 {
		return nil
	}
	s.Drift, err = topology.MakePlan(ctx, conn, m, o.Topology)
	if err != nil {
		return fmt.Errorf("compare the broker with the configuration: %w", err)
	}
	for _, p := range o.RetryPolicies {
		plan, err := m.PlanPolicy(ctx, p)
		if err != nil {
			if ctx.Err() != nil {
				return fmt.Errorf("compare the broker's policies with the configuration: %w", err)
			}
			s.Unseen = append(s.Unseen, fmt.Sprintf("the policy %s could not be compared: %v", p.Name, err))
			continue
		}
		s.Drift.Differences = append(s.Drift.Differences, plan.Differences...)
	}
	return nil
}

const (
	mostWatched = 20 // queues: each is a request a step
	watchStep   = 2500 * time.Millisecond
)

// watch looks at suspicious queues again and again.
func (s *Snapshot) watch(ctx context.Context, m *topology.Management, o Options) error {
	names := Suspicious(s)
	if len(names) == 0 || o.Wait <= 0 {
		return nil
	}
	if len(names) > mostWatched {
		s.Unseen = append(s.Unseen, fmt.Sprintf("%d queues look as if they were stuck or looping; the first %d were watched", len(names), mostWatched))
		names = names[:mostWatched]
	}
	if o.Watching != nil {
		o.Watching(names, o.Wait)
	}
	start := time.Now()
	first := Sample{At: start, Queues: map[string]Figures{}}
	for _, q := range s.Queues {
		for _, n := range names {
			if q.Name == n {
				first.Queues[n] = q.Figures
			}
		}
	}
	s.Samples = []Sample{first}
	for left := o.Wait; left > 0; left = o.Wait - time.Since(start) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("watch queues: %w", ctx.Err())
		case <-time.After(min(left, watchStep)):
		}
		next := Sample{At: time.Now(), Queues: map[string]Figures{}}
		for _, n := range names {
			var f Figures
			if err := m.Read(ctx, &f, "?columns="+figureColumns, "queues", s.Vhost, n); err != nil {
				if ctx.Err() != nil {
					return fmt.Errorf("watch queues: %w", ctx.Err())
				}
				continue // it is gone, which is no fault of a queue
			}
			next.Queues[n] = f
		}
		s.Samples = append(s.Samples, next)
	}
	return nil
}
