package delay

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/topology"
)

// PluginLongest is the longest delay that the delayed-message plugin holds:
// 4,294,967,295 ms, some 49 days. What is longer it does not hold at all, but
// delivers at once.
const PluginLongest = 4_294_967_295 * time.Millisecond

// PluginType is the exchange type that the plugin brings. A broker without it
// refuses to declare such an exchange, and 3.10 ends the connection over it.
const PluginType = "x-delayed-message"

// PluginCost says what a route gives up by waiting in the plugin, for people.
const PluginCost = "each waiting message is one copy on one node, lost with that node; " +
	"the broker confirms it unseen (no mandatory), so a binding that goes missing is noticed by a check every few seconds and not by the publish, " +
	"and when its time is over it goes to the work queue without a confirm: " +
	"what comes due while its node starts is lost where that is a quorum queue, which has no leader yet; " +
	"at most 4294967295 ms; the plugin was archived on 2026-01-29 and does not run on RabbitMQ 4.3"

// Plugin holds messages in the exchange of the plugin
// rabbitmq_delayed_message_exchange: any delay to the millisecond, one hop, no
// delay queues. The exchange is a fanout in front of the way back, so any
// routing key passes and survives.
//
// A confirm of it says nothing: a message is confirmed also when no binding
// leads on, and is then lost when its time is over. So the binding that
// [Plugin.Way] names has to be verified before the exchange is used. There is no
// alternate exchange to catch it: the plugin reports every message that it holds
// as unroutable, so a copy would leave through that at once (measured on 3.10.8).
// For the same reason a mandatory message always comes back as returned.
type Plugin struct{ names Names }

// NewPlugin makes the mechanism. With an Owner in names, the exchange is the
// route's own.
func NewPlugin(names Names) *Plugin { return &Plugin{names: names} }

// Name is "plugin".
func (p *Plugin) Name() string { return "plugin" }

// Hold rounds up to a whole millisecond, at least one: the plugin delivers what
// has none at once. There is no other place for what is to be avoided.
func (p *Plugin) Hold(r Request) Hold {
	d := min(max(r.Delay, time.Millisecond), PluginLongest)
	if rest := d % time.Millisecond; rest > 0 {
		d += time.Millisecond - rest
	}
	return Hold{Exchange: p.exchange(), Delay: d, XDelay: d.Milliseconds()}
}

// Slots is empty: there are no delay queues.
func (p *Plugin) Slots() []time.Duration { return nil }

// Topology is the exchange and the way back.
func (p *Plugin) Topology() topology.Topology {
	return topology.Topology{
		Exchanges: []topology.Exchange{{
			Name: p.exchange(), Kind: PluginType, Args: amqp.Table{"x-delayed-type": "fanout"},
		}},
		Bindings: []topology.Binding{p.Way()},
	}
}

// Way is the binding that leads on from the exchange. Without it all that waits
// is lost as its time comes.
func (p *Plugin) Way() topology.Binding {
	return topology.Binding{Source: p.exchange(), Destination: p.names.back(), ToExchange: true}
}

func (p *Plugin) exchange() string { return p.names.base() + ".delay.plugin" }
