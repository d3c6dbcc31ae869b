// Package attempt is the message contract: how the state of a retried message
// is written into its headers, and how it is read back.
//
// All state of a retry travels in the message. There is no store beside the
// broker, so a consumer in another language, a router and a tool can each pick
// a message up and go on where the last one stopped. That works only while all
// of them agree on names, types and rules; this package is those rules as
// values and pure functions, without a broker and without a connection.
//
// # The way of a message
//
// A consumer turns a delivery into a Publishing with FromDelivery and reads its
// record with Read. The record of a message that never failed is fresh: Count
// is 0 and ID is empty. When the attempt fails, Record.Retry, Record.Snooze or
// Record.Park give the record of the successor, and Record.Successor the
// message that is published in the place of the failed one. Record.Original and
// Record.Replay go the other way.
//
//	p := attempt.FromDelivery(&d)
//	rec, err := attempt.Read(&p, attempt.Source{
//		Queue: "orders", Exchange: d.Exchange, RoutingKey: d.RoutingKey, At: time.Now(),
//	})
//	if errors.Is(err, attempt.ErrBadCounter) {
//		rec = rec.Park(attempt.Failure{Error: err.Error()}, attempt.ReasonBadCounter)
//	} else {
//		rec = rec.Retry(attempt.Failure{Error: "timeout"}, delay, due, "standard")
//	}
//	successor := rec.Successor(&p, frameSize-8<<10)
//
// # Lives
//
// A record lives with one queue. Applications copy headers onto the messages
// that they derive, so a record whose x-retry-queue is another queue than the
// one the message was read from is somebody else's: it is dropped, and a new
// life starts at 0 with a new id.
//
// # What a port must do
//
// The files in testdata are golden vectors in typed JSON: what to read, what to
// write, what to take off, and what is an error. testdata/README.md describes
// them; docs/contract.md states the contract in prose.
package attempt
