package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/Azure/go-amqp"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/rabbittest"
)

// nativeQueue is made anew for each round: what was delayed stays in it.
const nativeQueue = "bench.native"

// nativeRoute keeps what fails away for as long as benchRoute does.
func nativeRoute(mechanism string) hopback.Route {
	r := benchRoute
	r.Queue, r.Mechanism = nativeQueue, mechanism
	return r
}

// nativeSettlements compares the mechanism native with what AMQP 1.0 can do at
// all, and with the consumer over AMQP 0-9-1, on one broker in one run.
func nativeSettlements(ctx context.Context, b *rabbittest.Broker, o options) ([]figure, error) {
	if caps := (hopback.Capabilities{Product: "RabbitMQ", Version: b.Version()}); !caps.AtLeast("4.3") {
		fmt.Fprintln(os.Stderr, "  native needs RabbitMQ 4.3")
		return nil, nil
	}
	fail := func(context.Context, *hopback.Message) error { return errDown }
	succeed := func(context.Context, *hopback.Message) error { return nil }
	consumer := func(mechanism string, handle hopback.HandlerFunc) round {
		return func(ctx context.Context, url string, o options) (float64, error) {
			return consumeRoute(ctx, url, o, nativeRoute(mechanism), newCounter(o.messages), handle)
		}
	}
	loops := []struct {
		name string
		run  round
	}{
		{"plain", acceptAll},
		{"delayed", consumer(hopback.Native, fail)},
		{"happy native", consumer(hopback.Native, succeed)},
		{"happy 0-9-1", consumer(hopback.Wheel, succeed)},
	}
	rates := map[string][]float64{}
	var settled, happy []float64
	for range o.rounds {
		this := map[string]float64{}
		for _, l := range loops {
			rate, err := freshQueue(ctx, b.URL(), o, l.run)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", l.name, err)
			}
			this[l.name] = rate
			rates[l.name] = append(rates[l.name], rate)
		}
		settled = append(settled, this["delayed"]/this["plain"])
		happy = append(happy, this["happy native"]/this["happy 0-9-1"])
	}
	return []figure{
		{Name: "AMQP 1.0, plain consume and accept", Value: median(rates["plain"]), Unit: "msg/s"},
		{
			Name: "native, failed messages settled with their delay", Value: median(rates["delayed"]), Unit: "msg/s",
			Ratio: fmt.Sprintf("%.2f × plain", median(settled)), Wanted: "≥ 0.7 × plain",
		},
		{Name: "happy path over AMQP 0-9-1, Hopback", Value: median(rates["happy 0-9-1"]), Unit: "msg/s"},
		{
			Name: "happy path over AMQP 1.0, Hopback", Value: median(rates["happy native"]), Unit: "msg/s",
			Ratio: fmt.Sprintf("%.2f × 0-9-1", median(happy)), Wanted: "≥ 0.8 × 0-9-1",
		},
	}, nil
}

// freshQueue runs one round on a new queue of o.messages.
func freshQueue(ctx context.Context, url string, o options, run round) (float64, error) {
	b, err := dial(url)
	if err != nil {
		return 0, err
	}
	defer b.close()
	if err := quorumQueue(b.ch, nativeQueue); err != nil {
		return 0, err
	}
	defer b.ch.QueueDelete(nativeQueue, false, false, false) //nolint:errcheck // the next round says so
	if err := fill(url, nativeQueue, o.messages); err != nil {
		return 0, err
	}
	if err := waitDepth(ctx, b, nativeQueue, o.messages); err != nil {
		return 0, err
	}
	return run(ctx, url, o)
}

// acceptAll is the plain loop: go-amqp as its documentation uses it.
func acceptAll(ctx context.Context, url string, o options) (float64, error) {
	conn, err := amqp.Dial(ctx, strings.Replace(url, "amqp091:", "amqp:", 1), &amqp.ConnOptions{HostName: "vhost:/"})
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	session, err := conn.NewSession(ctx, nil)
	if err != nil {
		return 0, err
	}
	r, err := session.NewReceiver(ctx, "/queues/"+nativeQueue, &amqp.ReceiverOptions{Credit: int32(o.prefetch)})
	if err != nil {
		return 0, err
	}
	start := time.Now()
	for range o.messages {
		m, err := r.Receive(ctx, nil)
		if err != nil {
			return 0, err
		}
		if err := r.AcceptMessage(ctx, m); err != nil {
			return 0, err
		}
	}
	if err := r.Close(ctx); err != nil { // answered behind what was settled
		return 0, err
	}
	return float64(o.messages) / time.Since(start).Seconds(), nil
}
