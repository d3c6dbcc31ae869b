package router

import (
	"time"

	"github.com/hopback/hopback"
)

// Observer hears of what a router does beside what every hopback.Observer hears.
// Embed NopObserver and write the methods you need; later versions may add more.
// The methods must be quick and safe for concurrent use.
type Observer interface {
	hopback.Observer
	// HandedOff: a failed message is safe where it goes, and was acknowledged.
	HandedOff(HandedOff)
	// Held: a hand-off was refused again and again, and the message moved aside.
	Held(Held)
	// Undecodable: a message ended the connection, since this client cannot read it.
	Undecodable(Undecodable)
}

// HandedOff is told once for each message.
type HandedOff struct {
	Queue string        // work queue; the router's own where no route takes the message
	Took  time.Duration // from the delivery to the confirm
}

// Held is told when a message is safe aside. It comes back in half a minute.
type Held struct {
	hopback.Event
	Source string // work queue; the router's own where no route takes the message
	Err    error  // why its hand-off was refused
}

// Undecodable is told each time.
type Undecodable struct {
	Queue string // that was read, "hop.failed"
	Err   error
}

// NopObserver does nothing. Embed it in an Observer of yours.
type NopObserver struct{ hopback.NopObserver }

// HandedOff does nothing.
func (NopObserver) HandedOff(HandedOff) {}

// Held does nothing.
func (NopObserver) Held(Held) {}

// Undecodable does nothing.
func (NopObserver) Undecodable(Undecodable) {}

var _ Observer = NopObserver{}
