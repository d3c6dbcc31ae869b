package demo

import (
	"context"
	"errors"
	"sync"
	"time"
)

// dependency is the payment service of one route, played in this process: well
// at first, then silent, then down, then back with limited room.
type dependency struct {
	now func() time.Time

	mu      sync.Mutex
	state   condition
	answer  chan struct{} // closed when the silence ends
	hanging int           // calls that wait for an answer

	// A bucket of tokens: room for so many at once, and as many more a second.
	room   float64
	tokens float64
	filled time.Time

	refused int // by limited room
	failed  int // by the outage
}

type condition int

const (
	well condition = iota
	silent
	down
	limited
)

var (
	errDown       = errors.New("payment service: connection reset by peer")
	errOverloaded = errors.New("payment service: 503 overloaded")
)

// newDependency makes one that will have room for so many calls a second.
func newDependency(room int) *dependency {
	return &dependency{now: time.Now, room: float64(room), answer: make(chan struct{})}
}

// become changes the condition. Calls that hang fail when the silence ends.
func (d *dependency) become(c condition) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state == silent && c != silent {
		close(d.answer)
		d.answer = make(chan struct{})
	}
	d.state = c
	d.tokens, d.filled = d.room, d.now()
}

// call is one request of a handler.
func (d *dependency) call(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch d.state {
	case silent:
		answer := d.answer
		d.hanging++
		d.mu.Unlock()
		var err error
		select {
		case <-answer:
			err = errDown
		case <-ctx.Done():
			err = ctx.Err()
		}
		d.mu.Lock()
		d.hanging--
		d.failed++
		return err
	case down:
		d.failed++
		return errDown
	case limited:
		if !d.take() {
			d.refused++
			return errOverloaded
		}
	}
	return nil
}

// take takes a token if there is one.
func (d *dependency) take() bool {
	now := d.now()
	d.tokens = min(d.room, d.tokens+d.room*now.Sub(d.filled).Seconds())
	d.filled = now
	if d.tokens < 1 {
		return false
	}
	d.tokens--
	return true
}

// waitHanging returns when n calls wait for an answer, or ctx ends.
func (d *dependency) waitHanging(ctx context.Context, n int) error {
	for {
		d.mu.Lock()
		have := d.hanging
		d.mu.Unlock()
		if have >= n {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// counts are the calls that failed by the outage and those refused for room.
func (d *dependency) counts() (failed, refused int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failed, d.refused
}
