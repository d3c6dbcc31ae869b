package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/rabbittest"
)

// happy compares the cost of a message that succeeds.
func happy(ctx context.Context, b *rabbittest.Broker, o options) ([]figure, error) {
	if err := declareWork(b.URL()); err != nil {
		return nil, err
	}
	var bareRates, ourRates, ratios []float64
	for range o.rounds {
		x, err := filled(ctx, b.URL(), o, func(_ context.Context, url string, o options) (float64, error) {
			return bareLoop(url, o, false, func(_ *bare, d amqp.Delivery) error { return d.Ack(false) })
		})
		if err != nil {
			return nil, err
		}
		y, err := filled(ctx, b.URL(), o, func(ctx context.Context, url string, o options) (float64, error) {
			return consumeAll(ctx, url, o, newCounter(o.messages), func(context.Context, *hopback.Message) error { return nil })
		})
		if err != nil {
			return nil, err
		}
		bareRates, ourRates, ratios = append(bareRates, x), append(ourRates, y), append(ratios, y/x)
	}
	return []figure{
		{Name: "happy path, bare consume and ack", Value: median(bareRates), Unit: "msg/s"},
		{
			Name: "happy path, Hopback", Value: median(ourRates), Unit: "msg/s",
			Ratio: fmt.Sprintf("%.2f × bare", median(ratios)), Wanted: "≥ 0.9 × bare",
		},
	}, nil
}

// counter sees n messages settled and measures from the first to the last.
type counter struct {
	hopback.NopObserver
	left  atomic.Int64
	start atomic.Int64
	done  chan struct{}
}

func newCounter(n int) *counter {
	c := &counter{done: make(chan struct{})}
	c.left.Store(int64(n))
	return c
}

func (c *counter) Received(hopback.Received) {
	if c.start.Load() == 0 {
		c.start.CompareAndSwap(0, time.Now().UnixNano())
	}
}
func (c *counter) Handled(hopback.Handled) { c.one() }
func (c *counter) Retried(hopback.Retried) { c.one() }
func (c *counter) Parked(hopback.Parked)   { c.one() }
func (c *counter) one() {
	if c.left.Add(-1) == 0 {
		close(c.done)
	}
}

// consumeAll runs a consumer of the work queue until all messages are settled on the
// broker.
func consumeAll(ctx context.Context, url string, o options, seen *counter, handle hopback.HandlerFunc) (float64, error) {
	return consumeRoute(ctx, url, o, benchRoute, seen, handle)
}

// consumeRoute runs a consumer until all messages are settled on the broker.
func consumeRoute(ctx context.Context, url string, o options, route hopback.Route, seen *counter, handle hopback.HandlerFunc) (float64, error) {
	client, err := hopback.New(hopback.Config{URL: url, Observer: seen})
	if err != nil {
		return 0, err
	}
	defer client.Close(ctx)
	c, err := client.NewConsumer(hopback.ConsumerConfig{
		Route:   route,
		Handler: handle, Prefetch: o.prefetch, Concurrency: o.concurrency,
	})
	if err != nil {
		return 0, err
	}
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	select {
	case <-seen.done:
	case err := <-ended:
		stop()
		return 0, fmt.Errorf("the consumer ended early: %w", err)
	}
	took := time.Since(time.Unix(0, seen.start.Load()))
	stop()
	if err := <-ended; err != nil { // waits for the acknowledgements
		return 0, err
	}
	return float64(o.messages) / took.Seconds(), nil
}
