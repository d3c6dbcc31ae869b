package parked

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/parking"
)

// separator stands between the properties and headers of a message and its body
// in the text that people edit.
const separator = "=== body: everything below this line ===\n"

const preface = `// Change what you like, save, and close. Every header has its AMQP type; numbers are
// in quotes. An empty file changes nothing. Lines at the top that begin with // go.
`

// Document writes a message as a text to edit. A body that is no text stays in
// the JSON, in hex.
func Document(p *amqp.Publishing) (string, error) {
	q := *p
	text := utf8.Valid(p.Body) && len(p.Body) > 0
	if text {
		q.Body = nil
	}
	b, err := parking.Marshal(&q)
	if err != nil {
		return "", err
	}
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, b, "", "  "); err != nil {
		return "", fmt.Errorf("write a message to edit: %w", err)
	}
	s := preface + pretty.String() + "\n"
	if text {
		s += separator + string(p.Body)
		if !bytes.HasSuffix(p.Body, []byte("\n")) {
			s += "\n" // editors end files with one
		}
	}
	return s, nil
}

// ErrEmpty says that the text that came back is empty.
var ErrEmpty = errors.New("nothing was changed: the text is empty")

// FromDocument reads the text that came back. before is the message that it was
// written from.
func FromDocument(s string, before *amqp.Publishing) (amqp.Publishing, error) {
	for strings.HasPrefix(s, "//") {
		_, s, _ = strings.Cut(s, "\n")
	}
	if strings.TrimSpace(s) == "" {
		return amqp.Publishing{}, ErrEmpty
	}
	head, body, text := strings.Cut(s, separator)
	p, err := parking.Unmarshal([]byte(head))
	if err != nil {
		return p, err
	}
	if text {
		if !bytes.HasSuffix(before.Body, []byte("\n")) {
			body = strings.TrimSuffix(body, "\n")
		}
		p.Body = []byte(body)
	}
	return p, nil
}

// Diff compares two texts line by line: what goes with "-", what comes with "+",
// and a few lines around.
func Diff(before, after string, s Style) string {
	a, b := strings.Split(strings.TrimSuffix(before, "\n"), "\n"), strings.Split(strings.TrimSuffix(after, "\n"), "\n")
	head := 0
	for head < len(a) && head < len(b) && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < len(a)-head && tail < len(b)-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	if head == len(a) && head == len(b) {
		return ""
	}
	const around = 3
	var out strings.Builder
	for _, line := range a[max(head-around, 0):head] {
		fmt.Fprintf(&out, "  %s\n", Clean(line))
	}
	for _, d := range changes(a[head:len(a)-tail], b[head:len(b)-tail]) {
		text := Clean(d.mark + " " + d.line)
		switch d.mark {
		case "-":
			text = s.Red(text)
		case "+":
			text = s.Green(text)
		}
		out.WriteString(text + "\n")
	}
	for _, line := range a[len(a)-tail : len(a)-tail+min(tail, around)] {
		fmt.Fprintf(&out, "  %s\n", Clean(line))
	}
	return out.String()
}

type change struct{ mark, line string }

// changes finds the longest common subsequence of lines. Texts too long for that
// are told as replaced as a whole.
func changes(a, b []string) []change {
	var out []change
	if len(a)*len(b) > 4_000_000 {
		for _, l := range a {
			out = append(out, change{"-", l})
		}
		for _, l := range b {
			out = append(out, change{"+", l})
		}
		return out
	}
	common := make([][]int, len(a)+1)
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			out = append(out, change{" ", a[i]})
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && common[i+1][j] >= common[i][j+1]:
			out = append(out, change{"-", a[i]})
			i++
		default:
			out = append(out, change{"+", b[j]})
			j++
		}
	}
	return out
}
