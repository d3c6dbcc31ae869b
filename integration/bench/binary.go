package main

import (
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// binaryLadder is a delay in binary, as NServiceBus and others build it: one level
// for each bit of a number of seconds, the highest first. A level is a topic
// exchange and a quorum queue with a TTL of 2^n s. The routing key is the bits of
// the delay and the address, joined by dots: a level whose bit is 1 keeps the
// message for its TTL, one whose bit is 0 hands it to the next exchange. So a
// message waits in as many queues as its delay has bits set.
//
// It is built here from its documentation, with the same queue arguments as the
// slots of the wheel.
type binaryLadder struct{}

const binaryLevels = 28

func levelName(level int) string { return fmt.Sprintf("bench.delay-level-%02d", level) }

const binaryDelivery = "bench.delay-delivery"

// declare makes the levels, and leads what comes out of the last to the queue.
func (binaryLadder) declare(ch *amqp.Channel, queue string) error {
	next := func(level int) string {
		if level == 0 {
			return binaryDelivery
		}
		return levelName(level - 1)
	}
	for level := binaryLevels; level >= 0; level-- { // the delivery exchange as "next" of level 0
		name := next(level)
		if err := ch.ExchangeDeclare(name, "topic", true, false, false, false, nil); err != nil {
			return err
		}
	}
	for level := range binaryLevels {
		name, above := levelName(level), strings.Repeat("*.", binaryLevels-1-level)
		_, err := ch.QueueDeclare(name, true, false, false, false, amqp.Table{
			"x-queue-type": "quorum", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
			"x-message-ttl":          int64(1000) << level,
			"x-dead-letter-exchange": next(level),
		})
		if err != nil {
			return err
		}
		if err := ch.QueueBind(name, above+"1.#", name, false, nil); err != nil {
			return err
		}
		if err := ch.ExchangeBind(next(level), above+"0.#", name, false, nil); err != nil {
			return err
		}
	}
	return ch.QueueBind(queue, "#."+queue, binaryDelivery, false, nil)
}

// hold is where a delay begins, and with which routing key. It is rounded up to
// whole seconds.
func (binaryLadder) hold(d time.Duration, queue string) (exchange, key string, waits time.Duration) {
	seconds := int64((d + time.Second - 1) / time.Second)
	var b strings.Builder
	first := 0
	for level := binaryLevels - 1; level >= 0; level-- {
		bit := seconds >> level & 1
		if bit == 1 && first == 0 {
			first = level
		}
		fmt.Fprintf(&b, "%d.", bit)
	}
	return levelName(first), b.String() + queue, time.Duration(seconds) * time.Second
}
