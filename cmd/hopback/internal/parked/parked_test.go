package parked

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
)

func TestWhen(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	local := func(y int, m time.Month, d, h, min int) time.Time {
		return time.Date(y, m, d, h, min, 0, 0, time.Local)
	}
	for in, want := range map[string]time.Time{
		"2h": now.Add(-2 * time.Hour), "-90s": now.Add(-90 * time.Second), "7d": now.Add(-168 * time.Hour),
		"2026-11-30T10:00:00.5Z": time.Date(2026, 11, 30, 10, 0, 0, 500_000_000, time.UTC),
		"2026-11-29":             local(2026, 11, 29, 0, 0), "2026-11-29 08:30": local(2026, 11, 29, 8, 30),
	} {
		if got, err := When(in, now); err != nil || !got.Equal(want) {
			t.Errorf("%s: %v, %v; want %v", in, got, err, want)
		}
	}
	for _, bad := range []string{"", "yesterday", "30.11.2026", "d", "99999d"} {
		if _, err := When(bad, now); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

func TestPairs(t *testing.T) {
	m, err := Pairs([]string{"a=1", "b=c=d", "e=", "a=1"})
	if err != nil || len(m) != 3 || m["b"] != "c=d" {
		t.Errorf("%v, %v", m, err)
	}
	// All that are given must hold: the last one must not win in silence.
	if m, err := Pairs([]string{"a=1", "a=2"}); err == nil {
		t.Errorf("two values of one name: %v", m)
	}
	for _, bad := range []string{"a", "=a", ""} {
		if _, err := Pairs([]string{bad}); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

func TestProgress(t *testing.T) {
	for want, got := range map[string]string{
		"[██████████░░░░░░░░░░] 1,500 of 3,000, 100/s, 15s left": Progress(1500, 3000, 15*time.Second),
		"12":                   Progress(12, 0, 0),
		"1,234,567, 246,913/s": Progress(1234567, 0, 5*time.Second),
		"-1,000":               Thousands(-1000),
		"[░░░░░░░░░░░░░░░░░░░░] 0 of 5": Progress(0, 5, time.Minute),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func message() amqp.Publishing {
	return amqp.Publishing{
		ContentType: "application/json", Timestamp: time.Unix(1700000000, 0), DeliveryMode: 2,
		Headers: amqp.Table{"n": int8(-3), "dec": amqp.Decimal{Scale: 1, Value: 30}, "list": []any{nil, amqp.Table{"x": []byte{1}}}, "bad": "\x1b[31mred"},
		Body:    []byte("{\"a\": 1,\n\"b\": \"ü\"}"),
	}
}

// What was not touched comes back as it was.
func TestDocument(t *testing.T) {
	for name, body := range map[string]string{"text": "{\n}", "with an end": "a\nb\n", "binary": "\x00\xff", "none": ""} {
		p := message()
		p.Body = []byte(body)
		s, err := Document(&p)
		if err != nil {
			t.Fatal(err)
		}
		back, err := FromDocument(s, &p)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if len(back.Body) == 0 {
			back.Body = p.Body
		}
		if got, want := fmt.Sprintf("%#v", back), fmt.Sprintf("%#v", p); got != want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, want)
		}
	}
	p := message()
	s, _ := Document(&p)
	changed := strings.Replace(strings.Replace(s, `"-3"`, `"7"`, 1), `"b"`, `"c"`, 1)
	back, err := FromDocument(changed, &p)
	if err != nil || back.Headers["n"] != int8(7) || !strings.Contains(string(back.Body), `"c": "ü"`) {
		t.Errorf("%+v, %v", back, err)
	}
	for _, empty := range []string{"", "\n", preface} {
		if _, err := FromDocument(empty, &p); !errors.Is(err, ErrEmpty) {
			t.Errorf("%q: %v", empty, err)
		}
	}
	if _, err := FromDocument("{nonsense", &p); err == nil {
		t.Error("nonsense was read")
	}
}

func TestDiff(t *testing.T) {
	a := "1\n2\n3\n4\n5\n6\n7\n8\n9\n"
	if d := Diff(a, a, false); d != "" {
		t.Errorf("no change: %q", d)
	}
	got := Diff(a, "1\n2\n3\n4\nfive\n6\nnew\n7\n8\n9\n", false)
	if want := "  2\n  3\n  4\n- 5\n+ five\n  6\n+ new\n  7\n  8\n  9\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got := Diff("a\n", "b\n", true); got != "\x1b[31m- a\x1b[0m\n\x1b[32m+ b\x1b[0m\n" {
		t.Errorf("%q", got)
	}
	long := strings.Repeat("x\n", 3000)
	if d := Diff("a\n"+long+"b\n", "c\n"+strings.Repeat("y\n", 3000)+"d\n", false); strings.Count(d, "\n") != 6004 {
		t.Errorf("%d lines", strings.Count(d, "\n"))
	}
}

func TestBody(t *testing.T) {
	for in, want := range map[string]string{
		"": "", `{"a":1}`: "{\n  \"a\": 1\n}\n", "text\n": "text\n", "\x1b[0m": "�[0m\n", "\xff": "00000000  ff                                                |.|\n",
	} {
		var b strings.Builder
		if Body(&b, []byte(in)); b.String() != want {
			t.Errorf("%q: %q, want %q", in, b.String(), want)
		}
	}
}

func TestTimeline(t *testing.T) {
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.Local)
	var b strings.Builder
	timeline(&b, []attempt.Entry{
		{N: 1, At: at, Delay: time.Second, Error: "timeout", Consumer: "w1"},
		{N: 2, At: at.Add(1010 * time.Millisecond), Error: "bad\nline"},
		{At: at.Add(time.Hour), Error: "replayed", Consumer: "maria"},
	}, false)
	want := `  2026-11-30 12:00:00.000                attempt 1   timeout on w1, then waited 1s
  2026-11-30 12:00:01.010        +1.01s  attempt 2   bad line
  2026-11-30 13:00:00.000    +59m58.99s  replayed    by maria
`
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}
