package parking

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Filter picks messages. What is not set does not matter; of what is set all
// must hold. The zero Filter picks everything.
type Filter struct {
	// IDs picks these messages. An ID may be shortened to its first characters, at
	// least MinID, and picks all whose IDs begin so: see Queue.Exact.
	IDs []string

	// Queue picks the messages of one work queue.
	Queue string

	// Error is found in the error's text.
	Error *regexp.Regexp

	// ErrorType, Reason, Policy, Exchange and RoutingKey are equal to the
	// message's. ErrorType is so with or without its package: TimeoutError finds
	// net.TimeoutError, and as other languages write it, App\TimeoutError and
	// app::TimeoutError.
	ErrorType, Reason, Policy, Exchange, RoutingKey string

	// Fingerprint is the message's, or its FingerprintID.
	Fingerprint string

	// Since and Until bound when the message was parked: from Since on, and before
	// Until. A message of which nobody knows is within neither.
	Since, Until time.Time

	// Headers are headers of the application with their values, as texts: the
	// number 3 is "3", whatever its type.
	Headers map[string]string

	// BodyJSON are values in a body that is JSON, by their paths: "customer.id",
	// "items.0.sku" or "$.items[0].sku". Values are texts as in Headers; null and true are "null" and
	// "true".
	BodyJSON map[string]string
}

// MinID is the least that an ID may be shortened to.
const MinID = 4

// Validate reports what in a filter cannot work.
func (f Filter) Validate() error {
	for _, id := range f.IDs {
		if len(id) < MinID {
			return fmt.Errorf("filter: the ID %q cannot work: give at least %d characters of it", id, MinID)
		}
	}
	for name, at := range map[string]time.Time{"Since": f.Since, "Until": f.Until} {
		if !at.IsZero() && at.Year() > 9999 {
			return fmt.Errorf("filter: %s: the year %d cannot work", name, at.Year())
		}
	}
	if !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until) {
		return fmt.Errorf("filter: nothing is parked since %s and before %s: swap the two", f.Since.Format(time.RFC3339), f.Until.Format(time.RFC3339))
	}
	for path := range f.BodyJSON {
		if path == "" {
			return fmt.Errorf("filter: BodyJSON: an empty path cannot work: write one such as customer.id")
		}
	}
	return nil
}

// Match reports whether the filter picks a message.
func (f *Filter) Match(m *Message) bool {
	equal := func(want, have string) bool { return want == "" || want == have }
	switch {
	case len(f.IDs) > 0 && !slices.ContainsFunc(f.IDs, func(id string) bool { return strings.HasPrefix(m.ID, id) }):
		return false
	case !equal(f.Queue, m.Queue), !equal(f.Reason, m.Reason), !equal(f.Policy, m.Policy),
		!equal(f.Exchange, m.Exchange), !equal(f.RoutingKey, m.RoutingKey):
		return false
	case f.ErrorType != "" && !sameType(f.ErrorType, m.ErrorType):
		return false
	case f.Error != nil && !f.Error.MatchString(m.Error):
		return false
	case !f.Since.IsZero() && (m.ParkedAt.IsZero() || m.ParkedAt.Before(f.Since)),
		!f.Until.IsZero() && (m.ParkedAt.IsZero() || !m.ParkedAt.Before(f.Until)):
		return false
	}
	for name, want := range f.Headers {
		v, ok := m.Delivery.Headers[name]
		if !ok || plain(v) != want {
			return false
		}
	}
	if f.Fingerprint != "" {
		if p := m.Fingerprint(); p != f.Fingerprint && FingerprintID(p) != f.Fingerprint {
			return false
		}
	}
	return len(f.BodyJSON) == 0 || matchBody(m.Delivery.Body, f.BodyJSON)
}

// sameType compares the type of an error with one that may lack its package.
func sameType(want, have string) bool {
	rest, ok := strings.CutSuffix(have, want)
	return ok && (rest == "" || strings.ContainsRune(`.:\$/*`, rune(rest[len(rest)-1])))
}

// plain is a header's value as a text.
func plain(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case string:
		return v
	case []byte:
		return string(v)
	case time.Time:
		return v.UTC().Format(time.RFC3339)
	case amqp.Decimal:
		return decimal(v)
	}
	return fmt.Sprint(v)
}

// decimal writes -3.14 for the value -314 of scale 2.
func decimal(d amqp.Decimal) string {
	s := strconv.FormatInt(int64(d.Value), 10)
	if d.Scale == 0 {
		return s
	}
	s, negative := strings.CutPrefix(s, "-")
	if missing := int(d.Scale) + 1 - len(s); missing > 0 {
		s = strings.Repeat("0", missing) + s
	}
	s = s[:len(s)-int(d.Scale)] + "." + s[len(s)-int(d.Scale):]
	if negative {
		s = "-" + s
	}
	return s
}

func matchBody(body []byte, want map[string]string) bool {
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber() // 1e3 and an id of 20 digits stay what they are
	var doc any
	if d.Decode(&doc) != nil {
		return false
	}
	for path, w := range want {
		v, ok := lookup(doc, path)
		if !ok { // as JSONPath and jq write it
			v, ok = lookup(doc, strings.TrimPrefix(indices.ReplaceAllString(strings.TrimPrefix(path, "$"), ".$1"), "."))
		}
		if !ok || v != w {
			return false
		}
	}
	return true
}

var indices = regexp.MustCompile(`\[(\d+)\]`)

// lookup finds a scalar at a path of keys and indices. A key that has dots itself
// is found by them too.
func lookup(v any, path string) (string, bool) {
	if path == "" {
		switch v := v.(type) {
		case string:
			return v, true
		case json.Number:
			return v.String(), true
		case bool:
			return strconv.FormatBool(v), true
		case nil:
			return "null", true
		}
		return "", false
	}
	switch v := v.(type) {
	case map[string]any:
		for i := 0; i <= len(path); i++ {
			if i < len(path) && path[i] != '.' {
				continue
			}
			if e, ok := v[path[:i]]; ok && i > 0 {
				if s, ok := lookup(e, path[min(i+1, len(path)):]); ok {
					return s, true
				}
			}
		}
	case []any:
		head, rest, _ := strings.Cut(path, ".")
		if i, err := strconv.Atoi(head); err == nil && i >= 0 && i < len(v) {
			return lookup(v[i], rest)
		}
	}
	return "", false
}
