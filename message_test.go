package hopback

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
)

// What a handler writes into its message's headers stays with the handler: the
// retry publishes those that came.
func TestAHandlersHeadersAreItsOwn(t *testing.T) {
	p := amqp.Publishing{Headers: amqp.Table{"tenant": "a"}}
	m := newMessage(&p, attempt.Record{}, "orders", false)
	m.Headers["tenant"] = "b"
	m.Headers["mine"] = int64(1)
	if len(p.Headers) != 1 || p.Headers["tenant"] != "a" {
		t.Errorf("the source's headers are %v now", p.Headers)
	}
	if m := newMessage(&amqp.Publishing{}, attempt.Record{}, "orders", false); m.Headers != nil {
		t.Errorf("no headers became %v", m.Headers)
	}
}
