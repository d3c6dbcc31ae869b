package attempt

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"
)

// FuzzHistory: whatever stands in the header, appending never panics and gives
// a history that encoding/json reads, that ends with the new line, and that has
// the first line and as many of the last as there is room for.
func FuzzHistory(f *testing.F) {
	for _, raw := range []string{
		"", "[]", "null", "garbage", `[{"n":1}]`, `[null]`, `[{"n":01,"at":1,"delay":1,"error":"","consumer":""}]`,
		`[{"n":1,"at":1700000000000,"delay":1000,"error":"a\"b\\","consumer":"c"}]`,
		`[{"n":1,"at":1,"delay":1,"error":"\u00e9\ud800","consumer":"` + "\xff" + `"},{"n":2,"at":1,"delay":1,"error":"","consumer":""}]`,
		`[{"n":1,"at":1,"delay":9223372036854775807,"error":"","consumer":""}]`, `[{"n":2147483648,"at":1,"delay":1,"error":"","consumer":""}]`,
		"[{\"n\":1,\"at\":1,\"delay\":1,\"error\":\"\n\",\"consumer\":\"\"}]",
		`[{"n":1,"at":1,"delay":1,"error":"","consumer":""}]x`, `[{"n":1,"at":1,"delay":1,"error":"","consumer":""},]`,
	} {
		f.Add(raw, "timeout", "worker-1", uint8(3))
		f.Add(raw, "\"\\\x00\xff\u2028", "", uint8(0))
	}
	f.Add("", strings.Repeat("é", 101), strings.Repeat("\xff", 300), uint8(14))
	f.Fuzz(func(t *testing.T, raw, text, consumer string, times uint8) {
		if regions, ok := splitHistory(raw, nil); ok {
			if lines := decodeHistory(raw); len(lines) != len(regions) {
				t.Fatalf("%d regions, but encoding/json reads %d lines: %q", len(regions), len(lines), raw)
			}
			if joined := joinHistory(raw, regions); joined != raw {
				t.Fatalf("joined %q, was %q", joined, raw)
			}
		}
		want := decodeHistory(raw)
		for n := range int32(times%15) + 1 {
			raw = appendHistory(raw, line{N: n, At: 1700000000000, Delay: 1000, Error: text, Consumer: consumer})
			if want = append(want, line{N: n}); len(want) > MaxHistory {
				folded := append([]line{want[0]}, want[len(want)-MaxHistory+1:]...)
				want = folded
			}
			var got []line
			if err := json.Unmarshal([]byte(raw), &got); err != nil {
				t.Fatalf("encoding/json: %v: %q", err, raw)
			}
			if len(got) != len(want) {
				t.Fatalf("%d lines, want %d: %q", len(got), len(want), raw)
			}
			for i := range got {
				if w := max(want[i].N, 0); got[i].N != w {
					t.Fatalf("line %d is of attempt %d, want %d: %q", i, got[i].N, w, raw)
				}
			}
			last := got[len(got)-1]
			if last.Error != bounded(text, MaxEntryError) || last.Consumer != bounded(consumer, MaxEntryConsumer) {
				t.Fatalf("last line %+v of error %q, consumer %q", last, text, consumer)
			}
			if _, ok := splitHistory(raw, nil); !ok {
				t.Fatalf("our own form is not recognised: %q", raw)
			}
		}
	})
}

// The appender writes what encoding/json would, for texts of every kind of
// rune.
func TestHistoryIsJSON(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		var text strings.Builder
		for range random.IntN(40) {
			switch random.IntN(4) {
			case 0:
				text.WriteByte(byte(random.IntN(128)))
			case 1:
				text.WriteRune(rune(random.IntN(0x11000)))
			case 2:
				text.WriteString([]string{`"`, `\`, `\"`, "\u2028", "\x7f", "</", "\xff", "\xed\xa0\x80"}[random.IntN(8)])
			case 3:
				text.WriteByte(byte(random.IntN(32)))
			}
		}
		raw := appendHistory("", line{N: 1, Error: text.String()})
		var got []line
		if err := json.Unmarshal([]byte(raw), &got); err != nil {
			t.Fatalf("%q: %v", raw, err)
		}
		if want := bounded(text.String(), MaxEntryError); len(got) != 1 || got[0].Error != want {
			t.Fatalf("%q: read %+v, want %q", raw, got, want)
		}
	}
}

func TestHistoryGarbageIsNil(t *testing.T) {
	for _, raw := range []string{"", "x", "[]", "{}", "null", "[1]", `[{"n":1}`, `["a"]`, `[{"at":"x"}]`, strings.Repeat("[", 100000)} {
		if got := (Record{history: raw}).History(); got != nil {
			t.Errorf("%.20q: %v, want nil", raw, got)
		}
	}
	got := Record{history: `[{"n":1,"at":-5,"delay":-7},{"n":2,"at":9223372036854775807,"delay":9223372036854775807}]`}.History()
	if len(got) != 2 || !got[0].At.IsZero() || got[0].Delay != 0 || !got[1].At.IsZero() || got[1].Delay <= 0 {
		t.Errorf("numbers out of range: %+v", got)
	}
}

// roughly decides whether a record is measured at all, so it must never be
// below what put writes.
func TestRoughlyIsAnUpperBound(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	texts := []string{"", "a", "orders", "<<<>>>&&&", "\"\\\n\x00\x01", "\u2028é😀", "\xff\xfe", strings.Repeat("\xffa", 700), strings.Repeat("x", 2000)}
	text := func() string { return texts[random.IntN(len(texts))] }
	keys := func() []string {
		var k []string
		for range random.IntN(4) {
			k = append(k, text())
		}
		return k
	}
	moment := func() time.Time { return time.UnixMilli(random.Int64N(2 * maxMillis)) }
	measured := 0
	for range 5000 {
		r := Record{
			Count: random.Int32(), Queue: text(), ID: text(), Exchange: text(), RoutingKey: text(), Policy: text(),
			FirstFailedAt: moment(), FailedAt: moment(), DueAt: moment(), Deadline: moment(),
			Delay: time.Duration(random.Int64()), Error: text(), ErrorType: text(), Reason: text(), CC: keys(), BCC: keys(),
			Expiration: text(), UserID: text(), DeliveryMode: uint8(random.IntN(4)), Then: text(), history: text(),
		}
		real := Size(r.Headers()) - 4
		if rough := r.roughly(); rough < real {
			t.Fatalf("roughly %d, in fact %d: %+v", rough, real, r)
		}
		// fit must keep what fits exactly, and shrink what is one byte too long.
		if fitted := r.fit(real); Size(fitted.Headers())-4 != real {
			t.Fatalf("%d bytes fit into %d, but became %d", real, real, Size(fitted.Headers())-4)
		}
		if shrunk := r.fit(real - 1); Size(shrunk.Headers())-4 >= real {
			if shrunk.history != "" || shrunk.Error != "" || shrunk.ErrorType != "" {
				t.Fatalf("nothing shrank: %+v", shrunk)
			}
		} else {
			measured++
		}
	}
	if measured < 1000 {
		t.Fatalf("only %d records had something to shrink", measured)
	}
}

func TestCut(t *testing.T) {
	for _, c := range []struct {
		text  string
		limit int
		want  string
	}{
		{"", 3, ""},
		{"abc", 3, "abc"},
		{"abcd", 3, "abc"},
		{"aéé", 4, "aé"},
		{"aé", 2, "a"},
		{"é", 1, ""},
		{"a😀", 4, "a"},
		{"a😀", 5, "a😀"},
		{"😀", 0, ""},
		{"😀", -1, ""},
		{"\x80\x80\x80\x80\x80\x80", 5, "\x80\x80\x80\x80\x80"},
	} {
		if got := cut(c.text, c.limit); got != c.want {
			t.Errorf("cut(%q, %d) = %q, want %q", c.text, c.limit, got, c.want)
		}
	}
	huge := strings.Repeat("é\xff", 1<<16)
	if got := bounded(huge, MaxError); len(got) > MaxError || !utf8.ValidString(got) {
		t.Errorf("bounded: %d bytes, valid %v", len(got), utf8.ValidString(got))
	}
}

// Every header of ours is taken off before it is written anew, and what other
// people call similarly is not.
func TestTakenOffCoversTheRecord(t *testing.T) {
	full := Record{
		Count: 1, Queue: "q", ID: "i", Exchange: "e", RoutingKey: "k", Policy: "p", FirstFailedAt: time.UnixMilli(1),
		FailedAt: time.UnixMilli(1), DueAt: time.UnixMilli(1), Deadline: time.UnixMilli(1), Delay: time.Second,
		Error: "e", ErrorType: "t", Reason: "r", CC: []string{"a"}, BCC: []string{"b"}, Expiration: "1", UserID: "u",
		DeliveryMode: 1, Then: "t", history: "[]",
	}
	h := full.Headers()
	if len(h) != 21 {
		t.Errorf("a full record has %d headers, want 21", len(h))
	}
	for key, v := range h {
		if !takenOff(key) {
			t.Errorf("%s is written, but not taken off", key)
		}
		switch v.(type) {
		case string, int64:
		case int32:
			if key != HeaderCount {
				t.Errorf("%s is an int32", key)
			}
		default:
			t.Errorf("%s is a %T", key, v)
		}
	}
}

func TestSpanSaturates(t *testing.T) {
	for ms, want := range map[int64]time.Duration{
		-1: 0, 0: 0, 1: time.Millisecond, 9223372036854: 9223372036854 * time.Millisecond,
		9223372036855: 9223372036854 * time.Millisecond, math.MaxInt64: 9223372036854 * time.Millisecond,
	} {
		if got := span(ms); got != want {
			t.Errorf("span(%d) = %v, want %v", ms, got, want)
		}
	}
}

func TestIntegerTakesGoTypesOfTests(t *testing.T) {
	for _, v := range []any{int(3), uint(3), uint64(3), amqp.Decimal{Scale: 1, Value: 30}} {
		if n, err := ParseCount(v); n != 3 || err != nil {
			t.Errorf("%T: %d, %v", v, n, err)
		}
	}
	if n, err := ParseCount(uint64(math.MaxUint64)); err == nil {
		t.Errorf("MaxUint64: %d", n)
	}
	// Further than int64 reaches, also where Go would convert to something that
	// looks like a number.
	for _, v := range []any{uint64(1 << 63), uint(math.MaxUint64), float64(1 << 63), 1e300, math.Inf(1), math.Inf(-1), float32(1e30), "9223372036854775808"} {
		if n, ok := integer(v); ok {
			t.Errorf("integer(%T %v) = %d", v, v, n)
		}
	}
	var none *int
	if n, err := ParseCount(none); err == nil || n != 0 {
		t.Errorf("a pointer: %d, %v", n, err)
	}
}
