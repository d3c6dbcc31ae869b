package rabbittest

import (
	"context"
	"errors"
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
	// close ends everything and removes what the host has made.
	close() error
}

// errUnsupported is the answer on systems without POSIX processes.
var errUnsupported = errors.New("rabbittest: private brokers need Linux, macOS or another UNIX")
