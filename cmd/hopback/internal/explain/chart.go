package explain

import (
	"fmt"
	"strings"
	"time"
)

// Chart draws when each retry runs, counted from the first failure: ░ from the
// earliest to the latest moment that jitter can make of it, █ the mean. Lines of
// at most width columns; none where there are no retries.
func Chart(p Policy, width int, label func(time.Duration) string) []string {
	if len(p.Retries) == 0 {
		return nil
	}
	end := time.Duration(1)
	for _, r := range p.Retries {
		end = max(end, r.After.Most)
	}
	names := 0
	for _, r := range p.Retries {
		names = max(names, len(fmt.Sprint(r.Number)))
	}
	width = max(width-names-3, 20)
	at := func(d time.Duration) int {
		return min(int(float64(d)/float64(end)*float64(width)), width-1)
	}
	var lines []string
	for i, r := range p.Retries {
		if p.Omitted > 0 && i == len(p.Retries)-1 {
			lines = append(lines, fmt.Sprintf("%*s │", names, "…"))
		}
		cells := []rune(strings.Repeat(" ", width))
		for c := at(r.After.Least); c <= at(r.After.Most); c++ {
			cells[c] = '░'
		}
		cells[at(r.After.Mean)] = '█'
		lines = append(lines, fmt.Sprintf("%*d │%s", names, r.Number, strings.TrimRight(string(cells), " ")))
	}
	// The axis has the moments of the means, from the last, as far as there is room.
	axis := []rune(strings.Repeat("─", width))
	labels := []rune(strings.Repeat(" ", width))
	free := width + 1
	for i := len(p.Retries) - 1; i >= 0; i-- {
		mean := p.Retries[i].After.Mean
		text := []rune(label(mean))
		from := min(at(mean), width-len(text))
		if from < 0 || from+len(text)+1 > free {
			continue
		}
		axis[at(mean)] = '┴'
		copy(labels[from:], text)
		free = from
	}
	return append(lines,
		fmt.Sprintf("%*s └%s", names, "", string(axis)),
		fmt.Sprintf("%*s  %s", names, "", strings.TrimRight(string(labels), " ")))
}
