// Package native consumes from quorum queues of RabbitMQ 4.3 and later over AMQP
// 1.0, where a message can be given back to its queue with a time at which it
// shall be delivered again: a retry is one settlement, without a publish.
//
// It is the second transport of the consumer. What it delivers has the form that
// amqp091-go gives it, so that a handler sees one message whichever transport
// brought it. A connection is kept open as package link keeps it; each Receiver
// is a generation, and a settlement after its end is dropped.
//
// # Clocks
//
// The time of delivery is absolute, by the broker's clock. Conn compares clocks
// with the broker now and then, over a queue of its own, and Delay takes the
// difference into account: see Conn.Skew.
package native
