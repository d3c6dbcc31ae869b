package attempt_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
)

// seed makes header tables out of any bytes: every AMQP type, nested, under
// keys of the contract and others.
type seed []byte

var fuzzKeys = []string{
	attempt.HeaderCount, attempt.HeaderQueue, attempt.HeaderID, attempt.HeaderExchange, attempt.HeaderRoutingKey,
	attempt.HeaderFirstFailedAt, attempt.HeaderFailedAt, attempt.HeaderDueAt, attempt.HeaderDelay, attempt.HeaderError,
	attempt.HeaderErrorType, attempt.HeaderHistory, attempt.HeaderReason, attempt.HeaderVerdict, attempt.HeaderAfter,
	attempt.HeaderPolicy, attempt.HeaderThen, attempt.HeaderCC, attempt.HeaderBCC, attempt.HeaderExpiration,
	attempt.HeaderUserID, attempt.HeaderDeliveryMode, attempt.HeaderDeadline,
	"CC", "BCC", "x-death", "x-first-death-queue", "x-delay", "x-delivery-count", "tenant", "x-custom", "x-retry-foo", "",
}

// theirs are the keys of other people among fuzzKeys.
var theirs = map[string]bool{"tenant": true, "x-custom": true, "x-retry-foo": true, "": true}

func (s *seed) byte() byte {
	if len(*s) == 0 {
		return 0
	}
	b := (*s)[0]
	*s = (*s)[1:]
	return b
}

func (s *seed) word() uint64 {
	var b [8]byte
	n := copy(b[:], *s)
	*s = (*s)[n:]
	return binary.BigEndian.Uint64(b[:])
}

func (s *seed) text() string {
	n := min(int(s.byte()), len(*s))
	text := string((*s)[:n])
	*s = (*s)[n:]
	return text
}

func (s *seed) table(depth int) amqp.Table {
	t := amqp.Table{}
	for range s.byte() % 32 {
		t[fuzzKeys[int(s.byte())%len(fuzzKeys)]] = s.value(depth)
	}
	return t
}

func (s *seed) value(depth int) any {
	kind := s.byte() % 20
	if depth > 3 && (kind == 15 || kind == 16) {
		kind = 0
	}
	switch kind {
	case 1:
		return s.byte()%2 == 0
	case 2:
		return int8(s.byte())
	case 3:
		return s.byte()
	case 4:
		return int16(s.word() >> 48)
	case 5:
		return uint16(s.word() >> 48)
	case 6:
		return int32(s.word() >> 32)
	case 7:
		return uint32(s.word() >> 32)
	case 8:
		return int64(s.word())
	case 9:
		return math.Float32frombits(uint32(s.word() >> 32))
	case 10:
		return math.Float64frombits(s.word())
	case 11:
		return amqp.Decimal{Scale: s.byte(), Value: int32(s.word() >> 32)}
	case 12:
		return s.text()
	case 13:
		return []byte(s.text())
	case 14:
		return time.Unix(int64(s.word()>>20), 0)
	case 15:
		var list []any
		for range s.byte() % 8 {
			list = append(list, s.value(depth+1))
		}
		return list
	case 16:
		return s.table(depth + 1)
	case 17:
		return "orders"
	case 18:
		return strconv.Itoa(int(s.byte()))
	case 19:
		return strings.Repeat(s.text(), int(s.byte()))
	}
	return nil
}

func FuzzRead(f *testing.F) {
	f.Add([]byte{}, "", "", uint8(0), uint16(0))
	f.Add([]byte{2, 1, 17, 0, 12, 3, 'a', 'b', 'c'}, "5000", "guest", uint8(1), uint16(900))
	f.Add([]byte{3, 1, 17, 0, 6, 0, 0, 0, 2, 0, 0, 0, 0, 11, 12, 2, '[', ']'}, "soon", "", uint8(2), uint16(1))
	f.Add([]byte{4, 1, 17, 0, 19, 1, '9', 99, 9, 19, 2, 0xc3, 0x28, 255, 23, 15, 3, 12, 1, 'a', 0, 13, 1, 0xff}, "99999999999999999999", "u", uint8(255), uint16(65535))
	f.Add([]byte{2, 29, 10, 0x7f, 0xf8, 0, 0, 0, 0, 0, 1, 30, 16, 1, 0, 15, 2, 3, 1, 0}, "", "", uint8(3), uint16(64))
	f.Fuzz(func(t *testing.T, data []byte, expiration, user string, mode uint8, limit uint16) {
		s := seed(data)
		p := amqp.Publishing{Headers: s.table(0), Expiration: expiration, UserId: user, DeliveryMode: mode, Body: []byte("b")}
		before := fmt.Sprintf("%#v", p)
		source := attempt.Source{Queue: "orders", Exchange: "shop", RoutingKey: "k", At: time.UnixMilli(1700000000000)}

		r, err := attempt.Read(&p, source)
		if r.Queue != "orders" || r.Count < 0 || err != nil && r.Count != 0 {
			t.Fatalf("record %+v, %v", r, err)
		}
		_ = r.History()
		_, _ = attempt.ReadAdvice(p.Headers)
		failure := attempt.Failure{At: source.At, Error: s.text(), ErrorType: s.text(), Consumer: s.text()}

		for what, next := range map[string]attempt.Record{
			"retry":  r.Retry(failure, time.Duration(s.word()), time.Time{}, s.text()),
			"snooze": r.Snooze(failure, time.Second, time.Time{}, ""),
			"park":   r.Park(failure, attempt.ReasonBadCounter),
		} {
			out := next.Successor(&p, 0)
			back, err := attempt.Read(&out, attempt.Source{Queue: "orders", Exchange: "hop.return"})
			if err != nil {
				t.Fatalf("%s: reading what was written: %v", what, err)
			}
			want := describe(next)
			if what != "retry" { // these leave what they read alone; it is bounded when written
				want.Error, want.ErrorType = describe(back).Error, describe(back).ErrorType
			}
			if got := describe(back); !reflect.DeepEqual(got, want) {
				t.Fatalf("%s: read back\n got %+v\nwant %+v", what, got, want)
			}
			if len(back.Error) > attempt.MaxError || len(back.ErrorType) > attempt.MaxErrorType {
				t.Fatalf("%s: error of %d and type of %d bytes", what, len(back.Error), len(back.ErrorType))
			}
			if out.DeliveryMode != 2 || out.Expiration != "" || out.UserId != "" {
				t.Fatalf("%s: properties %+v", what, out)
			}
			checkHeaders(t, p.Headers, out.Headers)
			if n := attempt.HeaderSize(&out); n != 14+1+attempt.Size(out.Headers) {
				t.Fatalf("%s: HeaderSize %d", what, n)
			}

			small := next.Successor(&p, int(limit)+1)
			if n := attempt.HeaderSize(&small); n > int(limit)+1 {
				for _, key := range []string{attempt.HeaderError, attempt.HeaderErrorType, attempt.HeaderHistory} {
					if small.Headers[key] != nil {
						t.Fatalf("%s: %d bytes, more than %d, and %s is there", what, n, limit+1, key)
					}
				}
			}
			if _, err := attempt.Read(&small, attempt.Source{Queue: "orders"}); err != nil {
				t.Fatalf("%s: reading what was shrunk: %v", what, err)
			}
			checkHeaders(t, p.Headers, small.Headers)

			original := next.Original(&out)
			for key := range original.Headers {
				if !theirs[key] && key != "CC" && key != "BCC" {
					t.Fatalf("%s: the original has %q", what, key)
				}
			}
			replay := next.Replay(&out, attempt.Replaying{}, 0)
			if r, err := attempt.Read(&replay, attempt.Source{Queue: "orders"}); err != nil || r.Count != 0 || r.ID != next.ID {
				t.Fatalf("%s: the replay reads as %+v, %v", what, r, err)
			}
		}
		if after := fmt.Sprintf("%#v", p); after != before {
			t.Fatalf("the message was changed\n got %s\nwant %s", after, before)
		}
	})
}

// checkHeaders looks at what may never change: other people's headers, and that
// no header stays that acts on the way.
func checkHeaders(t *testing.T, in, out amqp.Table) {
	t.Helper()
	for key, v := range in {
		got, ok := out[key]
		switch {
		case theirs[key]:
			if !ok || fmt.Sprintf("%#v", finite(v)) != fmt.Sprintf("%#v", got) {
				t.Fatalf("header %q: %#v, was %#v", key, got, v)
			}
		case !strings.HasPrefix(key, "x-retry-") && ok:
			t.Fatalf("header %q was not taken off", key)
		}
	}
	if out[attempt.HeaderVerdict] != nil || out[attempt.HeaderAfter] != nil {
		t.Fatal("the consumer's advice was not taken off")
	}
}

// finite is v as it may go onto the wire.
func finite(v any) any {
	switch v := v.(type) {
	case float32:
		if f := float64(v); math.IsNaN(f) || math.IsInf(f, 0) {
			return fmt.Sprint(v)
		}
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Sprint(v)
		}
	case []any:
		if v == nil {
			return v
		}
		list := []any{}
		for _, e := range v {
			list = append(list, finite(e))
		}
		return list
	case amqp.Table:
		t := amqp.Table{}
		for k, e := range v {
			t[k] = finite(e)
		}
		return t
	}
	return v
}

func FuzzParseCount(f *testing.F) {
	f.Add(int64(3), 3.0, "3", uint8(1))
	f.Add(int64(-1), math.NaN(), "", uint8(0))
	f.Add(int64(math.MaxInt32)+1, math.Inf(1), "2147483648", uint8(255))
	f.Add(int64(30), 3.7, " 3", uint8(2))
	f.Add(int64(2147483647), 2147483647.0, "00002147483647", uint8(9))
	f.Fuzz(func(t *testing.T, n int64, x float64, s string, scale uint8) {
		check := func(v any, want *big.Rat) {
			t.Helper()
			legal := want != nil && want.IsInt() && want.Sign() >= 0 && want.Cmp(big.NewRat(math.MaxInt32, 1)) <= 0
			got, err := attempt.ParseCount(v)
			if (err == nil) != legal || legal && want.Num().Int64() != int64(got) {
				t.Fatalf("ParseCount(%T %#v) = %d, %v; want %v", v, v, got, err, want)
			}
			if err != nil && len(err.Error()) > 500 {
				t.Fatalf("the error has %d bytes", len(err.Error()))
			}
		}
		exact := func(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }
		check(n, exact(n))
		check(int(n), exact(n))
		check(int32(n), exact(int64(int32(n))))
		check(uint32(n), exact(int64(uint32(n))))
		check(int16(n), exact(int64(int16(n))))
		check(uint16(n), exact(int64(uint16(n))))
		check(int8(n), exact(int64(int8(n))))
		check(uint8(n), exact(int64(uint8(n))))
		check(uint64(n), new(big.Rat).SetInt(new(big.Int).SetUint64(uint64(n))))
		check(x, new(big.Rat).SetFloat64(x)) // nil for NaN and the infinities
		check(float32(x), new(big.Rat).SetFloat64(float64(float32(x))))
		power := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(scale)), nil)
		check(amqp.Decimal{Scale: scale, Value: int32(n)}, new(big.Rat).SetFrac(big.NewInt(int64(int32(n))), power))

		var want *big.Rat
		if s != "" && strings.Trim(s, "0123456789") == "" {
			want, _ = new(big.Rat).SetString(s)
		}
		check(s, want)
		if len(s) <= 64 {
			check([]byte(s), want)
		}
	})
}
