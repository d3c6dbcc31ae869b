package integration

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
)

// The first life story: the handler returns nil, and the message is done.
func Example_successTheFirstTime() {
	s := newStage("orders")
	defer s.close()

	client, err := hopback.New(hopback.Config{URL: s.URL, Logger: quiet})
	must(err)
	defer client.Close(context.Background()) //nolint:errcheck // it waits for nothing here

	ctx, stop := context.WithCancel(context.Background())
	consumer, err := client.NewConsumer(hopback.ConsumerConfig{
		Route: hopback.Route{Queue: "orders"},
		Handler: hopback.HandlerFunc(func(_ context.Context, m *hopback.Message) error {
			fmt.Printf("attempt %d at %s\n", m.Attempt, m.Body)
			stop() // one message is enough for an example
			return nil
		}),
	})
	must(err)
	s.publish("", "orders", "o-1", "order 1")
	must(consumer.Run(ctx))
	// Output:
	// attempt 1 at order 1
}

// The second: it fails, waits inside the broker, and comes back to its queue
// with the count of its retries, until it succeeds.
func Example_successAfterRetries() {
	s := newStage("orders")
	defer s.close()

	client, err := hopback.New(hopback.Config{URL: s.URL, Logger: quiet})
	must(err)
	defer client.Close(context.Background()) //nolint:errcheck // it waits for nothing here

	ctx, stop := context.WithCancel(context.Background())
	consumer, err := client.NewConsumer(hopback.ConsumerConfig{
		Route: hopback.Route{
			Queue: "orders",
			Policy: hopback.Policy{ // 100, 200 and 400 ms
				Schedule: hopback.Schedule{Base: 100 * time.Millisecond, Max: 400 * time.Millisecond, Jitter: hopback.NoJitter},
				// Bounds what handlers may ask for, and so which slots are needed.
				MaxRetryAfter: time.Second,
			},
		},
		Handler: hopback.HandlerFunc(func(_ context.Context, m *hopback.Message) error {
			if m.Retries < 3 {
				fmt.Printf("retry %d fails; last error: %q\n", m.Retries, m.LastError)
				return fmt.Errorf("connection refused (%d)", m.Attempt)
			}
			fmt.Printf("retry %d succeeds: %s\n", m.Retries, m.Body)
			for _, e := range m.History() {
				fmt.Printf("  attempt %d: %s, waited %s\n", e.N, e.Error, e.Delay)
			}
			stop()
			return nil
		}),
	})
	must(err)
	s.publish("", "orders", "o-1", "order 1")
	must(consumer.Run(ctx))
	// Output:
	// retry 0 fails; last error: ""
	// retry 1 fails; last error: "connection refused (1)"
	// retry 2 fails; last error: "connection refused (2)"
	// retry 3 succeeds: order 1
	//   attempt 1: connection refused (1), waited 100ms
	//   attempt 2: connection refused (2), waited 200ms
	//   attempt 3: connection refused (3), waited 400ms
}

// The third: after its last retry the message rests in the parking queue, with
// all that a person needs to decide.
func Example_parkedAtTheLimit() {
	s := newStage("orders")
	defer s.close()

	client, err := hopback.New(hopback.Config{URL: s.URL, Logger: quiet})
	must(err)
	defer client.Close(context.Background()) //nolint:errcheck // it waits for nothing here

	consumer, err := client.NewConsumer(hopback.ConsumerConfig{
		Route: hopback.Route{
			Queue: "orders",
			Policy: hopback.Policy{
				MaxRetries: 3, MaxRetryAfter: time.Second,
				Schedule: hopback.Schedule{Base: 100 * time.Millisecond, Max: 400 * time.Millisecond},
			},
			// Where this route wants its queue declared, with a binding.
			Declare: &hopback.Declare{Exchange: "shop", RoutingKey: "order.#"},
		},
		Handler: hopback.HandlerFunc(func(_ context.Context, m *hopback.Message) error {
			return errors.New("the warehouse does not answer")
		}),
	})
	must(err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- consumer.Run(ctx) }()
	for !consumer.Ready() {
		time.Sleep(10 * time.Millisecond)
	}
	s.publish("shop", "order.create", "o-1", "order 1")

	d := s.take("orders.parked")
	fmt.Printf("%s, %s: %s\n", d.MessageId, d.Headers["x-retry-reason"], d.Headers["x-retry-error"])
	fmt.Printf("after %d retries, first published to %s with %s\n",
		d.Headers["x-retry-count"], d.Headers["x-retry-exchange"], d.Headers["x-retry-routing-key"])
	stop()
	must(<-ended)
	// Output:
	// o-1, exhausted: the warehouse does not answer
	// after 3 retries, first published to shop with order.create
}

// A set-up that has exchanges, queues and names of its own is adopted by
// configuration: nothing of it is declared again or changed, and consumers that
// type-assert the counter to int32 can still read it.
func Example_adoptExistingNames() {
	s := newStage("payment.main.queue")
	defer s.close()
	must(s.ch.ExchangeDeclare("main.exchange", "direct", true, false, false, false, nil))
	must(s.ch.QueueBind("payment.main.queue", "payment.execute", "main.exchange", false, nil))
	_, err := s.ch.QueueDeclare("payment.error.dlq", true, false, false, false, amqp.Table{"x-max-length": int32(100_000)})
	must(err)

	client, err := hopback.New(hopback.Config{URL: s.URL, Logger: quiet})
	must(err)
	defer client.Close(context.Background()) //nolint:errcheck // it waits for nothing here
	const wait = 200 * time.Millisecond      // theirs was 15 s
	consumer, err := client.NewConsumer(hopback.ConsumerConfig{
		Route: hopback.Route{
			Queue:     "payment.main.queue",
			Parking:   "payment.error.dlq",
			Mechanism: hopback.Ladder, Ladder: []time.Duration{wait},
			Policy: hopback.Policy{
				MaxRetries: 3,
				Schedule:   hopback.Schedule{Backoff: hopback.Constant, Base: wait, Max: wait, Jitter: hopback.NoJitter},
			},
		},
		Handler: hopback.HandlerFunc(func(_ context.Context, m *hopback.Message) error {
			count, _ := m.Headers["x-retry-count"].(int32)
			fmt.Printf("x-retry-count %d\n", count)
			return errors.New("declined")
		}),
	})
	must(err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- consumer.Run(ctx) }()
	s.publish("main.exchange", "payment.execute", "p-1", "pay")

	d := s.take("payment.error.dlq")
	fmt.Println("parked:", d.Headers["x-retry-reason"], d.Headers["x-retry-exchange"], d.Headers["x-retry-routing-key"])
	stop()
	must(<-ended)
	// Output:
	// x-retry-count 0
	// x-retry-count 1
	// x-retry-count 2
	// x-retry-count 3
	// parked: exhausted main.exchange payment.execute
}
