package sparse

import (
	"testing"
	"time"
)

// Some are let through, and each that was not is counted once.
func TestOneASecond(t *testing.T) {
	var s Limiter
	logged, others := 0, 0
	for range 1000 {
		if n, ok := s.May(); ok {
			logged++
			others += n
		}
	}
	s.next = time.Time{}
	n, ok := s.May()
	if !ok || logged+others+n != 1000 {
		t.Errorf("%d logged, %d and %d counted, of 1000", logged, others, n)
	}
	if logged == 1000 {
		t.Error("every line was logged")
	}
}
