package conformance

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
)

func TestFate(t *testing.T) {
	for _, tt := range []struct {
		words   string
		first   int
		says    string
		returns int
	}{
		{"handle", 0, "nothing comes out", 0},
		{"reject", 0, "attempt 1 rejected, attempt 2 rejected, attempt 3 rejected, parked as exhausted", 2},
		{"reject,fail,handle", 0, "attempt 1 rejected, attempt 2 published, then handled", 2},
		{"handle,reject,handle", 1, "attempt 1 rejected, then handled", 1},
		{"reject", 2, "attempt 1 rejected, parked as exhausted", 0},
		{"fail,permanent", 0, "attempt 1 published, attempt 2 published, parked as permanent", 1},
		{"discard", 0, "attempt 1 published, then dropped by the router", 0},
		{"after:600,handle", 0, "attempt 1 published, then handled", 1},
		{"crash", 0, "attempt 1 dead-lettered as delivery_limit, parked as crash-loop", 0},
		{"crash-once,handle", 0, "attempt 1 rejected, then handled", 1},
	} {
		p := newProbe("id", tt.words)
		p.first = tt.first
		f := p.fate(Config{Policy: ownPolicy()})
		if got := f.describe(); got != tt.says || f.returns() != tt.returns {
			t.Errorf("%s after %d: %s, back %d times; want %s, back %d times", tt.words, tt.first, got, f.returns(), tt.says, tt.returns)
		}
		if f.over(nil) != (tt.words == Handle) {
			t.Errorf("%s: over before anything came out", tt.words)
		}
	}
}

func TestInstruction(t *testing.T) {
	words := "reject,after:600,handle"
	for name, tt := range map[string]struct {
		headers amqp.Table
		word    string
		after   time.Duration
	}{
		"no headers":            {nil, Handle, 0},
		"no instruction":        {amqp.Table{"tenant": "acme"}, Handle, 0},
		"first attempt":         {amqp.Table{HeaderInstruction: words}, Reject, 0},
		"second attempt":        {amqp.Table{HeaderInstruction: words, attempt.HeaderQueue: "q", attempt.HeaderCount: int32(1)}, After, 600 * time.Millisecond},
		"a bare count":          {amqp.Table{HeaderInstruction: words, attempt.HeaderCount: int64(1)}, After, 600 * time.Millisecond},
		"after the last":        {amqp.Table{HeaderInstruction: words, attempt.HeaderQueue: "q", attempt.HeaderCount: int32(9)}, Handle, 0},
		"another queue's count": {amqp.Table{HeaderInstruction: words, attempt.HeaderQueue: "other", attempt.HeaderCount: int32(9)}, Reject, 0},
		"a delay that is none":  {amqp.Table{HeaderInstruction: "after:soon"}, Handle, 0},
		"a bad count":           {amqp.Table{HeaderInstruction: words, attempt.HeaderCount: "many"}, Handle, 0},
	} {
		if word, after := Instruction(tt.headers, "q"); word != tt.word || after != tt.after {
			t.Errorf("%s: %s %s, want %s %s", name, word, after, tt.word, tt.after)
		}
	}
}

func TestSame(t *testing.T) {
	at := time.Unix(1_700_000_000, 0)
	for _, tt := range []struct {
		was, is        any
		loose, exactly bool
	}{
		{int32(5), int32(5), true, true},
		{int32(5), int8(5), true, false},
		{int32(5), float64(5), true, false},
		{int32(5), "5", false, false},
		{int64(1)<<60 + 1, int64(1) << 60, false, false},
		{float32(1.5), 1.5, true, false},
		{0.1, float32(0.1), false, false},
		{amqp.Decimal{Scale: 2, Value: 1999}, amqp.Decimal{Scale: 3, Value: 19990}, true, false},
		{"ü", []byte("ü"), true, false},
		{"ü", "u", false, false},
		{nil, nil, true, true},
		{nil, "", false, false},
		{true, true, true, true},
		{true, int8(1), false, false},
		{at, at.UTC(), true, true},
		{at, at.Unix(), false, false},
		{[]any{}, []any(nil), true, true},
		{[]any{}, amqp.Table{}, true, false},
		{[]any{int32(1)}, []any{int64(1)}, true, false},
		{[]any{int32(1)}, []any{}, false, false},
		{amqp.Table{"a": amqp.Table{"b": int32(1)}}, amqp.Table{"a": amqp.Table{"b": int16(1)}}, true, false},
		{amqp.Table{"a": nil}, amqp.Table{}, false, false},
	} {
		if got := same(tt.was, tt.is, false); got != tt.loose {
			t.Errorf("%s and %s: the same %t, want %t", show(tt.was), show(tt.is), got, tt.loose)
		}
		if got := same(tt.was, tt.is, true); got != tt.exactly {
			t.Errorf("%s and %s: exactly the same %t, want %t", show(tt.was), show(tt.is), got, tt.exactly)
		}
	}
}
