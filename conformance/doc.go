// Package conformance checks a consumer, in any language, against a live broker by
// what comes out of it.
//
// [Run] makes a work queue and a router, publishes messages that say what to do with
// them, and looks at what the consumer rejects and publishes, at what comes back to
// the queue, and at what is parked. docs/conformance.md describes what a consumer
// does under test; [Instruction] is that for one in Go. The command
// `hopback conformance` is this package with a command line.
//
// It sees the consumer's side of the contract alone. How the headers are read and
// written is settled without a broker, by the golden vectors: [WriteVectors].
package conformance
