package link

import (
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
)

// Two messages with one retry id, since their application copied the headers of
// the message that it derived them from: the return of one is not the other's.
func TestReturnsOfDerivedMessages(t *testing.T) {
	headers := amqp.Table{attempt.HeaderID: "one", attempt.HeaderCount: int32(3)}
	pub := func(id, body string) *Publication {
		return &Publication{Exchange: "hop.error", Key: "orders", Msg: amqp.Publishing{MessageId: id, Headers: headers, Body: []byte(body)}}
	}
	returned := func(p *Publication) amqp.Return {
		return amqp.Return{Exchange: p.Exchange, RoutingKey: p.Key, Headers: p.Msg.Headers, MessageId: p.Msg.MessageId, Body: p.Msg.Body}
	}
	for _, tt := range []struct{ safe, lost *Publication }{
		{pub("", "a"), pub("", "b")},
		{pub("1", "same"), pub("2", "same")},
	} {
		c := &confirmer{returned: []amqp.Return{returned(tt.lost)}}
		if _, ok := c.takeReturn(tt.safe); ok {
			t.Error("a message that was not returned took the return of another, which then passes for safe")
		}
		if _, ok := c.takeReturn(tt.lost); !ok {
			t.Error("a return was not found")
		}
		if _, ok := c.takeReturn(tt.lost); ok {
			t.Error("a return was found twice")
		}
	}
}

// Late is what was out for the whole of the timeout while the broker took
// publishes.
func TestLate(t *testing.T) {
	const timeout = time.Minute
	now := time.Now()
	for _, tt := range []struct {
		name string
		conn *Conn
		at   time.Time
		want bool
	}{
		{"just sent", &Conn{}, now, false},
		{"long ago", &Conn{}, now.Add(-time.Hour), true},
		{"long ago, and blocked", &Conn{blocked: true}, now.Add(-time.Hour), false},
		{"long ago, and blocked until now", &Conn{resumed: now}, now.Add(-time.Hour), false},
		{"blocked long ago", &Conn{resumed: now.Add(-2 * time.Hour)}, now, false},
	} {
		c := &confirmer{p: &Publisher{conn: tt.conn, timeout: timeout}}
		if got := c.late(sent{at: tt.at}); got != tt.want {
			t.Errorf("%s: late is %t", tt.name, got)
		}
	}
}

// What would end the connection, with everybody's confirms, is not written.
func TestWritable(t *testing.T) {
	const frame = 4096
	sized := func(n int) *Publication {
		p := &Publication{Msg: amqp.Publishing{Headers: amqp.Table{"h": ""}}}
		p.Msg.Headers["h"] = strings.Repeat("x", n-attempt.HeaderSize(&p.Msg))
		if got := attempt.HeaderSize(&p.Msg); got != n {
			t.Fatalf("made a header of %d bytes, want %d", got, n)
		}
		return p
	}
	for _, tt := range []struct {
		name  string
		pub   *Publication
		frame int
		ok    bool
	}{
		{"plain", &Publication{}, frame, true},
		{"longest names", &Publication{Exchange: strings.Repeat("x", 255), Key: strings.Repeat("x", 255)}, frame, true},
		{"a long exchange", &Publication{Exchange: strings.Repeat("x", 256)}, frame, false},
		{"a long key", &Publication{Key: strings.Repeat("x", 256)}, frame, false},
		{"fills the frame", sized(frame - 8), frame, true},
		{"outgrows the frame", sized(frame - 7), frame, false},
		{"no limit", sized(3 * frame), 0, true},
	} {
		if err := writable(tt.pub, tt.frame); (err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
