package demo

import (
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Widths of the table: 78 columns.
const (
	nameWidth  = 42
	valueWidth = 18
)

// WriteTable writes the outcome for people.
func (r *Result) WriteTable(w io.Writer, colour bool) error {
	s := style{colour}
	var b strings.Builder
	b.WriteString("\n")
	r.table(&b, s)
	b.WriteString("\n")
	for _, l := range r.verdict(s) {
		b.WriteString(l + "\n")
	}
	if r.OK {
		b.WriteString("\n")
		for _, l := range next(s) {
			b.WriteString(l + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// table compares the two sides line by line.
func (r *Result) table(b *strings.Builder, s style) {
	a, j := r.Routes[0], r.Routes[1]
	line := func(code, name, x, y string) {
		text := fmt.Sprintf(" %-*s%*s%*s", nameWidth-1, name, valueWidth, x, valueWidth, y)
		b.WriteString(s.paint(code, text) + "\n")
	}
	plain := func(name, x, y string) { line("", name, x, y) }
	number := func(code, name string, f func(RouteResult) int) {
		line(code, name, strconv.Itoa(f(a)), strconv.Itoa(f(j)))
	}
	zero := func(name string, known bool, f func(RouteResult) int) { // a number that should be 0
		if !known {
			line(red, name, "unknown", "unknown")
			return
		}
		code := green
		if f(a)+f(j) > 0 {
			code = red
		}
		number(code, name, f)
	}
	line(bold, "", "without jitter", "with full jitter")
	number("", "sent", func(r RouteResult) int { return r.Sent })
	number("", "handled the first time", func(r RouteResult) int { return r.HandledFirst })
	number("", "handled after retries", func(r RouteResult) int { return r.HandledLater })
	number("", "parked", func(r RouteResult) int { return r.Parked })
	number(dim, "  permanent: the body cannot be decoded", func(r RouteResult) int { return r.Undecodable })
	number(dim, "  permanent: a business rule", func(r RouteResult) int { return r.ParkedBy["permanent"] - r.Undecodable })
	number(dim, fmt.Sprintf("  exhausted: failed after %d retries", r.MaxRetries), func(r RouteResult) int { return r.ParkedBy["exhausted"] })
	for _, reason := range r.otherReasons() {
		number(dim, "  "+reason, func(r RouteResult) int { return r.ParkedBy[reason] })
	}
	zero("waiting", r.Counted, func(r RouteResult) int { return r.Waiting })
	zero("lost", r.Counted, func(r RouteResult) int { return r.Lost })
	zero("duplicates", true, func(r RouteResult) int { return r.Duplicates })
	b.WriteString("\n")
	number("", "retries", func(r RouteResult) int { return r.Retries })
	number(bold, "most retries within one second", func(r RouteResult) int { return r.BusiestSecond })
	number(bold, "most retries within a tenth of a second", func(r RouteResult) int { return r.BusiestTenth })
	number("", "calls that failed while it was down", func(r RouteResult) int { return r.FailedDown })
	number("", "calls refused by the recovering service", func(r RouteResult) int { return r.Refused })
	plain("last order handled, after it went down", seconds(a.LastHandledMS), seconds(j.LastHandledMS))
	plain("how late a retry came, p50 / p99", late(a.Lateness), late(j.Lateness))
}

// otherReasons are reasons for parking that the story does not plan.
func (r *Result) otherReasons() (out []string) {
	for _, reason := range []string{"expired", "crash-loop", "bad-counter"} {
		if r.Routes[0].ParkedBy[reason]+r.Routes[1].ParkedBy[reason] > 0 {
			out = append(out, reason)
		}
	}
	return out
}

func seconds(ms int64) string { return fmt.Sprintf("%.1f s", float64(ms)/1000) }

func late(l lateness) string { return fmt.Sprintf("%.0f / %.0f ms", l.P50, l.P99) }

// verdict says in words whether the sum is right, and what the picture shows.
func (r *Result) verdict(s style) []string {
	t := r.Total
	if !r.OK {
		lines := []string{s.paint(red, " ✗ the ledger does not balance:")}
		for _, p := range r.Problems {
			lines = append(lines, "   "+p)
		}
		return lines
	}
	lines := []string{
		s.paint(green, fmt.Sprintf(" ✓ %d sent = %d handled + %d parked. Nothing is lost.", t.Sent, t.Handled, t.Parked)),
		fmt.Sprintf("   Counted again in the parking queues: %d.", r.Routes[0].ParkingDepth+r.Routes[1].ParkingDepth),
	}
	a, j := r.Routes[0], r.Routes[1]
	if j.BusiestTenth > 0 && a.BusiestTenth >= 2*j.BusiestTenth && a.LastHandledMS > j.LastHandledMS {
		lines = append(lines,
			fmt.Sprintf("   With jitter the worst tenth of a second brought %d calls instead of %d,", j.BusiestTenth, a.BusiestTenth),
			fmt.Sprintf("   and the last order was handled %.0f s sooner.", float64(a.LastHandledMS-j.LastHandledMS)/1000))
	}
	return lines
}

// next is what to do now.
func next(s style) []string {
	command := func(c, what string) string {
		return "   " + s.paint(cyan, fmt.Sprintf("%-26s", c)) + what
	}
	return []string{
		s.paint(bold, " Next"),
		command("hopback explain", "what each retry of a policy waits"),
		command("hopback dev", "a private broker for your own first consumer"),
		command("README.md, docs/demo.md", "20 lines of Go that retry; how to read this"),
	}
}

// Standing is the balance of a story that was interrupted, in words.
func (r *Result) Standing() string {
	t := r.Total
	return fmt.Sprintf("%d sent, %d handled, %d parked, %d waiting", t.Sent, t.Handled, t.Parked, t.Sent-t.Handled-t.Parked)
}
