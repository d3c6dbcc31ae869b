package integration

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/hopback/hopback"
)

// A broker that takes publishes and confirms none, or does not even read them:
// after the confirm timeout the connection is given up, and over a new one the
// hand-offs are made again. Nothing is lost. Where the broker had the messages,
// there are two of each, which can be recognised; where it had not, there is one.
func TestConfirmsNeverCome(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, held string
		copies     int
	}{
		{"confirms are held back", "publish" + toClient, 2},
		{"publishes are held back", "publish" + toBroker, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			aboutSlots(t) // a native retry has no confirm
			eachKind(t, func(t *testing.T, w *world) {
				gate := newGate(t, w.url)
				client := w.newClient(func(cfg *hopback.Config) {
					cfg.URL, cfg.ConfirmTimeout = gate.url(w.url), 2*time.Second
				})
				l := newLedger()
				var mu sync.Mutex
				ids := map[string]map[string]bool{}
				r := w.runConsumerOn(client, hopback.ConsumerConfig{
					Route: quickRoute("work", 3),
					Handler: l.handler(hopback.HandlerFunc(func(_ context.Context, m *hopback.Message) error {
						if m.Attempt == 1 {
							return errCrowd
						}
						mu.Lock()
						defer mu.Unlock()
						if ids[m.MessageID] == nil {
							ids[m.MessageID] = map[string]bool{}
						}
						ids[m.MessageID][m.RetryID] = true
						return nil
					})),
				})
				eventually(t, "the publishing connection is there", func() bool { return gate.count("publish") == 1 })
				gate.hold(c.held, true)
				const n = 20
				l.send(w, "work", n)
				eventually(t, "the connection is given up", func() bool { return gate.count("publish") == 0 })
				gate.hold(c.held, false)
				eventually(t, "all are handled", func() bool { return l.handledCount() == n })
				if c.copies > 1 {
					eventually(t, "the copies come too", func() bool {
						l.mu.Lock()
						defer l.mu.Unlock()
						for _, k := range l.handled {
							if k < c.copies {
								return false
							}
						}
						return true
					})
				}
				if err := r.stop(); err != nil {
					t.Error(err)
				}
				s := l.check(w)
				if want := n * (c.copies - 1); len(s.Duplicates) != want {
					t.Errorf("%d messages are there more than once, want %d", len(s.Duplicates), want)
				}
				for id := range l.sent {
					if l.handled[id] != c.copies || len(ids[id]) != 1 {
						t.Errorf("%s: handled %d times under %d retry ids, want %d times under one", id, l.handled[id], len(ids[id]), c.copies)
					}
				}
				if len(w.events.of("reconnected")) == 0 {
					t.Error("no reconnect was told")
				}
			})
		})
	}
}
