package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hopback/hopback"
)

// ledger counts every message by its message id:
// sent = handled + waiting + parked + lost, and nothing is missing.
type ledger struct {
	mu       sync.Mutex
	sent     map[string]bool
	handled  map[string]int   // how often the handler returned nil
	attempts map[string][]int // the number of each run, in order
	within   time.Duration    // how long account looks for what is missing
}

func newLedger() *ledger {
	return &ledger{sent: map[string]bool{}, handled: map[string]int{}, attempts: map[string][]int{}, within: patience}
}

// send publishes n messages with ids of their own to a queue.
func (l *ledger) send(w *world, queue string, n int) {
	w.t.Helper()
	var ids []string
	l.mu.Lock()
	for range n {
		id := fmt.Sprintf("%s-%d", queue, len(l.sent))
		l.sent[id] = true
		ids = append(ids, id)
	}
	l.mu.Unlock()
	for chunk := range slices.Chunk(ids, 1000) {
		w.send(queue, chunk...)
	}
}

// handler notes every run of h and its success.
func (l *ledger) handler(h hopback.Handler) hopback.Handler {
	return hopback.HandlerFunc(func(ctx context.Context, m *hopback.Message) error {
		l.mu.Lock()
		l.attempts[m.MessageID] = append(l.attempts[m.MessageID], m.Attempt)
		l.mu.Unlock()
		err := h.Handle(ctx, m)
		if err == nil {
			l.mu.Lock()
			l.handled[m.MessageID]++
			l.mu.Unlock()
		}
		return err
	})
}

// handledCount is how many different messages were handled.
func (l *ledger) handledCount() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.handled)
}

// totals is what became of all messages. Each is counted once, in the order
// handled, parked, lost, waiting.
type totals struct {
	Sent, Handled, Waiting, Parked, Lost int

	Missing    []string // ids that are nowhere
	Duplicates []string // ids that were handled twice, or are also somewhere
}

func (s totals) String() string {
	return fmt.Sprintf("sent %d = handled %d + waiting %d + parked %d + lost %d + missing %d; duplicates %d",
		s.Sent, s.Handled, s.Waiting, s.Parked, s.Lost, len(s.Missing), len(s.Duplicates))
}

// account looks for every message and empties every queue of the world. Stop
// the consumers before. A message that a slot's dead-letter worker holds shows
// up after a while, so what is missing is looked for until patience ends.
func (l *ledger) account(w *world) totals {
	w.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	found := map[string][]string{} // id: the kinds of queue that it was in
	at := func(id string) bool { return l.handled[id] > 0 || len(found[id]) > 0 }
	for deadline := time.Now().Add(l.within); ; time.Sleep(100 * time.Millisecond) {
		for _, q := range w.queues() {
			kind := "waiting"
			switch {
			case w.parking[q.Name]:
				kind = "parked"
			case w.prefix[strings.TrimSuffix(q.Name, ".lost")]:
				kind = "lost"
			}
			for _, d := range w.drain(q.Name) {
				found[d.MessageId] = append(found[d.MessageId], kind)
			}
		}
		missing := false
		for id := range l.sent {
			missing = missing || !at(id)
		}
		if !missing || time.Now().After(deadline) {
			break
		}
	}
	s := totals{Sent: len(l.sent)}
	for id := range l.sent {
		in := found[id]
		switch {
		case l.handled[id] > 0:
			s.Handled++
		case slices.Contains(in, "parked"):
			s.Parked++
		case slices.Contains(in, "lost"):
			s.Lost++
		case len(in) > 0:
			s.Waiting++
		default:
			s.Missing = append(s.Missing, id)
		}
		if l.handled[id]+len(in) > 1 {
			s.Duplicates = append(s.Duplicates, id)
		}
	}
	for id := range found {
		if !l.sent[id] {
			w.t.Errorf("message %q was never sent", id)
		}
	}
	return s
}

// check accounts for every message and fails the test when one is missing.
func (l *ledger) check(w *world) totals {
	w.t.Helper()
	s := l.account(w)
	w.t.Log(s)
	if len(s.Missing) > 0 {
		w.t.Errorf("missing: %v", s.Missing[:min(20, len(s.Missing))])
	}
	return s
}

// The ledger itself is checked: one that cannot find a loss proves nothing.
func TestLedgerFindsLossAndDuplicate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.declare("work", "quorum")
	l := newLedger()
	l.within = 0
	l.send(w, "work", 3)
	l.handled["work-0"] = 1
	l.sent["gone"] = true
	s := l.account(w)
	if s.Sent != 4 || s.Waiting != 2 || s.Handled != 1 || !slices.Equal(s.Missing, []string{"gone"}) || !slices.Equal(s.Duplicates, []string{"work-0"}) {
		t.Errorf("work-0 was handled and is still there, and another is gone: %v: missing %v, duplicates %v", s, s.Missing, s.Duplicates)
	}
}
