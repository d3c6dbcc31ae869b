package rabbittest

import (
	"context"
	"fmt"
	"net"
	"net/url"

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
	_, err := b.Ctl(ctx, "eval", set+`,
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
	if b.o.NoManagement {
		if _, err := b.Ctl(ctx, "close_all_connections", "--global", "closed by rabbittest"); err != nil {
			return fmt.Errorf("closing all connections: %w", err)
		}
		return nil
	}
	// By user, since that list is the broker's own and is exact at once; the list
	// of /api/connections shows a connection only seconds after it was opened.
	var users []struct {
		Name string `json:"name"`
	}
	if err := b.Get(ctx, "/api/users?disable_stats=true", &users); err != nil {
		return fmt.Errorf("closing all connections: %w", err)
	}
	for _, u := range users {
		if err := b.Delete(ctx, "/api/connections/username/"+url.PathEscape(u.Name)); err != nil {
			return fmt.Errorf("closing the connections of user %q: %w", u.Name, err)
		}
	}
	return nil
}
