package topology_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/topology"
)

// A delay of three seconds, and the way back to the work queue.
func delay() topology.Topology {
	return topology.Topology{
		Exchanges: []topology.Exchange{
			{Name: "hop.delay.3s", Kind: "fanout"},
			{Name: "hop.return", Kind: "headers", Args: amqp.Table{"alternate-exchange": "hop.lost"}},
		},
		Queues: []topology.Queue{
			{Name: "orders", User: true},
			{Name: "hop.delay.3s", Args: amqp.Table{
				"x-queue-type":           "quorum",
				"x-message-ttl":          int64(3000),
				"x-dead-letter-exchange": "hop.return",
				"x-dead-letter-strategy": "at-least-once",
				"x-overflow":             "reject-publish",
			}},
		},
		Bindings: []topology.Binding{
			{Source: "hop.delay.3s", Destination: "hop.delay.3s"},
			{Source: "hop.return", Destination: "orders", Args: amqp.Table{"x-match": "all-with-x", "x-retry-queue": "orders"}},
		},
	}
}

func ExampleTopology_Mermaid() {
	fmt.Print(delay().Mermaid())
	// Output:
	// flowchart LR
	//   e0{{"hop.delay.3s<br>fanout"}}
	//   e1{{"hop.return<br>headers"}}
	//   q2[["orders"]]
	//   q3[("hop.delay.3s<br>quorum<br>3000 ms")]
	//   e4{{"hop.lost"}}
	//   e0 --> q3
	//   e1 -->|"x-match = all-with-x, x-retry-queue = orders"| q2
	//   q3 -.->|"dead letters"| e1
	//   e1 -.->|"no match"| e4
}

func ExampleTopology_Definitions() {
	t := topology.Topology{
		Exchanges: []topology.Exchange{{Name: "hop.error", Kind: "direct"}},
		Queues: []topology.Queue{{Name: "orders.parked", Args: amqp.Table{
			"x-queue-type": "quorum", "x-delivery-limit": int64(1000000),
		}}},
		Bindings: []topology.Binding{{Source: "hop.error", Destination: "orders.parked", Key: "orders"}},
	}
	defs, err := t.Definitions("/")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s", defs)
	// Output:
	// {
	//   "exchanges": [
	//     {
	//       "name": "hop.error",
	//       "vhost": "/",
	//       "type": "direct",
	//       "durable": true,
	//       "auto_delete": false,
	//       "internal": false,
	//       "arguments": {}
	//     }
	//   ],
	//   "queues": [
	//     {
	//       "name": "orders.parked",
	//       "vhost": "/",
	//       "durable": true,
	//       "auto_delete": false,
	//       "arguments": {
	//         "x-delivery-limit": 1000000,
	//         "x-queue-type": "quorum"
	//       }
	//     }
	//   ],
	//   "bindings": [
	//     {
	//       "source": "hop.error",
	//       "vhost": "/",
	//       "destination": "orders.parked",
	//       "destination_type": "queue",
	//       "routing_key": "orders",
	//       "arguments": {}
	//     }
	//   ]
	// }
}

func ExampleCompare() {
	want := amqp.Table{"x-queue-type": "quorum", "x-message-ttl": int64(10000), "x-max-length": int64(5)}
	have := amqp.Table{"x-queue-type": "quorum", "x-message-ttl": "10000", "x-max-length": int32(5)}
	for _, d := range topology.Compare(want, have) {
		fmt.Printf("%s: want %v, have %v\n", d.Key, d.Want, d.Have)
	}
	// Output:
	// x-message-ttl: want int64 10000, have string "10000"
}

func ExampleTopology_Validate() {
	t := topology.Topology{Queues: []topology.Queue{
		{Name: "orders.parked", Args: amqp.Table{"x-delivery-limit": 1000000}},
	}}
	fmt.Println(t.Validate())
	// Output:
	// topology: queue "orders.parked": argument x-delivery-limit: 1000000 is a Go int, which is written with 32 bits: use int64(1000000)
}

// Apply at the start of a service, and say in words what is in the way.
func ExampleApply() {
	ctx := context.Background()
	conn, err := amqp.Dial("amqp://guest:guest@localhost:5672/")
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	err = topology.Apply(ctx, conn, delay(), topology.WithManagement(&topology.Management{
		URL: "http://guest:guest@localhost:15672",
	}))
	var mismatch *topology.MismatchError
	switch {
	case errors.As(err, &mismatch):
		log.Fatalf("somebody else has declared %s %q with %s %v; we want %v",
			mismatch.Kind, mismatch.Name, mismatch.Key, mismatch.Have, mismatch.Want)
	case errors.Is(err, topology.ErrMissing):
		log.Fatalf("the work queue comes first: %v", err)
	case err != nil:
		log.Fatal(err)
	}
}

// A plan changes nothing, and Verify is a plan that must be empty.
func ExampleMakePlan() {
	ctx := context.Background()
	management := &topology.Management{URL: "http://guest:guest@localhost:15672", Vhost: "/"}
	plan, err := topology.MakePlan(ctx, nil, management, delay())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(plan)
}
