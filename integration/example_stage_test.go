package integration

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/rabbittest"
)

// stage is what an example needs around it: a virtual host with its work queues
// in it, and somebody who publishes. An application has its own.
type stage struct {
	URL    string
	broker *rabbittest.Broker
	vhost  string
	ch     *amqp.Channel
	conn   *amqp.Connection
}

// quiet keeps the log out of an example's output.
var quiet = slog.New(slog.DiscardHandler)

var stages atomic.Int64

func newStage(queues ...string) *stage {
	b, err := sharedBroker()
	must(err)
	s := &stage{broker: b, vhost: fmt.Sprint("example-", stages.Add(1))}
	must(b.AddVhost(context.Background(), s.vhost))
	s.URL = b.VhostURL(s.vhost)
	s.conn, err = amqp.Dial(s.URL)
	must(err)
	s.ch, err = s.conn.Channel()
	must(err)
	for _, q := range queues {
		_, err := s.ch.QueueDeclare(q, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
		must(err)
	}
	return s
}

func (s *stage) publish(exchange, key, id, body string) {
	must(s.ch.Publish(exchange, key, true, false, amqp.Publishing{
		DeliveryMode: amqp.Persistent, MessageId: id, Body: []byte(body),
	}))
}

// take waits for a message in a queue and takes it.
func (s *stage) take(queue string) amqp.Delivery {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		d, ok, err := s.ch.Get(queue, true)
		must(err)
		if ok {
			return d
		}
	}
	panic("no message came into " + queue)
}

func (s *stage) close() {
	s.conn.Close()
	must(s.broker.DeleteVhost(context.Background(), s.vhost))
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
