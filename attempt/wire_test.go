package attempt_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net"
	"reflect"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
)

// These tests send messages through the encoder and the decoder of amqp091-go,
// by a connection whose other end speaks just enough AMQP 0-9-1 to send every
// message back. They settle what the wire makes of our types; what a broker
// makes of them is tested where brokers are.

// mirror is a connection that delivers what is published on it.
type mirror struct {
	channel    *amqp.Channel
	deliveries <-chan amqp.Delivery
	headers    chan int // size of each content header as it came off the wire
}

func newMirror(t *testing.T) *mirror {
	t.Helper()
	client, server := net.Pipe()
	m := &mirror{headers: make(chan int, 1)}
	done := make(chan error, 1)
	go func() {
		done <- m.serve(server)
		server.Close()
	}()
	connection, err := amqp.Open(client, amqp.Config{SASL: []amqp.Authentication{&amqp.PlainAuth{Username: "u", Password: "p"}}, Vhost: "/"})
	if err != nil {
		t.Fatalf("opening the connection: %v (mirror: %v)", err, <-done)
	}
	t.Cleanup(func() {
		connection.Close()
		if err := <-done; err != nil {
			t.Errorf("mirror: %v", err)
		}
	})
	if m.channel, err = connection.Channel(); err != nil {
		t.Fatal(err)
	}
	if m.deliveries, err = m.channel.Consume("orders", "c", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	return m
}

// send publishes p and returns what comes back, and the size of the content
// header on the wire.
func (m *mirror) send(t *testing.T, p amqp.Publishing) (amqp.Delivery, int) {
	t.Helper()
	if err := m.channel.PublishWithContext(context.Background(), "", "orders", false, false, p); err != nil {
		t.Fatalf("publishing: %v", err)
	}
	var d amqp.Delivery
	select {
	case d = <-m.deliveries:
	case <-time.After(time.Minute):
		t.Fatal("the message did not come back")
	}
	select {
	case n := <-m.headers:
		return d, n
	case <-time.After(time.Minute):
		t.Fatal("the message did not reach the other end")
	}
	return d, 0
}

const (
	frameMethod = 1
	frameHeader = 2
	frameBody   = 3
	frameEnd    = 206
)

func (m *mirror) serve(c net.Conn) error {
	if _, err := io.ReadFull(c, make([]byte, 8)); err != nil {
		return fmt.Errorf("reading the protocol header: %w", err)
	}
	method := func(channel, class, id uint16, args ...byte) {
		payload := binary.BigEndian.AppendUint16(nil, class)
		payload = binary.BigEndian.AppendUint16(payload, id)
		writeFrame(c, frameMethod, channel, append(payload, args...))
	}
	method(0, 10, 10, append([]byte{0, 9, 0, 0, 0, 0, 0, 0, 0, 5}, "PLAIN\x00\x00\x00\x05en_US"...)...)

	var header, body []byte
	var left uint64
	for tag := byte(1); ; {
		kind, channel, payload, err := readFrame(c)
		if err != nil {
			return fmt.Errorf("reading a frame: %w", err)
		}
		switch kind {
		case frameMethod:
			switch [2]uint16{binary.BigEndian.Uint16(payload), binary.BigEndian.Uint16(payload[2:])} {
			case [2]uint16{10, 11}: // start-ok; tune: 10 channels, frames of 128 KiB, no heartbeat
				method(0, 10, 30, 0, 10, 0, 2, 0, 0, 0, 0)
			case [2]uint16{10, 40}: // open
				method(0, 10, 41, 0)
			case [2]uint16{20, 10}: // channel.open
				method(channel, 20, 11, 0, 0, 0, 0)
			case [2]uint16{60, 20}: // consume
				method(channel, 60, 21, 1, 'c')
			case [2]uint16{10, 50}: // close
				method(0, 10, 51)
				return nil
			}
			continue
		case frameHeader:
			header, body, left = payload, nil, binary.BigEndian.Uint64(payload[4:])
			m.headers <- len(header)
		case frameBody:
			body, left = append(body, payload...), left-uint64(len(payload))
		default:
			continue
		}
		if left > 0 {
			continue
		}
		method(channel, 60, 60, 1, 'c', 0, 0, 0, 0, 0, 0, 0, tag, 0, 0, 6, 'o', 'r', 'd', 'e', 'r', 's')
		writeFrame(c, frameHeader, channel, header)
		if len(body) > 0 {
			writeFrame(c, frameBody, channel, body)
		}
		tag++
	}
}

func readFrame(r io.Reader) (kind byte, channel uint16, payload []byte, err error) {
	var head [7]byte
	if _, err = io.ReadFull(r, head[:]); err != nil {
		return
	}
	payload = make([]byte, binary.BigEndian.Uint32(head[3:])+1)
	_, err = io.ReadFull(r, payload)
	return head[0], binary.BigEndian.Uint16(head[1:]), payload[:len(payload)-1], err
}

func writeFrame(w io.Writer, kind byte, channel uint16, payload []byte) {
	frame := binary.BigEndian.AppendUint16([]byte{kind}, channel)
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(payload)))
	w.Write(append(append(frame, payload...), frameEnd)) // an error shows as a lost reply
}

// Every message that the vectors build has the size that HeaderSize says, and
// comes off the wire as the record that went onto it.
func TestWireVectors(t *testing.T) {
	m := newMirror(t)
	for _, file := range []string{"transitions.json", "strip.json", "history.json", "shrink.json"} {
		for _, c := range load[life](t, file) {
			p := c.Message.publishing()
			if d, n := m.send(t, p); n != attempt.HeaderSize(&p) {
				t.Errorf("%s: HeaderSize %d, on the wire %d", c.Name, attempt.HeaderSize(&p), n)
			} else if r, _ := attempt.Read(&p, c.Source.source()); c.ReadError == "" {
				got := attempt.FromDelivery(&d)
				back, err := attempt.Read(&got, c.Source.source())
				if err != nil || !reflect.DeepEqual(describe(back), describe(r)) {
					t.Errorf("%s: record off the wire\n got %+v, %v\nwant %+v", c.Name, describe(back), err, describe(r))
				}
				s := back.Successor(&got, c.Limit)
				if d, n = m.send(t, s); n != attempt.HeaderSize(&s) {
					t.Errorf("%s: successor: HeaderSize %d, on the wire %d", c.Name, attempt.HeaderSize(&s), n)
				}
				if !reflect.DeepEqual(d.Headers, s.Headers) {
					t.Errorf("%s: successor off the wire\n got %#v\nwant %#v", c.Name, d.Headers, s.Headers)
				}
			}
		}
	}
}

// The encoding of single values has the sizes of the vectors.
func TestWireSizes(t *testing.T) {
	m := newMirror(t)
	bare := amqp.Publishing{}
	type size struct {
		Name  string           `json:"name"`
		Table map[string]typed `json:"table"`
		Size  int              `json:"size"`
	}
	_, empty := m.send(t, bare)
	for _, c := range load[size](t, "sizes.json") {
		_, n := m.send(t, amqp.Publishing{Headers: table(c.Table)})
		if want := c.Size; len(c.Table) > 0 && n-empty != want {
			t.Errorf("%s: %d bytes on the wire, want %d", c.Name, n-empty, want)
		}
	}
}

// B16: a Go int is 32 bits on the wire. The first half shows that it is so, and
// why nothing of ours is an int; the second, that ours come through.
func TestWireB16IntegerWidth(t *testing.T) {
	m := newMirror(t)
	const epoch = 1796036400000
	plain := amqp.Publishing{Headers: amqp.Table{"at": int(epoch)}}
	d, n := m.send(t, plain)
	if want := attempt.HeaderSize(&plain); n != want {
		t.Errorf("%d bytes on the wire, HeaderSize %d", n, want)
	}
	if got := d.Headers["at"]; got != int32(740070272) {
		t.Errorf("amqp091-go no longer cuts int to 32 bits: %T %v", got, got)
	}

	p := amqp.Publishing{Headers: amqp.Table{"theirs": int(epoch)}}
	r, err := attempt.Read(&p, attempt.Source{Queue: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	const fortyDays = 40 * 24 * time.Hour
	r = r.Retry(attempt.Failure{At: time.UnixMilli(epoch)}, fortyDays, time.Time{}, "standard")
	d, _ = m.send(t, r.Successor(&p, 0))
	for key, want := range map[string]int64{
		attempt.HeaderFirstFailedAt: epoch, attempt.HeaderFailedAt: epoch,
		attempt.HeaderDelay: 3456000000, attempt.HeaderDueAt: epoch + 3456000000,
		"theirs": epoch,
	} {
		if got := d.Headers[key]; got != want {
			t.Errorf("%s = %T %v, want int64 %d", key, got, got, want)
		}
	}
	if got := d.Headers[attempt.HeaderCount]; got != int32(1) {
		t.Errorf("%s = %T %v, want int32 1", attempt.HeaderCount, got, got)
	}
}

// B39: a counter of 3 in every type that amqp091-go can deliver, as it delivers
// it.
func TestWireB39CounterTypes(t *testing.T) {
	m := newMirror(t)
	for _, three := range []any{
		int8(3), uint8(3), int16(3), uint16(3), int32(3), uint32(3), int64(3), int(3),
		float32(3), float64(3),
		amqp.Decimal{Scale: 1, Value: 30},
		"3", []byte("3"),
	} {
		d, _ := m.send(t, amqp.Publishing{Headers: amqp.Table{attempt.HeaderCount: three}})
		p := attempt.FromDelivery(&d)
		r, err := attempt.Read(&p, attempt.Source{Queue: "orders"})
		if err != nil || r.Count != 3 {
			t.Errorf("%T: count %d, %v; want 3", three, r.Count, err)
		}
		if s := r.Retry(attempt.Failure{}, 0, time.Time{}, "").Successor(&p, 0); s.Headers[attempt.HeaderCount] != int32(4) {
			t.Errorf("%T: next count %#v, want int32 4", three, s.Headers[attempt.HeaderCount])
		}
	}
	for _, garbage := range []any{"abc", true, nil, int32(-1), 3.7, int64(math.MaxInt32) + 1, time.Unix(3, 0), []any{int32(3)}, amqp.Table{"n": int32(3)}} {
		d, _ := m.send(t, amqp.Publishing{Headers: amqp.Table{attempt.HeaderCount: garbage}})
		p := attempt.FromDelivery(&d)
		if r, err := attempt.Read(&p, attempt.Source{Queue: "orders"}); err == nil {
			t.Errorf("%T %v: count %d, want an error", garbage, garbage, r.Count)
		}
	}
}

// B36: all properties through a retry, parking, and back.
func TestWireB36Properties(t *testing.T) {
	m := newMirror(t)
	for _, mode := range []uint8{0, 1, 2} {
		sent := amqp.Publishing{
			Headers:     amqp.Table{"tenant": "acme", "CC": []any{"audit"}},
			ContentType: "a/b", ContentEncoding: "gzip", DeliveryMode: mode, Priority: 4, CorrelationId: "c1",
			ReplyTo: "r", Expiration: "90000", MessageId: "m1", Timestamp: time.Unix(1700000000, 0), Type: "T",
			UserId: "guest", AppId: "app", Body: []byte{0x1f, 0x8b, 0},
		}
		source := attempt.Source{Queue: "orders", Exchange: "shop", RoutingKey: "order.create", At: time.Now()}
		d, n := m.send(t, sent)
		if want := attempt.HeaderSize(&sent); n != want {
			t.Errorf("mode %d: %d bytes on the wire, HeaderSize %d", mode, n, want)
		}
		for range 3 {
			p := attempt.FromDelivery(&d)
			r, err := attempt.Read(&p, source)
			if err != nil {
				t.Fatal(err)
			}
			d, _ = m.send(t, r.Retry(attempt.Failure{Error: "e"}, time.Second, time.Time{}, "p").Successor(&p, 0))
			if d.DeliveryMode != 2 || d.Expiration != "" || d.UserId != "" || d.Headers["CC"] != nil {
				t.Errorf("mode %d: waits with mode %d, expiration %q, user-id %q, CC %v", mode, d.DeliveryMode, d.Expiration, d.UserId, d.Headers["CC"])
			}
		}
		p := attempt.FromDelivery(&d)
		r, err := attempt.Read(&p, source)
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Original(&p); !reflect.DeepEqual(got, sent) {
			t.Errorf("mode %d: the original\n got %+v\nwant %+v", mode, got, sent)
		}
		d, _ = m.send(t, r.Replay(&p, attempt.Replaying{}, 0))
		want := sent
		want.Expiration, want.UserId, want.Headers = "", "", nil
		got := attempt.FromDelivery(&d)
		got.Headers = nil
		if !reflect.DeepEqual(got, want) {
			t.Errorf("mode %d: the replay\n got %+v\nwant %+v", mode, got, want)
		}
	}
}

// What only a program can put into a table must not reach the wire as it is:
// amqp091-go refuses a plain map, and RabbitMQ closes the connection for NaN.
func TestWireUnpublishableValues(t *testing.T) {
	m := newMirror(t)
	p := amqp.Publishing{Headers: amqp.Table{
		"map":  map[string]any{"deep": []any{map[string]any{"n": int(1) << 40}}},
		"nan":  math.NaN(),
		"inf":  []any{math.Inf(1), float32(math.Inf(-1))},
		"nil":  amqp.Table(nil),
		"long": strings.Repeat("x", 100000),
	}}
	s := attempt.Record{Queue: "orders"}.Successor(&p, 0)
	d, n := m.send(t, s)
	if want := attempt.HeaderSize(&s); n != want {
		t.Errorf("%d bytes on the wire, HeaderSize %d", n, want)
	}
	for key, want := range map[string]any{
		"map": amqp.Table{"deep": []any{amqp.Table{"n": int64(1) << 40}}},
		"nan": "NaN", "inf": []any{"+Inf", "-Inf"}, "nil": amqp.Table{}, "long": strings.Repeat("x", 100000),
	} {
		if !reflect.DeepEqual(d.Headers[key], want) {
			t.Errorf("%s: %#v, want %#v", key, d.Headers[key], want)
		}
	}
}
