package demo

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// balanced is the outcome of a story in which all went well.
func balanced() *Result {
	side := func(queue, jitter string, second, tenth int, last int64) RouteResult {
		return RouteResult{
			Queue: queue, Jitter: jitter, Totals: Totals{Sent: 166, Handled: 153, Parked: 13},
			HandledFirst: 50, HandledLater: 103, ParkedBy: map[string]int{"permanent": 10, "exhausted": 3},
			Undecodable: 5, ParkingDepth: 13, Retries: 319, FailedDown: 203, Refused: 98,
			BusiestSecond: second, BusiestTenth: tenth, LastHandledMS: last,
			Lateness: lateness{Count: 319, P50: 21.1, P99: 196}, PerSecond: []Second{},
		}
	}
	r := &Result{
		Counted: true, Broker: "4.3.6", Messages: 100, MaxRetries: 5,
		Routes: []RouteResult{side(queueWithout, "none", 104, 96, 21284), side(queueWith, "full", 54, 12, 10310)},
	}
	r.judge()
	return r
}

func TestJudgeFindsWhatDoesNotBalance(t *testing.T) {
	if r := balanced(); !r.OK || r.Err() != nil || !reflect.DeepEqual(r.Total, Totals{Sent: 332, Handled: 306, Parked: 26}) {
		t.Fatalf("a story in which all went well: %+v, %v", r, r.Err())
	}
	for _, tc := range []struct {
		name  string
		spoil func(*RouteResult)
		want  string
	}{
		{"lost", func(r *RouteResult) { r.Handled--; r.Lost++ }, "1 lost"},
		{"unbalanced", func(r *RouteResult) { r.Handled-- }, "166 sent, but 152 handled + 13 parked"},
		{"waiting", func(r *RouteResult) { r.Handled--; r.Waiting++ }, "1 still waiting"},
		{"a parking queue that disagrees", func(r *RouteResult) { r.ParkingDepth = 12 }, "holds 12, but 13 were reported"},
		{"strangers", func(r *RouteResult) { r.Unknown = 2 }, "2 messages that nobody sent"},
		{"a copy that waits", func(r *RouteResult) { r.Waiting++ }, "1 still waiting"},
	} {
		r := balanced()
		tc.spoil(&r.Routes[1])
		r.judge()
		if err := r.Err(); r.OK || err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), queueWith) {
			t.Errorf("%s: ok %t, %v; want %q", tc.name, r.OK, err, tc.want)
		}
	}
	r := balanced()
	r.Routes[0].Duplicates = 1 // at least once: seen, and no failure
	if r.judge(); !r.OK || r.Total.Duplicates != 1 {
		t.Errorf("a duplicate: %+v", r.Total)
	}
	r.Interrupted = true
	if r.judge(); r.OK || r.Err() != nil {
		t.Errorf("interrupted: ok %t, %v", r.OK, r.Err())
	}
	r = balanced()
	r.Counted = false
	if r.judge(); r.OK || r.Err() == nil || !strings.Contains(r.Err().Error(), "could not be asked") {
		t.Errorf("a broker that does not answer: ok %t, %v", r.OK, r.Err())
	}
	empty := &Result{Counted: true}
	if empty.judge(); empty.OK {
		t.Error("a story in which nothing was sent is no success")
	}
}

const table = `
                                              without jitter  with full jitter
 sent                                                    166               166
 handled the first time                                   50                50
 handled after retries                                   103               103
 parked                                                   13                13
   permanent: the body cannot be decoded                   5                 5
   permanent: a business rule                              5                 5
   exhausted: failed after 5 retries                       3                 3
 waiting                                                   0                 0
 lost                                                      0                 0
 duplicates                                                0                 0

 retries                                                 319               319
 most retries within one second                          104                54
 most retries within a tenth of a second                  96                12
 calls that failed while it was down                     203               203
 calls refused by the recovering service                  98                98
 last order handled, after it went down               21.3 s            10.3 s
 how late a retry came, p50 / p99                21 / 196 ms       21 / 196 ms

 ✓ 332 sent = 306 handled + 26 parked. Nothing is lost.
   Counted again in the parking queues: 26.
   With jitter the worst tenth of a second brought 12 calls instead of 96,
   and the last order was handled 11 s sooner.

 Next
   hopback explain           what each retry of a policy waits
   hopback dev               a private broker for your own first consumer
   README.md, docs/demo.md   20 lines of Go that retry; how to read this
`

func TestTableLooksLikeThis(t *testing.T) {
	var b strings.Builder
	if err := balanced().WriteTable(&b, false); err != nil {
		t.Fatal(err)
	}
	if b.String() != table {
		t.Errorf("got:\n%s\nwant:\n%s", b.String(), table)
	}
	for _, l := range strings.Split(b.String(), "\n") {
		if n := utf8.RuneCountInString(l); n > 80 {
			t.Errorf("%d columns: %q", n, l)
		}
	}
	var c strings.Builder
	if err := balanced().WriteTable(&c, true); err != nil {
		t.Fatal(err)
	}
	if got := sgr.ReplaceAllString(c.String(), ""); got != table {
		t.Errorf("without its colours the table differs:\n%s", got)
	}
}

func TestTableSaysWhatIsWrong(t *testing.T) {
	r := balanced()
	r.Routes[0].Handled, r.Routes[0].Lost = 152, 1
	r.Routes[0].ParkedBy["crash-loop"] = 1
	r.judge()
	var b strings.Builder
	if err := r.WriteTable(&b, false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"✗ the ledger does not balance:", queueWithout + ": 1 lost", "crash-loop"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in:\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "unknown") {
		t.Errorf("something is unknown:\n%s", b.String())
	}
	r.Counted = false
	b.Reset()
	if err := r.WriteTable(&b, false); err != nil || strings.Count(b.String(), "unknown") != 4 {
		t.Errorf("a broker that does not answer (%v):\n%s", err, b.String())
	}
	if strings.Contains(b.String(), "✓") {
		t.Errorf("a success after all:\n%s", b.String())
	}
}

// fields are the names of a struct's JSON fields, and of the structs within.
func fields(t reflect.Type) (names []string) {
	switch t.Kind() {
	case reflect.Slice, reflect.Map:
		return fields(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			if name := f.Tag.Get("json"); name != "" {
				names = append(names, name)
			}
			names = append(names, fields(f.Type)...)
		}
	}
	return names
}

func TestEveryFieldIsDocumented(t *testing.T) {
	names := fields(reflect.TypeFor[Result]())
	if len(names) < 40 {
		t.Fatalf("only %d fields: %q", len(names), names)
	}
	page, err := os.ReadFile("../../../../docs/demo.md")
	if err != nil {
		t.Fatal(err)
	}
	help, err := os.ReadFile("../../demo.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("docs/demo.md does not explain `%s`", name)
		}
		if !regexp.MustCompile(`\b` + name + `\b`).Match(help) {
			t.Errorf("the help of the command does not name %s", name)
		}
	}
}
