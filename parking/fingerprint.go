package parking

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
)

// varying finds what differs between two failures of one cause, in the order in
// which it is tried.
var varying = regexp.MustCompile(strings.Join([]string{
	`(?P<time>\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?|\b\d{1,2}:\d\d:\d\d(?:[.,]\d+)?\b)`,
	`(?P<id>[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12})`,
	`(?P<address>[\w.+-]+@[\w-]+(?:\.[\w-]+)+|\d{1,3}(?:\.\d{1,3}){3}(?:/\d+)?(?::\d+)?|\[[0-9a-fA-F:]{2,}(?:%\w+)?\](?::\d+)?|\b(?:[0-9a-fA-F]{1,4}:){3,7}[0-9a-fA-F]{1,4}\b|\bfe80::[0-9a-fA-F:]+)`,
	`(?P<hex>0x[0-9a-fA-F]+|\b[0-9a-fA-F]*\d[0-9a-fA-F]{7,}\b|\b[0-9a-fA-F]{7,}\d[0-9a-fA-F]*\b)`,
	`(?P<number>\d+(?:[.,]\d+)*)`,
}, "|"))

// Fold takes numbers, ids, times and addresses out of an error text, so that two
// failures of one cause read the same: "dial 10.0.0.7:5432: timeout after 3.2s"
// becomes "dial <address>: timeout after <n>s".
func Fold(text string) string {
	text, _, _ = strings.Cut(text, "\n") // a stack trace follows the message
	return varying.ReplaceAllStringFunc(text, func(s string) string {
		m := varying.FindStringSubmatchIndex(s)
		if m == nil {
			return "<n>" // what stood around it made it what it was
		}
		for i, name := range []string{"<time>", "<id>", "<address>", "<id>", "<n>"} {
			if m[2*(i+1)] >= 0 {
				if i == 3 && strings.Trim(s, "0123456789") == "" {
					return "<n>"
				}
				return name
			}
		}
		return "<n>"
	})
}

// Fingerprint is the cause of a failure, as far as its text tells: the folded
// error with its type.
func (m *Message) Fingerprint() string {
	text := Fold(m.Error)
	switch {
	case m.ErrorType == "":
		return text
	case text == "":
		return m.ErrorType
	}
	return m.ErrorType + ": " + text
}

// FingerprintID is a short name for a fingerprint: eight hexadecimal digits.
func FingerprintID(fingerprint string) string {
	h := sha256.Sum256([]byte(fingerprint))
	return hex.EncodeToString(h[:4])
}
