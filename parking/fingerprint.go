package parking

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
	"unicode"
)

// varying finds what differs between two failures of one cause, in the order in
// which it is tried.
var varying = regexp.MustCompile(strings.Join([]string{
	`(\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?|\b\d{1,2}:\d\d:\d\d(?:[.,]\d+)?\b)`,
	// UUIDs, web tokens, base64, and the random end of a Kubernetes pod's name,
	// which has no vowels.
	`([0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}|\beyJ[\w-]{8,}(?:\.[\w-]+){1,2}|\b[0-9A-Za-z+/]{16,}==|\b[b-df-hj-np-tv-xz2-9]{6,10}-[b-df-hj-np-tv-xz2-9]{5}\b)`,
	`([\p{L}\p{N}_.+-]+@[\w-]+(?:\.[\w-]+)+|\d{1,3}(?:\.\d{1,3}){3}(?:/\d+)?(?::\d+)?|\[[0-9a-fA-F:]{2,}(?:%\w+)?\](?::\d+)?|\b(?:[0-9a-fA-F]{1,4}:){3,7}[0-9a-fA-F]{1,4}\b|\bfe80::[0-9a-fA-F:]+|\b(?:[0-9a-fA-F]{1,4}:){1,6}(?::[0-9a-fA-F]{1,4}){1,6}\b)`,
	// A code is the cause itself: HTTP 404 is another one than HTTP 503.
	`((?i:\b(?:HTTP(?:/\d(?:\.\d)?)?|status(?:[ _-]?code)?)["' :=(]{1,3}\d{3}\b|\bSQLSTATE["' :=(\[]{1,3}[0-9A-Z]{5}\b|\b(?:errno|exit (?:code|status)|(?:error|return|response)[ _-]?code)["' :=(]{1,3}-?\d{1,5}\b))`,
	`(\b(?:\d+(?:\.\d+)?(?:ns|us|µs|μs|ms|h|m|s))+\b)`,
	`([0-9A-Za-z]*\d[0-9A-Za-z]*)`,
}, "|"))

// What of those alternatives was found.
const (
	foundTime = 1 + iota
	foundID
	foundAddress
	foundCode
	foundDuration
	foundToken
)

var (
	digits = regexp.MustCompile(`\d+`)
	hexID  = regexp.MustCompile(`^0x[0-9a-fA-F]+$|^[0-9a-fA-F]{7,}$`)
	ulid   = regexp.MustCompile(`^[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}$`)
	// What is left of 1,000.5 and 1.5e-07.
	fractions = regexp.MustCompile(`<n>(?:[.,]<n>)+(?:e[+-]?<n>)?|<n>e[+-]<n>`)
)

// Fold takes numbers, ids, times and addresses out of an error text, so that two
// failures of one cause read the same: "dial 10.0.0.7:5432: timeout after 350ms"
// becomes "dial <address>: timeout after <n>s", whatever unit the duration has.
// Words stay, also between quotes, and so do codes that are the cause themselves:
// HTTP 404, SQLSTATE 23505, exit status 1.
func Fold(text string) string {
	text = line(text)
	var b strings.Builder
	at := 0
	for _, m := range varying.FindAllStringSubmatchIndex(text, -1) {
		b.WriteString(text[at:m[0]])
		at = m[1]
		found := foundTime
		for m[2*found] < 0 {
			found++
		}
		b.WriteString(fold(text[m[0]:m[1]], found))
	}
	b.WriteString(text[at:])
	return fractions.ReplaceAllString(b.String(), "<n>")
}

func fold(s string, found int) string {
	hasDigits := strings.ContainsAny(s, "0123456789")
	switch {
	case found == foundTime:
		return "<time>"
	case found == foundID && !hasDigits, // a word, a::b of a program
		found == foundAddress && !hasDigits && strings.Contains(s, "::"),
		found == foundCode:
		return s
	case found == foundID && (strings.Trim(s, "0123456789-") != "" || strings.Count(s, "-") > 1): // not 223344-55667
		return "<id>"
	case found == foundAddress:
		return "<address>"
	case found == foundDuration:
		return "<n>s"
	case strings.Trim(s, "0123456789") != "" && (hexID.MatchString(s) || ulid.MatchString(s) || random(s)):
		return "<id>"
	}
	return digits.ReplaceAllString(s, "<n>")
}

// line is the line of an error text that tells the cause: the first one, which a
// stack trace follows. One that ends with a colon only announces it; and Python
// writes the trace first.
func line(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	first := strings.TrimSpace(lines[0])
	if !strings.HasSuffix(first, ":") || len(lines) == 1 {
		return first
	}
	if strings.HasPrefix(first, "Traceback") {
		for i := len(lines) - 1; i > 0; i-- {
			if l := lines[i]; l != "" && !unicode.IsSpace(rune(l[0])) {
				return l
			}
		}
	}
	for _, l := range lines[1:] {
		if l = strings.TrimSpace(l); l != "" {
			return first + " " + l
		}
	}
	return first
}

// random reports a word that nobody has thought of, such as K7Q9ZP or
// NffrFeUfNV2Hib, and unlike OAuth2TokenError or utf8mb4: it changes between
// letters and digits, or between capitals and small letters, all the time. A
// capitalised word counts as one.
func random(s string) bool {
	class := func(c byte) int {
		switch {
		case c <= '9':
			return 0
		case c <= 'Z':
			return 1
		}
		return 2
	}
	runs, switches := 1, 0
	for i := 1; i < len(s); i++ {
		before, now := class(s[i-1]), class(s[i])
		if before == now {
			continue
		}
		if before == 0 || now == 0 {
			switches++
		}
		if !(before == 1 && now == 2) {
			runs++
		}
	}
	switch {
	case len(s) >= 20:
		return 4*runs >= len(s)
	case len(s) >= 10:
		return 3*runs >= len(s)
	}
	return len(s) >= 5 && switches >= 4
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
