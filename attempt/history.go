package attempt

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// replayed is the error on the line of a replay, for readers that print lines and
// know nothing of replays.
const replayed = "replayed"

// Entry is one line of a message's history: one failed attempt, or a replay.
type Entry struct {
	// N is the number of the attempt that failed, from 1: retry n is attempt
	// n+1. It is 0 on the line of a replay, after which the attempts count from 1
	// again.
	N int32
	// At is when it failed or was replayed, in UTC, to the ms.
	At time.Time
	// Delay is the delay chosen after it; 0 on the line that parked the message.
	Delay time.Duration
	// Error is its error, at most MaxEntryError bytes.
	Error string
	// Consumer names who ran the attempt or the replay, at most MaxEntryConsumer
	// bytes.
	Consumer string
}

// Replay reports whether the line is a replay, and not a failed attempt.
func (e Entry) Replay() bool { return e.N == 0 && e.Error == replayed }

// line is an Entry as it stands in the JSON of HeaderHistory.
type line struct {
	N        int32  `json:"n"`
	At       int64  `json:"at"`    // epoch ms
	Delay    int64  `json:"delay"` // ms
	Error    string `json:"error"`
	Consumer string `json:"consumer"`
}

// History returns the failed attempts and replays that the message remembers,
// oldest first: the first one and the last nine. It decodes the header on every call.
// A history that is no JSON array of lines gives nil: it informs people and
// decides nothing.
func (r Record) History() []Entry {
	lines := decodeHistory(r.history)
	if len(lines) == 0 {
		return nil
	}
	entries := make([]Entry, len(lines))
	for i, l := range lines {
		entries[i] = Entry{N: l.N, Delay: span(l.Delay), Error: l.Error, Consumer: l.Consumer}
		if l.At > 0 && l.At <= maxMillis {
			entries[i].At = time.UnixMilli(l.At).UTC()
		}
	}
	return entries
}

func decodeHistory(raw string) []line {
	if raw == "" {
		return nil
	}
	var lines []line
	if json.Unmarshal([]byte(raw), &lines) != nil {
		return nil
	}
	return lines
}

// appendHistory adds a line and folds: of more than MaxHistory lines the first
// and the last nine stay. Garbage is replaced, so that one bad writer does not
// cost a message the rest of its history.
func appendHistory(raw string, l line) string {
	var room [MaxHistory + 1]region
	regions, raw := historyLines(raw, room[:0])

	var b strings.Builder
	b.Grow(len(raw) + len(l.Error) + len(l.Consumer) + 100)
	b.WriteByte('[')
	if n := len(regions); n >= MaxHistory {
		b.WriteString(regions[0].of(raw))
		b.WriteByte(',')
		b.WriteString(raw[regions[n-(MaxHistory-2)].from:regions[n-1].to])
		b.WriteByte(',')
	} else if n > 0 {
		b.WriteString(raw[regions[0].from:regions[n-1].to])
		b.WriteByte(',')
	}
	writeLine(&b, l)
	b.WriteByte(']')
	return b.String()
}

// joinHistory writes the lines at the given regions of raw.
func joinHistory(raw string, regions []region) string {
	var b strings.Builder
	b.Grow(len(raw))
	b.WriteByte('[')
	for i, g := range regions {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(g.of(raw))
	}
	b.WriteByte(']')
	return b.String()
}

// region is where a line stands in the JSON text.
type region struct{ from, to int }

func (g region) of(raw string) string { return raw[g.from:g.to] }

// historyLines finds the lines of a history and returns the text that they
// stand in: raw itself where it has the compact form that we write, and
// otherwise, since another writer's JSON is as good, raw rewritten into it.
// Garbage has no lines.
func historyLines(raw string, room []region) ([]region, string) {
	if raw == "" {
		return nil, ""
	}
	if regions, ok := splitHistory(raw, room); ok {
		return regions, raw
	}
	lines := decodeHistory(raw)
	if len(lines) == 0 {
		return nil, ""
	}
	var b strings.Builder
	b.WriteByte('[')
	for i, l := range lines {
		if i > 0 {
			b.WriteByte(',')
		}
		writeLine(&b, l)
	}
	b.WriteByte(']')
	raw = b.String()
	regions, _ := splitHistory(raw, room)
	return regions, raw
}

// splitHistory finds the lines of a history in exactly the form that writeLine
// gives, and is false for any other. A failure appends a line 20,000 times a
// second, and decoding JSON each time would cost more than the rest of the
// hand-off: this costs about a nanosecond a byte.
func splitHistory(raw string, room []region) ([]region, bool) {
	s := scanner{text: raw}
	if !s.skip("[") {
		return nil, false
	}
	for {
		from := s.pos
		if !(s.skip(`{"n":`) && s.number(math.MaxInt32) && s.skip(`,"at":`) && s.number(math.MaxInt64) &&
			s.skip(`,"delay":`) && s.number(math.MaxInt64) && s.skip(`,"error":"`) && s.rest() &&
			s.skip(`,"consumer":"`) && s.rest() && s.skip("}")) {
			return nil, false
		}
		room = append(room, region{from, s.pos})
		if !s.skip(",") {
			break
		}
	}
	if !s.skip("]") || s.pos != len(raw) {
		return nil, false
	}
	return room, true
}

// scanner reads the compact form.
type scanner struct {
	text string
	pos  int
}

func (s *scanner) skip(want string) bool {
	if !strings.HasPrefix(s.text[s.pos:], want) {
		return false
	}
	s.pos += len(want)
	return true
}

// number reads a JSON integer from 0 to limit.
func (s *scanner) number(limit int64) bool {
	start := s.pos
	var n int64
	for s.pos < len(s.text) {
		c := s.text[s.pos]
		if c < '0' || c > '9' {
			break
		}
		if n > (limit-int64(c-'0'))/10 {
			return false
		}
		n = n*10 + int64(c-'0')
		s.pos++
	}
	length := s.pos - start
	return length > 0 && (length == 1 || s.text[start] != '0')
}

// rest reads a JSON string up to and with its closing quote.
func (s *scanner) rest() bool {
	for s.pos < len(s.text) {
		c := s.text[s.pos]
		s.pos++
		switch {
		case c == '"':
			return true
		case c < ' ':
			return false
		case c == '\\':
			if s.pos == len(s.text) {
				return false
			}
			e := s.text[s.pos]
			s.pos++
			if e == 'u' {
				for range 4 {
					if s.pos == len(s.text) || !isHex(s.text[s.pos]) {
						return false
					}
					s.pos++
				}
			} else if strings.IndexByte(`"\/bfnrt`, e) < 0 {
				return false
			}
		}
	}
	return false
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

// writeLine writes a line as JSON, all five keys in this order, no blanks.
func writeLine(b *strings.Builder, l line) {
	var digits [20]byte
	b.WriteString(`{"n":`)
	b.Write(strconv.AppendInt(digits[:0], int64(max(l.N, 0)), 10))
	b.WriteString(`,"at":`)
	b.Write(strconv.AppendInt(digits[:0], max(l.At, 0), 10))
	b.WriteString(`,"delay":`)
	b.Write(strconv.AppendInt(digits[:0], max(l.Delay, 0), 10))
	b.WriteString(`,"error":"`)
	writeEscaped(b, bounded(l.Error, MaxEntryError))
	b.WriteString(`","consumer":"`)
	writeEscaped(b, bounded(l.Consumer, MaxEntryConsumer))
	b.WriteString(`"}`)
}

// writeEscaped writes valid UTF-8 as the inside of a JSON string. Only what
// JSON demands is escaped.
func writeEscaped(b *strings.Builder, s string) {
	const hex = "0123456789abcdef"
	done := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' || c >= utf8.RuneSelf {
			continue
		}
		b.WriteString(s[done:i])
		done = i + 1
		switch c {
		case '"', '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case '\n':
			b.WriteString(`\n`)
		case '\r':
			b.WriteString(`\r`)
		case '\t':
			b.WriteString(`\t`)
		default:
			b.WriteString(`\u00`)
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		}
	}
	b.WriteString(s[done:])
}
