package rabbittest

import (
	"bytes"
	"context"
	"fmt"
)

// host is what runs a broker: processes of this machine, or a container engine.
// A host is used by one Broker, which never calls two of its methods at a time
// but ctl and exited.
type host interface {
	// start launches the broker and returns at once.
	start() error
	// exited is closed when the broker that was started last is gone.
	exited() <-chan struct{}
	// term asks the broker to stop and returns at once.
	term(ctx context.Context) error
	// kill ends the broker and all that belongs to it, and returns when nothing
	// of it is left.
	kill() error
	// ctl runs rabbitmqctl and returns its standard output.
	ctl(ctx context.Context, args ...string) ([]byte, error)
	// eval evaluates Erlang expressions in the broker, which must end in ok.
	eval(ctx context.Context, expressions string) error
	// close ends everything and removes what the host has made.
	close() error
}

// evalByCtl is eval through rabbitmqctl, the slow way.
func evalByCtl(ctx context.Context, h host, expressions string) error {
	out, err := h.ctl(ctx, "eval", expressions)
	if err != nil {
		return err
	}
	if got := string(bytes.TrimSpace(out)); got != "ok" {
		return fmt.Errorf("rabbitmqctl eval: %s", got)
	}
	return nil
}
