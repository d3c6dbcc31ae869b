package delay

import (
	"sync/atomic"
	"time"
)

// BusyRate is the number of messages a second, held by this process, from which
// on a jittered delay keeps one digit. It has to be well below what a small
// broker can do with two hops: an overloaded one slows down what is counted here,
// and would be given second hops again because it is slow. Two cores shared by
// broker and client gave way at 1,450 a second on 4.3.6 on a slow day, seconds
// late, and held 2,000 with one hop.
const BusyRate = 500

// Load counts what is being held, to tell a busy broker from an idle one. The
// zero value is ready, and safe for concurrent use.
type Load struct {
	window atomic.Int64 // start of the current window, in ms since epoch
	count  atomic.Int64 // held in it
	last   atomic.Int64 // held in the window before
}

// epoch is where windows are counted from. Being monotonic it does not notice
// when the machine's clock is set back; a window that began in the future would
// not end before that came.
var epoch = time.Now()

// loadWindow is long enough that a herd of up to BusyRate messages, all failing
// in one instant, keeps its second digit: with one, its jitter would pull it
// together again on whole slots. What comes faster for longer than this is
// spread by its own arrival.
const loadWindow = time.Second

// tick counts one message and reports whether the rate is above BusyRate.
func (l *Load) tick() bool {
	now, start := time.Since(epoch).Milliseconds(), l.window.Load()
	if age := now - start; age >= loadWindow.Milliseconds() && l.window.CompareAndSwap(start, now) {
		n := l.count.Swap(0)
		if age >= 2*loadWindow.Milliseconds() {
			n = 0 // nothing came for a while
		}
		l.last.Store(n)
	}
	limit := BusyRate * loadWindow.Milliseconds() / 1000
	return max(l.count.Add(1), l.last.Load()) > limit
}
