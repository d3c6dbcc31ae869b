// Package topology describes exchanges, queues and bindings as values and
// brings a broker into line with them: plan, apply, verify, export.
package topology

import (
	"context"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Exchange is a durable exchange.
type Exchange struct {
	Name string
	Kind string
	Args amqp.Table
}

// Queue is a durable queue.
type Queue struct {
	Name    string
	Args    amqp.Table
	User    bool
	Declare bool
}

// Binding leads messages from an exchange to a queue or to another exchange.
type Binding struct {
	Source      string
	Destination string
	ToExchange  bool
	Key         string
	Args        amqp.Table
}

// Topology is a set of exchanges, queues and bindings.
type Topology struct {
	Exchanges []Exchange
	Queues    []Queue
	Bindings  []Binding
}

// Merge returns the union of t and others.
func (t Topology) Merge(others ...Topology) Topology { return t }

// Validate reports what no broker could hold.
func (t Topology) Validate() error { return nil }

// Definitions returns t as RabbitMQ definitions JSON.
func (t Topology) Definitions(vhost string) ([]byte, error) { return nil, nil }

// Mermaid returns t as a Mermaid flowchart.
func (t Topology) Mermaid() string { return "" }

// Connection is what this package needs of an *amqp.Connection.
type Connection interface {
	Channel() (*amqp.Channel, error)
}

// Option changes what Apply does.
type Option func(*options)

type options struct{ management *Management }

// WithManagement lets Apply read over HTTP what the broker has.
func WithManagement(m *Management) Option { return func(o *options) { o.management = m } }

// Apply declares what is missing of t.
func Apply(ctx context.Context, c Connection, t Topology, opts ...Option) error { return nil }
