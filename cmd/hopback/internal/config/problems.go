package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Problem is one thing that is wrong with a configuration.
type Problem struct {
	File   string `json:"file"`             // or the environment variable, or "" for a flag
	Line   int    `json:"line,omitempty"`   // from 1; 0 for the environment and flags
	Column int    `json:"column,omitempty"` // from 1
	Field  string `json:"field,omitempty"`  // "routes[0].mechanism"; "" for the file as a whole
	Value  string `json:"value,omitempty"`  // as written, without passwords
	Fix    string `json:"fix"`              // what to write instead

	noValue bool // there is no value to show, as for a missing key
}

// Error is in the form that editors and terminals can jump to:
//
//	hopback.yaml:12: routes[0].mechanism: "nativ" cannot work: use auto, wheel or ladder
func (p Problem) Error() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(p.File)
		if p.Line > 0 {
			fmt.Fprintf(&b, ":%d", p.Line)
		}
		b.WriteString(": ")
	}
	if p.Field != "" {
		b.WriteString(p.Field + ": ")
	}
	if p.Field != "" && !p.noValue {
		fmt.Fprintf(&b, "%q cannot work: ", p.Value)
	}
	b.WriteString(p.Fix)
	return b.String()
}

// Problems is everything that is wrong with a configuration, in the order of
// the file.
type Problems []Problem

func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap gives errors.As the single problems.
func (ps Problems) Unwrap() []error {
	errs := make([]error, len(ps))
	for i, p := range ps {
		errs[i] = p
	}
	return errs
}

// sorted puts problems in the order of the file, each once.
func (ps Problems) sorted() Problems {
	slices.SortStableFunc(ps, func(a, b Problem) int {
		// What has no line comes last: the environment, after the file.
		if (a.Line == 0) != (b.Line == 0) {
			return cmp.Compare(b.Line, a.Line)
		}
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return slices.CompactFunc(ps, func(a, b Problem) bool { return a == b })
}

// list writes choices as a sentence has them: "auto, wheel or ladder".
func list(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " or " + names[len(names)-1]
}

// nearest is the one of the names that a misspelt one was probably meant to
// be, or "".
func nearest(name string, names []string) string {
	best, least := "", len(name)/3+1 // a third of the letters may be wrong
	if len(name) < 3 {
		least = 1
	}
	for _, n := range names {
		if d := distance(strings.ToLower(name), n); d <= least && (best == "" || d < distance(strings.ToLower(name), best)) {
			best = n
		}
	}
	return best
}

// distance counts the letters to insert, delete, replace or swap with their
// neighbour to turn a into b.
func distance(a, b string) int {
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			differ := 1
			if a[i] == b[j] {
				differ = 0
			}
			row[j+1] = min(row[j]+1, last[j+1]+1, last[j]+differ)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
