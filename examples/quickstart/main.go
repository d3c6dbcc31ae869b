// Command quickstart is the program of the README: it ships orders, and retries
// those that fail. See docs/quickstart.md.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"

	"github.com/hopback/hopback"
)

type Order struct{ ID string }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	client, err := hopback.New(hopback.Config{URL: os.Getenv("HOPBACK_BROKER_URL")})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(context.Background())
	consumer, err := client.NewConsumer(hopback.ConsumerConfig{
		Route: hopback.Route{Queue: "orders", Declare: &hopback.Declare{Exchange: "shop", RoutingKey: "order.#"}},
		Handler: hopback.Handle(func(ctx context.Context, o Order, m *hopback.Message) error {
			return ship(ctx, o) // nil: done. An error: comes back after 0–1 s, 0–2 s, 0–4 s, … and is parked after 5 retries
		}),
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := consumer.Run(ctx); err != nil { // until Ctrl-C; then it finishes what is running
		log.Fatal(err)
	}
}
