package simulate

import (
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/hopback/hopback/simulate"
)

// Style is how text is painted.
type Style struct {
	Colour  bool
	Columns int // of the terminal
}

// The colours, as SGR codes of the terminal's own palette. What they say, glyphs
// say too.
const (
	bold  = "1"
	dim   = "2"
	red   = "31"
	green = "32"
)

func (s Style) paint(code, text string) string {
	if !s.Colour || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// Text writes the charts, the table and the verdict.
func Text(out io.Writer, r *simulate.Report, words []string, s Style) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n", s.paint(bold, r.Scenario.Name), r.Scenario.About)
	b.WriteString(describe(r.Scenario))
	s.charts(&b, newView(r))
	b.WriteString("\n")
	columns := shortColumns
	if s.Columns >= 170 {
		columns = allColumns
	}
	if err := table(&b, r, columns); err != nil {
		return err
	}
	b.WriteString("\n")
	for _, w := range words {
		for i, line := range wrap(w, max(40, min(s.Columns, 100))-4) {
			lead := "  "
			if i == 0 {
				lead = "• "
			}
			b.WriteString(lead + line + "\n")
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// describe is the scenario in a line or two.
func describe(s simulate.Scenario) string {
	d := s.Dependency
	room := "any number of calls"
	if d.Capacity > 0 {
		room = fmt.Sprintf("%g calls a second", d.Capacity)
	}
	return fmt.Sprintf("%s messages to %d consumers of %d handlers, a dependency with room for %s, seed %d\n",
		simulate.Count(s.Messages()), s.Consumers.Count, s.Consumers.Concurrency, room, s.Seed)
}

const (
	chartHeight = 5 // lines
	gutter      = 7 // columns for the y axis
)

var eighths = []rune(" ▁▂▃▄▅▆▇█")

func (s Style) charts(b *strings.Builder, v view) {
	width := max(30, min(s.Columns, 120)-gutter-2)
	what := "load on the dependency, × its capacity"
	if !v.limit {
		what = "calls to the dependency"
	}
	fmt.Fprintf(b, "%s, per %s: █ while it is up  ░ while it is down  ┈ its capacity\n", what, simulate.Span(v.report.Scenario.Window))
	for i := range v.report.Results {
		one := &v.report.Results[i]
		b.WriteString("\n" + s.paint(bold, one.Contender.Name))
		if one.Contender.Describe() != "" {
			b.WriteString("  " + s.paint(dim, one.Contender.Describe()))
		}
		b.WriteString("\n")
		s.chart(b, v, v.series(one, width))
	}
	s.axis(b, v, min(width, max(1, int(v.span/v.report.Scenario.Window))))
}

// chart draws one series, each line of it an equal part of the load. What does
// not fit ends in ▲.
func (s Style) chart(b *strings.Builder, v view, one series) {
	for line := chartHeight - 1; line >= 0; line-- {
		low := v.most * float64(line) / chartHeight
		step := v.most / chartHeight
		label := ""
		if line == chartHeight-1 {
			label = axisNumber(v.most, v.limit)
		}
		capacity := v.limit && low <= 1 && 1 < low+step
		if capacity && line != chartHeight-1 {
			label = "1 ×"
		}
		fmt.Fprintf(b, "%*s │", gutter-2, label)
		var cells strings.Builder
		for _, c := range one.columns {
			cells.WriteString(s.cell(c, low, step, capacity, line == chartHeight-1))
		}
		b.WriteString(strings.TrimRight(cells.String(), " ") + "\n")
	}
}

func (s Style) cell(c column, low, step float64, capacity, top bool) string {
	part := func(y float64) int {
		if y <= 0 {
			return 0
		}
		n := int(math.Round((y - low) / step * 8))
		if low == 0 {
			n = max(n, 1) // whatever is there is seen
		}
		return max(0, min(n, 8))
	}
	switch up, down := part(c.up), part(c.down); {
	case top && max(c.up, c.down) > (low+step)*1.001:
		return s.paint(dim, "▲")
	case up > 0 && up >= down:
		if low >= 1 {
			return s.paint(red, string(eighths[up]))
		}
		return s.paint(green, string(eighths[up]))
	case down > 3 || down > 0 && low == 0:
		return s.paint(dim, "░")
	case capacity:
		return s.paint(dim, "┈")
	}
	return " "
}

func (s Style) axis(b *strings.Builder, v view, width int) {
	bar := []rune(strings.Repeat("─", width))
	for _, t := range v.troubles() {
		if t.down {
			for i := int(t.from * float64(width)); i < int(math.Ceil(t.to*float64(width))) && i < width; i++ {
				bar[i] = '━'
			}
		}
	}
	labels := []rune(strings.Repeat(" ", width+8))
	for _, t := range ticks(v.span, width/10) {
		at := int(t.Seconds() / v.span.Seconds() * float64(width))
		if at >= width {
			break
		}
		bar[at] = '┴'
		copy(labels[at:], []rune(simulate.Span(t)))
	}
	fmt.Fprintf(b, "%*s └%s\n", gutter-2, "", string(bar))
	fmt.Fprintf(b, "%*s  %s\n", gutter-2, "", strings.TrimRight(string(labels), " "))
}

func axisNumber(y float64, limit bool) string {
	if !limit {
		return fmt.Sprintf("%.0f", y)
	}
	return strings.Replace(simulate.Times(y), ".0 ", " ", 1)
}

// Table writes the table alone.
func Table(out io.Writer, r *simulate.Report) error { return table(out, r, allColumns) }

// col is a column of the table.
type col struct {
	head string
	cell func(*simulate.Result) string
}

var allColumns = []col{
	{"POLICY", func(r *simulate.Result) string { return r.Contender.Name }},
	{"HANDLED", func(r *simulate.Result) string { return simulate.Count(r.Handled) }},
	{"PARKED", func(r *simulate.Result) string { return simulate.Count(r.Parked) }},
	{"NEEDLESSLY", func(r *simulate.Result) string { return simulate.Count(r.ParkedNeedlessly) }},
	{"WAITING", func(r *simulate.Result) string { return simulate.Count(r.Waiting) }},
	{"PEAK", func(r *simulate.Result) string { return load(r.Peak) }},
	{"P99", func(r *simulate.Result) string { return load(r.P99) }},
	{"CALLS", func(r *simulate.Result) string { return simulate.Count(r.Calls) }},
	{"WASTED", func(r *simulate.Result) string { return simulate.Count(r.Wasted) }},
	{"99 % GONE", func(r *simulate.Result) string { return simulate.Span(r.Recovery99) }},
	{"ALL GONE", func(r *simulate.Result) string { return simulate.Span(r.Recovery) }},
	{"LATENCY P50", func(r *simulate.Result) string { return simulate.Span(r.Latency.P50) }},
	{"P95", func(r *simulate.Result) string { return simulate.Span(r.Latency.P95) }},
	{"P99", func(r *simulate.Result) string { return simulate.Span(r.Latency.P99) }},
	{"MOST OPEN", func(r *simulate.Result) string { return simulate.Count(r.WaitingMost) }},
	{"BROKER OPS", func(r *simulate.Result) string { return simulate.Count(r.Operations.Total()) }},
}

// shortColumns fit a terminal of a hundred columns: --output table has all.
var shortColumns = pick(0, 3, 4, 5, 6, 7, 8, 9, 10, 13)

func pick(at ...int) (some []col) {
	for _, i := range at {
		some = append(some, allColumns[i])
	}
	some[len(some)-1].head = "LATENCY P99"
	some[1].head = "PARKED NEEDLESSLY"
	return some
}

func table(out io.Writer, r *simulate.Report, columns []col) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, c := range columns {
		fmt.Fprintf(w, "%s\t", c.head)
	}
	fmt.Fprintln(w)
	for i := range r.Results {
		for _, c := range columns {
			fmt.Fprintf(w, "%s\t", c.cell(&r.Results[i]))
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}

func load(f float64) string {
	if f == 0 {
		return "–"
	}
	return simulate.Times(f)
}

// wrap breaks a sentence into lines.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}

// Progress is a bar on a terminal.
type Progress struct {
	Out  io.Writer
	last time.Time
}

// Tell draws the bar, at most ten times a second.
func (p *Progress) Tell(done, of int64) {
	if p == nil || time.Since(p.last) < 100*time.Millisecond {
		return
	}
	p.last = time.Now()
	const width = 40
	full := int(done * width / max(of, 1))
	fmt.Fprintf(p.Out, "\r[%s%s] %3d %%", strings.Repeat("█", full), strings.Repeat("░", width-full), done*100/max(of, 1))
}

// Clear takes the bar away.
func (p *Progress) Clear() {
	if p != nil && !p.last.IsZero() {
		fmt.Fprintf(p.Out, "\r%s\r", strings.Repeat(" ", 50))
	}
}
