package rabbittest

import (
	"context"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// patience bounds what must happen but may take long on a loaded machine.
const patience = 90 * time.Second

// dialTest opens a connection that is closed at the end of the test.
func dialTest(t *testing.T, url string) *amqp.Connection {
	t.Helper()
	c, err := amqp.Dial(url)
	if err != nil {
		t.Fatalf("connecting: %v", err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// confirming opens a channel in confirm mode.
func confirming(t *testing.T, c *amqp.Connection) *amqp.Channel {
	t.Helper()
	ch, err := c.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	return ch
}

// declare makes a durable queue of a type.
func declare(t *testing.T, ch *amqp.Channel, name, kind string) {
	t.Helper()
	if _, err := ch.QueueDeclare(name, true, false, false, false, amqp.Table{"x-queue-type": kind}); err != nil {
		t.Fatalf("declaring %s queue %q: %v", kind, name, err)
	}
}

// send publishes one persistent message without waiting for its confirm.
func send(t *testing.T, ch *amqp.Channel, queue, body string) *amqp.DeferredConfirmation {
	t.Helper()
	d, err := ch.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{
		DeliveryMode: amqp.Persistent, Body: []byte(body),
	})
	if err != nil {
		t.Fatalf("publishing to %q: %v", queue, err)
	}
	return d
}

// confirmed waits for the confirm of a message.
func confirmed(t *testing.T, d *amqp.DeferredConfirmation) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if ok, err := d.WaitContext(ctx); err != nil || !ok {
		t.Fatalf("waiting for a confirm: acknowledged %v, error %v", ok, err)
	}
}

// take gets the one message that a queue must hold.
func take(t *testing.T, ch *amqp.Channel, queue, want string) {
	t.Helper()
	m, ok, err := ch.Get(queue, true)
	if err != nil || !ok {
		t.Fatalf("taking a message from %q: there %v, error %v", queue, ok, err)
	}
	if string(m.Body) != want {
		t.Errorf("message in %q is %q, want %q", queue, m.Body, want)
	}
}

// eventually polls a condition until it holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if holds() {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("after %s still not so: %s", patience, what)
		}
	}
}

// receive waits for a value that must come.
func receive[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("after %s still waiting for %s", patience, what)
		panic("not reached")
	}
}
