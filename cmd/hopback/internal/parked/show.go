package parked

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sort"
	"strings"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/parking"
)

// Show writes everything about a message for people.
func Show(w io.Writer, m *parking.Message, s Style) {
	line := func(name, format string, args ...any) {
		if text := fmt.Sprintf(format, args...); text != "" {
			fmt.Fprintf(w, "%s %s\n", s.Bold(fmt.Sprintf("%-14s", name)), Clean(text))
		}
	}
	line("id", "%s", m.ID)
	line("message id", "%s", m.MessageID)
	line("parked in", "%s", m.ParkedIn)
	line("work queue", "%s", m.Queue)
	line("reason", "%s", m.Reason)
	line("error", "%s", m.Error)
	line("error type", "%s", m.ErrorType)
	if m.Error != "" || m.ErrorType != "" {
		line("fingerprint", "%s  %s", parking.FingerprintID(m.Fingerprint()), m.Fingerprint())
	}
	if m.BadCounter {
		line("retries", "its counter is none")
	} else {
		line("retries", "%d", m.Retries)
	}
	line("policy", "%s", m.Policy)
	line("first failed", "%s", at(m.FirstFailedAt))
	line("parked", "%s", at(m.ParkedAt))
	if m.OriginUnknown {
		line("published", "nobody knows where")
	} else {
		line("published", "exchange %q, routing key %q", m.Exchange, m.RoutingKey)
	}
	line("read as", "exchange %q, routing key %q", m.Delivery.Exchange, m.Delivery.RoutingKey)

	if h := m.History(); len(h) > 0 {
		fmt.Fprintf(w, "\n%s\n", s.Bold("History"))
		timeline(w, h, s)
	}
	fmt.Fprintf(w, "\n%s\n", s.Bold("Properties"))
	for _, p := range properties(m.Delivery) {
		fmt.Fprintf(w, "  %-17s %s\n", p[0], Clean(p[1]))
	}
	fmt.Fprintf(w, "\n%s\n", s.Bold("Headers"))
	table(w, m.Delivery.Headers, "  ", s)
	fmt.Fprintf(w, "\n%s %s\n", s.Bold("Body"), s.Dim(fmt.Sprintf("%s bytes", Thousands(m.Size))))
	Body(w, m.Delivery.Body)
}

func at(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format("2006-01-02 15:04:05.000 -07:00")
}

// timeline writes the history with the time between its lines.
func timeline(w io.Writer, h []attempt.Entry, s Style) {
	var last time.Time
	for _, e := range h {
		gap := ""
		if !last.IsZero() && e.At.After(last) {
			gap = "+" + e.At.Sub(last).Round(time.Millisecond).String()
		}
		last = e.At
		what := fmt.Sprintf("attempt %d", e.N)
		text := s.Red(Clean(e.Error))
		if e.Replay() {
			what, text = "replayed", s.Green("by "+Clean(e.Consumer))
		}
		fmt.Fprintf(w, "  %s  %12s  %-11s %s", e.At.Local().Format("2006-01-02 15:04:05.000"), gap, what, strings.ReplaceAll(text, "\n", " "))
		if !e.Replay() {
			if e.Consumer != "" {
				fmt.Fprint(w, s.Dim(" on "+Clean(e.Consumer)))
			}
			if e.Delay > 0 {
				fmt.Fprint(w, s.Dim(", then waited "+e.Delay.String()))
			}
		}
		fmt.Fprintln(w)
	}
}

func properties(d *amqp.Delivery) [][2]string {
	list := [][2]string{
		{"content_type", d.ContentType},
		{"content_encoding", d.ContentEncoding},
		{"correlation_id", d.CorrelationId},
		{"reply_to", d.ReplyTo},
		{"expiration", d.Expiration},
		{"message_id", d.MessageId},
		{"type", d.Type},
		{"user_id", d.UserId},
		{"app_id", d.AppId},
	}
	if d.DeliveryMode != 0 {
		list = append(list, [2]string{"delivery_mode", map[uint8]string{1: "1, transient", 2: "2, persistent"}[d.DeliveryMode]})
	}
	if d.Priority != 0 {
		list = append(list, [2]string{"priority", fmt.Sprint(d.Priority)})
	}
	if !d.Timestamp.IsZero() {
		list = append(list, [2]string{"timestamp", fmt.Sprintf("%d, %s", d.Timestamp.Unix(), d.Timestamp.UTC().Format(time.RFC3339))})
	}
	list = slices.DeleteFunc(list, func(p [2]string) bool { return p[1] == "" })
	sort.Slice(list, func(i, j int) bool { return list[i][0] < list[j][0] })
	return list
}

// table writes headers with their AMQP types, nested ones below.
func table(w io.Writer, t amqp.Table, indent string, s Style) {
	keys := make([]string, 0, len(t))
	for k := range t {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for _, k := range keys {
		value(w, k, t[k], indent, s)
	}
}

func value(w io.Writer, name string, v any, indent string, s Style) {
	kind := typeOf(v)
	head := fmt.Sprintf("%s%-26s %s", indent, Clean(name), s.Dim(fmt.Sprintf("%-9s", kind)))
	switch v := v.(type) {
	case amqp.Table:
		fmt.Fprintln(w, strings.TrimRight(head, " "))
		table(w, v, indent+"  ", s)
	case []any:
		fmt.Fprintln(w, strings.TrimRight(head, " "))
		for i, e := range v {
			value(w, fmt.Sprint(i), e, indent+"  ", s)
		}
	case string:
		fmt.Fprintln(w, head, Clean(v))
	case []byte:
		fmt.Fprintln(w, head, hex.EncodeToString(v))
	case time.Time:
		fmt.Fprintf(w, "%s %d, %s\n", head, v.Unix(), v.UTC().Format(time.RFC3339))
	case nil:
		fmt.Fprintln(w, strings.TrimRight(head, " "))
	case amqp.Decimal:
		fmt.Fprintf(w, "%s %d × 10^-%d\n", head, v.Value, v.Scale)
	default:
		fmt.Fprintln(w, head, v)
	}
}

// typeOf names an AMQP type as the message contract does.
func typeOf(v any) string {
	switch v.(type) {
	case nil:
		return "void"
	case []byte:
		return "bytes"
	case time.Time:
		return "timestamp"
	case []any:
		return "array"
	case amqp.Table:
		return "table"
	case amqp.Decimal:
		return "decimal"
	}
	return fmt.Sprintf("%T", v)
}

// Body writes a body as JSON, as text, or else in hex.
func Body(w io.Writer, body []byte) {
	var pretty bytes.Buffer
	switch {
	case len(body) == 0:
	case json.Valid(body) && json.Indent(&pretty, body, "", "  ") == nil:
		fmt.Fprintln(w, Clean(pretty.String()))
	case utf8.Valid(body) && !bytes.ContainsRune(body, 0):
		fmt.Fprintln(w, strings.TrimSuffix(Clean(string(body)), "\n"))
	default:
		fmt.Fprint(w, hex.Dump(body))
	}
}
