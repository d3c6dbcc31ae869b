// Command go is a consumer as people write it by hand: three tiers, a counter in
// x-retry-count, a limit of its own, its own publishes to a retry exchange and to
// an error exchange. The retry exchange is hop.failed, so that the router does the
// waiting; all else is as it was. See README.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// maxRetries is the consumer's own limit. The policy of its route allows as many
// at least, else the router parks first.
const maxRetries = 3

var (
	queue         = env("QUEUE", "orders")
	errorExchange = queue + ".error"
	errorQueue    = queue + ".parked" // the router's parking queue
)

type (
	notNow         struct{}
	noSuchCustomer struct{}
	busy           time.Duration
)

func (notNow) Error() string         { return "the warehouse does not answer" }
func (noSuchCustomer) Error() string { return "no such customer: Zoë" }
func (b busy) Error() string {
	return fmt.Sprintf("try again in %d ms", time.Duration(b).Milliseconds())
}

// handle is where your work would be. The property "type" of a message says what
// happens to it, so that every kind of failure can be seen.
func handle(d amqp.Delivery) error {
	what, number, _ := strings.Cut(d.Type, " ")
	n, err := strconv.Atoi(number)
	if err != nil {
		n = 1
	}
	switch {
	case (what == "transient" || what == "explained") && retries(d) < n: // fails n times
		return notNow{}
	case what == "permanent": // no retry can help
		return noSuchCustomer{}
	case what == "later" && retries(d) == 0: // asks for n ms
		return busy(time.Duration(n) * time.Millisecond)
	case what == "crash" && !d.Redelivered: // takes the process with it, the first time
		os.Exit(3)
	}
	return nil
}

// retries is how often the message has been retried. The textbook asserts the
// type, and the router writes it so.
func retries(d amqp.Delivery) int {
	n, _ := d.Headers["x-retry-count"].(int32)
	return int(n)
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err) // what is open is not settled: the broker delivers it again
	}
}

func run() error {
	conn, err := amqp.Dial(env("HOPBACK_BROKER_URL", "amqp://guest:guest@127.0.0.1:5672/"))
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	returned := ch.NotifyReturn(make(chan amqp.Return, 1))
	deliveries, err := subscribe(ch)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	fmt.Println("waiting for messages in", queue)
	for {
		select {
		case <-ctx.Done():
			return nil
		case d, ok := <-deliveries:
			if !ok {
				return errors.New("the channel was closed")
			}
			if err := settle(ch, returned, d, handle(d)); err != nil {
				return err
			}
		}
	}
}

// subscribe declares the three tiers: the work queue, and the error exchange with
// its queue. The retry tier, once an exchange and a queue with a TTL, is the router.
func subscribe(ch *amqp.Channel) (<-chan amqp.Delivery, error) {
	if err := errors.Join(ch.Confirm(false), ch.Qos(10, 0, false)); err != nil {
		return nil, err
	}
	if _, err := ch.QueueDeclare(queue, true, false, false, false, amqp.Table{
		"x-queue-type": "quorum", "x-dead-letter-exchange": "hop.failed",
		"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
	}); err != nil {
		return nil, err
	}
	if err := ch.ExchangeDeclare(errorExchange, "fanout", true, false, false, false, nil); err != nil {
		return nil, err
	}
	if _, err := ch.QueueDeclare(errorQueue, true, false, false, false, amqp.Table{
		"x-queue-type": "quorum", "x-delivery-limit": int64(1_000_000), // as the router declares it
	}); err != nil {
		return nil, err
	}
	if err := ch.QueueBind(errorQueue, "", errorExchange, false, nil); err != nil {
		return nil, err
	}
	return ch.Consume(queue, "", false, false, false, false, nil)
}

// settle is the textbook's switch.
func settle(ch *amqp.Channel, returned <-chan amqp.Return, d amqp.Delivery, err error) error {
	who := fmt.Sprint(d.MessageId, " attempt ", retries(d)+1)
	if err == nil {
		if err := d.Ack(false); err != nil {
			return err
		}
		fmt.Println("handled", who)
		return nil
	}
	fmt.Println("failed", who)
	var b busy
	switch {
	case errors.Is(err, noSuchCustomer{}):
		return fail(ch, returned, queue, d, err, "permanent", 0)
	case retries(d) >= maxRetries:
		return giveUp(ch, returned, d, err)
	case errors.As(err, &b):
		return fail(ch, returned, queue, d, err, "", time.Duration(b))
	default:
		return fail(ch, returned, queue, d, err, "", 0)
	}
}

// giveUp publishes to the error exchange, as it always did.
func giveUp(ch *amqp.Channel, returned <-chan amqp.Return, d amqp.Delivery, err error) error {
	h := amqp.Table{}
	for k, v := range d.Headers {
		h[k] = v
	}
	h["x-retry-error"], h["x-retry-reason"] = err.Error(), "exhausted"
	delete(h, "x-death")
	confirm, perr := ch.PublishWithDeferredConfirm(errorExchange, d.RoutingKey, true, false, amqp.Publishing{
		Headers: h, Body: d.Body, DeliveryMode: amqp.Persistent, Priority: d.Priority,
		ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, MessageId: d.MessageId, Timestamp: d.Timestamp,
		CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, Type: d.Type, AppId: d.AppId,
	})
	if perr != nil {
		return perr
	}
	if !confirm.Wait() {
		return errors.New("the broker did not confirm the message to the error exchange")
	}
	select {
	case r := <-returned:
		return fmt.Errorf("the message to the error exchange was returned: %s", r.ReplyText)
	default:
		return d.Ack(false)
	}
}

func env(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}
