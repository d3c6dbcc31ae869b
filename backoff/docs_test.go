package backoff_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hopback/hopback/backoff"
)

// docs/policy.md is checked here, every number of it: its tables are computed, its Python is run, and what digits are
// left in its prose must be among the facts that are computed too.

const policyMD = "../docs/policy.md"

var update = flag.Bool("update", false, "write the computed tables of docs/policy.md")

// short writes a duration as people do in YAML: 1m, not 1m0s.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func table(rows ...[]string) string {
	var b strings.Builder
	for i, row := range rows {
		b.WriteString("| " + strings.Join(row, " | ") + " |\n")
		if i == 0 {
			b.WriteString(strings.Repeat("|---", len(row)) + "|\n")
		}
	}
	return b.String()
}

var standard = backoff.Schedule{}.WithDefaults()

func fieldsTable(t *testing.T) string {
	d := standard
	// A range is only written down after its ends were tried: the last value on either side that is accepted, and
	// the first that is refused.
	try := func(field string, ok, refused backoff.Schedule) {
		t.Helper()
		if err := ok.Validate(); err != nil {
			t.Errorf("%s: %v", field, err)
		}
		var e *backoff.FieldError
		if !errors.As(refused.Validate(), &e) || e.Field != field {
			t.Errorf("%s: %+v was not refused for it: %v", field, refused, refused.Validate())
		}
	}
	try("base", backoff.Schedule{Base: ms}, backoff.Schedule{Base: ms - 1})
	try("factor", backoff.Schedule{Factor: 1.000001}, backoff.Schedule{Factor: 1.0000009})
	try("factor", backoff.Schedule{Factor: 1}, backoff.Schedule{Factor: 0.9999999})
	try("max", backoff.Schedule{Base: ms, MinDelay: ms, Max: ms}, backoff.Schedule{Backoff: backoff.List, Delays: seconds(1), MinDelay: ms, Max: ms - 1})
	try("delays", backoff.Schedule{Backoff: backoff.List, Delays: []time.Duration{ms, sec}}, backoff.Schedule{Backoff: backoff.List, Delays: []time.Duration{ms - 1, sec}})
	proportional := func(p float64) backoff.Schedule {
		return backoff.Schedule{Jitter: backoff.Proportional, JitterRatio: p}
	}
	try("jitter_ratio", proportional(1), proportional(1.0000001))
	try("jitter_ratio", proportional(1e-300), proportional(-1e-300))
	try("min_delay", backoff.Schedule{MinDelay: 1}, backoff.Schedule{MinDelay: -1})
	names := func(all []string) string { return "`" + strings.Join(all, "`, `") + "`" }
	var kinds, jitters []string
	for _, k := range backoff.Kinds() {
		kinds = append(kinds, string(k))
	}
	for _, j := range backoff.Jitters() {
		jitters = append(jitters, string(j))
	}
	return table(
		[]string{"field", "default", "values"},
		[]string{"`backoff`", "`" + string(d.Backoff) + "`", names(kinds)},
		[]string{"`base`", short(d.Base), "at least " + short(ms) + ", at most `max`; not for `list`"},
		[]string{"`factor`", fmt.Sprint(d.Factor), "`exponential` only: 1 for no growth, or at least 1.000001; finite"},
		[]string{"`max`", short(d.Max) + "; for `list` its longest delay", "at least " + short(ms)},
		[]string{"`delays`", "none", "`list` only: one or more, each at least " + short(ms)},
		[]string{"`jitter`", "`" + string(d.Jitter) + "`", names(jitters)},
		[]string{"`jitter_ratio`", fmt.Sprint(d.JitterRatio), "`proportional` only: above 0, at most 1"},
		[]string{"`min_delay`", short(d.MinDelay), "at most `max`; to have practically none, write " + short(ms)},
	)
}

func ceilingsTable(*testing.T) string {
	head := []string{"backoff"}
	retries := []int64{1, 2, 3, 4, 5, 6, 7, 8, math.MaxInt64}
	for _, n := range retries {
		head = append(head, strings.Replace(fmt.Sprint(n), fmt.Sprint(int64(math.MaxInt64)), "2^63-1", 1))
	}
	rows := [][]string{head}
	for _, kind := range backoff.Kinds() {
		s := backoff.Schedule{Backoff: kind}
		if kind == backoff.List {
			s.Delays = seconds(10, 60, 600)
		}
		row := []string{"`" + string(kind) + "`"}
		for _, n := range retries {
			row = append(row, short(s.Ceiling(n)))
		}
		rows = append(rows, row)
	}
	return table(rows...)
}

func bandsTable(*testing.T) string {
	rows := [][]string{{"jitter", "retry 1", "retry 2", "retry 4", "retry 7"}}
	for _, jitter := range backoff.Jitters() {
		row := []string{"`" + string(jitter) + "`"}
		for _, n := range []int64{1, 2, 4, 7} {
			least, mean, most := backoff.Schedule{Jitter: jitter}.Band(n)
			row = append(row, fmt.Sprintf("%s … %s (%s)", short(least), short(most), short(mean.Round(10*ms))))
		}
		rows = append(rows, row)
	}
	return table(rows...)
}

func totalsTable(*testing.T) string {
	rows := [][]string{{"jitter", "least", "mean", "most"}}
	for _, jitter := range backoff.Jitters() {
		var least, mean, most time.Duration
		for n := int64(1); n <= 5; n++ {
			l, m, h := backoff.Schedule{Jitter: jitter}.Band(n)
			least, mean, most = least+l, mean+m, most+h
		}
		rows = append(rows, []string{"`" + string(jitter) + "`", short(least), short(mean.Round(10 * ms)), short(most)})
	}
	return table(rows...)
}

// spikesTable counts, of all the equally likely draws, those that end on the bound.
func spikesTable(t *testing.T) string {
	rows := [][]string{{"jitter", "where", "draw, then clamp", "clip, then draw"}}
	for _, c := range []struct {
		jitter    backoff.Jitter
		n         int64
		where     string
		onto      time.Duration
		unbounded func(d int64) (lo, hi int64) // the band before it is clipped
	}{
		{backoff.Full, 1, "retry 1, at `min_delay`", 100 * ms, func(d int64) (int64, int64) { return 0, d }},
		{backoff.Proportional, 7, "retry 7, at `max`", 60 * sec, func(d int64) (int64, int64) { return d - d/5, d + d/5 }},
		{backoff.Decorrelated, 20, "after a delay of 1m, at `max`", 60 * sec, func(int64) (int64, int64) { return 1000, 180_000 }},
	} {
		s := backoff.Schedule{Jitter: c.jitter}.WithDefaults()
		lo, hi := c.unbounded(s.Ceiling(c.n).Milliseconds())
		clamped := 0
		for d := lo; d <= hi; d++ {
			if max(s.MinDelay, min(time.Duration(d)*ms, s.Max)) == c.onto {
				clamped++
			}
		}
		// Clipped, the bound is one millisecond of the band, and every one is as likely: TestDrawIsUniform.
		l, h := s.Delay(c.n, 60*sec, 0), s.Delay(c.n, 60*sec, math.MaxUint64)
		if l != c.onto && h != c.onto {
			t.Errorf("%s: the band %v to %v does not touch %v", c.jitter, l, h, c.onto)
		}
		rows = append(rows, []string{
			"`" + string(c.jitter) + "`", c.where, fmt.Sprintf("%.0f %%", 100*float64(clamped)/float64(hi-lo+1)),
			fmt.Sprintf("%.3f %%", 100/float64((h-l)/ms+1)),
		})
	}
	return table(rows...)
}

func exampleTable(*testing.T) string {
	const id = "order-4711"
	rows := [][]string{{"n", "seed", "band of `full`", "delay", "band of `decorrelated`", "delay"}}
	full, decorrelated := backoff.Schedule{}, backoff.Schedule{Jitter: backoff.Decorrelated}
	previous := time.Duration(0)
	for n := int64(1); n <= 5; n++ {
		seed := backoff.Seed(id, n)
		lo, hi := decorrelated.Delay(n, previous, 0), decorrelated.Delay(n, previous, math.MaxUint64)
		least, _, most := full.Band(n)
		previous = decorrelated.Delay(n, previous, seed)
		rows = append(rows, []string{
			fmt.Sprint(n), fmt.Sprintf("`0x%016x`", seed),
			fmt.Sprintf("%d … %d", least.Milliseconds(), most.Milliseconds()), fmt.Sprint(full.Delay(n, 0, seed).Milliseconds()),
			fmt.Sprintf("%d … %d", lo.Milliseconds(), hi.Milliseconds()), fmt.Sprint(previous.Milliseconds()),
		})
	}
	return table(rows...)
}

var block = regexp.MustCompile(`(?s)<!-- checked: (\w+) -->\n(.*?)<!-- end -->\n`)

func TestDocsTables(t *testing.T) {
	raw, err := os.ReadFile(policyMD)
	if err != nil {
		t.Fatal(err)
	}
	render := map[string]func(*testing.T) string{
		"fields": fieldsTable, "ceilings": ceilingsTable, "bands": bandsTable, "totals": totalsTable, "spikes": spikesTable, "example": exampleTable,
	}
	seen := map[string]bool{}
	out := block.ReplaceAllStringFunc(string(raw), func(found string) string {
		m := block.FindStringSubmatch(found)
		name, got := m[1], m[2]
		if render[name] == nil {
			t.Errorf("nothing computes the table %q", name)
			return found
		}
		seen[name] = true
		want := "\n" + render[name](t) + "\n"
		if got != want && !*update {
			t.Errorf("the table %q is\n%s\nand should be (go test -run Docs -update writes it)\n%s", name, got, want)
		}
		return fmt.Sprintf("<!-- checked: %s -->\n%s<!-- end -->\n", name, want)
	})
	for _, name := range slices.Sorted(maps.Keys(render)) {
		if !seen[name] {
			t.Errorf("the table %q is missing", name)
		}
	}
	if *update && out != string(raw) {
		if err := os.WriteFile(policyMD, []byte(out), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

var python = regexp.MustCompile("(?s)```python\n(.*?)```\n")

// The prose: every digit of it belongs to a fact, and every fact is there.
func TestDocsProse(t *testing.T) {
	raw, err := os.ReadFile(policyMD)
	if err != nil {
		t.Fatal(err)
	}
	prose := python.ReplaceAllString(block.ReplaceAllString(string(raw), ""), "")
	prose = strings.Join(strings.Fields(prose), " ")

	decorrelated := backoff.Schedule{Jitter: backoff.Decorrelated}
	_, settled, _ := decorrelated.Band(1000)
	naive := time.Duration(0) // the recursion that ignores the shape of the distribution
	for range 1000 {
		naive = (standard.Base + min(standard.Max, 3*max(naive, standard.Base))) / 2
	}
	fibonacci := func() string {
		var f []string
		for n := int64(1); n <= 6; n++ {
			f = append(f, fmt.Sprint(int64(backoff.Schedule{Backoff: backoff.Fibonacci}.Ceiling(n)/time.Second)))
		}
		return strings.Join(f, ", ")
	}()
	_, mean2, _ := decorrelated.Band(2)
	_, mean3, _ := decorrelated.Band(3)
	if mean3 != (standard.Base+3*mean2)/2 {
		t.Errorf("mean(3) of decorrelated is %v after %v", mean3, mean2)
	}
	if d := decorrelated.Delay(1, 5*sec, math.MaxUint64); d != 3*5*sec {
		t.Errorf("decorrelated goes up to %v after 5s", d)
	}
	if d := (backoff.Schedule{Jitter: backoff.Equal}).Delay(1, 0, 0); d != standard.Base/2 {
		t.Errorf("equal goes down to %v of 1s", d)
	}
	for _, factor := range []float64{2, 3, 1.5} { // exact up to the cap: TestCeilingAgainstRationals
		if got, want := (backoff.Schedule{Factor: factor}).Ceiling(3), time.Duration(factor*factor*float64(sec)); got != want {
			t.Errorf("factor %v: %v", factor, got)
		}
	}
	for _, fact := range []string{
		"Retry n is attempt n + 1: retry 1 follows the first failure",
		fmt.Sprintf("and %d uniformly random bits", 64),
		"factor^(n-1)",
		"F = " + fibonacci + ", …",
		"| `full` | 0 | d |",
		"| `equal` | d/2, rounded up | d |",
		"| `decorrelated` | base | 3 × the delay before, or 3 × base if that is more |",
		fmt.Sprintf("with base %s, factor %v, max %s; the list is %s, %s, %s without", short(standard.Base), standard.Factor,
			short(standard.Max), short(10*sec), short(60*sec), short(600*sec)),
		"**1. The ceiling**", "**2. The jitter**", "**3. Clip, then draw.**",
		"with `max_retries: 5`", // totalsTable
		"full jitter is d/2",    // TestMeanOfFullJitter
		`"about 10s, then a minute"`,
		"mean(n) = (base + 3 × mean(n-1)) / 2",
		fmt.Sprintf("it would settle at %.1fs, where the truth is %.1fs", naive.Seconds(), settled.Seconds()),
		"With the 64 bits taken",
		"1. The seed. FNV-1a with 64 bits", "(UTF-8, as", "SplitMix64", "modulo 2^64", "2. The ceiling of n.", "IEEE 754",
		"such as 2, 3 or 1.5; for one such as 1.1",
		"3. The band", "4. The draw. lo + the upper 64 bits of the 128-bit product of the seed and (hi - lo + 1)",
		"`order-4711`", "(0 before the first)",
	} {
		if !strings.Contains(prose, fact) {
			t.Errorf("the page does not say %q", fact)
		}
		prose = strings.ReplaceAll(prose, fact, "")
	}
	for _, at := range regexp.MustCompile(`\d[\d.,^]*`).FindAllStringIndex(prose, -1) {
		t.Errorf("a number that nothing checks: …%s…", prose[max(0, at[0]-40):min(len(prose), at[1]+40)])
	}
}

// The Python of the page gives the golden vectors, all of them.
func TestDocsPython(t *testing.T) {
	interpreter, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 here to run the recipe of docs/policy.md with")
	}
	raw, err := os.ReadFile(policyMD)
	if err != nil {
		t.Fatal(err)
	}
	m := python.FindSubmatch(raw)
	if m == nil {
		t.Fatal("the page has no Python")
	}
	script := string(m[1]) + `
import json
out = []
for file in ("testdata/seed.json", "testdata/delays.json"):
    for v in json.load(open(file, encoding="utf-8"))["vectors"]:
        n = int(v["n"])
        r = seed(v["message_id"], n)
        got = {"seed": r}
        if "schedule" in v:
            s = v["schedule"]
            lo, hi = band(s, n, v["previous"])
            got.update(ceiling=ceiling(s, n), lo=lo, hi=hi, delay=delay(s, n, v["previous"], r))
        out.append(got)
print(json.dumps(out))
`
	cmd := exec.Command(interpreter, "-")
	cmd.Stdin = strings.NewReader(script)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	printed, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.Bytes())
	}
	var got []struct {
		Seed                   uint64
		Ceiling, Lo, Hi, Delay int64
	}
	if err := json.Unmarshal(printed, &got); err != nil {
		t.Fatal(err)
	}
	want := append(vectors(t, "testdata/seed.json"), vectors(t, "testdata/delays.json")...)
	if len(got) != len(want) {
		t.Fatalf("%d results for %d vectors", len(got), len(want))
	}
	for i, v := range want {
		_, seed := v.numbers(t)
		g := got[i]
		if g.Seed != seed || g.Ceiling != v.Ceiling || g.Lo != v.Lo || g.Hi != v.Hi || g.Delay != v.Delay {
			t.Errorf("%+v: Python says %+v", v, g)
		}
	}
}
