package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/rabbittest"
	"github.com/hopback/hopback/router"
	"github.com/hopback/hopback/topology"
)

// routed compares a router with what the same broker can do: messages that wait in
// hop.failed, each with the x-death of a rejection, are moved into a slot, and the
// bare client publishes into a quorum queue, confirmed, and consumes from it.
func routed(ctx context.Context, b *rabbittest.Broker, o options) ([]figure, error) {
	if err := declareRouted(ctx, b.URL()); err != nil {
		return nil, err
	}
	var raw, one, two, ratio, scale []float64
	for range o.rounds {
		r, err := rawRate(b.URL(), o.messages)
		if err != nil {
			return nil, fmt.Errorf("raw: %w", err)
		}
		a, err := routerRate(ctx, b.URL(), o, 1)
		if err != nil {
			return nil, fmt.Errorf("one router: %w", err)
		}
		c, err := routerRate(ctx, b.URL(), o, 2)
		if err != nil {
			return nil, fmt.Errorf("two routers: %w", err)
		}
		raw, one, two = append(raw, r), append(one, a), append(two, c)
		ratio, scale = append(ratio, a/r), append(scale, c/a)
	}
	figures := []figure{
		{Name: "router: raw publish, confirmed, and consume, quorum, 512 B", Value: median(raw), Unit: "msg/s"},
		{Name: "router: hand-offs, one router", Value: median(one), Unit: "msg/s", Ratio: fmt.Sprintf("%.2f × raw", median(ratio)), Wanted: "≥ 0.6 × raw"},
		{Name: "router: hand-offs, two routers", Value: median(two), Unit: "msg/s", Ratio: fmt.Sprintf("%.2f × one", median(scale)), Wanted: "≥ 1.6 × one where cores allow"},
	}
	for _, rate := range o.rates {
		late, err := routerLatency(ctx, b.URL(), o, rate)
		if err != nil {
			return figures, fmt.Errorf("%d failures a second: %w", rate, err)
		}
		slices.Sort(late)
		at := func(q float64) float64 { return float64(late[int(q*float64(len(late)-1))]) / 1e6 }
		figures = append(figures, figure{
			Name:  fmt.Sprintf("router: from reject to safe in a slot, %d/s, p99", rate),
			Value: at(.99), Unit: "ms", Ratio: fmt.Sprintf("p50 %.2g, max %.4g", at(.5), at(1)), Wanted: "≤ 50 at 2000/s",
		})
	}
	return figures, nil
}

const rawQueue = "bench.raw"

func declareRouted(ctx context.Context, url string) error {
	b, err := dial(url)
	if err != nil {
		return err
	}
	defer b.close()
	if err := quorumQueue(b.ch, rawQueue); err != nil {
		return err
	}
	if _, err := b.ch.QueueDeclare(workQueue, true, false, false, false, amqp.Table{
		"x-queue-type": "quorum", "x-dead-letter-exchange": router.Exchange(""),
	}); err != nil {
		return err
	}
	t, err := router.Topology("", router.Route{Route: benchRoute})
	if err != nil {
		return err
	}
	return topology.Apply(ctx, b.conn, t)
}

// rawRate publishes and consumes at once, on two connections.
func rawRate(url string, n int) (float64, error) {
	b, err := dial(url)
	if err != nil {
		return 0, err
	}
	defer b.close()
	if err := b.ch.Qos(500, 0, false); err != nil {
		return 0, err
	}
	deliveries, err := b.ch.Consume(rawQueue, "", false, false, false, false, nil)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	published := make(chan error, 1)
	go func() { published <- fill(url, rawQueue, n) }()
	for range n {
		d, ok := <-deliveries
		if !ok {
			return 0, errors.New("deliveries stopped")
		}
		if err := d.Ack(false); err != nil {
			return 0, err
		}
	}
	if err := <-published; err != nil {
		return 0, err
	}
	return float64(n) / time.Since(start).Seconds(), nil
}

// counting tells when a router has handed off as many as there are.
type counting struct {
	router.NopObserver
	left atomic.Int64
	done chan struct{}
}

func (c *counting) HandedOff(router.HandedOff) {
	if c.left.Add(-1) == 0 {
		close(c.done)
	}
}

// routerRate rejects n messages, and lets routers hand them off from then on.
func routerRate(ctx context.Context, url string, o options, routers int) (float64, error) {
	if err := fill(url, workQueue, o.messages); err != nil {
		return 0, err
	}
	b, err := dial(url)
	if err != nil {
		return 0, err
	}
	defer b.close()
	if err := rejectAll(url, o.messages); err != nil {
		return 0, err
	}
	if err := waitDepth(ctx, b, router.Exchange(""), o.messages); err != nil {
		return 0, err
	}
	count := &counting{done: make(chan struct{})}
	count.left.Store(int64(o.messages))
	start := time.Now()
	stop, err := runRouters(ctx, url, o, routers, count)
	if err != nil {
		return 0, err
	}
	select {
	case <-count.done:
	case <-time.After(5 * time.Minute):
		err = fmt.Errorf("%d messages were not handed off", count.left.Load())
	case <-ctx.Done():
		err = ctx.Err()
	}
	took := time.Since(start)
	if err := errors.Join(err, stop()); err != nil {
		return 0, err
	}
	if n, err := b.sync(slot); err != nil || n != o.messages {
		return 0, fmt.Errorf("%d messages in the slot, want %d (%v)", n, o.messages, err)
	}
	_, err = b.ch.QueuePurge(slot, false)
	time.Sleep(300 * time.Millisecond) // let the broker truncate its log
	return float64(o.messages) / took.Seconds(), err
}

func rejectAll(url string, n int) error {
	b, err := dial(url)
	if err != nil {
		return err
	}
	defer b.close()
	if err := b.ch.Qos(500, 0, false); err != nil {
		return err
	}
	deliveries, err := b.ch.Consume(workQueue, "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	for range n {
		d, ok := <-deliveries
		if !ok {
			return errors.New("deliveries stopped")
		}
		if err := d.Reject(false); err != nil {
			return err
		}
	}
	_, err = b.sync(workQueue)
	time.Sleep(200 * time.Millisecond) // a quorum queue keeps the last ones back for a moment
	return err
}

// runRouters runs some and returns how to stop them.
func runRouters(ctx context.Context, url string, o options, n int, observer hopback.Observer, routes ...hopback.Route) (func() error, error) {
	ctx, cancel := context.WithCancel(ctx)
	if len(routes) == 0 {
		routes = []hopback.Route{benchRoute}
	}
	cfg := router.Config{Client: hopback.Config{URL: url, Observer: observer, SkipDeclare: true}, Prefetch: o.prefetch}
	for _, r := range routes {
		cfg.Routes = append(cfg.Routes, router.Route{Route: r})
	}
	var all sync.WaitGroup
	errs := make([]error, n)
	stop := func() error {
		cancel()
		all.Wait()
		return errors.Join(errs...)
	}
	for i := range n {
		r, err := router.New(cfg)
		if err != nil {
			return nil, errors.Join(err, stop())
		}
		all.Go(func() { errs[i] = r.Run(ctx) })
	}
	return stop, nil
}

// stamped notes when each message was safe in its slot.
type stamped struct {
	router.NopObserver
	mu   sync.Mutex
	sent map[string]time.Time
	late []time.Duration
}

func (s *stamped) Retried(e hopback.Retried) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, ok := s.sent[e.MessageID]; ok {
		s.late = append(s.late, now.Sub(at))
		delete(s.sent, e.MessageID)
	}
}

// routerLatency rejects messages at an even rate.
func routerLatency(ctx context.Context, url string, o options, rate int) ([]time.Duration, error) {
	n := rate * int(min(o.duration, 20*time.Second).Seconds())
	if err := fill(url, workQueue, n); err != nil {
		return nil, err
	}
	seen := &stamped{sent: map[string]time.Time{}}
	stop, err := runRouters(ctx, url, o, 1, seen)
	if err != nil {
		return nil, err
	}
	time.Sleep(time.Second) // it subscribes
	b, err := dial(url)
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	defer b.close()
	if err = b.ch.Qos(500, 0, false); err == nil {
		var deliveries <-chan amqp.Delivery
		deliveries, err = b.ch.Consume(workQueue, "", false, false, false, false, nil)
		start := time.Now()
		for i := 0; i < n && err == nil; i++ {
			d, ok := <-deliveries
			if !ok {
				err = errors.New("deliveries stopped")
				break
			}
			time.Sleep(time.Until(start.Add(time.Duration(i) * time.Second / time.Duration(rate))))
			seen.mu.Lock()
			seen.sent[d.MessageId] = time.Now()
			seen.mu.Unlock()
			err = d.Reject(false)
		}
	}
	for deadline := time.Now().Add(time.Minute); err == nil; time.Sleep(10 * time.Millisecond) {
		seen.mu.Lock()
		got := len(seen.late)
		seen.mu.Unlock()
		if got == n {
			break
		}
		if time.Now().After(deadline) {
			err = fmt.Errorf("%d of %d messages were handed off", got, n)
		}
	}
	if err := errors.Join(err, stop()); err != nil {
		return nil, err
	}
	_, err = b.ch.QueuePurge(slot, false)
	return seen.late, err
}

// routerMillion lets a router retry very many messages and watches its memory while
// they wait.
func routerMillion(ctx context.Context, b *rabbittest.Broker, o options) ([]figure, error) {
	if err := declareRouted(ctx, b.URL()); err != nil {
		return nil, err
	}
	count := &counting{done: make(chan struct{})}
	count.left.Store(int64(o.million / parts))
	stop, err := runRouters(ctx, b.URL(), o, 1, count)
	if err != nil {
		return nil, err
	}
	figures, err := heapAsTheyWait("router: ", o, func(n int) error {
		err := fill(b.URL(), workQueue, n)
		if err == nil {
			err = rejectAll(b.URL(), n)
		}
		if err != nil {
			return err
		}
		select {
		case <-count.done:
			count.done = make(chan struct{})
			count.left.Store(int64(n))
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	if err := errors.Join(err, stop()); err != nil {
		return nil, err
	}
	return figures, allWait(ctx, b.URL(), o)
}
