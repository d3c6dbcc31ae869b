// Package simulate shows what a retry policy does to the thing that failed,
// before anything is deployed and without a broker.
//
// It is a discrete-event simulation, in whole milliseconds, of producers, a work
// queue, consumers with their prefetch and handlers, the broker's delay slots,
// and the dependency that the handlers call: its capacity, its latency, its
// outages, and how it collapses when it is asked for too much. Several
// contenders, each a policy with its mechanism, meet the same messages.
//
//	report, err := simulate.Run(ctx, simulate.Outage(time.Minute), simulate.Policy("ours", ours))
//	if n := report.Results[0].ParkedNeedlessly; n > 0 {
//		t.Errorf("%d messages are parked in an outage of a minute", n)
//	}
//
// Delays come from package backoff and are rounded by package delay, the ones
// that the consumer itself uses. What a contender does when an attempt fails is
// what the consumer does: count, limits, jitter, slot, confirm, and the prefetch
// that is free again with the confirm.
//
// # What is simulated
//
// Producers send messages evenly over a span of time, each at a random moment of
// its own share of it. The broker gives them to the consumers in turn, as far as
// their prefetch goes. A handler makes one call to the dependency for each
// message. The dependency answers calls one after the other at its capacity; one
// that would stand in line for too long is refused. See [Dependency].
//
// # What is not
//
// The broker is never the bottleneck and loses nothing; it answers after the
// times in [Broker]. There is no network but for these times. Handlers call one
// dependency, once. Durations below a millisecond do not exist: a call lasts at
// least one.
//
// # Randomness
//
// A scenario and its seed give the same result every time, whatever else runs
// beside it and in whichever order the contenders are listed. All contenders get
// the same messages at the same moments.
package simulate
