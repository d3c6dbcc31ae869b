package link

import (
	"errors"
	"sync/atomic"
	"time"
)

// Life is one life of a consumer at the broker: a generation. Deliveries belong to
// it, and a settlement after its end is dropped: over AMQP 0-9-1 the same tag is
// another message on the next channel.
type Life struct {
	inFlight  atomic.Int64  // messages between their delivery and their settlement
	stopped   chan struct{} // closed when the broker delivers no more
	done      chan struct{} // closed when nothing can be settled any more, after stopped
	abandoned atomic.Bool   // by a shutdown that ran out of time
	err       error         // why it stopped; read after stopped
}

// NewLife begins one.
func NewLife() *Life { return &Life{stopped: make(chan struct{}), done: make(chan struct{})} }

// Over ends a life, which stops and is done at once. It is called once.
func (l *Life) Over(err error) {
	l.stop(err)
	close(l.done)
}

func (l *Life) stop(err error) {
	l.err = err
	close(l.stopped)
}

// lastWords is how long the reason of an end may take that amqp091-go tells a
// moment after the deliveries stop.
const lastWords = time.Second

// Stopped is closed when the broker delivers no more.
func (l *Life) Stopped() <-chan struct{} { return l.stopped }

// Done is closed when its channel or link has ended, and with it every delivery
// that is not settled.
func (l *Life) Done() <-chan struct{} { return l.done }

// Why waits for the reason of the end, which may be told a moment after the
// deliveries stop.
func (l *Life) Why() error {
	select {
	case <-l.stopped:
		return l.err
	case <-time.After(lastWords):
		return errors.New("deliveries stopped")
	}
}

// Begin and Finish bracket a message's time in this process.
func (l *Life) Begin() { l.inFlight.Add(1) }

// Finish is the end of what Begin began.
func (l *Life) Finish() { l.inFlight.Add(-1) }

// InFlight is how many messages are between Begin and Finish.
func (l *Life) InFlight() int64 { return l.inFlight.Load() }

// Settled reports whether nothing of it is left to settle. When its channel has
// ended nothing is: what still waits for a confirm then is of no consequence.
func (l *Life) Settled() bool { return l.inFlight.Load() == 0 || !l.Live() }

// Live reports whether a settlement would still reach its message.
func (l *Life) Live() bool {
	if l.abandoned.Load() {
		return false
	}
	select {
	case <-l.done:
		return false
	default:
		return true
	}
}

// Abandon makes all settlements to come void.
func (l *Life) Abandon() { l.abandoned.Store(true) }
