package hopback

import (
	"errors"
	"fmt"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/delay"
	"github.com/hopback/hopback/topology"
)

// The mechanisms: how the broker holds a delay. See docs/wheel.md.
const (
	Auto   = "auto"   // the best that the broker offers; says which and why
	Wheel  = "wheel"  // any delay to two significant digits, no plugin
	Ladder = "ladder" // a fixed list of delays
	Plugin = "plugin" // the delayed-message plugin, up to RabbitMQ 4.2; what it costs: delay.PluginCost

	// Native is the broker's own delay to the millisecond, on the work queue
	// itself: RabbitMQ 4.3 and later, quorum queues, over AMQP 1.0.
	Native = "native"

	// NativeLinear is the broker's own retry by policy, from RabbitMQ 4.3.1, for
	// consumers that are not ours: see delay.Linear and RetryPolicy.
	NativeLinear = "native-linear"
)

// The precisions of the wheel.
const (
	PrecisionAuto = delay.Auto
	PrecisionOne  = delay.One
	PrecisionTwo  = delay.Two
)

// Route is a work queue with its policy, mechanism and parking queue.
type Route struct {
	// Queue is the work queue. It is yours: Hopback checks that it exists and
	// changes nothing about it.
	Queue string `yaml:"queue" json:"queue"`

	Policy Policy `yaml:"-" json:"policy"`

	// Mechanism is Auto (the default), Native, Wheel, Ladder, Plugin or
	// NativeLinear.
	Mechanism string `yaml:"mechanism" json:"mechanism"`

	// Ladder lists the delays of the ladder. A retry waits in the shortest that
	// is not shorter than its delay, or in the longest.
	Ladder []time.Duration `yaml:"ladder" json:"ladder,omitempty"`

	// Parking is where messages rest after their last retry. Empty means
	// Queue + ".parked", a quorum queue that Hopback declares. A queue named
	// here that exists already is used as it is. After a change, what is parked
	// goes to the queue of before as well, until its binding is removed:
	// topology.WithUnbind does it.
	Parking string `yaml:"parking" json:"parking"`

	// Isolate gives the route delay slots, or a delayed exchange, of its own. A work queue that can
	// refuse messages (a max-length with overflow reject-publish) needs it: a
	// refused message blocks its slot for three minutes at a time.
	Isolate bool `yaml:"isolate" json:"isolate"`

	// Precision is PrecisionAuto (the default), PrecisionOne or PrecisionTwo
	// significant digits. Wheel only.
	Precision delay.Precision `yaml:"precision" json:"precision"`

	// Declare asks Hopback to create the work queue where it is missing.
	Declare *Declare `yaml:"declare" json:"declare,omitempty"`
}

// Declare describes a work queue to create where it is missing. One that
// exists is left as it is.
type Declare struct {
	Type string `yaml:"type" json:"type"` // "quorum" (the default) or "classic"

	// Exchange, where set, is declared too and bound to the queue.
	Exchange     string `yaml:"exchange" json:"exchange,omitempty"`
	ExchangeType string `yaml:"exchange_type" json:"exchange_type,omitempty"` // "topic" by default
	RoutingKey   string `yaml:"routing_key" json:"routing_key,omitempty"`

	// Args are further arguments of the queue. Integers must be int64.
	Args amqp.Table `yaml:"-" json:"-"`
}

// WithDefaults returns the route with every zero field replaced by its
// default.
func (r Route) WithDefaults() Route {
	r.Policy = r.Policy.WithDefaults()
	if r.Mechanism == "" {
		r.Mechanism = Auto
	}
	if r.Parking == "" && r.Queue != "" {
		r.Parking = r.Queue + ".parked"
	}
	if r.Precision == "" {
		r.Precision = PrecisionAuto
	}
	if r.Declare != nil {
		d := *r.Declare
		if d.Type == "" {
			d.Type = "quorum"
		}
		if d.ExchangeType == "" && d.Exchange != "" {
			d.ExchangeType = "topic"
		}
		r.Declare = &d
	}
	return r
}

// Validate reports every setting that cannot work as a *ConfigError, before
// anything is declared or published.
func (r Route) Validate() error {
	r = r.WithDefaults()
	var errs []error
	check := func(ok bool, field string, value any, fix string) {
		if !ok {
			errs = append(errs, &ConfigError{Field: field, Value: fmt.Sprint(value), Fix: fix})
		}
	}
	check(r.Queue != "", "queue", r.Queue, "name the work queue")
	check(len(r.Queue) <= 255, "queue", r.Queue, "AMQP names have at most 255 bytes")
	check(len(r.Parking) <= 255, "parking", r.Parking, "AMQP names have at most 255 bytes; name a shorter parking queue")
	check(r.Queue == "" || r.Parking != r.Queue, "parking", r.Parking,
		"name another queue: a message parked in its own work queue would loop for ever")
	switch r.Mechanism {
	case Auto, Native, Wheel, Ladder, Plugin:
	case NativeLinear:
		errs = append(errs, r.checkLinear())
	default:
		check(false, "mechanism", r.Mechanism, "use auto, native, wheel, ladder, plugin or native-linear")
	}
	switch r.Precision {
	case PrecisionAuto, PrecisionOne, PrecisionTwo:
	default:
		check(false, "precision", r.Precision, "use auto, one or two")
	}
	if r.Mechanism == Ladder {
		check(len(r.Ladder) > 0, "ladder", r.Ladder, "list at least one delay, such as [1s, 10s, 1m]")
	} else {
		check(len(r.Ladder) == 0, "ladder", r.Ladder, "a list of delays needs mechanism: ladder")
	}
	for i, d := range r.Ladder {
		check(d >= time.Millisecond && d <= delay.Longest, fmt.Sprintf("ladder[%d]", i), d,
			fmt.Sprintf("use delays from 1ms to %s", delay.Longest))
		check(d%time.Millisecond == 0, fmt.Sprintf("ladder[%d]", i), d, "use whole milliseconds")
		check(i == 0 || d > r.Ladder[i-1], fmt.Sprintf("ladder[%d]", i), d, "list the delays in rising order, each once")
	}
	if d := r.Declare; d != nil {
		check(slices.Contains([]string{"quorum", "classic"}, d.Type), "declare.type", d.Type, "use quorum or classic")
		check(d.Exchange == "" || slices.Contains([]string{"direct", "topic", "fanout", "headers"}, d.ExchangeType),
			"declare.exchange_type", d.ExchangeType, "use direct, topic, fanout or headers")
		check(d.Exchange != "" || d.RoutingKey == "", "declare.routing_key", d.RoutingKey,
			"name declare.exchange too, or leave the key out")
	}
	if err := r.Policy.validate(r.longest()); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// longest is the longest delay that the mechanism holds.
func (r Route) longest() (time.Duration, string) {
	if r.Mechanism == Plugin {
		return delay.PluginLongest, "which is 4294967295 ms: the plugin delivers what waits longer at once"
	}
	return delay.Longest, "the longest slot"
}

// DefaultPrefix begins the name of every exchange and queue of ours.
const DefaultPrefix = "hop"

// Topology is everything that the routes need on the broker, as a value: to
// plan, apply, verify or export with package topology. The work queues are in
// it as checks only, unless a route asks to declare them.
func Topology(prefix string, routes ...Route) (topology.Topology, error) {
	if prefix == "" {
		prefix = DefaultPrefix
	}
	var errs []error
	t := sharedTopology(prefix)
	for _, r := range routes {
		r = r.WithDefaults()
		if err := r.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("route %q: %w", r.Queue, err))
			continue
		}
		t = t.Merge(r.topology(prefix))
	}
	if err := errors.Join(errs...); err != nil {
		return topology.Topology{}, err
	}
	return t, t.Validate()
}

// DelayMechanism is what holds this route's delays. The route must be valid.
func (r Route) DelayMechanism(prefix string) delay.Mechanism { return r.mechanism(prefix, nil) }

func (r Route) mechanism(prefix string, load *delay.Load) delay.Mechanism {
	r = r.WithDefaults()
	names := delay.Names{Prefix: prefix}
	if r.Isolate {
		names.Owner = r.Queue
	}
	switch r.Mechanism {
	case Ladder:
		return delay.NewLadder(names, r.Ladder)
	case Native:
		return delay.Native{}
	case Plugin:
		return delay.NewPlugin(names)
	case NativeLinear:
		return r.linear(prefix)
	}
	return delay.NewWheel(names, r.Policy.longest(), r.Precision, load)
}

// quorumArgs are the arguments of a queue of ours that people look into. The
// delivery limit is as good as none, and unlike -1 or its absence that is what
// it means on every broker: 3.10 drops at the first requeue under -1, 4.0 drops
// a message at its 22nd look under the default.
func quorumArgs() amqp.Table {
	return amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1_000_000)}
}

// sharedTopology is what all routes of a prefix share: the way back, the way
// to the parking queues, and the net under both.
func sharedTopology(prefix string) topology.Topology {
	lost := prefix + ".lost"
	return topology.Topology{
		Exchanges: []topology.Exchange{
			{Name: lost, Kind: "fanout"},
			{Name: prefix + ".return", Kind: "headers", Args: amqp.Table{"alternate-exchange": lost}},
			{Name: prefix + ".error", Kind: "direct"},
		},
		Queues:   []topology.Queue{{Name: lost, Args: quorumArgs()}},
		Bindings: []topology.Binding{{Source: lost, Destination: lost}},
	}
}

func (r Route) topology(prefix string) topology.Topology {
	t := topology.Topology{
		Queues: []topology.Queue{
			{Name: r.Queue, User: true},
			// A parking queue named by the user may be one that they have had
			// for years: it is used as it is.
			{Name: r.Parking, Args: quorumArgs(), User: r.Parking != r.Queue+".parked", Declare: true},
		},
		Bindings: []topology.Binding{
			{Source: prefix + ".error", Destination: r.Parking, Key: r.Queue, Sole: true},
			returnBinding(prefix, r.Queue),
		},
	}
	if d := r.Declare; d != nil {
		args := amqp.Table{"x-queue-type": d.Type}
		for k, v := range d.Args {
			args[k] = v
		}
		t.Queues[0].Args, t.Queues[0].Declare = args, true
		if d.Exchange != "" {
			t.Exchanges = append(t.Exchanges, topology.Exchange{Name: d.Exchange, Kind: d.ExchangeType})
			t.Bindings = append(t.Bindings, topology.Binding{Source: d.Exchange, Destination: r.Queue, Key: d.RoutingKey})
		}
	}
	return t.Merge(r.DelayMechanism(prefix).Topology())
}

// returnBinding sends what names the queue in x-retry-queue back to it, and
// nothing else. Plain "all" would ignore the key, since it begins with "x-",
// and send every message to every queue.
func returnBinding(prefix, queue string) topology.Binding {
	return topology.Binding{
		Source: prefix + ".return", Destination: queue,
		Args: amqp.Table{"x-match": "all-with-x", "x-retry-queue": queue},
	}
}
