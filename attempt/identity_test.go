package attempt_test

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
)

// The same message, read twice, fails under the same ID; one that differs in
// anything that its producer wrote, under another.
func TestIdentify(t *testing.T) {
	first := func(change func(*amqp.Publishing, *attempt.Source)) string {
		p := amqp.Publishing{
			MessageId: "m1", Body: []byte("body"), AppId: "app", CorrelationId: "c", ReplyTo: "r", Type: "t",
			ContentType: "text/plain", Timestamp: time.Unix(1700000000, 0), DeliveryMode: 2,
			Headers: amqp.Table{"x-delivery-count": int64(3)},
		}
		src := attempt.Source{Queue: "orders", Exchange: "shop", RoutingKey: "order.create", At: time.Now()}
		if change != nil {
			change(&p, &src)
		}
		r, err := attempt.Read(&p, src)
		if err != nil {
			t.Fatal(err)
		}
		return r.Identify(&p).Retry(attempt.Failure{Error: "e"}, time.Second, time.Time{}, "p").ID
	}
	want := first(nil)
	if len(want) != 32 {
		t.Errorf("ID %q, want 32 digits", want)
	}
	same := map[string]func(*amqp.Publishing, *attempt.Source){
		"read again":        nil,
		"redelivered":       func(p *amqp.Publishing, _ *attempt.Source) { p.Headers["x-delivery-count"] = int64(4) },
		"later":             func(_ *amqp.Publishing, s *attempt.Source) { s.At = s.At.Add(time.Hour) },
		"no headers at all": func(p *amqp.Publishing, _ *attempt.Source) { p.Headers = nil },
	}
	for name, change := range same {
		if got := first(change); got != want {
			t.Errorf("%s: ID %s, want %s", name, got, want)
		}
	}
	seen := map[string]string{want: "the message"}
	for name, change := range map[string]func(*amqp.Publishing, *attempt.Source){
		"message-id":       func(p *amqp.Publishing, _ *attempt.Source) { p.MessageId = "m2" },
		"body":             func(p *amqp.Publishing, _ *attempt.Source) { p.Body = []byte("bodz") },
		"type":             func(p *amqp.Publishing, _ *attempt.Source) { p.Type = "u" },
		"timestamp":        func(p *amqp.Publishing, _ *attempt.Source) { p.Timestamp = time.Unix(1700000001, 0) },
		"no timestamp":     func(p *amqp.Publishing, _ *attempt.Source) { p.Timestamp = time.Time{} },
		"queue":            func(_ *amqp.Publishing, s *attempt.Source) { s.Queue = "other" },
		"exchange":         func(_ *amqp.Publishing, s *attempt.Source) { s.Exchange = "other" },
		"routing key":      func(_ *amqp.Publishing, s *attempt.Source) { s.RoutingKey = "other" },
		"a part moved":     func(p *amqp.Publishing, _ *attempt.Source) { p.AppId, p.CorrelationId = "ap", "pc" },
		"no message-id":    func(p *amqp.Publishing, _ *attempt.Source) { p.MessageId = "" },
		"none, once again": func(p *amqp.Publishing, _ *attempt.Source) { p.MessageId = "" },
	} {
		id := first(change)
		if had, ok := seen[id]; ok {
			t.Errorf("%s and %s have the same ID %s", had, name, id)
		}
		seen[id] = name
	}
}

// An ID that a message has is never changed.
func TestIdentifyKeepsAnID(t *testing.T) {
	p := amqp.Publishing{MessageId: "m1"}
	r := attempt.Record{ID: "0123"}.Identify(&p)
	if r.ID != "0123" {
		t.Errorf("ID %q, want the one it had", r.ID)
	}
}
