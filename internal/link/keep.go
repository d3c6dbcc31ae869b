package link

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/backoff"
)

// ErrClosed is returned once the connection was closed by us.
var ErrClosed = errors.New("connection closed by this client")

// redial is how long to wait before connection attempt n: soon at first, never
// in step with other clients, for ever.
var redial = backoff.Schedule{
	Base: 100 * time.Millisecond, Max: 15 * time.Second, MinDelay: 50 * time.Millisecond, Jitter: backoff.Equal,
}.WithDefaults()

// Kept is a connection that is kept open, over whichever protocol: the session of
// the moment, and why there is none. S is a pointer to a session.
type Kept[S comparable] struct {
	to string // in errors, such as "connect to the broker"

	mu        sync.Mutex
	session   S             // nil while down
	changed   chan struct{} // closed and replaced at every change
	err       error         // why it is down
	connected bool          // was ever up
}

// Begin begins without a session. It comes before everything else.
func (k *Kept[S]) Begin(to string) { k.to, k.changed = to, make(chan struct{}) }

// Session waits for the connection to be up. Before it was ever up, an error
// that waiting does not mend is returned instead: a refused password, an
// unknown virtual host.
func (k *Kept[S]) Session(ctx context.Context) (S, error) {
	var none S
	for {
		k.mu.Lock()
		s, err, connected, changed := k.session, k.err, k.connected, k.changed
		k.mu.Unlock()
		if s != none {
			return s, nil
		}
		if errors.Is(err, ErrClosed) || (!connected && Refused(err)) {
			return none, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if err != nil {
				return none, fmt.Errorf("%s: %w (last error: %w)", k.to, context.Cause(ctx), err)
			}
			return none, fmt.Errorf("%s: %w", k.to, context.Cause(ctx))
		}
	}
}

// Err is why the connection is down; nil while it is up.
func (k *Kept[S]) Err() error {
	var none S
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.session != none {
		return nil
	}
	if k.err != nil {
		return k.err
	}
	return errors.New("not connected yet")
}

// Current is the session of the moment, nil while down.
func (k *Kept[S]) Current() S {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.session
}

// Up notes a session.
func (k *Kept[S]) Up(s S) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.session, k.err, k.connected = s, nil, true
	k.notify()
}

// Down notes why there is none.
func (k *Kept[S]) Down(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lower(err)
}

func (k *Kept[S]) lower(err error) {
	var none S
	k.session, k.err = none, err
	k.notify()
}

func (k *Kept[S]) notify() {
	close(k.changed)
	k.changed = make(chan struct{})
}

// Keeping is how a connection is kept open.
type Keeping[S any] struct {
	URLs        []string // tried in turn
	Purpose     string
	Logger      *slog.Logger
	OnReconnect func(down time.Duration)

	Dial func(ctx context.Context, url string) (S, error)
	Up   func(S)
	Cut  func(S) // ends it without a handshake
	// Live follows a session to its end. It says why, and whether we cut it.
	Live func(context.Context, S) (cut bool, err error)
	// Down is told of the end of a session, and of what could not be dialled, with
	// the zero S.
	Down func(S, error)
}

// Keep dials, and dials again for ever, until ctx ends.
func (k Keeping[S]) Keep(ctx context.Context) {
	var none S
	defer k.Down(none, ErrClosed)
	var lost time.Time // when the last session ended
	node := 0          // moves on at every loss, so that a node that went bad is left
	short := int64(0)  // sessions in a row that ended as soon as they began
	for try := int64(1); ctx.Err() == nil; try++ {
		s, err := k.Dial(ctx, k.URLs[node%len(k.URLs)])
		if err != nil {
			node++
			k.Down(none, err)
			wait := redial.Delay(try, 0, backoff.Random())
			k.Logger.Warn("cannot connect to the broker", "connection", k.Purpose, "try", try, "next_in", wait, "error", err)
			Sleep(ctx, wait)
			continue
		}
		began := time.Now()
		k.Up(s)
		if ctx.Err() != nil {
			k.Cut(s) // Close came meanwhile, and may have seen no session to close
		}
		if !lost.IsZero() {
			k.Logger.Info("connected to the broker again", "connection", k.Purpose, "down", time.Since(lost))
			k.OnReconnect(time.Since(lost))
		}
		cut, err := k.Live(ctx, s)
		lost = time.Now()
		node++
		k.Down(s, err)
		if ctx.Err() == nil {
			k.Logger.Warn("lost the connection to the broker", "connection", k.Purpose, "error", err)
			// A broker that accepts and closes at once must not be hammered.
			if short++; lost.Sub(began) > time.Second || cut {
				short = 1
			}
			Sleep(ctx, redial.Delay(min(short, 4), 0, backoff.Random())) // up to 0.8 s
		}
		try = 0
	}
}

// Refused tells the errors that no waiting mends.
func Refused(err error) bool {
	var e *amqp.Error
	return errors.As(err, &e) && (e.Code == amqp.AccessRefused || e.Code == amqp.NotAllowed)
}

// Sleep waits, or for the end of ctx.
func Sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
