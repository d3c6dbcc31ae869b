// Command publish puts ten orders on the exchange "shop", as any producer would:
// it knows nothing of retries.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	amqp "github.com/rabbitmq/amqp091-go"
)

func main() {
	conn, err := amqp.Dial(os.Getenv("HOPBACK_BROKER_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		log.Fatal(err)
	}
	for i := range 10 {
		body := fmt.Sprintf(`{"ID":"%d"}`, i+1)
		if i == 9 {
			body = "this is no JSON" // parked at once: the same bytes will not decode the next time either
		}
		err := ch.PublishWithContext(context.Background(), "shop", "order.create", false, false, amqp.Publishing{
			ContentType: "application/json", DeliveryMode: amqp.Persistent, Body: []byte(body),
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println("published 10 orders")
}
