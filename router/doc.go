// Package router gives retries to consumers in any language. They do what they do
// already, basic.reject with requeue false; the dead-letter exchange of their work
// queue is the router's, "hop.failed". The router reads what fails from there,
// finds the queue that it failed in, applies that queue's policy, and publishes it
// into a delay slot, from which it comes back to that one queue, or into its
// parking queue.
//
//	r, err := router.New(router.Config{
//		Client: hopback.Config{URL: "amqp://guest:guest@localhost:5672/"},
//		Routes: []router.Route{{Route: hopback.Route{Queue: "orders"}}},
//	})
//	…
//	err = r.Run(ctx) // until ctx ends
//
// Limits, delays, slots, parking and the message contract are those of the
// library's Consumer, and so is the hand-off: a failed message is acknowledged
// only when the broker has confirmed its successor. A consumer of the library and
// one in another language behind the router share one retry count on one queue.
//
// All state is in the broker. Any number of routers run side by side, in one
// process or in many, and know nothing of each other; a crash duplicates at most
// what was in flight.
//
// # What a message died of
//
// A rejected message is retried by the policy. One that its queue threw out by
// itself is parked at once, since the queue would do it again: a delivery limit as
// crash-loop, a TTL as expired, a maximum length as overflow.
//
// # What does not stop the others
//
// A message whose hand-off the broker keeps refusing, into a full parking queue
// for instance, is moved aside to "hop.failed.held" and comes back half a minute
// later, so that one route never takes up the router's whole prefetch. A message
// that this client cannot decode ends the connection: the router then takes one
// message at a time, until the broker's delivery limit has moved that one to
// "hop.failed.quarantine". What no route takes is parked in "hop.failed.parked".
package router
