package demo

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// View is shown a story while it happens. Close ends it, and may be called
// twice.
type View interface {
	Progress(text string) // something takes a moment
	Event(text string)    // above the row of its second
	Note(text string)     // below it
	Begin(Scene)          // the sides are there
	Start(time.Time)      // the zero of time
	End(text string)      // nothing more will happen
	Close()
}

// Scene is what a view looks at.
type Scene struct {
	Title [2]string
	Most  int // retries in one second, by which the bars are scaled
	State func() [2]State
}

// State is one side at a moment.
type State struct {
	Seconds                  []tally
	Handled, Parked, Waiting int
}

// noView is for those who read the Result alone.
type noView struct{}

func (noView) Progress(string) {}
func (noView) Event(string)    {}
func (noView) Note(string)     {}
func (noView) Begin(Scene)     {}
func (noView) Start(time.Time) {}
func (noView) End(string)      {}
func (noView) Close()          {}

// Screen is where a view draws.
type Screen struct {
	Out     io.Writer
	Live    bool       // a terminal: what changes is drawn again in its place
	Colour  bool       //
	Columns func() int // at this moment; nil means 80
}

// NewView shows a story as rows, one a second, that scroll up as on paper. On a
// terminal the second that is running, and the counts below it, are drawn again
// in place; elsewhere every row is printed once, when its second is over.
func NewView(s Screen) View {
	if s.Columns == nil {
		s.Columns = func() int { return 80 }
	}
	v := &rows{Screen: s, style: style{s.Colour}, quit: make(chan struct{}), now: time.Now}
	if s.Live {
		v.write(hideCursor)
	}
	v.ticking.Go(v.tick)
	return v
}

// rows is the View of NewView.
type rows struct {
	Screen
	style style
	now   func() time.Time

	ticking sync.WaitGroup
	quit    chan struct{}

	mu       sync.Mutex
	closed   bool
	scene    Scene
	start    time.Time // zero before Start
	begun    time.Time // of the progress
	progress string
	printed  int // seconds that are on paper
	notes    []string
	drawn    int // lines of the part that is drawn again
}

// What a terminal is told. The cursor is always at the start of the line below
// what is drawn again.
const (
	hideCursor = "\x1b[?25l"
	showCursor = "\x1b[?25h"
	clearBelow = "\x1b[J"
)

// frame is how often a terminal is drawn, and every view looked after.
const frame = 100 * time.Millisecond

func (v *rows) tick() {
	t := time.NewTicker(frame)
	defer t.Stop()
	for {
		select {
		case <-v.quit:
			return
		case <-t.C:
			v.draw()
		}
	}
}

func (v *rows) Progress(text string) {
	v.mu.Lock()
	v.progress, v.begun = text, v.now()
	v.mu.Unlock()
	v.draw(v.plainly(text + " …")...)
}

// plainly is for lines that only a view without redrawing prints.
func (v *rows) plainly(lines ...string) []string {
	if v.Live {
		return nil
	}
	return lines
}

func (v *rows) Event(text string) { v.draw(v.event(text)) }

func (v *rows) Note(text string) {
	e := v.event(text)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.notes = append(v.notes, e)
}

func (v *rows) event(text string) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.progress = ""
	label := ""
	if !v.start.IsZero() {
		label = fmt.Sprintf("%.0fs", v.now().Sub(v.start).Truncate(time.Second).Seconds())
	}
	room := max(v.Columns()-1-labelWidth-2, 2*minPanel)
	return v.style.paint(dim, fmt.Sprintf("%*s ", labelWidth-1, label)) +
		v.style.paint(cyan, "● "+strings.TrimRight(fit(text, room), " "))
}

func (v *rows) Begin(s Scene) {
	v.mu.Lock()
	v.scene, v.progress = s, ""
	v.mu.Unlock()
	c := v.Columns()
	v.draw("", strings.Repeat(" ", labelWidth)+v.style.legend(), v.style.text("", bold, s.Title[0], s.Title[1], c))
}

func (v *rows) Start(at time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.start = at
}

func (v *rows) End(text string) {
	e := v.event(text)
	v.mu.Lock()
	// The last second is on paper although it is not over.
	last := v.finished(1)
	v.start, v.scene = time.Time{}, Scene{}
	v.mu.Unlock()
	v.draw(append(last, e)...)
}

// Close takes away what is drawn again, and leaves the rest on the screen.
func (v *rows) Close() {
	v.mu.Lock()
	was := v.closed
	v.closed = true
	v.mu.Unlock()
	if was {
		return
	}
	close(v.quit)
	v.ticking.Wait()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.scene, v.progress = Scene{}, ""
	if v.Live {
		v.write(v.up() + clearBelow + showCursor)
		v.drawn = 0
	}
}

// draw puts lines on paper, before them the seconds that are over, and draws
// again what is below.
func (v *rows) draw(lines ...string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	lines = append(v.finished(0), lines...)
	var live []string
	if v.Live {
		live = v.running()
	}
	if len(lines)+len(live)+v.drawn == 0 {
		return
	}
	var b strings.Builder
	if v.Live {
		b.WriteString(v.up() + clearBelow)
	}
	for _, l := range append(lines, live...) {
		b.WriteString(l + "\n")
	}
	v.drawn = len(live)
	v.write(b.String())
}

// up brings the cursor to where the part that is drawn again begins.
func (v *rows) up() string {
	if v.drawn == 0 {
		return "\r"
	}
	return fmt.Sprintf("\r\x1b[%dA", v.drawn)
}

// write writes all at once, so that a terminal shows no half of it. A view that
// cannot be written is no reason to end the story.
func (v *rows) write(s string) { _, _ = io.WriteString(v.Out, s) }

// finished are the rows of the seconds that are over and not on paper yet, and
// of so many more.
func (v *rows) finished(more int) (lines []string) {
	if v.start.IsZero() || v.scene.State == nil {
		return nil
	}
	over := int(v.now().Sub(v.start)/time.Second) + more
	if v.printed >= over {
		return nil
	}
	s := v.scene.State()
	for ; v.printed < over; v.printed++ {
		lines = append(lines, v.second(v.printed, s))
	}
	lines = append(lines, v.notes...)
	v.notes = nil
	return lines
}

func (v *rows) second(n int, s [2]State) string {
	return v.style.second(n, at(s[0].Seconds, n), at(s[1].Seconds, n), v.scene.Most, v.Columns())
}

func at(seconds []tally, n int) tally {
	if n < len(seconds) {
		return seconds[n]
	}
	return tally{}
}

// running is the part that is drawn again.
func (v *rows) running() []string {
	if v.progress != "" {
		text := fmt.Sprintf("%s … %.0f s", v.progress, v.now().Sub(v.begun).Seconds())
		return []string{strings.Repeat(" ", labelWidth) + v.style.paint(dim, text)}
	}
	if v.scene.State == nil {
		return nil
	}
	s := v.scene.State()
	var lines []string
	if !v.start.IsZero() {
		lines = append(lines, v.second(int(v.now().Sub(v.start)/time.Second), s))
	}
	return append(lines, v.style.text("", dim, s[0].String(), s[1].String(), v.Columns()))
}

func (s State) String() string {
	return fmt.Sprintf("handled %d  waiting %d  parked %d", s.Handled, s.Waiting, s.Parked)
}
