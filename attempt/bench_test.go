package attempt_test

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
)

var (
	sinkRecord     attempt.Record
	sinkPublishing amqp.Publishing
)

var benchSource = attempt.Source{Queue: "orders", Exchange: "shop", RoutingKey: "order.create", At: time.UnixMilli(1700000000000)}

func benchMessage() amqp.Publishing {
	return amqp.Publishing{
		Headers:     amqp.Table{"tenant": "acme", "trace": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "n": int64(7)},
		ContentType: "application/json", DeliveryMode: 2, MessageId: "m1", Body: make([]byte, 512),
	}
}

func failedMessage(times int) amqp.Publishing {
	p := benchMessage()
	for range times {
		r, err := attempt.Read(&p, benchSource)
		if err != nil {
			panic(err)
		}
		r = r.Retry(benchFailure, time.Second, time.Time{}, "standard")
		p = r.Successor(&p, 120<<10)
	}
	return p
}

var benchFailure = attempt.Failure{
	At: time.UnixMilli(1700000000000), Error: "dial tcp 10.0.0.7:5432: connect: connection refused",
	ErrorType: "*net.OpError", Consumer: "worker-1",
}

func BenchmarkRead(b *testing.B) {
	none := benchMessage()
	none.Headers = nil
	for _, c := range []struct {
		name string
		p    amqp.Publishing
	}{
		{"no headers", none},
		{"never failed", benchMessage()},
		{"failed once", failedMessage(1)},
		{"failed ten times", failedMessage(10)},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				sinkRecord, _ = attempt.Read(&c.p, benchSource)
			}
		})
	}
}

func BenchmarkRetry(b *testing.B) {
	for _, c := range []struct {
		name string
		p    amqp.Publishing
	}{
		{"first", benchMessage()},
		{"second", failedMessage(1)},
		{"eleventh", failedMessage(10)},
	} {
		b.Run(c.name, func(b *testing.B) {
			r, _ := attempt.Read(&c.p, benchSource)
			b.ReportAllocs()
			for b.Loop() {
				sinkRecord = r.Retry(benchFailure, time.Second, time.Time{}, "standard")
			}
		})
	}
}

func BenchmarkSuccessor(b *testing.B) {
	for _, c := range []struct {
		name  string
		p     amqp.Publishing
		limit int
	}{
		{"first", benchMessage(), 120 << 10},
		{"second", failedMessage(1), 120 << 10},
		{"eleventh", failedMessage(10), 120 << 10},
		{"shrunk", failedMessage(10), 1 << 10},
	} {
		b.Run(c.name, func(b *testing.B) {
			r, _ := attempt.Read(&c.p, benchSource)
			r = r.Retry(benchFailure, time.Second, time.Time{}, "standard")
			b.ReportAllocs()
			for b.Loop() {
				sinkPublishing = r.Successor(&c.p, c.limit)
			}
		})
	}
}

// The whole of a failure, as a consumer runs it.
func BenchmarkFailure(b *testing.B) {
	p := failedMessage(1)
	b.ReportAllocs()
	for b.Loop() {
		r, _ := attempt.Read(&p, benchSource)
		sinkPublishing = r.Retry(benchFailure, time.Second, time.Time{}, "standard").Successor(&p, 120<<10)
	}
}
