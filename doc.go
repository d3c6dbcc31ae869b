// Package hopback is the retry layer for RabbitMQ.
//
// When a handler fails on a message, the message leaves the work queue at once,
// waits inside the broker for an exponential, jittered delay, comes back to
// that one queue, and after its last retry rests in a parking queue until a
// person decides. No consumer sleeps, no message waits behind another's longer
// delay, and nothing is acknowledged before its successor is confirmed.
//
//	client, err := hopback.New(hopback.Config{URL: "amqp://guest:guest@localhost:5672/"})
//	…
//	consumer, err := client.NewConsumer(hopback.ConsumerConfig{
//		Route:   hopback.Route{Queue: "orders"},
//		Handler: hopback.HandlerFunc(handle),
//	})
//	…
//	err = consumer.Run(ctx) // until ctx ends
//
// A Route names the work queue, its Policy and its parking queue. The Handler's
// error is the verdict: nil acknowledges, any error retries by the policy, and
// Permanent, RetryAfter, Snooze and Discard say something else.
//
// Delivery is at least once. A message can be handled twice when a connection
// or a process dies between the broker's work and its answer; Message.RetryID
// and Message.Attempt are the same in both copies.
package hopback
