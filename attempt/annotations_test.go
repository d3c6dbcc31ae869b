package attempt_test

import (
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
)

// laidOver is what RabbitMQ 4.3 does with annotations: those of the message stay
// where the new ones do not name them.
func laidOver(p amqp.Publishing, a amqp.Table) amqp.Publishing {
	h := maps.Clone(p.Headers)
	if h == nil {
		h = amqp.Table{}
	}
	maps.Copy(h, a)
	p.Headers = h
	return p
}

// However a record came about and whatever the message had before, reading the
// message back gives that record and nothing of the one before.
func TestAnnotationsReplaceARecord(t *testing.T) {
	src := attempt.Source{Queue: "orders", Exchange: "shop", RoutingKey: "order.create", At: time.UnixMilli(1_700_000_000_000)}
	failure := attempt.Failure{At: time.UnixMilli(1_700_000_000_500), Error: "down", ErrorType: "net.OpError", Consumer: "worker"}
	plain := amqp.Publishing{DeliveryMode: 1, Expiration: "60000", UserId: "guest", Headers: amqp.Table{
		"tenant": "acme", "CC": []any{"audit"}, "BCC": []any{"\xff"},
	}}
	fresh, err := attempt.Read(&plain, src)
	if err != nil {
		t.Fatal(err)
	}
	slotted := fresh.Retry(failure, 3*time.Second, time.Time{}, "standard")
	slotted.Then = "hop.delay.400ms"
	parked := slotted.Park(failure, attempt.ReasonExhausted)
	before := map[string]amqp.Publishing{
		"never failed": plain,
		"from a slot":  slotted.Successor(&plain, 0),
		"parked":       parked.Successor(&plain, 0),
		"native":       laidOver(plain, slotted.Annotations(&plain, 0)),
	}
	for name, p := range before {
		rec, err := attempt.Read(&p, src)
		if err != nil {
			t.Fatal(err)
		}
		for step, next := range map[string]attempt.Record{
			"retry":            rec.Retry(failure, time.Second, time.Time{}, "other"),
			"retry at once":    rec.Retry(attempt.Failure{At: failure.At}, 0, time.Time{}, ""),
			"snooze":           rec.Snooze(attempt.Failure{At: failure.At}, time.Minute, time.Time{}, "standard"),
			"a second reading": rec.Identify(&p).Retry(failure, time.Second, time.Time{}, "other"),
		} {
			q := laidOver(p, next.Annotations(&p, 0))
			got, err := attempt.Read(&q, src)
			if err != nil {
				t.Fatalf("%s, %s: %v", name, step, err)
			}
			if !reflect.DeepEqual(got, next) {
				t.Errorf("%s, %s:\n got %+v\nwant %+v", name, step, got, next)
			}
		}
	}
}

// Only what an annotation can hold: texts and integers.
func TestAnnotationsHoldTextsAndIntegers(t *testing.T) {
	p := amqp.Publishing{Headers: amqp.Table{"CC": []any{"\xff"}, "BCC": []any{"b"}}}
	rec, err := attempt.Read(&p, attempt.Source{Queue: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range rec.Retry(attempt.Failure{Error: "down"}, time.Second, time.Time{}, "p").Annotations(&p, 0) {
		switch v.(type) {
		case string, int32, int64:
		default:
			t.Errorf("%s is %T %v", k, v, v)
		}
		if !strings.HasPrefix(k, "x-") {
			t.Errorf("%s does not begin with x-", k)
		}
	}
}

// The record shrinks so that the message, with what it has already, can be read
// over AMQP 0-9-1.
func TestAnnotationsStayUnderTheLimit(t *testing.T) {
	const limit = 4000
	p := amqp.Publishing{Headers: amqp.Table{"theirs": strings.Repeat("x", 3200)}}
	rec, err := attempt.Read(&p, attempt.Source{Queue: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	for range 12 {
		rec = rec.Retry(attempt.Failure{Error: strings.Repeat("e", 900), Consumer: "worker"}, time.Second, time.Time{}, "p")
	}
	q := laidOver(p, rec.Annotations(&p, limit))
	if size := attempt.HeaderSize(&q); size > limit {
		t.Errorf("%d bytes, want at most %d", size, limit)
	}
	if q.Headers["theirs"] != p.Headers["theirs"] {
		t.Error("the user's header shrank")
	}
}
