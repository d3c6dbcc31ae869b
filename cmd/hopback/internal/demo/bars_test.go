package demo

import (
	"regexp"
	"strings"
	"testing"
	"testing/quick"
	"unicode/utf8"
)

var sgr = regexp.MustCompile("\x1b\\[[0-9;]*m")

func TestSecondLooksLikeThis(t *testing.T) {
	for _, tc := range []struct {
		columns int
		want    string
	}{
		{80, "   9s │ ██████████▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒░ 100 │ ██████ 21"},
		{60, "   9s │ ███████▒▒▒▒▒▒▒▒▒▒▒░ 100 │ ████ 21"},
		{20, "   9s │ ████▒▒▒▒▒▒ 100 │ ██ 21"}, // narrower than it can be
	} {
		got := style{}.second(9, tally{handled: 35, refused: 62, failed: 3}, tally{handled: 19, failed: 2}, 100, tc.columns)
		if got != tc.want {
			t.Errorf("at %d columns:\n got %q\nwant %q", tc.columns, got, tc.want)
		}
	}
}

func TestColoursChangeNothingElse(t *testing.T) {
	a, b := tally{handled: 35, refused: 62, failed: 3}, tally{failed: 2}
	plain := style{}.second(9, a, b, 100, 80)
	painted := style{colour: true}.second(9, a, b, 100, 80)
	if !strings.Contains(painted, "\x1b[") {
		t.Errorf("no colour in %q", painted)
	}
	if got := strings.TrimRight(sgr.ReplaceAllString(painted, ""), " "); got != plain {
		t.Errorf("without its colours:\n got %q\nwant %q", got, plain)
	}
}

func TestNoRowIsWiderThanTheTerminal(t *testing.T) {
	fits := func(a, b [outcomes]uint16, most, width uint16) bool {
		columns := 42 + int(width%200)
		small := func(x [outcomes]uint16) (out tally) {
			for i := range x {
				out[i] = int(x[i] % 3000)
			}
			return out
		}
		// More than the scale knows is drawn to the edge.
		row := style{}.second(7, small(a), small(b), 1+int(most%2000), columns)
		texts := style{}.text("", bold, strings.Repeat("word ", 40), "and another", columns)
		return utf8.RuneCountInString(row) < columns && utf8.RuneCountInString(texts) < columns
	}
	if err := quick.Check(fits, nil); err != nil {
		t.Error(err)
	}
}

func TestBarKeepsItsProportions(t *testing.T) {
	for _, tc := range []struct {
		name string
		t    tally
		want string
	}{
		{"nothing", tally{}, ""},
		{"one of a hundred is seen", tally{failed: 1}, "░"},
		{"one that was handled is seen", tally{handled: 1}, "█"},
		{"half", tally{handled: 50}, "█████"},
		{"all", tally{handled: 100}, "██████████"},
		{"thirds", tally{handled: 30, refused: 30, failed: 40}, "███▒▒▒░░░░"},
		{"more than the scale", tally{handled: 50, failed: 500}, "█████░░░░░"},
	} {
		if got := (style{}).bar(tc.t, 100, 10); got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, got, tc.want)
		}
	}
}
