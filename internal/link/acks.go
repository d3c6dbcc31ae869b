package link

import (
	"slices"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Acks acknowledges the deliveries of one channel. Tags that became ready
// together go out as runs: one frame acknowledges all that are ready from the
// oldest on, where a frame each would cost a write and, on a quorum queue, a
// log entry each. Nothing waits for a run to grow.
//
// It belongs to one channel for good. A tag means nothing on another channel,
// or the wrong message.
type Acks struct {
	ack   func(tag uint64, multiple bool) error
	done  <-chan struct{}
	ended chan struct{}
	wake  chan struct{}

	mu      sync.Mutex
	ready   []uint64
	skipped []uint64 // settled in another way
	closing bool

	// Of the goroutine alone. What is kept is the gaps and not the rest, since
	// the prefetch bounds the gaps alone: behind one handler that hangs any
	// number of messages may pass.
	low  uint64              // every tag up to here is acknowledged
	high uint64              // no tag above was acknowledged
	open map[uint64]struct{} // between them, delivered and not acknowledged
}

// NewAcks acknowledges on ch until done is closed or Close is called.
func NewAcks(ch *amqp.Channel, done <-chan struct{}) *Acks {
	return newAcks(ch.Ack, done)
}

func newAcks(ack func(uint64, bool) error, done <-chan struct{}) *Acks {
	a := &Acks{
		ack: ack, done: done, ended: make(chan struct{}),
		wake: make(chan struct{}, 1), open: map[uint64]struct{}{},
	}
	go a.run()
	return a
}

// Ack acknowledges a delivery soon. Each tag may be given once.
func (a *Acks) Ack(tag uint64) {
	a.mu.Lock()
	a.ready = append(a.ready, tag)
	a.mu.Unlock()
	a.poke()
}

// Skip says that a delivery was settled in another way. Each tag is given once, to
// Ack or to Skip.
func (a *Acks) Skip(tag uint64) {
	a.mu.Lock()
	a.skipped = append(a.skipped, tag)
	a.mu.Unlock()
	a.poke()
}

// Close sends what is ready and returns when it is written.
func (a *Acks) Close() {
	a.mu.Lock()
	a.closing = true
	a.mu.Unlock()
	a.poke()
	<-a.ended
}

func (a *Acks) poke() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

func (a *Acks) run() {
	defer close(a.ended)
	var batch []uint64
	for {
		select {
		case <-a.done:
			return
		case <-a.wake:
		}
		a.mu.Lock()
		batch, a.ready = a.ready, batch[:0]
		skipped := a.skipped
		a.skipped = nil
		closing := a.closing
		a.mu.Unlock()
		a.note(skipped)
		if a.send(batch) != nil || closing {
			return
		}
	}
}

// send acknowledges the run that begins at the oldest open delivery with one
// frame, and the rest one by one: they must not wait for a slow handler in
// front of them.
func (a *Acks) send(batch []uint64) error {
	a.note(batch)
	run := uint64(0) // the last tag of the run that is in this batch
	for _, tag := range batch {
		if tag <= a.low {
			// A tag that went out before must not be named again: the broker
			// would close the channel. One of this batch is still open.
			run = tag
		}
	}
	if run > 0 {
		if err := a.ack(run, true); err != nil {
			return err
		}
	}
	for _, tag := range batch {
		if tag > run {
			if err := a.ack(tag, false); err != nil {
				return err
			}
		}
	}
	return nil
}

// note takes tags, which it sorts, for done.
func (a *Acks) note(tags []uint64) {
	slices.Sort(tags)
	for _, tag := range tags {
		delete(a.open, tag)
		for ; a.high < tag; a.high++ {
			if between := a.high + 1; between < tag {
				a.open[between] = struct{}{}
			}
		}
	}
	for a.low < a.high {
		if _, ok := a.open[a.low+1]; ok {
			break
		}
		a.low++
	}
}
