package attempt_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
)

// This file runs the golden vectors of testdata; testdata/README.md describes
// their format.

type vectors[C any] struct {
	Version int    `json:"version"`
	About   string `json:"about"`
	Cases   []C    `json:"cases"`
}

// load reads a file of vectors and refuses keys that nobody looks at: a
// misspelt expectation would be a test that cannot fail.
func load[C any](t testing.TB, file string) []C {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	var v vectors[C]
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	if v.Version != attempt.Version {
		t.Fatalf("%s: version %d of the contract, want %d", file, v.Version, attempt.Version)
	}
	if len(v.Cases) == 0 || v.About == "" {
		t.Fatalf("%s: no cases, or it does not say what it is about", file)
	}
	return v.Cases
}

// typed is a header value of an AMQP type.
type typed struct {
	value any
	// id and json are expectations that stand for a string.
	id   bool
	json any
}

func (v *typed) UnmarshalJSON(text []byte) error {
	var raw struct {
		Type  string          `json:"type"`
		Value json.RawMessage `json:"value"`
		Hex   *string         `json:"hex"`
		Scale uint8           `json:"scale"`
	}
	if err := unmarshalStrict(text, &raw); err != nil {
		return err
	}
	var s string
	var octets []byte
	var err error
	switch raw.Type {
	case "void", "bool", "array", "table", "id", "json":
	case "bytes":
		if raw.Hex == nil {
			return fmt.Errorf("bytes without hex: %s", text)
		}
		octets, err = hex.DecodeString(*raw.Hex)
	case "string":
		if raw.Hex != nil {
			octets, err = hex.DecodeString(*raw.Hex)
			s = string(octets)
			break
		}
		err = json.Unmarshal(raw.Value, &s)
	default:
		err = json.Unmarshal(raw.Value, &s)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", text, err)
	}
	integer := func(bits int) int64 {
		n, e := strconv.ParseInt(s, 10, bits)
		err = errors.Join(err, e)
		return n
	}
	unsigned := func(bits int) uint64 {
		n, e := strconv.ParseUint(s, 10, bits)
		err = errors.Join(err, e)
		return n
	}
	float := func(bits int) float64 {
		f, e := strconv.ParseFloat(s, bits)
		err = errors.Join(err, e)
		return f
	}
	switch raw.Type {
	case "void":
	case "bool":
		var b bool
		err = json.Unmarshal(raw.Value, &b)
		v.value = b
	case "int8":
		v.value = int8(integer(8))
	case "uint8":
		v.value = uint8(unsigned(8))
	case "int16":
		v.value = int16(integer(16))
	case "uint16":
		v.value = uint16(unsigned(16))
	case "int32":
		v.value = int32(integer(32))
	case "uint32":
		v.value = uint32(unsigned(32))
	case "int64":
		v.value = integer(64)
	case "float32":
		v.value = float32(float(32))
	case "float64":
		v.value = float(64)
	case "decimal":
		v.value = amqp.Decimal{Scale: raw.Scale, Value: int32(integer(32))}
	case "string":
		v.value = s
	case "bytes":
		v.value = octets
	case "timestamp":
		v.value = time.Unix(integer(64), 0)
	case "array":
		var elements []typed
		err = json.Unmarshal(raw.Value, &elements)
		var list []any // nil when empty, as amqp091-go reads it
		for _, e := range elements {
			list = append(list, e.value)
		}
		v.value = list
	case "table":
		var fields map[string]typed
		err = json.Unmarshal(raw.Value, &fields)
		v.value = table(fields)
	case "id":
		v.id = true
	case "json":
		var compact bytes.Buffer
		if err = json.Compact(&compact, raw.Value); err != nil {
			return err
		}
		v.value = compact.String()
		err = json.Unmarshal(raw.Value, &v.json)
	default:
		err = fmt.Errorf("unknown type %q", raw.Type)
	}
	return err
}

func unmarshalStrict(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

func table(fields map[string]typed) amqp.Table {
	t := amqp.Table{}
	for k, v := range fields {
		t[k] = v.value
	}
	return t
}

type message struct {
	Properties properties       `json:"properties"`
	Headers    map[string]typed `json:"headers"`
}

type properties struct {
	ContentType     string `json:"content_type"`
	ContentEncoding string `json:"content_encoding"`
	DeliveryMode    uint8  `json:"delivery_mode"`
	Priority        uint8  `json:"priority"`
	CorrelationID   string `json:"correlation_id"`
	ReplyTo         string `json:"reply_to"`
	Expiration      string `json:"expiration"`
	MessageID       string `json:"message_id"`
	Timestamp       string `json:"timestamp"`
	Type            string `json:"type"`
	UserID          string `json:"user_id"`
	AppID           string `json:"app_id"`
	Body            string `json:"body"` // hexadecimal
}

func (m message) publishing() amqp.Publishing {
	p := amqp.Publishing{
		ContentType: m.Properties.ContentType, ContentEncoding: m.Properties.ContentEncoding,
		DeliveryMode: m.Properties.DeliveryMode, Priority: m.Properties.Priority,
		CorrelationId: m.Properties.CorrelationID, ReplyTo: m.Properties.ReplyTo,
		Expiration: m.Properties.Expiration, MessageId: m.Properties.MessageID,
		Type: m.Properties.Type, UserId: m.Properties.UserID, AppId: m.Properties.AppID,
	}
	if m.Properties.Timestamp != "" {
		p.Timestamp = time.Unix(number(m.Properties.Timestamp), 0)
	}
	if m.Properties.Body != "" {
		p.Body, _ = hex.DecodeString(m.Properties.Body)
	}
	if m.Headers != nil {
		p.Headers = table(m.Headers)
	}
	return p
}

func number(s string) int64 {
	if s == "" {
		return 0
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

func at(ms string) time.Time {
	if n := number(ms); n != 0 {
		return time.UnixMilli(n)
	}
	return time.Time{}
}

type source struct {
	Queue         string `json:"queue"`
	Exchange      string `json:"exchange"`
	RoutingKey    string `json:"routing_key"`
	OriginUnknown bool   `json:"origin_unknown"`
	At            string `json:"at"`
}

func (s source) source() attempt.Source {
	return attempt.Source{
		Queue: s.Queue, Exchange: s.Exchange, RoutingKey: s.RoutingKey,
		OriginUnknown: s.OriginUnknown, At: at(s.At),
	}
}

type record struct {
	Count         int32    `json:"count"`
	Queue         string   `json:"queue"`
	ID            string   `json:"id"`
	Exchange      string   `json:"exchange"`
	RoutingKey    string   `json:"routing_key"`
	OriginUnknown bool     `json:"origin_unknown"`
	Policy        string   `json:"policy"`
	FirstFailedAt string   `json:"first_failed_at"`
	FailedAt      string   `json:"failed_at"`
	DueAt         string   `json:"due_at"`
	Deadline      string   `json:"deadline"`
	Delay         string   `json:"delay"`
	Error         string   `json:"error"`
	ErrorType     string   `json:"error_type"`
	Reason        string   `json:"reason"`
	CC            []string `json:"cc"`
	BCC           []string `json:"bcc"`
	Expiration    string   `json:"expiration"`
	UserID        string   `json:"user_id"`
	DeliveryMode  any      `json:"delivery_mode"`
	Then          string   `json:"then"`
	History       []entry  `json:"history"`
}

type entry struct {
	N        int32  `json:"n"`
	At       int64  `json:"at"`
	Delay    int64  `json:"delay"`
	Error    string `json:"error"`
	Consumer string `json:"consumer"`
}

func describe(r attempt.Record) record {
	ms := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return strconv.FormatInt(t.UnixMilli(), 10)
	}
	d := record{
		Count: r.Count, Queue: r.Queue, ID: r.ID, Exchange: r.Exchange, RoutingKey: r.RoutingKey,
		OriginUnknown: r.OriginUnknown, Policy: r.Policy, FirstFailedAt: ms(r.FirstFailedAt),
		FailedAt: ms(r.FailedAt), DueAt: ms(r.DueAt), Deadline: ms(r.Deadline), Error: r.Error,
		ErrorType: r.ErrorType, Reason: r.Reason, CC: r.CC, BCC: r.BCC, Expiration: r.Expiration,
		UserID: r.UserID, Then: r.Then,
	}
	if r.Delay != 0 {
		d.Delay = strconv.FormatInt(r.Delay.Milliseconds(), 10)
	}
	switch r.DeliveryMode {
	case 0:
	case attempt.DeliveryModeAbsent:
		d.DeliveryMode = "absent"
	default:
		d.DeliveryMode = float64(r.DeliveryMode) // as JSON reads a number
	}
	for _, e := range r.History() {
		d.History = append(d.History, entry{
			N: e.N, At: e.At.UnixMilli(), Delay: e.Delay.Milliseconds(), Error: e.Error, Consumer: e.Consumer,
		})
	}
	return d
}

type step struct {
	Op        string `json:"op"`
	At        string `json:"at"`
	Error     string `json:"error"`
	ErrorHex  string `json:"error_hex"`
	ErrorType string `json:"error_type"`
	Consumer  string `json:"consumer"`
	Delay     string `json:"delay"`
	Due       string `json:"due"`
	Policy    string `json:"policy"`
	Reason    string `json:"reason"`
	Source    source `json:"source"`
}

type life struct {
	Name      string   `json:"name"`
	Source    source   `json:"source"`
	Message   message  `json:"message"`
	Record    *record  `json:"record"`
	ReadError string   `json:"error"`
	Steps     []step   `json:"steps"`
	Limit     int      `json:"limit"`
	Successor *message `json:"successor"`
	Size      int      `json:"size"`
	Original  *message `json:"original"`
	Replay    *message `json:"replay"`
	Replaying struct {
		At        string `json:"at"`
		By        string `json:"by"`
		KeepCount bool   `json:"keep_count"`
	} `json:"replaying"`
	Expired []struct {
		At   string `json:"at"`
		Want bool   `json:"expired"`
	} `json:"expired"`
}

func TestVectors(t *testing.T) {
	for _, file := range []string{
		"read.json", "transitions.json", "strip.json", "history.json", "shrink.json", "restore.json", "deadline.json",
	} {
		t.Run(file, func(t *testing.T) {
			for _, c := range load[life](t, file) {
				t.Run(c.Name, func(t *testing.T) { run(t, c) })
			}
		})
	}
}

func run(t *testing.T, c life) {
	p := c.Message.publishing()
	untouched := p
	r, err := attempt.Read(&p, c.Source.source())
	checkReadError(t, err, c.ReadError)

	asserted := false
	if c.Record != nil {
		asserted = true
		if got := describe(r); !reflect.DeepEqual(got, *c.Record) {
			t.Errorf("record\n got %+v\nwant %+v", got, *c.Record)
		}
	}
	for _, s := range c.Steps {
		f := attempt.Failure{At: at(s.At), Error: s.Error, ErrorType: s.ErrorType, Consumer: s.Consumer}
		if s.ErrorHex != "" {
			b, err := hex.DecodeString(s.ErrorHex)
			if err != nil {
				t.Fatal(err)
			}
			f.Error = string(b)
		}
		delay := time.Duration(number(s.Delay)) * time.Millisecond
		switch s.Op {
		case "retry":
			r = r.Retry(f, delay, at(s.Due), s.Policy)
		case "snooze":
			r = r.Snooze(f, delay, at(s.Due), s.Policy)
		case "park":
			r = r.Park(f, s.Reason)
		case "return":
			p = r.Successor(&p, c.Limit)
			if r, err = attempt.Read(&p, s.Source.source()); err != nil {
				t.Fatalf("reading our own message: %v", err)
			}
		default:
			t.Fatalf("unknown step %q", s.Op)
		}
	}
	if c.Successor != nil {
		asserted = true
		s := r.Successor(&p, c.Limit)
		checkMessage(t, "successor", s, *c.Successor)
		if c.Size != 0 && attempt.HeaderSize(&s) != c.Size {
			t.Errorf("size of the successor: %d, want %d", attempt.HeaderSize(&s), c.Size)
		}
		checkRoundTrip(t, r, s, c.Limit)
	}
	if c.Original != nil {
		asserted = true
		checkMessage(t, "original", r.Original(&p), *c.Original)
	}
	if c.Replay != nil {
		asserted = true
		how := attempt.Replaying{At: at(c.Replaying.At), By: c.Replaying.By, KeepCount: c.Replaying.KeepCount}
		checkMessage(t, "replay", r.Replay(&p, how, c.Limit), *c.Replay)
	}
	for _, e := range c.Expired {
		asserted = true
		if got := r.Expired(at(e.At)); got != e.Want {
			t.Errorf("expired at %s: %v, want %v", e.At, got, e.Want)
		}
	}
	if !asserted {
		t.Error("the case expects nothing")
	}
	// fmt prints maps in the order of their keys, and NaN equal to NaN.
	if got, want := fmt.Sprintf("%#v", untouched), fmt.Sprintf("%#v", c.Message.publishing()); got != want {
		t.Errorf("the message was changed\n got %s\nwant %s", got, want)
	}
}

func checkReadError(t *testing.T, err error, want string) {
	t.Helper()
	var counter *attempt.CounterError
	switch want {
	case "":
		if err != nil {
			t.Errorf("Read: %v", err)
		}
	case "bad-counter":
		if !errors.Is(err, attempt.ErrBadCounter) || !errors.As(err, &counter) || counter.Type == "" {
			t.Errorf("Read: error %v, want a *CounterError", err)
		}
	default:
		t.Fatalf("unknown error %q", want)
	}
}

// checkRoundTrip reads what was written: the record must be the same, but for
// what was shrunk away.
func checkRoundTrip(t *testing.T, r attempt.Record, s amqp.Publishing, limit int) {
	t.Helper()
	back, err := attempt.Read(&s, attempt.Source{Queue: r.Queue, Exchange: "hop.return", RoutingKey: "other"})
	if err != nil {
		t.Fatalf("reading back: %v", err)
	}
	got, want := describe(back), describe(r)
	if limit > 0 {
		got.Error, got.ErrorType, got.History = want.Error, want.ErrorType, want.History
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("read back\n got %+v\nwant %+v", got, want)
	}
}

var idForm = regexp.MustCompile(`^[0-9a-f]{32}$`)

func checkMessage(t *testing.T, what string, got amqp.Publishing, m message) {
	t.Helper()
	want := m.publishing()
	headers := got.Headers
	got.Headers, want.Headers = nil, nil
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: properties\n got %+v\nwant %+v", what, got, want)
	}
	for k, w := range m.Headers {
		g, ok := headers[k]
		if !ok {
			t.Errorf("%s: no header %q, want %#v", what, k, w.value)
			continue
		}
		checkValue(t, fmt.Sprintf("%s: header %q", what, k), g, w)
	}
	for k, g := range headers {
		if _, ok := m.Headers[k]; !ok {
			t.Errorf("%s: header %q = %#v, want none", what, k, g)
		}
	}
}

func checkValue(t *testing.T, what string, got any, w typed) {
	t.Helper()
	switch {
	case w.id:
		if s, ok := got.(string); !ok || !idForm.MatchString(s) {
			t.Errorf("%s: %#v, want 32 hexadecimal digits", what, got)
		}
	case w.json != nil:
		s, ok := got.(string)
		var parsed any
		if !ok || json.Unmarshal([]byte(s), &parsed) != nil || !reflect.DeepEqual(parsed, w.json) {
			t.Errorf("%s:\n got %#v\nwant a string with the JSON %v", what, got, w.value)
		}
	case !reflect.DeepEqual(got, w.value):
		t.Errorf("%s: %T %#v, want %T %#v", what, got, got, w.value, w.value)
	}
}

func TestVectorsCounters(t *testing.T) {
	type counter struct {
		Name  string `json:"name"`
		Value typed  `json:"value"`
		Count *int32 `json:"count"`
		Error string `json:"error"`
	}
	for _, c := range load[counter](t, "counters.json") {
		t.Run(c.Name, func(t *testing.T) {
			n, err := attempt.ParseCount(c.Value.value)
			if c.Count == nil {
				var typed *attempt.CounterError
				if !errors.Is(err, attempt.ErrBadCounter) || !errors.As(err, &typed) || c.Error != "bad-counter" {
					t.Fatalf("ParseCount(%#v) = %d, %v; want a *CounterError", c.Value.value, n, err)
				}
				if n != 0 || typed.Type == "" || len(err.Error()) > 300 {
					t.Errorf("got %d and %q of type %q", n, err, typed.Type)
				}
				return
			}
			if err != nil || n != *c.Count {
				t.Errorf("ParseCount(%#v) = %d, %v; want %d", c.Value.value, n, err, *c.Count)
			}

			// The same through Read, for a bare counter and for a record.
			for _, h := range []amqp.Table{
				{attempt.HeaderCount: c.Value.value},
				{attempt.HeaderCount: c.Value.value, attempt.HeaderQueue: "orders"},
			} {
				r, err := attempt.Read(&amqp.Publishing{Headers: h}, attempt.Source{Queue: "orders"})
				if err != nil || r.Count != *c.Count {
					t.Errorf("Read of %#v: count %d, %v; want %d", h, r.Count, err, *c.Count)
				}
			}
		})
	}
}

func TestVectorsSizes(t *testing.T) {
	type size struct {
		Name  string           `json:"name"`
		Table map[string]typed `json:"table"`
		Size  int              `json:"size"`
	}
	for _, c := range load[size](t, "sizes.json") {
		t.Run(c.Name, func(t *testing.T) {
			if n := attempt.Size(table(c.Table)); n != c.Size {
				t.Errorf("Size = %d, want %d", n, c.Size)
			}
		})
	}
}

func TestVectorsAdvice(t *testing.T) {
	type advice struct {
		Name    string           `json:"name"`
		Headers map[string]typed `json:"headers"`
		Advice  struct {
			Verdict   string `json:"verdict"`
			After     string `json:"after"`
			Error     string `json:"error"`
			ErrorType string `json:"error_type"`
		} `json:"advice"`
		Unreadable []string `json:"unreadable"`
	}
	for _, c := range load[advice](t, "advice.json") {
		t.Run(c.Name, func(t *testing.T) {
			got, err := attempt.ReadAdvice(table(c.Headers))
			want := attempt.Advice{
				Verdict: c.Advice.Verdict, After: time.Duration(number(c.Advice.After)) * time.Millisecond,
				Error: c.Advice.Error, ErrorType: c.Advice.ErrorType,
			}
			if got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
			var unreadable []string
			if joined, ok := err.(interface{ Unwrap() []error }); ok {
				for _, e := range joined.Unwrap() {
					var a *attempt.AdviceError
					if !errors.As(e, &a) {
						t.Fatalf("error %T, want *AdviceError", e)
					}
					unreadable = append(unreadable, a.Header)
				}
			}
			if !reflect.DeepEqual(unreadable, c.Unreadable) {
				t.Errorf("unreadable %v (%v), want %v", unreadable, err, c.Unreadable)
			}
		})
	}
}

// The vectors must hold what they say: every type, NaN included.
func TestVectorTypes(t *testing.T) {
	var v typed
	if err := json.Unmarshal([]byte(`{"type":"float64","value":"NaN"}`), &v); err != nil || !math.IsNaN(v.value.(float64)) {
		t.Errorf("NaN: %#v, %v", v.value, err)
	}
	for _, bad := range []string{
		`{"type":"int8","value":"128"}`, `{"type":"int32","value":3}`, `{"type":"string"}`, `{"type":"bytes"}`,
		`{"type":"int23","value":"1"}`, `{"type":"void","values":1}`,
	} {
		if err := json.Unmarshal([]byte(bad), &v); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}
