package attach

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// matches is what a topic exchange does, written the plain way.
func matches(pattern, key []string) bool {
	switch {
	case len(pattern) == 0:
		return len(key) == 0
	case pattern[0] == "#":
		return matches(pattern[1:], key) || len(key) > 0 && matches(pattern, key[1:])
	case len(key) == 0:
		return false
	}
	return (pattern[0] == "*" || pattern[0] == key[0]) && matches(pattern[1:], key[1:])
}

// Two patterns overlap exactly when some key matches both: for short patterns of two
// words all keys that could are tried.
func TestOverlap(t *testing.T) {
	var keys [][]string
	var grow func(key []string)
	grow = func(key []string) {
		keys = append(keys, slices.Clone(key))
		if len(key) < 6 {
			grow(append(slices.Clone(key), "a"))
			grow(append(slices.Clone(key), "b"))
		}
	}
	grow(nil)
	r := rand.New(rand.NewPCG(1, 2))
	pattern := func() []string {
		p := make([]string, 1+r.IntN(3))
		for i := range p {
			p[i] = []string{"a", "b", "*", "#"}[r.IntN(4)]
		}
		return p
	}
	for range 2000 {
		a, b := pattern(), pattern()
		want := slices.ContainsFunc(keys, func(k []string) bool { return matches(a, k) && matches(b, k) })
		if got := overlap(strings.Join(a, "."), strings.Join(b, ".")); got != want {
			t.Fatalf("overlap of %v and %v is %t", a, b, got)
		}
	}
}
