// Package parked holds what the commands "hopback parked …" need and that has to
// do with neither a broker nor flags: how a message is shown, edited and compared,
// how times are read, and how a line of progress is written.
package parked

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// When reads a time: RFC 3339, a date with or without a time of day (local), or a
// duration, which is so long before now; 7d is seven times 24 hours.
func When(s string, now time.Time) (time.Time, error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil {
			return now.Add(-time.Duration(n) * 24 * time.Hour), nil
		}
	}
	if d, err := time.ParseDuration(s); err == nil {
		if d < 0 {
			d = -d
		}
		return now.Add(-d), nil
	}
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return t, nil
	}
	for _, layout := range []string{"2006-01-02 15:04:05", "2006-01-02T15:04:05", "2006-01-02 15:04", "2006-01-02T15:04", "2006-01-02"} {
		if t, err := time.ParseInLocation(layout, s, time.Local); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q cannot work: use a time such as 2026-11-30T17:15:00Z, a date such as 2026-11-30, or how long ago, such as 2h or 7d", s)
}

// Pairs reads "name=value" of a flag that may be given several times.
func Pairs(list []string) (map[string]string, error) {
	if len(list) == 0 {
		return nil, nil
	}
	m := map[string]string{}
	for _, s := range list {
		k, v, ok := strings.Cut(s, "=")
		if !ok || k == "" {
			return nil, fmt.Errorf("%q cannot work: use name=value", s)
		}
		if old, there := m[k]; there && old != v {
			return nil, fmt.Errorf("%s cannot be %q and %q: give one of them", k, old, v)
		}
		m[k] = v
	}
	return m, nil
}

// Progress is a line that says how far something is: done of total, how many a
// second, and how long it will last. total may be 0 for unknown.
func Progress(done, total int, elapsed time.Duration) string {
	s := Thousands(done)
	if total > 0 {
		const width = 20
		full := min(width*done/total, width)
		s = fmt.Sprintf("[%s%s] %s of %s", strings.Repeat("█", full), strings.Repeat("░", width-full), s, Thousands(total))
	}
	if elapsed < time.Second || done == 0 {
		return s
	}
	rate := float64(done) / elapsed.Seconds()
	s += fmt.Sprintf(", %s/s", Rate(rate))
	if total > done {
		left := time.Duration(float64(total-done) / rate * float64(time.Second))
		s += ", " + left.Round(time.Second).String() + " left"
	}
	return s
}

// Rate writes a number a second as precisely as it is worth.
func Rate(r float64) string {
	if r < 10 {
		return fmt.Sprintf("%.1f", r)
	}
	return Thousands(int(r + 0.5))
}

// Thousands writes a number with commas.
func Thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Style writes for a terminal that shows colours, or plainly.
type Style bool

func (s Style) code(code, text string) string {
	if !s || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// Bold, Dim, Red and Green set a text off.
func (s Style) Bold(text string) string  { return s.code("1", text) }
func (s Style) Dim(text string) string   { return s.code("2", text) }
func (s Style) Red(text string) string   { return s.code("31", text) }
func (s Style) Green(text string) string { return s.code("32", text) }

// Clean takes out of a stranger's text what a terminal would act on; line breaks
// and tabs stay.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 {
			return '�'
		}
		return r
	}, s)
}
