package attempt

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"
)

// maxMillis is the last millisecond of the year 9999. A later time has no
// RFC 3339 form, so a header beyond it is taken as absent.
const maxMillis = 253402300799999

// integer reads a whole number out of any AMQP type that can hold one.
func integer(v any) (int64, bool) {
	switch v := v.(type) {
	case int8:
		return int64(v), true
	case uint8:
		return int64(v), true
	case int16:
		return int64(v), true
	case uint16:
		return int64(v), true
	case int32:
		return int64(v), true
	case uint32:
		return int64(v), true
	case int64:
		return v, true
	case int:
		return int64(v), true
	case uint:
		return int64(v), uint64(v) <= math.MaxInt64
	case uint64:
		return int64(v), v <= math.MaxInt64
	case float32:
		return integerFloat(float64(v))
	case float64:
		return integerFloat(v)
	case amqp.Decimal:
		return integerDecimal(v)
	case string:
		return digits(v)
	case []byte:
		if len(v) > 64 {
			return 0, false
		}
		return digits(string(v))
	}
	return 0, false
}

func integerFloat(f float64) (int64, bool) {
	// NaN fails the first comparison; the second keeps infinities and numbers
	// out whose conversion Go leaves undefined.
	if f != math.Trunc(f) || math.Abs(f) >= 1<<63 {
		return 0, false
	}
	return int64(f), true
}

// integerDecimal reads value × 10^-scale. amqp091-go reads the value as signed,
// as RabbitMQ does.
func integerDecimal(d amqp.Decimal) (int64, bool) {
	n := int64(d.Value)
	for range d.Scale {
		if n == 0 {
			return 0, true
		}
		if n%10 != 0 {
			return 0, false
		}
		n /= 10
	}
	return n, true
}

// digits reads a string of ASCII digits and nothing else.
func digits(s string) (int64, bool) {
	if s == "" {
		return 0, false
	}
	var n int64
	for i := range len(s) {
		c := s[i]
		if c < '0' || c > '9' {
			return 0, false
		}
		if n > (math.MaxInt64-int64(c-'0'))/10 {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}

// text reads a string header. Clients that have no character strings write
// bytes.
func text(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case []byte:
		return string(v), true
	}
	return "", false
}

// instant reads an epoch in ms; what is no time is absent.
func instant(v any) time.Time {
	if t, ok := v.(time.Time); ok {
		return milli(t)
	}
	ms, ok := integer(v)
	if !ok || ms <= 0 || ms > maxMillis {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

// milli brings a time to the form it has after a round trip: UTC, whole ms,
// without the monotonic clock. A time outside 1970–9999 is absent.
func milli(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	ms := t.UnixMilli()
	if ms <= 0 || ms > maxMillis {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

// span reads a number of ms as a duration, up to the longest (292 years).
func span(ms int64) time.Duration {
	if ms <= 0 {
		return 0
	}
	if ms > int64(math.MaxInt64/time.Millisecond) {
		ms = int64(math.MaxInt64 / time.Millisecond)
	}
	return time.Duration(ms) * time.Millisecond
}

// bounded gives s in valid UTF-8 and at most limit bytes, cut at a rune.
func bounded(s string, limit int) string {
	if len(s) > limit {
		s = cut(s, limit) // first, so that a huge text is not scanned
	}
	if utf8.ValidString(s) {
		return s
	}
	return cut(strings.ToValidUTF8(s, "\uFFFD"), limit)
}

// cut gives the longest head of s that has at most limit bytes and does not end
// inside a rune.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	n := max(limit, 0)
	for n > 0 && limit-n < utf8.UTFMax && !utf8.RuneStart(s[n]) {
		n--
	}
	if !utf8.RuneStart(s[n]) {
		n = max(limit, 0) // no UTF-8 at all: any place is as good
	}
	return s[:n]
}

// clone copies a header value so that neither side sees the other's changes,
// and keeps its type. Three kinds of values cannot go onto the wire as they
// are and are the only ones that change: int, which amqp091-go would cut to 32
// bits, becomes int64; map[string]any, which it refuses, becomes amqp.Table;
// and NaN and the infinities, for which RabbitMQ closes the connection (541, on
// 3.10 to 4.3), become strings. None of the three can come from the wire.
func clone(v any) any {
	switch v := v.(type) {
	case amqp.Table:
		return cloneTable(v)
	case map[string]any:
		return cloneTable(v)
	case []any:
		if v == nil {
			return v
		}
		list := make([]any, len(v))
		for i := range v {
			list[i] = clone(v[i])
		}
		return list
	case []byte:
		return slices.Clone(v)
	case int:
		return int64(v)
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Sprint(v)
		}
	case float32:
		if f := float64(v); math.IsNaN(f) || math.IsInf(f, 0) {
			return fmt.Sprint(v)
		}
	}
	return v
}

// Clone copies a header table deeply, with its types. Only values that cannot go
// onto the wire change: int becomes int64, map[string]any becomes amqp.Table, and
// NaN and the infinities, for which RabbitMQ closes the connection, become
// strings.
func Clone(t amqp.Table) amqp.Table { return cloneTable(t) }

func cloneTable(t amqp.Table) amqp.Table {
	if t == nil {
		return nil
	}
	c := make(amqp.Table, len(t))
	for k, v := range t {
		c[k] = clone(v)
	}
	return c
}

// typeName names an AMQP type in the words of the contract.
func typeName(v any) string {
	switch v.(type) {
	case nil:
		return "void"
	case bool:
		return "bool"
	case int8:
		return "int8"
	case uint8:
		return "uint8"
	case int16:
		return "int16"
	case uint16:
		return "uint16"
	case int32:
		return "int32"
	case uint32:
		return "uint32"
	case int64:
		return "int64"
	case float32:
		return "float32"
	case float64:
		return "float64"
	case amqp.Decimal:
		return "decimal"
	case string:
		return "string"
	case []byte:
		return "bytes"
	case time.Time:
		return "timestamp"
	case []any:
		return "array"
	case amqp.Table, map[string]any:
		return "table"
	}
	return fmt.Sprintf("%T", v) // no AMQP type: only a program can put it there
}

// brief prints a value for an error, at most 64 bytes of it. A list or a table
// is not printed: it is long, and it may hold what is nobody's business.
func brief(v any) string {
	switch v := v.(type) {
	case []any, amqp.Table, map[string]any:
		return "a value"
	case string:
		return fmt.Sprintf("%q", bounded(v, 64))
	case []byte:
		return fmt.Sprintf("%q", v[:min(len(v), 64)])
	case nil:
		return "nothing"
	}
	return bounded(fmt.Sprint(v), 64)
}
