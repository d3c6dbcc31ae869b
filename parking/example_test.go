package parking_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/parking"
)

func ExampleFold() {
	fmt.Println(parking.Fold("dial 10.0.0.7:5432: timeout after 3.2s"))
	fmt.Println(parking.Fold("customer 3f2504e0-4f89-11d3-9a0c-0305e82c3301 has 3 open orders"))
	// Output:
	// dial <address>: timeout after <n>s
	// customer <id> has <n> open orders
}

func ExampleMarshal() {
	b, err := parking.Marshal(&amqp.Publishing{MessageId: "m1", Headers: amqp.Table{"weight": int16(3)}, Body: []byte(`{"n": 1}`)})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(b))
	// Output:
	// {"properties":{"message_id":"m1"},"headers":{"weight":{"type":"int16","value":"3"}},"body":{"type":"string","value":"{\"n\": 1}"}}
}

// Send back what an outage has parked, slowly, and stop when it comes back.
func ExampleQueue_Replay() {
	ctx := context.Background()
	conn, err := amqp.Dial(os.Getenv("HOPBACK_BROKER_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	q, err := parking.Open(ctx, conn, "orders.parked", parking.Options{})
	if err != nil {
		log.Fatal(err)
	}
	report, err := q.Replay(ctx, parking.Replay{Filter: parking.Filter{ErrorType: "TimeoutError"}, Rate: 50, StopRatio: 0.2})
	var cost *parking.CostError
	switch {
	case errors.As(err, &cost):
		log.Fatalf("looking would cost something: %v", cost.Cost.Reasons)
	case err != nil:
		log.Fatalf("%v\ngo on with Resume: %s", err, report.Started)
	}
	outcome, err := q.Outcome(ctx, parking.OutcomeQuery{Started: report.Started, Replayed: report.Replayed, Waiting: []string{"orders"}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(report.Replayed, "sent,", outcome.ParkedAgain, "parked again")
}
