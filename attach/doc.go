// Package attach makes the rejections of a queue that exists already flow to the
// router, and takes that back, without declaring the queue anew and without a
// change in its consumers.
//
// A queue without a dead-letter exchange of its own is attached by a policy of
// RabbitMQ for this one queue. Policies do not merge, and the one of the highest
// priority wins; so ours outranks the one that the queue goes by and has all that
// that one says. To detach is to remove it, after which the queue goes by the one
// of before, which nobody has touched.
//
// A queue that was declared with x-dead-letter-exchange cannot be attached by a
// policy, since an argument beats it. There a binding on that exchange leads to the
// router's queue, beside or instead of the bindings that are there. What was
// removed is written into the arguments of ours, and put back by detaching. What
// somebody binds again meanwhile is told by [Look], and taken away by attaching again.
//
//	p, err := attach.MakePlan(ctx, m, attach.Request{Queue: "orders"})
//	if err != nil {
//		return err
//	}
//	fmt.Print(p) // what it would change, and what to know
//	err = p.Apply(ctx, conn)
//
// A plan that would lose messages, duplicate them or send them in circles has
// refusals, and is not applied: [ErrRefused]. [Look] lists what is attached.
//
// All is done over the management API, but for what the router itself needs, which
// is declared over AMQP. The account needs the tag policymaker, and for bindings
// the permissions to write to the router's queue and to read from the exchange.
package attach
