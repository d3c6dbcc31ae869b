package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/rabbittest"
	"github.com/hopback/hopback/topology"
)

const (
	workQueue = "bench.work"
	slot      = "hop.delay.9000s" // nothing comes back during a round
)

// round fails every message of the work queue into the slot and reports how
// many a second.
type round func(ctx context.Context, url string, o options) (float64, error)

// handoff compares what it costs to move a failed message into a delay queue.
// All loops consume from the same quorum queue and publish into the same slot.
func handoff(ctx context.Context, b *rabbittest.Broker, o options) ([]figure, error) {
	if err := declareWork(b.URL()); err != nil {
		return nil, err
	}
	rates := map[string][]float64{}
	var overNaive, overRecord, overCareful []float64
	for range o.rounds {
		this := map[string]float64{}
		for _, loop := range []struct {
			name string
			run  round
		}{{"naive", naive(counted)}, {"same record", naive(recorded)}, {"careful", careful}, {"hopback", ours}} {
			n := o
			if loop.name == "careful" {
				n.messages /= 5 // it is that much slower
			}
			rate, err := filled(ctx, b.URL(), n, loop.run)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", loop.name, err)
			}
			this[loop.name] = rate
			rates[loop.name] = append(rates[loop.name], rate)
		}
		overNaive = append(overNaive, this["hopback"]/this["naive"])
		overRecord = append(overRecord, this["hopback"]/this["same record"])
		overCareful = append(overCareful, this["hopback"]/this["careful"])
	}
	return []figure{
		{Name: "hand-off, naive: publish without confirm, ack; a counter as record", Value: median(rates["naive"]), Unit: "msg/s"},
		{Name: "hand-off, naive, with the record that Hopback writes", Value: median(rates["same record"]), Unit: "msg/s"},
		{Name: "hand-off, careful: publish, wait, ack, one at a time", Value: median(rates["careful"]), Unit: "msg/s"},
		{
			Name: "hand-off, Hopback", Value: median(rates["hopback"]), Unit: "msg/s",
			Ratio: fmt.Sprintf("%.2f × naive, %.2f × naive with the same record, %.1f × careful",
				median(overNaive), median(overRecord), median(overCareful)),
			Wanted: "≥ 0.95 × naive, ≥ 8 × careful",
		},
	}, nil
}

func declareWork(url string) error {
	b, err := dial(url)
	if err != nil {
		return err
	}
	defer b.close()
	if err := quorumQueue(b.ch, workQueue); err != nil {
		return err
	}
	t, err := hopback.Topology("", benchRoute)
	if err != nil {
		return err
	}
	return topology.Apply(context.Background(), b.conn, t)
}

// benchRoute keeps what fails away for two and a half hours.
var benchRoute = hopback.Route{Queue: workQueue, Mechanism: hopback.Wheel, Policy: hopback.Policy{
	Name: "bench",
	Schedule: hopback.Schedule{
		Backoff: hopback.Constant, Base: 9000 * time.Second, Max: 9000 * time.Second, Jitter: hopback.NoJitter,
	},
}}

// filled runs one round on a work queue of n messages and empties the slot.
func filled(ctx context.Context, url string, o options, run round) (float64, error) {
	b, err := dial(url)
	if err != nil {
		return 0, err
	}
	defer b.close()
	if err := fill(url, workQueue, o.messages); err != nil {
		return 0, err
	}
	if err := waitDepth(ctx, b, workQueue, o.messages); err != nil {
		return 0, err
	}
	rate, err := run(ctx, url, o)
	if err != nil {
		return 0, err
	}
	if left, err := b.sync(workQueue); err != nil || left > 0 {
		return 0, fmt.Errorf("%d messages left on the work queue (%v)", left, err)
	}
	_, err = b.ch.QueuePurge(slot, false)
	time.Sleep(300 * time.Millisecond) // let the broker truncate its log
	return rate, err
}

// bareLoop consumes o.messages and does step with each.
func bareLoop(url string, o options, confirm bool, step func(b *bare, d amqp.Delivery) error) (float64, error) {
	b, err := dial(url)
	if err != nil {
		return 0, err
	}
	defer b.close()
	if confirm {
		if err := b.ch.Confirm(false); err != nil {
			return 0, err
		}
	}
	if err := b.ch.Qos(o.prefetch, 0, false); err != nil {
		return 0, err
	}
	const tag = "bench"
	deliveries, err := b.ch.Consume(workQueue, tag, false, false, false, false, nil)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	for range o.messages {
		d, ok := <-deliveries
		if !ok {
			return 0, errors.New("deliveries stopped")
		}
		if err := step(b, d); err != nil {
			return 0, err
		}
	}
	// Written is not done: wait until the broker has worked through it. The
	// cancel makes a quorum queue take the acknowledgements that it still keeps
	// back.
	if err := b.ch.Cancel(tag, false); err != nil {
		return 0, err
	}
	if _, err := b.sync(workQueue); err != nil {
		return 0, err
	}
	return float64(o.messages) / time.Since(start).Seconds(), nil
}

// counted is the successor as it is usually written by hand.
func counted(d amqp.Delivery) amqp.Publishing {
	count, _ := d.Headers["x-retry-count"].(int32)
	return amqp.Publishing{
		Headers:   amqp.Table{"x-retry-count": count + 1, "x-retry-queue": workQueue},
		MessageId: d.MessageId, Body: d.Body, DeliveryMode: amqp.Persistent,
	}
}

// recorded is the successor as Hopback writes it: what the headers cost the
// broker, without what safety costs.
func recorded(d amqp.Delivery) amqp.Publishing {
	now := time.Now()
	p := attempt.FromDelivery(&d)
	r, err := attempt.Read(&p, attempt.Source{Queue: workQueue, Exchange: d.Exchange, RoutingKey: d.RoutingKey, At: now})
	if err != nil {
		panic(err)
	}
	f := attempt.Failure{At: now, Error: errDown.Error(), ErrorType: "errors.errorString", Consumer: "bench@localhost"}
	return r.Identify(&p).Retry(f, 9000*time.Second, now.Add(9000*time.Second), "bench").Successor(&p, 120<<10)
}

func naive(successor func(amqp.Delivery) amqp.Publishing) round {
	return func(_ context.Context, url string, o options) (float64, error) {
		return bareLoop(url, o, false, func(b *bare, d amqp.Delivery) error {
			if err := b.ch.Publish(slot, d.RoutingKey, false, false, successor(d)); err != nil {
				return err
			}
			return d.Ack(false)
		})
	}
}

func careful(_ context.Context, url string, o options) (float64, error) {
	return bareLoop(url, o, true, func(b *bare, d amqp.Delivery) error {
		dc, err := b.ch.PublishWithDeferredConfirm(slot, d.RoutingKey, true, false, counted(d))
		if err != nil {
			return err
		}
		if !dc.Wait() {
			return errors.New("not confirmed")
		}
		return d.Ack(false)
	})
}

var errDown = errors.New("call the payment service: connection refused")

func ours(ctx context.Context, url string, o options) (float64, error) {
	seen := newCounter(o.messages)
	return consumeAll(ctx, url, o, seen, func(context.Context, *hopback.Message) error { return errDown })
}
