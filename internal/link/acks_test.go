package link

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
)

// ledgerBroker is the broker's side of one channel: it knows which deliveries
// are unacknowledged and closes the channel, as RabbitMQ does (406, unknown
// delivery tag), for one that is not. It also knows which the consumer is done
// with, so that an acknowledgement which takes in another's message is seen.
type ledgerBroker struct {
	mu     sync.Mutex
	open   map[uint64]bool
	done   map[uint64]bool // given to Ack
	acked  []uint64
	frames int
	err    error
}

func newLedgerBroker(n uint64) *ledgerBroker {
	b := &ledgerBroker{open: map[uint64]bool{}, done: map[uint64]bool{}}
	for tag := uint64(1); tag <= n; tag++ {
		b.open[tag] = true
	}
	return b
}

var errChannelClosed = errors.New("channel closed")

// ack is basic.ack. With multiple the tag itself must be open too, and every
// open one up to it is acknowledged.
func (b *ledgerBroker) ack(tag uint64, multiple bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.frames++
	if b.err != nil {
		return b.err
	}
	if !b.open[tag] {
		b.err = fmt.Errorf("%w: unknown delivery tag %d (multiple %t)", errChannelClosed, tag, multiple)
		return b.err
	}
	tags := []uint64{tag}
	if multiple {
		tags = tags[:0]
		for t := range b.open {
			if t <= tag {
				tags = append(tags, t)
			}
		}
		slices.Sort(tags)
	}
	for _, t := range tags {
		if !b.done[t] {
			b.err = fmt.Errorf("%w: tag %d was acknowledged (by %d, multiple %t) while its message is in work", errChannelClosed, t, tag, multiple)
			return b.err
		}
		delete(b.open, t)
		b.acked = append(b.acked, t)
	}
	return nil
}

// finish marks a message as done, before its tag is given to Ack.
func (b *ledgerBroker) finish(tag uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done[tag] = true
}

func (b *ledgerBroker) ackedCount() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.acked)
}

// check requires that exactly the given tags were acknowledged, each once.
func (b *ledgerBroker) check(t *testing.T, want []uint64) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		t.Fatal(b.err)
	}
	got := slices.Clone(b.acked)
	slices.Sort(got)
	want = slices.Clone(want)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Fatalf("acknowledged %d tags, want %d: %v, want %v", len(got), len(want), got, want)
	}
}

// Any order of completion, cut into any batches: the broker never sees a tag
// that it does not know, and every tag is acknowledged once.
func TestAcksModel(t *testing.T) {
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 1))
		n := 1 + r.Uint64N(40)
		b := newLedgerBroker(n)
		a := &Acks{ack: b.ack, open: map[uint64]struct{}{}}
		order := someOrder(r, n)
		if r.IntN(3) == 0 { // some are never finished
			order = order[:r.IntN(len(order)+1)]
		}
		for rest := order; len(rest) > 0; {
			size := 1 + r.IntN(len(rest))
			if r.IntN(2) == 0 {
				size = 1 + r.IntN(min(3, len(rest)))
			}
			batch := slices.Clone(rest[:size])
			rest = rest[size:]
			for _, tag := range batch {
				b.finish(tag)
			}
			if err := a.send(batch); err != nil {
				t.Fatalf("seed %d: order %v: %v", seed, order, err)
			}
			if got := b.ackedCount(); got != len(order)-len(rest) {
				t.Fatalf("seed %d: order %v: %d acknowledged after %d were finished: some wait for others", seed, order, got, len(order)-len(rest))
			}
		}
		b.check(t, order)
	}
}

// someOrder is a permutation of 1 … n: thoroughly mixed, nearly in order as
// handlers of equal length finish, or with a slow head.
func someOrder(r *rand.Rand, n uint64) []uint64 {
	order := make([]uint64, n)
	for i := range order {
		order[i] = uint64(i) + 1
	}
	swap := func(i, j int) { order[i], order[j] = order[j], order[i] }
	switch r.IntN(3) {
	case 0:
		r.Shuffle(len(order), swap)
	case 1:
		for i := 1; i < len(order); i++ {
			if r.IntN(4) == 0 {
				swap(i-1, i)
			}
		}
	case 2:
		order = append(order[1:], order[0])
	}
	return order
}

// The same with the goroutine and many callers at once.
func TestAcksConcurrently(t *testing.T) {
	noLeaks(t)
	const n = 5000
	b := newLedgerBroker(n)
	a := newAcks(b.ack, make(chan struct{}))
	tags := make(chan uint64)
	var workers sync.WaitGroup
	for w := range uint64(8) {
		workers.Go(func() {
			r := rand.New(rand.NewPCG(w, 2))
			for tag := range tags {
				if r.IntN(50) == 0 {
					time.Sleep(time.Duration(r.IntN(300)) * time.Microsecond)
				}
				b.finish(tag)
				a.Ack(tag)
			}
		})
	}
	var all []uint64
	for tag := uint64(1); tag <= n; tag++ {
		all = append(all, tag)
		tags <- tag
	}
	close(tags)
	workers.Wait()
	a.Close()
	b.check(t, all)
	t.Logf("%d tags in %d frames", n, b.frames)
}

// A handler that takes for ever holds nobody else's acknowledgement up.
func TestAcksPassASlowHead(t *testing.T) {
	noLeaks(t)
	const n = 200
	b := newLedgerBroker(n)
	a := newAcks(b.ack, make(chan struct{}))
	var rest []uint64
	for tag := uint64(2); tag <= n; tag++ {
		rest = append(rest, tag)
		b.finish(tag)
		a.Ack(tag)
	}
	waitFor(t, "all but the first are acknowledged", func() bool { return b.ackedCount() == n-1 })
	b.check(t, rest)
	b.finish(1)
	a.Ack(1)
	a.Close()
	b.check(t, append(rest, 1))
}

// A tag that was settled in another way is never named, and holds no run up.
func TestAcksSkip(t *testing.T) {
	noLeaks(t)
	b := newLedgerBroker(6)
	a := newAcks(b.ack, make(chan struct{}))
	settle := func(tag uint64) { // as a rejection does
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.open, tag)
	}
	for _, tag := range []uint64{3, 6} {
		settle(tag)
		a.Skip(tag)
	}
	for _, tag := range []uint64{1, 2, 4, 5} {
		b.finish(tag)
		a.Ack(tag)
	}
	waitFor(t, "all are acknowledged", func() bool { return b.ackedCount() == 4 })
	a.Close()
	b.check(t, []uint64{1, 2, 4, 5})
	if a.low != 6 || len(a.open) != 0 {
		t.Errorf("%d are open above %d, want none above 6", len(a.open), a.low)
	}
}

// What is ready together goes out together: a run costs one frame however long
// it is, and what is behind a gap one frame each.
func TestAcksMergeRuns(t *testing.T) {
	b := newLedgerBroker(1000)
	a := &Acks{ack: b.ack, open: map[uint64]struct{}{}}
	var batch []uint64
	for tag := uint64(1000); tag > 0; tag-- {
		batch = append(batch, tag)
		b.finish(tag)
	}
	if err := a.send(batch); err != nil {
		t.Fatal(err)
	}
	if b.frames != 1 {
		t.Errorf("1000 tags that were ready together took %d frames, want 1", b.frames)
	}
	if len(a.open) != 0 || a.low != 1000 {
		t.Errorf("%d tags remembered above %d, want none above 1000: memory grows with every message", len(a.open), a.low)
	}
}

// While one handler hangs any number of messages pass it: what is remembered is
// those that are open, and not those that are done.
func TestAcksRememberTheOpenOnes(t *testing.T) {
	a := &Acks{ack: func(uint64, bool) error { return nil }, open: map[uint64]struct{}{}}
	r := rand.New(rand.NewPCG(1, 3))
	const prefetch, n = 50, 20_000
	var inWork []uint64
	for tag := uint64(2); tag < n; tag++ { // 1 hangs
		if inWork = append(inWork, tag); len(inWork) < prefetch {
			continue
		}
		i := r.IntN(len(inWork))
		if err := a.send([]uint64{inWork[i]}); err != nil {
			t.Fatal(err)
		}
		inWork = slices.Delete(inWork, i, i+1)
		if len(a.open) > prefetch {
			t.Fatalf("%d tags remembered at tag %d, with %d in work", len(a.open), tag, prefetch)
		}
	}
}

// Close writes what is ready; after the channel's end nothing is written.
func TestAcksEnd(t *testing.T) {
	noLeaks(t)
	b := newLedgerBroker(3)
	for tag := uint64(1); tag <= 3; tag++ {
		b.finish(tag)
	}
	a := newAcks(b.ack, make(chan struct{}))
	a.Ack(2)
	a.Ack(1)
	a.Close()
	b.check(t, []uint64{1, 2})
	a.Close() // again, harmlessly
	a.Ack(3)
	b.check(t, []uint64{1, 2})

	done := make(chan struct{})
	b = newLedgerBroker(1)
	a = newAcks(b.ack, done)
	close(done)
	<-a.ended
	a.Ack(1)
	a.Close()
	b.check(t, nil)

	// A write that fails ends it: the channel is gone.
	fails := 0
	a = newAcks(func(uint64, bool) error { fails++; return errChannelClosed }, make(chan struct{}))
	a.Ack(1)
	<-a.ended
	a.Ack(2)
	a.Close()
	if fails != 1 {
		t.Errorf("%d writes on a closed channel, want 1", fails)
	}
}
