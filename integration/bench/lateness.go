package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/delay"
	"github.com/hopback/hopback/rabbittest"
)

// lateness keeps a crowd of messages failing for ever, with delays uniform to
// 20 s, so that a steady rate of retries results: crowd = rate × mean delay.
// How late is each when its handler gets it?
func lateness(ctx context.Context, b *rabbittest.Broker, o options) ([]figure, error) {
	var all []figure
	for _, precision := range o.precisions {
		for _, rate := range o.rates {
			late, actual, err := latenessAt(ctx, b.URL(), o, rate, precision)
			if err != nil {
				return all, fmt.Errorf("%d/s: %w", rate, err)
			}
			p := func(q float64) float64 { return float64(late[int(q*float64(len(late)-1))]) }
			how := o.mechanism
			if how == hopback.Wheel {
				how += ", precision " + precision
			}
			wanted := map[int]string{2000: "p99 ≤ 50 ms", 4000: "p99 ≤ 250 ms", 6000: "p99 ≤ 150 ms with native"}[rate]
			all = append(all,
				figure{Name: fmt.Sprintf("lateness at %d retries/s, %s, p50", rate, how), Value: p(.5), Unit: "ms"},
				figure{
					Name: fmt.Sprintf("lateness at %d retries/s, %s, p99", rate, how), Value: p(.99), Unit: "ms", Wanted: wanted,
					Ratio: fmt.Sprintf("%d retries, %.0f/s", len(late), actual),
				},
				figure{Name: fmt.Sprintf("lateness at %d retries/s, %s, least", rate, how), Value: p(0), Unit: "ms", Wanted: "≥ 0"},
			)
		}
	}
	return all, nil
}

const longestDelay = 20 * time.Second

func latenessAt(ctx context.Context, url string, o options, rate int, precision string) ([]int64, float64, error) {
	queue := fmt.Sprintf("bench.late.%d", rate)
	prep, err := dial(url)
	if err != nil {
		return nil, 0, err
	}
	defer prep.close()
	if err := quorumQueue(prep.ch, queue); err != nil {
		return nil, 0, err
	}
	defer prep.ch.QueueDelete(queue, false, false, false)

	// The mean of U(100 ms, 20 s).
	crowd := int(float64(rate) * (longestDelay + 100*time.Millisecond).Seconds() / 2)
	var mu sync.Mutex
	late := make([]int64, 0, rate*int(o.duration.Seconds())*2)
	measuring := false

	client, err := hopback.New(hopback.Config{URL: url})
	if err != nil {
		return nil, 0, err
	}
	defer client.Close(ctx)
	handler := hopback.HandlerFunc(func(_ context.Context, m *hopback.Message) error {
		if due, ok := m.Headers["x-retry-due-at"].(int64); ok {
			ms := time.Now().UnixMilli() - due
			mu.Lock()
			if measuring {
				late = append(late, ms)
			}
			mu.Unlock()
		}
		return errDown
	})
	c, err := client.NewConsumer(hopback.ConsumerConfig{
		Route: hopback.Route{
			Queue: queue, Mechanism: o.mechanism, Precision: delay.Precision(precision),
			Policy: hopback.Policy{
				Schedule: hopback.Schedule{
					Backoff: hopback.Constant, Base: longestDelay, Max: longestDelay, Jitter: hopback.Full,
				},
				MaxRetries: 1_000_000, MaxRetryAfter: longestDelay,
			},
		},
		Handler: handler, Prefetch: o.prefetch, Concurrency: o.concurrency,
	})
	if err != nil {
		return nil, 0, err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()

	// The crowd arrives over one round of delays, so that it begins spread.
	const steps = 100
	for i := range steps {
		began := time.Now()
		if err := fill(url, queue, crowd/steps); err != nil {
			return nil, 0, err
		}
		time.Sleep(longestDelay/steps - time.Since(began))
		_ = i
	}
	time.Sleep(longestDelay / 2)
	mu.Lock()
	measuring = true
	mu.Unlock()
	select {
	case <-time.After(o.duration):
	case err := <-ended:
		return nil, 0, fmt.Errorf("the consumer ended: %w", err)
	}
	mu.Lock()
	measuring = false
	mu.Unlock()
	stop()
	if err := <-ended; err != nil {
		return nil, 0, err
	}
	if len(late) == 0 {
		return nil, 0, fmt.Errorf("nothing was retried")
	}
	slices.Sort(late)
	time.Sleep(longestDelay + 5*time.Second) // until the slots are empty
	return late, float64(len(late)) / o.duration.Seconds(), nil
}
