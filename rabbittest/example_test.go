package rabbittest_test

import (
	"context"
	"fmt"
	"log"
	"testing"
	"time"

	"github.com/hopback/hopback/rabbittest"
	amqp "github.com/rabbitmq/amqp091-go"
)

// A program runs a broker without the testing package, and sees that what was
// confirmed outlives a crash.
func ExampleRun() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	b, err := rabbittest.Run(ctx, rabbittest.Options{})
	if err != nil {
		log.Fatal(err) // says what to install
	}
	defer b.Close()

	publish(b.URL(), "orders", "order 1")
	if err := b.Kill(ctx); err != nil {
		log.Fatal(err)
	}
	if err := b.Start(ctx); err != nil { // same URL, same data
		log.Fatal(err)
	}
	n, err := b.Depth(ctx, b.URL(), "orders")
	fmt.Println(n, "message, error:", err) // 1 message, error: <nil>
}

// publish sends one persistent message and waits until the broker has it.
func publish(url, queue, body string) {
	conn, err := amqp.Dial(url)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		log.Fatal(err)
	}
	if _, err := ch.QueueDeclare(queue, true, false, false, false, nil); err != nil {
		log.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		log.Fatal(err)
	}
	c, err := ch.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{
		DeliveryMode: amqp.Persistent,
		Body:         []byte(body),
	})
	if err != nil {
		log.Fatal(err)
	}
	if !c.Wait() {
		log.Fatal("the broker did not take the message")
	}
}

// A test has the broker for itself, and it is gone when the test ends.
func ExampleStart() {
	_ = func(t *testing.T) { // func TestReconnect(t *testing.T)
		b := rabbittest.Start(t, rabbittest.Options{Version: "4.0"})
		consumer := startConsumer(b.URL()) // the code under test

		if err := b.CloseConnections(t.Context()); err != nil {
			t.Fatal(err)
		}
		consumer.waitUntilReady(t) // it must have come back by itself
	}
}

// All tests of a package use one broker, each in a virtual host of its own.
func ExampleShared() {
	_ = func(t *testing.T) { // func TestPoisonMessage(t *testing.T)
		url := rabbittest.Shared(t).Vhost(t)
		consumer := startConsumer(url)
		consumer.waitUntilReady(t)
	}
}

// A proxy cuts the connection without a farewell, at the worst moment.
func ExampleBroker_Proxy() {
	_ = func(t *testing.T) { // func TestCutBetweenConfirmAndAck(t *testing.T)
		b := rabbittest.Shared(t)
		url := b.Vhost(t)
		proxy := b.Proxy(t)
		consumer := startConsumer(proxy.URL(url))

		proxy.Freeze(true) // the broker hears nothing any more
		if n := proxy.Cut(); n == 0 {
			t.Fatal("the consumer was not connected")
		}
		proxy.Freeze(false)
		consumer.waitUntilReady(t)
	}
}

type consumer struct{}

func startConsumer(string) *consumer { return &consumer{} }

func (*consumer) waitUntilReady(*testing.T) {}
