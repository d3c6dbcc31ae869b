// Package routingkey compares routing keys with the patterns of topic exchanges.
package routingkey

import (
	"slices"
	"strings"
)

// Overlap reports whether a key may match both patterns of a topic exchange. A key
// without wildcards is a pattern that only it matches.
func Overlap(a, b string) bool {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	// reach[j]: the words so far of a can be matched with the first j of b.
	reach := make([]bool, len(bs)+1)
	reach[0] = true
	for j, w := range bs {
		reach[j+1] = reach[j] && w == "#"
	}
	for _, w := range as {
		next := make([]bool, len(bs)+1)
		next[0] = reach[0] && w == "#"
		for j, o := range bs {
			if w == "#" || o == "#" { // it stands for nothing, or takes a word of the other
				next[j+1] = next[j] || reach[j+1]
			} else {
				next[j+1] = reach[j] && (w == o || w == "*" || o == "*")
			}
		}
		reach = next
	}
	return reach[len(bs)]
}

// Wildcard reports whether a topic pattern is more than one key.
func Wildcard(pattern string) bool {
	return slices.ContainsFunc(strings.Split(pattern, "."), func(w string) bool { return w == "*" || w == "#" })
}
