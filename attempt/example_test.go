package attempt_test

import (
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// A message that fails for the first time, and comes back.
func Example() {
	d := amqp.Delivery{
		Headers: amqp.Table{"tenant": "acme"}, DeliveryMode: amqp.Persistent, Expiration: "60000",
		Exchange: "shop", RoutingKey: "order.create", Body: []byte("{}"),
	}

	p := attempt.FromDelivery(&d)
	rec, err := attempt.Read(&p, attempt.Source{
		Queue: "orders", Exchange: d.Exchange, RoutingKey: d.RoutingKey, At: noon,
	})
	if err != nil {
		panic(err)
	}
	rec = rec.Retry(attempt.Failure{At: noon, Error: "timeout"}, 2*time.Second, time.Time{}, "standard")
	next := rec.Successor(&p, 120<<10)

	// Later, at the consumer of the work queue:
	back, err := attempt.Read(&next, attempt.Source{Queue: "orders", Exchange: "hop.return", RoutingKey: d.RoutingKey})
	if err != nil {
		panic(err)
	}
	fmt.Println("retries so far:", back.Count)
	fmt.Println("first published to:", back.Exchange, back.RoutingKey)
	fmt.Println("last error:", back.Error)
	fmt.Println("tenant:", next.Headers["tenant"])
	fmt.Println("expired at 12:00:59:", back.Expired(noon.Add(59*time.Second)))
	fmt.Println("expired at 12:01:00:", back.Expired(noon.Add(60*time.Second)))
	// Output:
	// retries so far: 1
	// first published to: shop order.create
	// last error: timeout
	// tenant: acme
	// expired at 12:00:59: false
	// expired at 12:01:00: true
}

// A consumer in another language may have written the counter in its own way;
// what is no counter is an error and never 0.
func ExampleParseCount() {
	for _, v := range []any{int64(3), "3", amqp.Decimal{Scale: 1, Value: 30}, "three"} {
		n, err := attempt.ParseCount(v)
		if errors.Is(err, attempt.ErrBadCounter) {
			fmt.Println(err)
			continue
		}
		fmt.Println(n)
	}
	// Output:
	// 3
	// 3
	// 3
	// reading x-retry-count: "three" of type string is not a count (an integer from 0 to 2147483647)
}

func ExampleRecord_Retry() {
	rec := attempt.Record{Queue: "orders", Exchange: "shop", RoutingKey: "order.create"}
	rec = rec.Retry(attempt.Failure{At: noon, Error: "timeout"}, time.Second, time.Time{}, "standard")
	rec = rec.Retry(attempt.Failure{At: noon.Add(time.Second), Error: "refused"}, 2*time.Second, time.Time{}, "standard")
	fmt.Println(rec.Count, rec.Error, rec.Delay, rec.DueAt.Format(time.TimeOnly))
	// Output: 2 refused 2s 12:00:03
}

func ExampleRecord_Snooze() {
	rec := attempt.Record{Queue: "orders"}
	rec = rec.Snooze(attempt.Failure{At: noon}, time.Minute, time.Time{}, "standard")
	fmt.Println(rec.Count, rec.Delay, len(rec.History()), rec.FirstFailedAt.Format(time.TimeOnly))
	// Output: 0 1m0s 0 12:00:00
}

func ExampleRecord_Park() {
	rec := attempt.Record{Queue: "orders", Count: 5}
	rec = rec.Park(attempt.Failure{At: noon, Error: "timeout", Consumer: "worker-1"}, attempt.ReasonExhausted)
	line := rec.History()[0]
	fmt.Println(rec.Count, rec.Reason, rec.DueAt.IsZero())
	fmt.Println(line.N, line.Error, line.Consumer)
	// Output:
	// 5 exhausted true
	// 6 timeout worker-1
}

func ExampleRecord_History() {
	rec := attempt.Record{Queue: "orders"}
	for i := range 12 {
		f := attempt.Failure{At: noon.Add(time.Duration(i) * time.Second), Error: fmt.Sprintf("error %d", i+1)}
		rec = rec.Retry(f, time.Second, time.Time{}, "standard")
	}
	for _, e := range rec.History() {
		fmt.Print(e.N, " ")
	}
	// Output: 1 4 5 6 7 8 9 10 11 12
}

// CC would send a copy of each retry to the audit queue, and expiration would
// end the delay early: both are taken off, and remembered.
func ExampleRecord_Successor() {
	p := amqp.Publishing{
		Headers:    amqp.Table{"CC": []any{"audit"}, "x-delivery-count": int64(4), "weight": float32(1.5)},
		Expiration: "60000",
	}
	rec, err := attempt.Read(&p, attempt.Source{Queue: "orders", Exchange: "shop", RoutingKey: "order.create", At: noon})
	if err != nil {
		panic(err)
	}
	next := rec.Retry(attempt.Failure{At: noon}, time.Second, time.Time{}, "standard").Successor(&p, 0)
	fmt.Println(next.Headers["CC"], next.Headers["x-delivery-count"], next.Expiration == "")
	fmt.Println(next.Headers[attempt.HeaderCC], next.Headers[attempt.HeaderExpiration])
	fmt.Printf("%T %v\n", next.Headers["weight"], next.Headers["weight"])
	// Output:
	// <nil> <nil> true
	// ["audit"] 60000
	// float32 1.5
}

func ExampleRecord_Original() {
	p := amqp.Publishing{Headers: amqp.Table{"CC": []any{"audit"}}, Expiration: "60000", DeliveryMode: amqp.Transient}
	rec, err := attempt.Read(&p, attempt.Source{Queue: "orders", At: noon})
	if err != nil {
		panic(err)
	}
	parked := rec.Park(attempt.Failure{At: noon, Error: "no such customer"}, attempt.ReasonPermanent).Successor(&p, 0)

	// A tool that looks into the parking queue takes the queue from the record.
	rec, err = attempt.Read(&parked, attempt.Source{})
	if err != nil {
		panic(err)
	}
	original, replay := rec.Original(&parked), rec.Replay(&parked, attempt.Replaying{By: "maria"}, 0)
	fmt.Println(original.Headers, original.Expiration, original.DeliveryMode)
	fmt.Println(replay.Headers["CC"], replay.Expiration == "", replay.DeliveryMode, replay.Headers[attempt.HeaderCount])
	// Output:
	// map[CC:[audit]] 60000 1
	// <nil> true 1 0
}

func ExampleReadAdvice() {
	a, err := attempt.ReadAdvice(amqp.Table{
		"x-retry-error": "429 too many requests",
		"x-retry-after": int64(30000),
	})
	fmt.Printf("%q %v %s %v\n", a.Verdict, a.After, a.Error, err)

	// A misspelt verdict becomes a retry, not a loss.
	a, err = attempt.ReadAdvice(amqp.Table{"x-retry-verdict": "discrad"})
	var bad *attempt.AdviceError
	fmt.Printf("%q %v\n", a.Verdict, errors.As(err, &bad))
	// Output:
	// "" 30s 429 too many requests <nil>
	// "" true
}

func ExampleHeaderSize() {
	p := amqp.Publishing{ContentType: "text/plain", Headers: amqp.Table{"tenant": "acme"}}
	fmt.Println(attempt.Size(p.Headers), attempt.HeaderSize(&p))
	// Output: 20 45
}

func ExampleRecord_Expired() {
	p := amqp.Publishing{Expiration: "5000"}
	rec, err := attempt.Read(&p, attempt.Source{Queue: "orders", At: noon})
	if err != nil {
		panic(err)
	}
	fmt.Println(rec.Expired(noon.Add(4999*time.Millisecond)), rec.Expired(noon.Add(5*time.Second)))
	// Output: false true
}

func ExampleFromDelivery() {
	d := amqp.Delivery{ContentType: "application/json", CorrelationId: "c1", Exchange: "shop", Body: []byte("{}")}
	p := attempt.FromDelivery(&d)
	fmt.Println(p.ContentType, p.CorrelationId, string(p.Body))
	// Output: application/json c1 {}
}
