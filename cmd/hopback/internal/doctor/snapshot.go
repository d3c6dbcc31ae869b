package doctor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/internal/arguments"
	"github.com/hopback/hopback/topology"
)

// Snapshot is what was seen of a broker's virtual host, and what is meant to be
// there. It is a value: the checks need no broker.
type Snapshot struct {
	Product string // "RabbitMQ", as the connection's properties have it
	Version string // "4.0.5"
	Vhost   string

	Queues    []*Queue
	Exchanges []*Exchange
	Bindings  []Binding // without those of the default exchange
	Policies  []Policy
	Consumers []Consumer
	// ExchangeTypes are those that the broker offers.
	ExchangeTypes []string

	// Prefix of our exchanges and queues. Empty means hopback.DefaultPrefix.
	Prefix string
	// Routes as the configuration has them, and Drift, in what the broker differs
	// from them. Both are empty without a configuration.
	Routes []hopback.Route
	Drift  topology.Plan

	// Samples are the figures of queues that were watched, oldest first.
	Samples []Sample

	// Unseen says what could not be read, and why.
	Unseen []string
}

// Queue is a queue as the management API shows it.
type Queue struct {
	Name       string `json:"name"`
	Type       string `json:"type"` // "quorum", "classic", "stream"
	Durable    bool   `json:"durable"`
	AutoDelete bool   `json:"auto_delete"`
	Exclusive  bool   `json:"exclusive"`
	Args       Table  `json:"arguments"`
	// Policy is what policies and operator policies say together. PolicyName is
	// that of the policy, which lags by some seconds.
	Policy     Table  `json:"effective_policy_definition"`
	PolicyName string `json:"policy"`
	Figures
}

// Figures are the numbers of a queue. They lag by some seconds, and are nil where
// the broker gathers none.
type Figures struct {
	Consumers *int64 `json:"consumers"`
	Ready     *int64 `json:"messages_ready"`
	// DeadLettering is how many messages wait for the dead-letter worker of a
	// quorum queue.
	DeadLettering *int64       `json:"messages_dlx"`
	Stats         MessageStats `json:"message_stats"`
}

// MessageStats are counters and rates of a queue, zero where there are none.
type MessageStats struct {
	Delivered   int64 `json:"deliver_get"`
	Redelivered int64 `json:"redeliver"`
	Acked       int64 `json:"ack"`

	RedeliverRate Rate `json:"redeliver_details"`
	AckRate       Rate `json:"ack_details"`
}

// Rate is a rate a second.
type Rate struct {
	Rate float64 `json:"rate"`
}

// Sample is what queues looked like at one moment.
type Sample struct {
	At     time.Time
	Queues map[string]Figures
}

// Exchange is an exchange as the management API shows it.
type Exchange struct {
	Name       string `json:"name"`
	Type       string `json:"type"`
	Args       Table  `json:"arguments"`
	PolicyName string `json:"policy"`
}

// Binding leads from an exchange to a queue, or to another exchange.
type Binding struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
	Kind        string `json:"destination_type"` // "queue" or "exchange"
	Key         string `json:"routing_key"`
	Args        Table  `json:"arguments"`
}

func (b Binding) name() string {
	n := b.Source + " -> " + b.Destination
	if b.Key != "" {
		n += fmt.Sprintf(" (key %q)", b.Key)
	}
	return n
}

// Policy is a policy. Operator policies are not read: what they add is in the
// Policy of a Queue.
type Policy struct {
	Name       string `json:"name"`
	Pattern    string `json:"pattern"`
	ApplyTo    string `json:"apply-to"` // "all", "queues", "exchanges", "quorum_queues", …
	Priority   int64  `json:"priority"`
	Definition Table  `json:"definition"`
}

// Consumer is a consumer of a queue.
type Consumer struct {
	Queue struct {
		Name string `json:"name"`
	} `json:"queue"`
	Tag      string `json:"consumer_tag"`
	Acks     bool   `json:"ack_required"`
	Prefetch int64  `json:"prefetch_count"`
	Channel  struct {
		Number     int64  `json:"number"` // only consumers of AMQP 0-9-1 have one
		Connection string `json:"connection_name"`
	} `json:"-"`
	RawChannel json.RawMessage `json:"channel_details"` // an object, or [] when unknown
}

// UnmarshalJSON also takes the empty lists that the API writes for no object.
func (c *Consumer) UnmarshalJSON(data []byte) error {
	type plain Consumer
	if err := json.Unmarshal(data, (*plain)(c)); err != nil {
		return err
	}
	_ = json.Unmarshal(c.RawChannel, &c.Channel)
	return nil
}

// Table holds arguments or the definition of a policy.
type Table = arguments.Table

// UnmarshalJSON also takes the empty list for no statistics.
func (m *MessageStats) UnmarshalJSON(data []byte) error {
	if bytes.HasPrefix(data, []byte("[")) {
		return nil
	}
	type plain MessageStats
	return json.Unmarshal(data, (*plain)(m))
}

func count(p *int64) int64 {
	if p == nil {
		return 0
	}
	return *p
}

// version is the broker's version, and zero where it is unknown or the broker is
// not RabbitMQ, whose versions are the only ones that the checks know about.
func (s *Snapshot) version() (major, minor, patch int) {
	if s.Product != "" && s.Product != "RabbitMQ" {
		return 0, 0, 0
	}
	text, _, _ := strings.Cut(s.Version, "-") // 4.3.0-rc.1
	parts := strings.Split(text, ".")
	number := func(i int) int {
		if i >= len(parts) {
			return 0
		}
		n, _ := strconv.Atoi(parts[i])
		return n
	}
	return number(0), number(1), number(2)
}

// from reports whether the broker is a RabbitMQ of this version or a later one.
func (s *Snapshot) from(major, minor, patch int) bool {
	a, b, c := s.version()
	return a != 0 && (a > major || a == major && (b > minor || b == minor && c >= patch))
}

// before reports whether the broker is a RabbitMQ of an earlier version.
func (s *Snapshot) before(major, minor, patch int) bool {
	a, _, _ := s.version()
	return a != 0 && !s.from(major, minor, patch)
}
