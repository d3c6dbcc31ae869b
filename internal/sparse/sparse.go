// Package sparse keeps to one a second what would otherwise be logged for every
// message: a broker that refuses one hand-off refuses thousands.
package sparse

import (
	"sync"
	"time"
)

// Limiter allows one a second. The zero value is ready.
type Limiter struct {
	mu   sync.Mutex
	next time.Time
	left int
}

// May reports whether to log now, and how many were left out since the last time.
func (l *Limiter) May() (others int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if now.Before(l.next) {
		l.left++
		return 0, false
	}
	others, l.left, l.next = l.left, 0, now.Add(time.Second)
	return others, true
}
