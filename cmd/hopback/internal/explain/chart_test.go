package explain

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/backoff"
)

func TestChart(t *testing.T) {
	draw := func(p hopback.Policy, shown, width int) []string {
		return Chart(Route(hopback.Route{Queue: "q", Policy: p}, "hop", shown), width, time.Duration.String)
	}
	// 1, 3, 7 and 15 s in 60 columns of 0.25 s.
	got := draw(hopback.Policy{Schedule: hopback.Schedule{Jitter: hopback.NoJitter}, MaxRetries: 4}, 25, 64)
	for i, after := range []int{1, 3, 7, 15} {
		want := min(after*4, 59)
		bar := strings.TrimPrefix(got[i], string(rune('1'+i))+" │")
		if utf8.RuneCountInString(bar) != want+1 || strings.Trim(bar, " ") != "█" {
			t.Errorf("retry %d: %q, want one █ in column %d", i+1, bar, want)
		}
	}
	if labels := got[len(got)-1]; strings.Join(strings.Fields(labels), " ") != "1s 3s 7s 15s" {
		t.Errorf("labels %q", labels)
	}
	if none := draw(hopback.Policy{MaxRetries: hopback.NoRetries}, 25, 80); none != nil {
		t.Errorf("a chart of nothing: %q", none)
	}
	// Whatever the policy, no line is wider than allowed and the mean lies in the
	// band.
	for _, jitter := range backoff.Jitters() {
		p := hopback.Policy{Schedule: hopback.Schedule{Jitter: jitter}, MaxRetries: 40, MaxAge: hopback.Unlimited}
		for _, width := range []int{1, 30, 64, 200} {
			for _, line := range draw(p, 12, width) {
				if n := utf8.RuneCountInString(line); n > max(width, 25) {
					t.Errorf("%v: %d columns in %q, allowed %d", jitter, n, line, width)
				}
				if strings.Contains(line, "░") && !strings.Contains(line, "█") {
					t.Errorf("%v: no mean in %q", jitter, line)
				}
			}
		}
	}
}
