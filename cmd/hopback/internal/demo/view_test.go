package demo

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// play shows a small story and returns what was written.
func play(t *testing.T, live, colour bool) string {
	t.Helper()
	var out strings.Builder
	var mu sync.Mutex
	now := time.Unix(1000, 0)
	v := &rows{
		Screen: Screen{Out: &out, Live: live, Columns: func() int { return 80 }}, style: style{colour},
		quit: make(chan struct{}),
		now: func() time.Time {
			mu.Lock()
			defer mu.Unlock()
			return now
		},
	}
	pass := func(d time.Duration) {
		mu.Lock()
		now = now.Add(d)
		mu.Unlock()
		v.draw() // as the ticker does
	}
	var bars [2][]tally
	v.Progress("starting")
	pass(time.Second)
	v.Event("up")
	v.Begin(Scene{Title: [2]string{"LEFT", "RIGHT"}, Most: 100, State: func() (s [2]State) {
		for i := range s {
			s[i] = State{Seconds: bars[i], Handled: 50, Waiting: 3, Parked: 10}
		}
		return s
	}})
	v.Start(now)
	v.Event("down")
	pass(400 * time.Millisecond)
	bars[1] = []tally{{failed: 20}}
	pass(400 * time.Millisecond)
	bars[1][0][failed] = 40
	pass(200 * time.Millisecond)
	v.Note("below the row of second 1")
	bars[0] = []tally{{}, {handled: 30, refused: 70}}
	pass(300 * time.Millisecond)
	pass(800 * time.Millisecond)
	v.End("done")
	v.Progress("stopping")
	v.Close()
	v.Close()
	return out.String()
}

const paper = `      ● up

      retries per second:  █ handled  ▒ refused, no room  ░ failed
      │ LEFT                              │ RIGHT
   0s ● down
   0s │                                   │ ░░░░░░░░░░░░ 40
   1s │ █████████▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒ 100 │
   1s ● below the row of second 1
   2s │                                   │
   2s ● done
`

func TestPlainViewPrintsEverySecondOnce(t *testing.T) {
	got := play(t, false, false)
	want := "starting …\n" + strings.TrimSuffix(paper, "\n") + "\nstopping …\n"
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func TestLiveViewLeavesTheSameOnTheScreen(t *testing.T) {
	for _, colour := range []bool{false, true} {
		out := play(t, true, colour)
		if got := screen(t, out); got != paper {
			t.Errorf("colour %t: the screen shows:\n%s\nwant:\n%s", colour, got, paper)
		}
		if colour != sgr.MatchString(out) {
			t.Errorf("colour %t, but the output has colours: %t", colour, sgr.MatchString(out))
		}
		if !strings.HasSuffix(out, showCursor) {
			t.Errorf("the cursor stays hidden: %q", out[max(0, len(out)-40):])
		}
		// While it runs, the counts are under the row.
		if !strings.Contains(sgr.ReplaceAllString(out, ""), "handled 50  waiting 3  parked 10") {
			t.Error("the counts are never shown")
		}
	}
}

// screen is what a terminal shows after the output: enough of one for a view.
func screen(t *testing.T, out string) string {
	lines, y := []string{""}, 0
	out = sgr.ReplaceAllString(out, "")
	for len(out) > 0 {
		var n int
		switch {
		case strings.HasPrefix(out, hideCursor), strings.HasPrefix(out, showCursor):
			out = out[len(hideCursor):]
			continue
		case strings.HasPrefix(out, clearBelow):
			lines, out = append(lines[:y], ""), out[len(clearBelow):]
			continue
		case strings.HasPrefix(out, "\x1b["):
			if _, err := fmt.Sscanf(out, "\x1b[%dA", &n); err != nil {
				t.Fatalf("an unknown sequence: %q", out[:min(len(out), 20)])
			}
			out = out[strings.IndexByte(out, 'A')+1:]
			if y -= n; y < 0 {
				t.Fatal("the cursor leaves the screen")
			}
			continue
		}
		switch r := []rune(out)[0]; r {
		case '\r':
		case '\n':
			y++
			if y == len(lines) {
				lines = append(lines, "")
			}
		default:
			lines[y] += string(r)
		}
		out = out[len(string([]rune(out)[0])):]
	}
	return strings.Join(lines[:y], "\n") + "\n"
}
