package demo

import (
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/hopback/hopback"
)

// ledger follows every message of one route by its id. It believes the observer
// alone, which is told of a message once the broker has confirmed its new place.
type ledger struct {
	mu      sync.Mutex
	sent    map[string]bool
	fates   map[string]*fate
	parked  map[string]int // by reason
	body    int            // of the permanent ones: could not be decoded
	retried int
	lates   []time.Duration
	last    time.Time // when a message was handled last
}

// fate is what happened to one message.
type fate struct {
	handled int  // how often
	parked  int  // how often
	retried bool // before it was handled
}

func newLedger() *ledger {
	return &ledger{sent: map[string]bool{}, fates: map[string]*fate{}, parked: map[string]int{}}
}

func (l *ledger) send(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent[id] = true
}

func (l *ledger) fate(id string) *fate {
	f := l.fates[id]
	if f == nil {
		f = &fate{}
		l.fates[id] = f
	}
	return f
}

func (l *ledger) handle(e hopback.Handled, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.fate(e.MessageID)
	f.handled++
	f.retried = e.RetryID != ""
	l.last = at
}

func (l *ledger) park(e hopback.Parked) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fate(e.MessageID).parked++
	l.parked[e.Reason]++
	var decode *hopback.DecodeError
	if errors.As(e.Err, &decode) {
		l.body++
	}
}

func (l *ledger) retry() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.retried++
}

// late notes how much later than its due time a retry reached the handler.
func (l *ledger) late(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lates = append(l.lates, d)
}

// counts are the sums of a ledger. Every message is in one place only: one that
// was handled counts as handled, whatever else happened to it.
type counts struct {
	sent         int
	first        int // handled at the first attempt
	afterRetries int // handled later
	parked       int // and never handled
	duplicates   int // times that a message was settled once too often
	unknown      int // ids that nobody sent
}

func (c counts) handled() int { return c.first + c.afterRetries }

// open is how many are neither handled nor parked.
func (c counts) open() int { return c.sent - c.handled() - c.parked }

func (l *ledger) counts() counts {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := counts{sent: len(l.sent)}
	for id, f := range l.fates {
		c.duplicates += f.handled + f.parked - 1
		if !l.sent[id] {
			c.unknown++
			continue
		}
		switch {
		case f.handled > 0 && f.retried:
			c.afterRetries++
		case f.handled > 0:
			c.first++
		default:
			c.parked++
		}
	}
	return c
}

// lateness of the retries.
type lateness struct {
	Count int     `json:"count"`
	Min   float64 `json:"min_ms"`
	P50   float64 `json:"p50_ms"`
	P99   float64 `json:"p99_ms"`
	Max   float64 `json:"max_ms"`
}

func (l *ledger) lateness() lateness {
	l.mu.Lock()
	defer l.mu.Unlock()
	sorted := slices.Sorted(slices.Values(l.lates))
	ms := func(d time.Duration) float64 { return math.Round(float64(d)/float64(time.Millisecond)*10) / 10 }
	if len(sorted) == 0 {
		return lateness{}
	}
	return lateness{
		Count: len(sorted), Min: ms(sorted[0]), Max: ms(sorted[len(sorted)-1]),
		P50: ms(percentile(sorted, 50)), P99: ms(percentile(sorted, 99)),
	}
}

// percentile is the nearest rank: the smallest value that p percent of the
// sorted values do not exceed.
func percentile(sorted []time.Duration, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := (p*len(sorted) + 99) / 100
	return sorted[min(max(rank, 1), len(sorted))-1]
}
