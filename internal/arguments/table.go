// Package arguments holds the arguments of queues and exchanges, and the definitions
// of policies, as the management API writes them.
package arguments

import (
	"bytes"
	"encoding/json"
)

// Table holds arguments or the definition of a policy. Numbers are json.Number, or
// an integer type where code makes the table.
type Table map[string]any

// UnmarshalJSON keeps numbers as they are written. Some versions write [] or "" for
// an empty table.
func (t *Table) UnmarshalJSON(data []byte) error {
	if bytes.HasPrefix(data, []byte("[")) || bytes.HasPrefix(data, []byte(`"`)) {
		*t = nil
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	return d.Decode((*map[string]any)(t))
}

// Text is the value of a key that is a string.
func (t Table) Text(key string) (string, bool) {
	s, ok := t[key].(string)
	return s, ok
}

// Integer is the value of a key that is a number.
func (t Table) Integer(key string) (int64, bool) {
	switch v := t[key].(type) {
	case json.Number:
		n, err := v.Int64()
		return n, err == nil
	case int64:
		return v, true
	case int:
		return int64(v), true
	case float64:
		return int64(v), true
	}
	return 0, false
}
