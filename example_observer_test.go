package hopback_test

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hopback/hopback"
)

// counters is an Observer that counts. NopObserver has the methods that it does
// not write, and those that later versions will add.
type counters struct {
	hopback.NopObserver
	retried, parked atomic.Int64
}

func (c *counters) Retried(hopback.Retried) { c.retried.Add(1) }
func (c *counters) Parked(hopback.Parked)   { c.parked.Add(1) }

func ExampleNopObserver() {
	var c counters
	var o hopback.Observer = &c // goes into Config.Observer
	o.Received(hopback.Received{Event: hopback.Event{Queue: "orders", Attempt: 1}})
	o.Retried(hopback.Retried{Event: hopback.Event{Queue: "orders", Attempt: 1}, Delay: time.Second})
	o.Parked(hopback.Parked{Event: hopback.Event{Queue: "orders", Attempt: 2}, Reason: "exhausted"})
	fmt.Println(c.retried.Load(), c.parked.Load())
	// Output:
	// 1 1
}
