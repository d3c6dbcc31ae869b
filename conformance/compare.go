package conformance

import (
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"
)

// same reports whether a header value is what it was. Strictly, its AMQP type and
// everything in it are. Otherwise the value is: a number may have another width, and
// what the client libraries of some languages cannot tell apart is the same, texts
// and bytes, an empty list and an empty table.
func same(was, is any, strictly bool) bool {
	if strictly {
		return reflect.DeepEqual(plain(was), plain(is))
	}
	if a, ok := numeric(was); ok {
		b, ok := numeric(is)
		return ok && a == b
	}
	switch was := was.(type) {
	case string, []byte:
		switch is.(type) {
		case string, []byte:
			return text(was) == text(is)
		}
		return false
	case time.Time:
		t, ok := is.(time.Time)
		return ok && t.Equal(was)
	case []any:
		if t, ok := is.(amqp.Table); ok && len(was) == 0 {
			return len(t) == 0
		}
		l, ok := is.([]any)
		return ok && len(l) == len(was) && sameList(was, l)
	case amqp.Table:
		if l, ok := is.([]any); ok && len(was) == 0 {
			return len(l) == 0
		}
		t, ok := is.(amqp.Table)
		if !ok || len(t) != len(was) {
			return false
		}
		for k, v := range was {
			if got, there := t[k]; !there || !same(v, got, false) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(was, is)
}

func sameList(was, is []any) bool {
	for i := range was {
		if !same(was[i], is[i], false) {
			return false
		}
	}
	return true
}

// plain makes values alike that differ in Go alone: nil and empty lists, time zones.
func plain(v any) any {
	switch v := v.(type) {
	case time.Time:
		return v.UTC()
	case []byte:
		return append([]byte{}, v...)
	case []any:
		list := []any{}
		for _, e := range v {
			list = append(list, plain(e))
		}
		return list
	case amqp.Table:
		t := amqp.Table{}
		for k, e := range v {
			t[k] = plain(e)
		}
		return t
	}
	return v
}

// numeric is a number of any type, exactly: an integer where it is one.
func numeric(v any) (any, bool) {
	whole := func(f float64) any {
		if f == math.Trunc(f) && math.Abs(f) < 1<<62 {
			return int64(f)
		}
		return f
	}
	switch v := v.(type) {
	case int8, int16, int32, int64, int:
		return reflect.ValueOf(v).Int(), true
	case uint8, uint16, uint32:
		return int64(reflect.ValueOf(v).Uint()), true
	case float32:
		return whole(float64(v)), true
	case float64:
		return whole(v), true
	case amqp.Decimal:
		return whole(float64(v.Value) / math.Pow10(int(v.Scale))), true
	}
	return nil, false
}

// typeName is the name of the AMQP type of a field value.
func typeName(v any) string {
	switch v.(type) {
	case nil:
		return "void"
	case []byte:
		return "bytes"
	case time.Time:
		return "timestamp"
	case amqp.Decimal:
		return "decimal"
	case []any:
		return "array"
	case amqp.Table:
		return "table"
	}
	return fmt.Sprintf("%T", v)
}

// show writes a header value with its type, for a person.
func show(v any) string {
	s := fmt.Sprint(v)
	switch v := v.(type) {
	case nil:
		return "void"
	case string:
		s = fmt.Sprintf("%q", v)
	case []byte:
		s = hex.EncodeToString(v)
	case time.Time:
		s = v.UTC().Format(time.RFC3339)
	case []any:
		var parts []string
		for _, e := range v {
			parts = append(parts, show(e))
		}
		return "array [" + strings.Join(parts, ", ") + "]"
	case amqp.Table:
		var parts []string
		for _, k := range slices.Sorted(maps.Keys(v)) {
			parts = append(parts, k+": "+show(v[k]))
		}
		return "table {" + strings.Join(parts, ", ") + "}"
	}
	return typeName(v) + " " + cut(s)
}

// cut shortens what would fill a terminal.
func cut(s string) string {
	const most = 120
	if len(s) <= most {
		return s
	}
	n := most
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return fmt.Sprintf("%s… (%d bytes)", s[:n], len(s))
}

// property is one of the basic properties.
type property struct {
	name    string
	is, was any
}

// properties lists those that a consumer must keep: all but the delivery mode, which
// may become 2, and user-id, which may have to go.
func properties(was *amqp.Publishing, is *amqp.Delivery) []property {
	stamp := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return t.UTC().Format(time.RFC3339)
	}
	return []property{
		{"content-type", is.ContentType, was.ContentType},
		{"content-encoding", is.ContentEncoding, was.ContentEncoding},
		{"priority", is.Priority, was.Priority},
		{"correlation-id", is.CorrelationId, was.CorrelationId},
		{"reply-to", is.ReplyTo, was.ReplyTo},
		{"message-id", is.MessageId, was.MessageId},
		{"timestamp", stamp(is.Timestamp), stamp(was.Timestamp)},
		{"type", is.Type, was.Type},
		{"app-id", is.AppId, was.AppId},
	}
}
