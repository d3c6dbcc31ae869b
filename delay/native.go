package delay

import (
	"time"

	"github.com/hopback/hopback/topology"
)

// Native is the mechanism of RabbitMQ 4.3 and later: the work queue holds the
// message itself, to the millisecond, after one settlement over AMQP 1.0.
// Nothing is published, so a Hold names no exchange, and nothing is declared.
type Native struct{}

// Name is "native".
func (Native) Name() string { return "native" }

// Hold rounds up to whole milliseconds.
func (Native) Hold(r Request) Hold {
	return Hold{Delay: max(r.Delay+time.Millisecond-1, 0).Truncate(time.Millisecond)}
}

// Slots is empty: there are none.
func (Native) Slots() []time.Duration { return nil }

// Topology is empty.
func (Native) Topology() topology.Topology { return topology.Topology{} }
