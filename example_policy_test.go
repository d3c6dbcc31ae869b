package hopback_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hopback/hopback"
)

// All that is wrong is reported at once, each with the field, its value and
// what to write instead.
func ExamplePolicy_Validate() {
	err := hopback.Policy{
		Schedule:      hopback.Schedule{Base: 10 * time.Second, Max: time.Second},
		MaxRetryAfter: 100 * time.Hour,
	}.Validate()
	fmt.Println(err)
	// Output:
	// schedule field max is 1s: use at least base, which is 10s, or lower base
	// max_retry_after: "100h0m0s" cannot work: use at most 25h0m0s, the longest slot
}

// A list of delays as operators write it down: the last one repeats.
func ExamplePolicy_list() {
	p := hopback.Policy{
		Schedule: hopback.Schedule{
			Backoff: hopback.List, Delays: []time.Duration{10 * time.Second, time.Minute, 10 * time.Minute},
			Jitter: hopback.NoJitter,
		},
		MaxRetries: 4,
	}
	for n := int64(1); n <= 4; n++ {
		fmt.Println(p.Delay(n, 0, 0))
	}
	// Output:
	// 10s
	// 1m0s
	// 10m0s
	// 10m0s
}

// The wheel's slots for a policy: any delay waits in at most two of them.
func ExampleRoute_DelayMechanism() {
	r := hopback.Route{
		Queue: "orders",
		Policy: hopback.Policy{
			Schedule: hopback.Schedule{Max: 3 * time.Second}, MaxRetryAfter: 3 * time.Second,
		},
	}
	m := r.DelayMechanism(hopback.DefaultPrefix)
	fmt.Println(m.Name(), m.Slots())
	// Output:
	// wheel [100ms 200ms 300ms 400ms 500ms 600ms 700ms 800ms 900ms 1s 2s 3s]
}

// Resolve says what will be done for a route that leaves it open, and why.
func ExampleResolve() {
	_, decisions, err := hopback.Resolve(context.Background(), hopback.View{}, hopback.Route{Queue: "orders"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s: %s, since it gives %s\n", decisions[0].Queue, decisions[0].Mechanism, decisions[0].Why)
	// Output:
	// orders: wheel, since it gives any delay on any broker, without a plugin; no broker was asked
}

// A configuration that cannot work is refused before anything is connected. The
// URL is not repeated, since it holds a password.
func ExampleConfig_Validate() {
	err := hopback.Config{URL: "https://guest:s3cret@localhost/"}.Validate()
	var bad *hopback.ConfigError
	fmt.Println(errors.As(err, &bad), bad.Field)
	// Output:
	// true URL
}
