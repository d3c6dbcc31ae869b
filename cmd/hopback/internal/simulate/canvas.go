package simulate

import (
	"fmt"
	"html"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"
	"strings"

	"golang.org/x/image/font"
	"golang.org/x/image/font/gofont/gobold"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/opentype"
	"golang.org/x/image/math/fixed"
)

// canvas is what a picture is drawn on: boxes and text, in units of a pixel.
type canvas interface {
	box(x, y, w, h float64, c color.NRGBA)
	text(x, y, size float64, end anchor, heavy bool, c color.NRGBA, s string)
}

// anchor is the end of a text that is at its place.
type anchor int

const (
	left anchor = iota
	right
	middle
)

// vector draws SVG. Boxes of one colour that follow each other become one path,
// which is a quarter of the size.
type vector struct {
	b     strings.Builder
	path  strings.Builder
	shade color.NRGBA // of the path
}

func newVector(w, h float64, title string) *vector {
	v := &vector{}
	fmt.Fprintf(&v.b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" width="%g" height="%g" role="img" font-family="system-ui,-apple-system,'Segoe UI',sans-serif">`+"\n", w, h, w, h)
	fmt.Fprintf(&v.b, "<title>%s</title>\n", html.EscapeString(title))
	return v
}

func (v *vector) box(x, y, w, h float64, c color.NRGBA) {
	if v.shade != c {
		v.flush()
		v.shade = c
	}
	fmt.Fprintf(&v.path, "M%s %sh%sv%sh-%sz", short(x), short(y), short(w), short(h), short(w))
}

// flush ends a path.
func (v *vector) flush() {
	if v.path.Len() > 0 {
		fmt.Fprintf(&v.b, `<path fill="#%02x%02x%02x" d="%s"/>`+"\n", v.shade.R, v.shade.G, v.shade.B, v.path.String())
		v.path.Reset()
	}
}

func (v *vector) text(x, y, size float64, end anchor, heavy bool, c color.NRGBA, s string) {
	v.flush()
	extra := ""
	switch end {
	case right:
		extra = ` text-anchor="end"`
	case middle:
		extra = ` text-anchor="middle"`
	}
	if heavy {
		extra += ` font-weight="600"`
	}
	fmt.Fprintf(&v.b, `<text x="%s" y="%s" font-size="%g" fill="#%02x%02x%02x"%s>%s</text>`+"\n", short(x), short(y), size, c.R, c.G, c.B, extra, html.EscapeString(s))
}

// short writes a coordinate to a tenth of a pixel.
func short(f float64) string {
	return strings.TrimSuffix(fmt.Sprintf("%.1f", f), ".0")
}

func (v *vector) String() string {
	v.flush()
	return v.b.String() + "</svg>\n"
}

// raster draws PNG, two dots a pixel.
type raster struct {
	img   *image.NRGBA
	faces map[string]font.Face
	err   error
}

const density = 2

func newRaster(w, h float64) *raster {
	return &raster{img: image.NewNRGBA(image.Rect(0, 0, int(w*density), int(h*density))), faces: map[string]font.Face{}}
}

func (r *raster) box(x, y, w, h float64, c color.NRGBA) {
	dots := func(f float64) int { return int(f*density + 0.5) }
	area := image.Rect(dots(x), dots(y), max(dots(x+w), dots(x)+1), max(dots(y+h), dots(y)+1))
	draw.Draw(r.img, area, image.NewUniform(c), image.Point{}, draw.Over)
}

func (r *raster) text(x, y, size float64, end anchor, heavy bool, c color.NRGBA, s string) {
	face, err := r.face(size, heavy)
	if err != nil {
		r.err = err
		return
	}
	d := font.Drawer{Dst: r.img, Src: image.NewUniform(c), Face: face}
	at := x * density
	switch wide := float64(d.MeasureString(s)) / 64; end {
	case right:
		at -= wide
	case middle:
		at -= wide / 2
	}
	d.Dot = fixed.Point26_6{X: fixed.Int26_6(at * 64), Y: fixed.Int26_6(y * density * 64)}
	d.DrawString(s)
}

func (r *raster) face(size float64, heavy bool) (font.Face, error) {
	key := fmt.Sprint(size, heavy)
	if f, ok := r.faces[key]; ok {
		return f, nil
	}
	data := goregular.TTF
	if heavy {
		data = gobold.TTF
	}
	parsed, err := opentype.Parse(data)
	if err != nil {
		return nil, fmt.Errorf("read the font: %w", err)
	}
	// The Go fonts run wider than what browsers take for system-ui.
	f, err := opentype.NewFace(parsed, &opentype.FaceOptions{Size: size * density * 0.94, DPI: 72})
	if err != nil {
		return nil, fmt.Errorf("make the font: %w", err)
	}
	r.faces[key] = f
	return f, nil
}

func (r *raster) write(out io.Writer) error {
	if r.err != nil {
		return r.err
	}
	return png.Encode(out, r.img)
}
