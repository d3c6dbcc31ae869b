package demo

import (
	"bytes"
	"strings"
	"sync"
)

// logTail keeps the end of the library's log, for when something goes wrong.
// During the show it would tear the picture.
type logTail struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logTail) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.buf.Len() > 1<<20 {
		l.buf.Reset()
	}
	return l.buf.Write(p)
}

// String is the last few lines.
func (l *logTail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(l.buf.String()), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], "\n")
}
