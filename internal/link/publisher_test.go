package link

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/rabbittest"
)

// Every publish learns its own fate, whatever its neighbours' is: confirmed,
// returned, refused. Many at once, so that confirms come as "multiple" and
// returns run ahead of them.
func TestPublisherTellsFatesApart(t *testing.T) {
	noLeaks(t)
	b := rabbittest.Shared(t)
	url := b.Vhost(t)
	p := newPair(t, b, url, url, 20*time.Second)
	p.queue("takes", nil)
	p.queue("full", amqp.Table{"x-max-length": int64(1), "x-overflow": "reject-publish"})
	if err := p.publish("", "full", message(0)); err != nil {
		t.Fatalf("fill the queue: %v", err)
	}

	wants := map[string]error{"takes": nil, "full": ErrNacked, "nobody": ErrReturned}
	keys := []string{"takes", "full", "nobody"}
	r := rand.New(rand.NewPCG(1, 1))
	const n = 3000
	var all sync.WaitGroup
	var mu sync.Mutex
	confirmed, wrong := 0, 0
	for i := 1; i <= n; i++ {
		key := keys[r.IntN(3)]
		msg := message(i)
		msg.Headers = amqp.Table{attempt.HeaderID: fmt.Sprint(r.IntN(n)), attempt.HeaderCount: int32(r.IntN(3))}
		all.Add(1)
		p.pub.Publish(&Publication{Exchange: "", Key: key, Msg: msg, Done: func(err error) {
			defer all.Done()
			mu.Lock()
			defer mu.Unlock()
			if !errors.Is(err, wants[key]) {
				if wrong++; wrong < 10 {
					t.Errorf("publish %d to %q: %v, want %v", i, key, err, wants[key])
				}
			}
			if err == nil {
				confirmed++
			}
		}})
	}
	all.Wait()
	if got := len(p.drain("takes")); got != confirmed {
		t.Errorf("%d messages in the queue, %d were confirmed", got, confirmed)
	}
	if got := len(p.drain("full")); got != 1 {
		t.Errorf("%d messages in the full queue, want 1", got)
	}
	if p.told.reconnects.Load() != 0 {
		t.Errorf("%d reconnects", p.told.reconnects.Load())
	}
}

// A flood of returns, more than may be in flight at once: not one of them may
// pass for confirmed. The broker sends the returns at once and puts the
// confirms off until its channel has nothing else to do.
func TestPublisherFloodOfReturns(t *testing.T) {
	noLeaks(t)
	b := rabbittest.Shared(t)
	url := b.Vhost(t)
	p := newPair(t, b, url, url, 20*time.Second)
	const n = 3 * inFlight
	var all sync.WaitGroup
	var mu sync.Mutex
	fates := map[string]int{}
	for i := range n {
		all.Add(1)
		p.pub.Publish(&Publication{Key: "nobody", Msg: message(i), Done: func(err error) {
			defer all.Done()
			mu.Lock()
			defer mu.Unlock()
			switch {
			case errors.Is(err, ErrReturned):
				fates["returned"]++
			case err == nil:
				fates["confirmed: lost"]++
			default:
				fates[err.Error()]++
			}
		}})
	}
	all.Wait()
	if fates["returned"] != n {
		t.Errorf("%v, want %d returned", fates, n)
	}
}

// An exchange that does not exist closes the channel, with all that is
// unconfirmed on it. Nobody is told "confirmed" whose message is not there, and
// what is published later goes through.
func TestPublisherUnknownExchange(t *testing.T) {
	noLeaks(t)
	b := rabbittest.Shared(t)
	url := b.Vhost(t)
	p := newPair(t, b, url, url, 20*time.Second)
	p.queue("takes", nil)
	const n = 300
	var all sync.WaitGroup
	var mu sync.Mutex
	confirmed := map[string]bool{}
	for i := range n {
		pub := &Publication{Key: "takes", Msg: message(i)}
		if i%100 == 50 {
			pub.Exchange = "no such exchange"
		}
		all.Add(1)
		pub.Done = func(err error) {
			defer all.Done()
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil && pub.Exchange == "":
				confirmed[pub.Msg.MessageId] = true
			case err == nil || !errors.Is(err, ErrUnknown):
				t.Errorf("publish %d to exchange %q: %v, want ErrUnknown", i, pub.Exchange, err)
			}
		}
		p.pub.Publish(pub)
	}
	all.Wait()
	there := p.drain("takes")
	for id := range confirmed {
		if there[id] == 0 {
			t.Errorf("message %s was confirmed and is not there", id)
		}
	}
	for i := range 20 {
		p.keepPublishing("", "takes", message(n+i))
	}
	if got := len(p.drain("takes")); got != 20 {
		t.Errorf("%d messages after the channel was closed, want 20", got)
	}
	t.Logf("%d of %d were confirmed beside 3 unknown exchanges", len(confirmed), n-3)
}

// What was lost meanwhile is not sent, and what cannot be written harms nobody.
func TestPublisherStaleAndUnwritable(t *testing.T) {
	noLeaks(t)
	b := rabbittest.Shared(t)
	url := b.Vhost(t)
	p := newPair(t, b, url, url, 20*time.Second)
	p.queue("takes", nil)
	fates := make(chan error, 3)
	done := func(err error) { fates <- err }
	p.pub.Publish(&Publication{Key: "takes", Msg: message(1), Stale: func() bool { return true }, Done: done})
	bad := message(2)
	bad.Headers = amqp.Table{"x": struct{}{}}
	p.pub.Publish(&Publication{Key: "takes", Msg: bad, Done: done})
	p.pub.Publish(&Publication{Key: "takes", Msg: message(3), Stale: func() bool { return false }, Done: done})
	for _, want := range []error{ErrStale, ErrEncode, nil} {
		if err := <-fates; !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	if got := p.drain("takes"); len(got) != 1 || got["3"] != 1 {
		t.Errorf("in the queue: %v, want message 3 alone", got)
	}
}

// A broker that stops answering: the confirm timeout gives up the connection,
// the fate is unknown, and the next publish goes over a new connection.
func TestPublisherConfirmTimeout(t *testing.T) {
	noLeaks(t)
	b := rabbittest.Shared(t)
	url := b.Vhost(t)
	proxy := b.Proxy(t)
	p := newPair(t, b, url, proxy.URL(url), time.Second)
	p.queue("takes", nil)
	for i := range 3 {
		p.keepPublishing("", "takes", message(10*i))
		proxy.Freeze(true)
		if err := p.publish("", "takes", message(10*i+1)); !errors.Is(err, ErrUnknown) {
			t.Fatalf("publish through a frozen proxy: %v, want ErrUnknown", err)
		}
		proxy.Cut() // the frozen bytes are gone with the connection
		proxy.Freeze(false)
	}
	p.keepPublishing("", "takes", message(100))
	waitFor(t, "three reconnects are told", func() bool { return p.told.reconnects.Load() >= 3 })
	got := p.drain("takes")
	for _, id := range []string{"0", "10", "20", "100"} {
		if got[id] != 1 {
			t.Errorf("message %s is there %d times, want once: %v", id, got[id], got)
		}
	}
}

// However often and in whatever moment a connection is dropped: the publisher
// comes back. (The AMQP client reports a connection that is closed from our
// side without an error, and that must not pass for the end.)
func TestPublisherOutlivesDrops(t *testing.T) {
	noLeaks(t)
	b := rabbittest.Shared(t)
	url := b.Vhost(t)
	p := newPair(t, b, url, url, 20*time.Second)
	p.queue("takes", nil)
	for i := range 40 {
		p.keepPublishing("", "takes", message(i))
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		s, err := p.conn.Session(ctx)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		p.conn.Drop(s, errors.New("test"))
		<-s.Done()
		if errors.Is(s.err, ErrClosed) {
			t.Fatalf("drop %d: the session's end is reported as %q, which ends the publisher for good", i, s.err)
		}
	}
	p.keepPublishing("", "takes", message(40))
	got := p.drain("takes")
	for i := range 41 {
		if got[fmt.Sprint(i)] == 0 {
			t.Errorf("message %d is not there", i)
		}
	}
}

// During a memory alarm nothing is confirmed and no timeout runs; what waits
// goes through when it ends; and Close ends by its deadline in the midst of it.
func TestPublisherMemoryAlarm(t *testing.T) {
	noLeaks(t)
	b := rabbittest.Start(t)
	url := b.URL()
	const timeout, n = 3 * time.Second, 200
	stays, leaves := newPair(t, b, url, url, timeout), newPair(t, b, url, url, timeout)
	stays.queue("takes", nil)
	for _, p := range []*pair{stays, leaves} {
		if err := p.publish("", "takes", message(0)); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.MemoryAlarm(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	fates := map[*pair]chan error{}
	for _, p := range []*pair{stays, leaves} {
		fates[p] = make(chan error, 3*n)
		send := func(from int) {
			for i := range n {
				p.pub.Publish(&Publication{Key: "takes", Msg: message(from + i), Done: func(err error) { fates[p] <- err }})
			}
		}
		send(1)
		waitFor(t, "the connection is blocked", func() bool { blocked, _ := p.conn.Blocked(); return blocked })
		send(n + 1)
	}
	time.Sleep(timeout + 2*time.Second)
	for _, p := range []*pair{stays, leaves} {
		if len(fates[p]) != 0 || p.told.reconnects.Load() != 0 {
			t.Errorf("%d publishes were given up during the alarm, %d reconnects", len(fates[p]), p.told.reconnects.Load())
		}
	}

	closed := make(chan struct{})
	go func() {
		defer close(closed)
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		leaves.pub.Close(ctx)
		leaves.conn.Close(ctx)
	}()
	select {
	case <-closed:
	case <-time.After(30 * time.Second): // generous: the deadline is 2 s
		t.Fatal("Close hangs during a memory alarm")
	}
	leaves.pub.Publish(&Publication{Key: "takes", Msg: message(0), Done: func(err error) { fates[leaves] <- err }})
	counts := map[string]int{}
	for range 2*n + 1 {
		select {
		case err := <-fates[leaves]:
			switch {
			case errors.Is(err, ErrUnknown):
				counts["unknown"]++
			case errors.Is(err, ErrStale):
				counts["not sent"]++
			default:
				t.Errorf("closed during an alarm, and the fate is %v", err)
			}
		case <-time.After(patience):
			t.Fatalf("Close returned and a publish has no fate: %v", counts)
		}
	}
	t.Logf("closed during the alarm: %v", counts)
	if counts["not sent"] < n {
		t.Errorf("%v: what was published while blocked must not be written", counts)
	}

	if err := b.MemoryAlarm(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	confirmed := 0
	for range 2 * n {
		select {
		case err := <-fates[stays]:
			if err == nil {
				confirmed++
			} else if !errors.Is(err, ErrUnknown) { // a slow machine may take longer than the timeout
				t.Errorf("published during the alarm: %v", err)
			}
		case <-time.After(patience):
			t.Fatal("a publish is still unconfirmed after the alarm")
		}
	}
	if got := len(stays.drain("takes")); got < confirmed {
		t.Errorf("%d messages, %d were confirmed", got, confirmed)
	}
	if confirmed < 2*n {
		t.Logf("%d of %d confirmed in time", confirmed, 2*n)
	}
	if stays.told.blocks.Load() == 0 || stays.told.unblocks.Load() == 0 {
		t.Errorf("%d blocks and %d unblocks were told, want at least 1 each", stays.told.blocks.Load(), stays.told.unblocks.Load())
	}
}
