package rabbittest

import (
	"context"
	"fmt"
	"net"

	amqp "github.com/rabbitmq/amqp091-go"
)

// dial opens an AMQP connection as guest, giving up with the context.
func (b *Broker) dial(ctx context.Context, vhost string) (*amqp.Connection, error) {
	return amqp.DialConfig(b.URL(), amqp.Config{
		Vhost: vhost,
		Dial: func(network, addr string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		},
	})
}

// MemoryAlarm raises the broker's memory alarm, or clears it: every connection
// that publishes is blocked (connection.blocked), and nothing that it sends is
// read any more, acknowledgements included. The call returns when the alarm is
// set, or gone. A restart clears the alarm too.
func (b *Broker) MemoryAlarm(ctx context.Context, on bool) error {
	set, want := "vm_memory_monitor:set_vm_memory_high_watermark(0.000001)", "true"
	if !on {
		// The running node's own setting, whatever the configuration says.
		set, want = "{ok, Limit} = application:get_env(rabbit, vm_memory_high_watermark), vm_memory_monitor:set_vm_memory_high_watermark(Limit)", "false"
	}
	err := b.host.eval(ctx, set+`,
		Wait = fun(Wait) ->
			On = lists:any(fun({{resource_limit, memory, _}, _}) -> true; (_) -> false end, rabbit_alarm:get_alarms()),
			case On of `+want+` -> ok; _ -> timer:sleep(20), Wait(Wait) end
		end,
		Wait(Wait).`)
	if err != nil {
		return fmt.Errorf("switching the memory alarm: %w", err)
	}
	return nil
}

// CloseConnections has the broker close every client connection there is, as an
// operator would: clients get connection.close with reply code 320
// (CONNECTION_FORCED). It does not keep them from connecting again.
func (b *Broker) CloseConnections(ctx context.Context) error {
	// Not through the management API: its list of connections is seconds late.
	// The sync lets connections that are just being opened into the broker's list.
	err := b.host.eval(ctx, `pg_local:sync(), rabbit_networking:close_all_connections("closed by rabbittest"), ok.`)
	if err != nil {
		return fmt.Errorf("closing all connections: %w", err)
	}
	return nil
}
