package hopback

import (
	"sync"
	"time"
)

// sparse keeps to one a second what would otherwise be logged for every message:
// a broker that refuses one hand-off refuses thousands.
type sparse struct {
	mu   sync.Mutex
	next time.Time
	left int
}

// may reports whether to log now, and how many were left out since the last time.
func (s *sparse) may() (others int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Before(s.next) {
		s.left++
		return 0, false
	}
	others, s.left, s.next = s.left, 0, now.Add(time.Second)
	return others, true
}
