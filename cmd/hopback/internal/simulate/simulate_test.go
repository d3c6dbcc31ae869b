package simulate

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"encoding/xml"
	"image/color"
	"image/png"
	"io"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/hopback/hopback/simulate"
)

// Every scenario that comes with Hopback can be read, says what it is, and its
// policies can be simulated.
func TestScenarios(t *testing.T) {
	if len(Names()) < 5 {
		t.Fatalf("%d scenarios", len(Names()))
	}
	for _, name := range Names() {
		f, err := Load(name, nil)
		if err != nil {
			t.Fatal(err)
		}
		if f.Name != name || f.About == "" || len(f.Policies) < 3 {
			t.Errorf("%s: name %q, about %q, %d policies", name, f.Name, f.About, len(f.Policies))
		}
		for _, p := range f.Policies {
			if err := p.Contender.Validate(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if p.Describe() == "" {
				t.Errorf("%s: policy %s does not say what it does", name, p.Name)
			}
		}
	}
}

func TestMistakesInAFile(t *testing.T) {
	for text, want := range map[string]string{
		"trafic: []":                                         "line 1: field trafic not found",
		"traffic: [{messages: 10, n: 1}]":                    "field n not found",
		"traffic: [{rate: 10}]":                              "traffic[0].for",
		"traffic: [{messages: ten}]":                         "line 1",
		"about: x":                                           "traffic: \"\" cannot work",
		"{traffic: [{messages: 1}], policies: [fll]}":        "there is no preset \"fll\": use one of immediate",
		"{traffic: [{messages: 1}], policies: [{base: 1s}]}": "needs a name",
		"{traffic: [{messages: 1}], policies: [{preset: full, bse: 1s}]}":   "field bse not found",
		"{traffic: [{messages: 1}], dependency: {spells: [{capacity: 2}]}}": "dependency.spells[0].capacity",
		"{traffic: [{messages: 1}], dependency: {capacity: -1}}":            "dependency.capacity",
		"{traffic: [{messages: 1}], consumers: {prefetch: 3000}}":           "consumers.prefetch",
		"{traffic: [{messages: 1}], window: 1ms, until: 1000h}":             "window",
		"{traffic: [{messages: 1}], dependency: {collapse: 1}}":             "dependency.collapse",
		"{traffic: [{messages: 1}], dependency: {spells: [{}, {at: 1s}]}}":  "dependency.spells[1].at",
		"{traffic: [{messages: 1, rate: 3, for: 1s}]}":                      "give messages or a rate, not both",
	} {
		_, err := Parse("x.yaml", []byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "x.yaml: ") {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	if _, err := Load("no-such", nil); err == nil || !strings.Contains(err.Error(), "thundering-herd") {
		t.Errorf("an unknown scenario: %v", err)
	}
}

func report(t *testing.T, name string) *simulate.Report {
	t.Helper()
	f, err := Load(name, nil)
	if err != nil {
		t.Fatal(err)
	}
	var all []simulate.Contender
	for _, p := range f.Policies {
		all = append(all, p.Contender)
	}
	r, err := simulate.Run(context.Background(), f.Scenario, all...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// The picture is XML that any browser reads, shows every policy, stays within its
// frame, and is the same bytes each time.
func TestPicture(t *testing.T) {
	r := report(t, "thundering-herd")
	words := r.Verdict()
	var a, b bytes.Buffer
	if err := SVG(&a, r, words); err != nil {
		t.Fatal(err)
	}
	if err := SVG(&b, report(t, "thundering-herd"), words); err != nil || !bytes.Equal(a.Bytes(), b.Bytes()) {
		t.Errorf("another picture from the same seed, %v", err)
	}
	d := xml.NewDecoder(bytes.NewReader(a.Bytes()))
	texts := ""
	for {
		tok, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := tok.(xml.CharData); ok {
			texts += string(e)
		}
	}
	l := newLayout(r, words)
	l.draw(frame{t, l.height()})
	for _, one := range r.Results {
		if !strings.Contains(texts, one.Contender.Name) {
			t.Errorf("%s is not in the picture", one.Contender.Name)
		}
	}
	var p bytes.Buffer
	if err := PNG(&p, r, words); err != nil {
		t.Fatal(err)
	}
	img, err := png.Decode(&p)
	if err != nil {
		t.Fatal(err)
	}
	if img.Bounds().Dx() != pictureWidth*density {
		t.Errorf("the PNG is %d wide", img.Bounds().Dx())
	}
	colours := map[color.Color]bool{}
	for y := range img.Bounds().Dy() {
		for x := range img.Bounds().Dx() {
			colours[color.NRGBAModel.Convert(img.At(x, y))] = true
		}
	}
	for _, c := range []color.Color{within, beyond, useless, white} {
		if !colours[c] {
			t.Errorf("the PNG has nothing in %v", c)
		}
	}
}

// frame is a canvas that looks whether all is within it.
type frame struct {
	t      *testing.T
	height float64
}

func (f frame) box(x, y, w, h float64, _ color.NRGBA) {
	if x < 0 || y < 0 || x+w > pictureWidth+1 || y+h > f.height+1 || h <= 0 || w <= 0 {
		f.t.Errorf("a box of %g × %g at %g, %g is outside", w, h, x, y)
	}
}

func (f frame) text(x, y, _ float64, _ anchor, _ bool, _ color.NRGBA, s string) {
	if x < 0 || y < 0 || x > pictureWidth || y > f.height {
		f.t.Errorf("%q at %g, %g is outside", s, x, y)
	}
}

// The page needs nothing from anywhere.
func TestPageIsSelfContained(t *testing.T) {
	r := report(t, "database-failover")
	var b bytes.Buffer
	if err := HTML(&b, r, r.Verdict()); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	if found := regexp.MustCompile(`(src|href)=|url\(|<script|@import`).FindString(text); found != "" {
		t.Errorf("the page refers to something: %s", found)
	}
	for _, one := range r.Results {
		if !strings.Contains(text, "<td>"+one.Contender.Name+"</td>") || one.Contender.Source != "" && !strings.Contains(text, "Source: ") {
			t.Errorf("%s or its source is not on the page", one.Contender.Name)
		}
	}
	if !strings.Contains(text, "<svg") {
		t.Error("no picture on the page")
	}
}

// What is drawn, listed and written is what was counted.
func TestDataAddsUp(t *testing.T) {
	r := report(t, "poison-flood")
	var b bytes.Buffer
	if err := CSV(&b, r); err != nil {
		t.Fatal(err)
	}
	lines, err := csv.NewReader(&b).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	calls, handled := map[string]int64{}, map[string]int64{}
	for _, l := range lines[1:] {
		n, _ := strconv.ParseInt(l[2], 10, 64)
		h, _ := strconv.ParseInt(l[5], 10, 64)
		calls[l[0]] += n
		handled[l[0]] += h
	}
	var j bytes.Buffer
	if err := JSON(&j, r, r.Verdict(), false); err != nil {
		t.Fatal(err)
	}
	var d document
	if err := json.Unmarshal(j.Bytes(), &d); err != nil {
		t.Fatal(err)
	}
	for i, one := range r.Results {
		sum := int64(0)
		for _, s := range d.Policies[i].Steps {
			sum += int64(s.Calls)
		}
		if calls[one.Contender.Name] != one.Calls || handled[one.Contender.Name] != one.Handled || sum != one.Calls {
			t.Errorf("%s: %d calls, CSV %d, JSON %d", one.Contender.Name, one.Calls, calls[one.Contender.Name], sum)
		}
		if len(d.Policies[i].Steps) > mostSteps {
			t.Errorf("%s: %d steps", one.Contender.Name, len(d.Policies[i].Steps))
		}
	}
	if len(d.Ranking) != len(r.Results) || len(d.Verdict) == 0 {
		t.Errorf("ranking %q, verdict %q", d.Ranking, d.Verdict)
	}
}

// The charts keep to the width of the terminal.
func TestTextKeepsToTheTerminal(t *testing.T) {
	r := report(t, "thundering-herd")
	for _, columns := range []int{40, 80, 100, 250} {
		var b bytes.Buffer
		if err := Text(&b, r, r.Verdict(), Style{Columns: columns}); err != nil {
			t.Fatal(err)
		}
		charts := 0
		for _, l := range strings.Split(b.String(), "\n") {
			if strings.ContainsAny(l, "│└") {
				charts++
				if n := utf8.RuneCountInString(l); n > max(columns, 40) {
					t.Errorf("%d columns: %d in %q", columns, n, l)
				}
			}
		}
		if want := len(r.Results)*chartHeight + 1; charts != want {
			t.Errorf("%d lines of charts, want %d", charts, want)
		}
	}
}

func TestAxes(t *testing.T) {
	for _, most := range []float64{1, 1.2, 2.5, 5, 9.9, 10, 37, 480} {
		l := levels(most)
		if len(l) < 2 || len(l) > 8 || l[len(l)-1] > most {
			t.Errorf("levels to %g: %v", most, l)
		}
	}
}
