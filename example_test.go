package hopback_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/hopback/hopback"
)

// A policy is a value: what it does can be looked at without a broker.
func ExamplePolicy() {
	p := hopback.Policy{
		Schedule:   hopback.Schedule{Base: time.Second, Factor: 2, Max: 10 * time.Second, Jitter: hopback.Equal},
		MaxRetries: 5,
	}.WithDefaults()
	for n := int64(1); n <= int64(p.MaxRetries); n++ {
		least, mean, most := p.Band(n)
		fmt.Printf("retry %d waits %s to %s, %s on average\n", n, least, most, mean)
	}
	// Output:
	// retry 1 waits 500ms to 1s, 750ms on average
	// retry 2 waits 1s to 2s, 1.5s on average
	// retry 3 waits 2s to 4s, 3s on average
	// retry 4 waits 4s to 8s, 6s on average
	// retry 5 waits 5s to 10s, 7.5s on average
}

// What cannot work is refused before anything is declared or published.
func ExampleRoute_Validate() {
	err := hopback.Route{Queue: "orders", Parking: "orders"}.Validate()
	fmt.Println(err)
	// Output:
	// parking: "orders" cannot work: name another queue: a message parked in its own work queue would loop for ever
}

var errCardExpired = errors.New("the card has expired")

// A handler says in its error what shall become of the message.
func ExampleHandlerFunc() {
	handle := hopback.HandlerFunc(func(_ context.Context, m *hopback.Message) error {
		switch m.MessageID {
		case "expired card":
			return hopback.Permanent(errCardExpired) // parked at once
		case "rate limited":
			return hopback.RetryAfter(errors.New("429"), 30*time.Second)
		case "too early":
			return hopback.Snooze(time.Minute) // no retry used up
		case "cancelled":
			return hopback.Discard(errors.New("nobody waits for it any more"))
		}
		return nil
	})
	err := handle.Handle(context.Background(), &hopback.Message{MessageID: "expired card"})
	fmt.Println(err, errors.Is(err, errCardExpired))
	// Output:
	// the card has expired true
}

// Handle takes decoded payloads; what cannot be decoded is parked at once.
func ExampleHandle() {
	type Order struct{ ID string }
	handler := hopback.Handle(func(_ context.Context, o Order, m *hopback.Message) error {
		fmt.Printf("attempt %d at order %s\n", m.Attempt, o.ID)
		return nil
	})
	ctx := context.Background()
	body, _ := json.Marshal(Order{ID: "7"})
	_ = handler.Handle(ctx, &hopback.Message{Body: body, Attempt: 2})

	err := handler.Handle(ctx, &hopback.Message{Body: []byte("no JSON")})
	var permanent *hopback.PermanentError
	fmt.Println(errors.As(err, &permanent), err)
	// Output:
	// attempt 2 at order 7
	// true decode the body into hopback_test.Order: invalid character 'o' in literal null (expecting 'u')
}

// A topology is a value too: everything that routes need, to plan, apply,
// verify or export.
func ExampleTopology() {
	t, err := hopback.Topology("hop", hopback.Route{
		Queue: "orders", Mechanism: hopback.Ladder, Ladder: []time.Duration{10 * time.Second, time.Minute},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, q := range t.Queues {
		fmt.Println(q.Name)
	}
	// Output:
	// hop.lost
	// orders
	// orders.parked
	// hop.delay.10s
	// hop.delay.60s
}
