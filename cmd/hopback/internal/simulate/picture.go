package simulate

import (
	"fmt"
	"image/color"
	"io"
	"unicode/utf8"

	"github.com/hopback/hopback/simulate"
)

// The colours: of text on white at least 4.5 to 1, and apart in lightness too.
var (
	white   = color.NRGBA{255, 255, 255, 255}
	ink     = color.NRGBA{0x1f, 0x29, 0x37, 255}
	faint   = color.NRGBA{0x5b, 0x66, 0x75, 255}
	grid    = color.NRGBA{0xd9, 0xde, 0xe5, 255}
	within  = color.NRGBA{0x2f, 0x6f, 0xb3, 255} // calls that there is room for
	beyond  = color.NRGBA{0xc8, 0x32, 0x2b, 255} // calls beyond the capacity
	useless = color.NRGBA{0x9a, 0xa3, 0xaf, 255} // calls while it is down
	outage  = color.NRGBA{0xf3, 0xe3, 0xc2, 255}
	ill     = color.NRGBA{0xfb, 0xf4, 0xe4, 255}
)

// The measures of a picture.
const (
	pictureWidth = 960.0
	marginLeft   = 56.0
	marginRight  = 24.0
	headHeight   = 64.0
	plotHeight   = 92.0
	titleHeight  = 50.0
	axisHeight   = 34.0
	lineHeight   = 18.0
)

// layout draws the report: a panel for each policy, all to one scale, and the
// verdict.
type layout struct {
	view
	lines []string // the verdict, in lines
}

func newLayout(r *simulate.Report, words []string) layout {
	l := layout{view: newView(r)}
	for _, w := range words {
		l.lines = append(l.lines, wrap(w, 128)...)
	}
	return l
}

func (l layout) height() float64 {
	h := headHeight + float64(len(l.report.Results))*(titleHeight+plotHeight) + axisHeight
	if len(l.lines) > 0 {
		h += float64(len(l.lines))*lineHeight + 14
	}
	return h
}

func (l layout) draw(c canvas) {
	c.box(0, 0, pictureWidth, l.height(), white)
	c.text(marginLeft, 28, 17, left, true, ink, l.report.Scenario.Name+": "+l.report.Scenario.About)
	what := "load on the dependency, × its capacity"
	if !l.limit {
		what = "calls to the dependency"
	}
	x := l.legend(c, marginLeft, 48, useless, fmt.Sprintf("%s, per %s: while it is down", what, simulate.Span(l.report.Scenario.Window)))
	x = l.legend(c, x, 48, within, "there is room")
	if l.limit {
		l.legend(c, x, 48, beyond, "beyond its capacity")
	}
	y := headHeight
	for i := range l.report.Results {
		one := &l.report.Results[i]
		l.panel(c, y, l.series(one, 436))
		y += titleHeight + plotHeight
	}
	for _, t := range ticks(l.span, 12) {
		x := l.x(t.Seconds() / l.span.Seconds())
		c.box(x, y, 1, 4, faint)
		c.text(x, y+17, 11, middle, false, faint, simulate.Span(t))
	}
	y += axisHeight + 10
	for _, line := range l.lines {
		c.text(marginLeft, y, 13, left, false, ink, line)
		y += lineHeight
	}
}

// legend draws a patch with its text and returns where the next one goes. Text
// is measured by its letters: wide enough for every font.
func (l layout) legend(c canvas, x, y float64, patch color.NRGBA, s string) float64 {
	c.box(x, y-9, 10, 10, patch)
	c.text(x+15, y, 12, left, false, faint, s)
	return x + 15 + 5.9*float64(utf8.RuneCountInString(s)) + 18
}

// x is a share of the time on the canvas.
func (l layout) x(share float64) float64 {
	return marginLeft + share*(pictureWidth-marginLeft-marginRight)
}

func (l layout) panel(c canvas, y float64, s series) {
	r := s.result
	c.text(marginLeft, y+26, 13, left, true, ink, s.name)
	sum := fmt.Sprintf("parked needlessly %s · 99 %% of the backlog gone after %s · %s calls",
		simulate.Count(r.ParkedNeedlessly), simulate.Span(r.Recovery99), simulate.Count(r.Calls))
	if l.limit {
		sum = "peak " + simulate.Times(r.Peak) + " · " + sum
	}
	c.text(pictureWidth-marginRight, y+26, 12, right, false, ink, sum)
	c.text(marginLeft, y+42, 11, left, false, faint, s.about)
	y += titleHeight
	base := y + plotHeight
	for _, t := range l.troubles() {
		shade := ill
		if t.down {
			shade = outage
		}
		c.box(l.x(t.from), y, l.x(t.to)-l.x(t.from), plotHeight, shade)
	}
	up := func(load float64) float64 { return base - min(load/l.most, 1)*(plotHeight-4) }
	for _, level := range levels(l.most) {
		c.box(l.x(0), up(level), l.x(1)-l.x(0), 0.5, grid)
		c.text(l.x(0)-6, up(level)+4, 11, right, false, faint, axisNumber(level, l.limit))
	}
	n := float64(len(s.columns))
	bars := func(shade color.NRGBA, band func(column) (from, to float64)) {
		for i, col := range s.columns {
			x, w := l.x(float64(i)/n), max(1, l.x(1/n)-l.x(0)-0.4)
			if from, to := band(col); to > from && from < l.most {
				c.box(x, up(to), min(w, l.x(1)-x), max(0.8, up(from)-up(to)), shade)
			}
		}
	}
	room := 1.0
	if !l.limit {
		room = l.most
	}
	bars(useless, func(c column) (float64, float64) { return 0, c.down })
	bars(within, func(c column) (float64, float64) { return 0, min(c.up, room) })
	bars(beyond, func(c column) (float64, float64) { return room, c.up })
	if l.limit {
		for x := l.x(0); x < l.x(1); x += 8 { // dashes
			c.box(x, up(1), 4, 1, ink)
		}
	}
	c.box(l.x(0), base, l.x(1)-l.x(0), 1, faint)
}

// SVG writes the picture.
func SVG(out io.Writer, r *simulate.Report, words []string) error {
	_, err := io.WriteString(out, drawing(r, words))
	return err
}

func drawing(r *simulate.Report, words []string) string {
	l := newLayout(r, words)
	v := newVector(pictureWidth, l.height(), r.Scenario.Name+": "+r.Scenario.About)
	l.draw(v)
	return v.String()
}

// PNG writes the same picture, two dots a pixel.
func PNG(out io.Writer, r *simulate.Report, words []string) error {
	l := newLayout(r, words)
	c := newRaster(pictureWidth, l.height())
	l.draw(c)
	return c.write(out)
}
