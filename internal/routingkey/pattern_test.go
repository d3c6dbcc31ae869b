package routingkey

import (
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestOverlap(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"orders.retry", "orders.#", true},
		{"orders", "orders.#", true},
		{"orders.retry", "orders.*", true},
		{"orders.a.b", "orders.*", false},
		{"orders.a.b", "*.#.b", true},
		{"", "#", true},
		{"", "*", true},
		{"a.#", "#.b", true},
		{"a.*", "*.b", true},
		{"a.*.c", "a.#.d", false},
		{"#.x.#", "a.*.b", true},
		{"#.x.#", "a.y.b", false},
		{"order.create", "orders.#", false},
	} {
		if got := Overlap(c.a, c.b); got != c.want {
			t.Errorf("Overlap(%q, %q) = %t", c.a, c.b, got)
		}
	}
	// Against every key of up to four words.
	words := []string{"a", "b", "*", "#"}
	pattern := func(r *rand.Rand) string {
		p := make([]string, 1+r.IntN(4))
		for i := range p {
			p[i] = words[r.IntN(len(words))]
		}
		return strings.Join(p, ".")
	}
	var keys []string
	for n := 1; n <= 4; n++ {
		for i := range 1 << n {
			k := make([]string, n)
			for j := range k {
				k[j] = words[i>>j&1]
			}
			keys = append(keys, strings.Join(k, "."))
		}
	}
	match := func(p, k string) bool {
		x := regexp.QuoteMeta("." + p)
		x = strings.ReplaceAll(x, `\.\*`, `\.[^.]+`)
		x = strings.ReplaceAll(x, `\.#`, `(\.[^.]+)*`)
		return regexp.MustCompile("^" + x + "$").MatchString("." + k)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		a, b := pattern(r), pattern(r)
		both := slices.ContainsFunc(keys, func(k string) bool { return match(a, k) && match(b, k) })
		empty := allHash(a) && allHash(b) // both match the key without words
		if got := Overlap(a, b); got != (both || empty) && !longer(a, b) || got != Overlap(b, a) {
			t.Fatalf("Overlap(%q, %q) = %t, by trying %t", a, b, got, both)
		}
	}
}

func allHash(p string) bool { return strings.Trim(p, "#.") == "" }

// longer: what both match may have more words than were tried.
func longer(a, b string) bool { return strings.Count(a+"."+b, ".") > 3 }

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
func TestOverlapOfShortPatterns(t *testing.T) {
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
		if got := Overlap(strings.Join(a, "."), strings.Join(b, ".")); got != want {
			t.Fatalf("overlap of %v and %v is %t", a, b, got)
		}
	}
}
