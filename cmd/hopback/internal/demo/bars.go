package demo

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// style paints text, or leaves it plain.
type style struct{ colour bool }

// The colours, as SGR codes of the terminal's own palette.
const (
	bold   = "1"
	dim    = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
	cyan   = "36"
)

func (s style) paint(code, text string) string {
	if !s.colour || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// The parts of a bar differ in shade as well as in colour, for those who see no
// colours and for terminals that show none.
var (
	glyphs  = [outcomes]string{handled: "█", refused: "▒", failed: "░"}
	colours = [outcomes]string{handled: green, refused: yellow, failed: red}
)

// The measures of a row: a label, then two panels of the same width.
const (
	labelWidth = 6 // "  12s "
	minPanel   = 16
	maxPanel   = 60
	countWidth = 5 // " 1000", behind the longest bar
)

// panelWidth is the width of one of the two panels in a terminal of so many
// columns. The last column stays free: some terminals wrap after it.
func panelWidth(columns int) int {
	return min(max((columns-1-labelWidth-2)/2, minPanel), maxPanel)
}

// bar draws a tally with one cell for every most/width retries. Whatever is
// there gets at least one cell.
func (s style) bar(t tally, most, width int) string {
	var b strings.Builder
	total, done, drawn := t.sum(), 0, 0
	for o, n := range t {
		done += n
		end := min((done*width+most/2)/most, width)
		if done == total && total > 0 {
			end = max(end, 1)
		}
		if end > drawn {
			b.WriteString(s.paint(colours[o], strings.Repeat(glyphs[o], end-drawn)))
			drawn = end
		}
	}
	return b.String()
}

// panel is a bar with its number, padded to the width.
func (s style) panel(t tally, most, width int) string {
	if t.sum() == 0 {
		return strings.Repeat(" ", width)
	}
	room := width - 1 - countWidth
	cells := utf8.RuneCountInString(style{}.bar(t, most, room))
	count := fmt.Sprintf(" %d", t.sum())
	return " " + s.bar(t, most, room) + s.paint(bold, count) + strings.Repeat(" ", max(0, width-1-cells-len(count)))
}

// row is one second of both sides. The trailing blanks are cut.
func (s style) row(label string, a, b string) string {
	edge := s.paint(dim, "│")
	return strings.TrimRight(s.paint(dim, fmt.Sprintf("%*s ", labelWidth-1, label))+edge+a+edge+b, " ")
}

// second is the row of one second.
func (s style) second(n int, a, b tally, most, columns int) string {
	w := panelWidth(columns)
	return s.row(fmt.Sprintf("%ds", n), s.panel(a, most, w), s.panel(b, most, w))
}

// text is a row of two texts, cut or padded to the panels.
func (s style) text(label, code, a, b string, columns int) string {
	w := panelWidth(columns)
	return s.row(label, s.paint(code, fit(" "+a, w)), s.paint(code, strings.TrimRight(fit(" "+b, w), " ")))
}

// legend says what the parts of the bars are.
func (s style) legend() string {
	part := func(o outcome, text string) string { return s.paint(colours[o], glyphs[o]) + " " + text }
	return "retries per second:  " + part(handled, "handled") + "  " + part(refused, "refused, no room") +
		"  " + part(failed, "failed")
}

// fit cuts or pads plain text to a width.
func fit(text string, width int) string {
	n := utf8.RuneCountInString(text)
	if n > width {
		return string([]rune(text)[:max(0, width-1)]) + "…"
	}
	return text + strings.Repeat(" ", width-n)
}
