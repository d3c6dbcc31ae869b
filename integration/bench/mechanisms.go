package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/delay"
	"github.com/hopback/hopback/rabbittest"
	"github.com/hopback/hopback/topology"
)

// rival is one way to wait, driven by the same bare loops as the others.
type rival struct {
	name string
	// declare makes what it needs, up to the work queue.
	declare func(ctx context.Context, conn *amqp.Connection, longest time.Duration) error
	// publish sends one message that shall wait for d, and returns for how long the
	// way promises to hold it.
	publish func(ch *amqp.Channel, d time.Duration, random uint64) (*amqp.DeferredConfirmation, time.Duration, error)
}

// mechanisms sets the wheel beside the delayed-message plugin, where there is one,
// and beside a binary ladder: how fast messages go in with delays up to an hour,
// and how late they come out with delays up to 20 s. All on one broker in one run,
// each in a virtual host of its own.
func mechanisms(ctx context.Context, b *rabbittest.Broker, o options) ([]figure, error) {
	b, done, err := withPlugin(ctx, b)
	if err != nil {
		return nil, err
	}
	defer done()
	rivals := []rival{wheelRival(o.precisions[0])}
	offers, err := offersPlugin(ctx, b.URL())
	if err != nil {
		return nil, err
	}
	if offers {
		rivals = append(rivals, pluginRival())
	} else {
		fmt.Fprintf(os.Stderr, "  without the plugin: $%s names no broker of version %s that brings it\n", rabbittest.PluginBroker, b.Version())
	}
	rivals = append(rivals, binaryRival())

	var all []figure
	for _, rate := range o.rates {
		for _, r := range rivals {
			figures, err := heldLateness(ctx, b, o, r, rate)
			if err != nil {
				return all, fmt.Errorf("%s, lateness at %d/s: %w", r.name, rate, err)
			}
			all = append(all, figures...)
		}
	}
	rates := map[string][]float64{}
	for range o.rounds {
		for _, r := range rivals {
			rate, err := intake(ctx, b, o, r)
			if err != nil {
				return all, fmt.Errorf("%s, messages in: %w", r.name, err)
			}
			rates[r.name] = append(rates[r.name], rate)
		}
	}
	for _, r := range rivals {
		f := figure{Name: fmt.Sprintf("%s: messages in, delays uniform to 1h", r.name), Value: median(rates[r.name]), Unit: "msg/s"}
		if r.name != rivals[0].name {
			var ratios []float64
			for i, rate := range rates[r.name] {
				ratios = append(ratios, rates[rivals[0].name][i]/rate)
			}
			f.Ratio, f.Wanted = fmt.Sprintf("the wheel %.2f × this", median(ratios)), "> 1"
		}
		all = append(all, f)
	}
	return all, nil
}

// withPlugin is a broker with the plugin where one of the same version is to be
// had, and else the one that runs.
func withPlugin(ctx context.Context, b *rabbittest.Broker) (*rabbittest.Broker, func(), error) {
	home := os.Getenv(rabbittest.PluginBroker)
	if home == "" {
		return b, func() {}, nil
	}
	p, err := rabbittest.Run(ctx, rabbittest.Options{Home: home, Plugins: []string{"rabbitmq_delayed_message_exchange"}, NoManagement: true})
	if err != nil {
		return nil, nil, err
	}
	if p.Version() != b.Version() {
		return b, func() {}, p.Close()
	}
	return p, func() { p.Close() }, nil //nolint:errcheck // a private broker goes with the process
}

func offersPlugin(ctx context.Context, url string) (bool, error) {
	var caps hopback.Capabilities
	err := caps.ProbeExchangeType(ctx, func(context.Context) (*amqp.Connection, error) { return amqp.Dial(url) })
	return caps.DelayedExchange == hopback.Offered, err
}

// rivalRoute is the route of a mechanism of ours for delays up to longest.
func rivalRoute(mechanism string, longest time.Duration) hopback.Route {
	return hopback.Route{Queue: workQueue, Mechanism: mechanism, Policy: hopback.Policy{
		Schedule: hopback.Schedule{Max: longest}, MaxRetryAfter: longest,
	}}
}

func declareRoute(ctx context.Context, conn *amqp.Connection, r hopback.Route) error {
	t, err := hopback.Topology("", r)
	if err != nil {
		return err
	}
	return topology.Apply(ctx, conn, t)
}

func wheelRival(precision string) rival {
	var w *delay.Wheel
	load := new(delay.Load)
	return rival{
		name: "wheel, precision " + precision,
		declare: func(ctx context.Context, conn *amqp.Connection, longest time.Duration) error {
			w = delay.NewWheel(delay.Names{Prefix: hopback.DefaultPrefix}, longest, delay.Precision(precision), load)
			return declareRoute(ctx, conn, rivalRoute(hopback.Wheel, longest))
		},
		publish: func(ch *amqp.Channel, d time.Duration, random uint64) (*amqp.DeferredConfirmation, time.Duration, error) {
			h := w.Hold(delay.Request{Delay: d, Random: random})
			headers := amqp.Table{"x-retry-queue": workQueue}
			if h.Then != "" {
				headers["x-retry-then"] = h.Then
			}
			dc, err := send(ch, h.Exchange, "orders.create", true, headers, h.Delay)
			return dc, h.Delay, err
		},
	}
}

func pluginRival() rival {
	p := delay.NewPlugin(delay.Names{Prefix: hopback.DefaultPrefix})
	return rival{
		name: "plugin",
		declare: func(ctx context.Context, conn *amqp.Connection, longest time.Duration) error {
			return declareRoute(ctx, conn, rivalRoute(hopback.Plugin, longest))
		},
		publish: func(ch *amqp.Channel, d time.Duration, _ uint64) (*amqp.DeferredConfirmation, time.Duration, error) {
			h := p.Hold(delay.Request{Delay: d})
			dc, err := send(ch, h.Exchange, "orders.create", false, amqp.Table{"x-retry-queue": workQueue, "x-delay": h.XDelay}, h.Delay)
			return dc, h.Delay, err
		},
	}
}

func binaryRival() rival {
	var l binaryLadder
	return rival{
		name: "binary ladder of 28 levels",
		declare: func(_ context.Context, conn *amqp.Connection, _ time.Duration) error {
			ch, err := conn.Channel()
			if err != nil {
				return err
			}
			return l.declare(ch, workQueue)
		},
		publish: func(ch *amqp.Channel, d time.Duration, _ uint64) (*amqp.DeferredConfirmation, time.Duration, error) {
			exchange, key, waits := l.hold(d, workQueue)
			dc, err := send(ch, exchange, key, true, amqp.Table{}, waits)
			return dc, waits, err
		},
	}
}

// send publishes one message with the time at which it is due.
func send(ch *amqp.Channel, exchange, key string, mandatory bool, headers amqp.Table, waits time.Duration) (*amqp.DeferredConfirmation, error) {
	headers["due"] = time.Now().Add(waits).UnixMilli()
	return ch.PublishWithDeferredConfirm(exchange, key, mandatory, false, amqp.Publishing{
		DeliveryMode: amqp.Persistent, Headers: headers, Body: body,
	})
}

// stage is a virtual host with a work queue and a rival's topology.
func stage(ctx context.Context, b *rabbittest.Broker, r rival, longest time.Duration) (*bare, func(), error) {
	name := fmt.Sprintf("bench-%d", rand.Uint64())
	if err := b.AddVhost(ctx, name); err != nil {
		return nil, nil, err
	}
	c, err := dial(strings.TrimSuffix(b.URL(), "/") + "/" + url.PathEscape(name))
	if err != nil {
		return nil, nil, err
	}
	err = quorumQueue(c.ch, workQueue)
	if err == nil {
		err = r.declare(ctx, c.conn, longest)
	}
	if err == nil {
		err = c.ch.Confirm(false)
	}
	return c, func() {
		c.close()
		b.DeleteVhost(context.WithoutCancel(ctx), name) //nolint:errcheck // the broker is private
	}, err
}

// intake is how many messages a second are confirmed, with delays uniform to an
// hour, so that nothing comes back meanwhile.
func intake(ctx context.Context, b *rabbittest.Broker, o options, r rival) (float64, error) {
	c, done, err := stage(ctx, b, r, time.Hour)
	if err != nil {
		return 0, err
	}
	defer done()
	random := rand.New(rand.NewPCG(1, 1))
	const window = 2000
	var last []*amqp.DeferredConfirmation
	wait := func(n int) error {
		for _, dc := range last[:n] {
			if !dc.Wait() {
				return errors.New("a publish was not confirmed")
			}
		}
		last = slices.Delete(last, 0, n)
		return nil
	}
	start := time.Now()
	for range o.messages {
		d := 20*time.Second + time.Duration(random.Int64N(int64(time.Hour-20*time.Second)))
		dc, _, err := r.publish(c.ch, d, random.Uint64())
		if err != nil {
			return 0, err
		}
		if last = append(last, dc); len(last) == window {
			if err := wait(window / 2); err != nil {
				return 0, err
			}
		}
	}
	if err := wait(len(last)); err != nil {
		return 0, err
	}
	return float64(o.messages) / time.Since(start).Seconds(), nil
}

// heldLateness publishes at a steady rate with delays uniform to 20 s and reads
// how long after its time each message arrives.
func heldLateness(ctx context.Context, b *rabbittest.Broker, o options, r rival, rate int) ([]figure, error) {
	c, done, err := stage(ctx, b, r, longestDelay)
	if err != nil {
		return nil, err
	}
	defer done()
	in, err := c.conn.Channel()
	if err != nil {
		return nil, err
	}
	if err := in.Qos(o.prefetch, 0, false); err != nil {
		return nil, err
	}
	deliveries, err := in.Consume(workQueue, "", false, false, false, false, nil)
	if err != nil {
		return nil, err
	}
	type arrival struct{ due, late int64 }
	arrivals := make(chan []arrival, 1)
	// Delays begin at full length everywhere only after the longest of them.
	total := longestDelay + o.duration
	n := int(total.Seconds()) * rate
	go func() {
		var all []arrival
		for d := range deliveries {
			due, _ := d.Headers["due"].(int64)
			all = append(all, arrival{due, time.Now().UnixMilli() - due})
			if d.Ack(false) != nil {
				break
			}
			if len(all) == n {
				break
			}
		}
		arrivals <- all
	}()

	random := rand.New(rand.NewPCG(2, 2))
	began := time.Now()
	confirms := make(chan *amqp.DeferredConfirmation, 4*rate)
	unconfirmed := make(chan int, 1)
	go func() {
		bad := 0
		for dc := range confirms {
			if !dc.Wait() {
				bad++
			}
		}
		unconfirmed <- bad
	}()
	for i := range n {
		at := began.Add(time.Duration(i) * time.Second / time.Duration(rate))
		if early := time.Until(at); early > time.Millisecond {
			time.Sleep(early)
		}
		d := 100*time.Millisecond + time.Duration(random.Int64N(int64(longestDelay-100*time.Millisecond)))
		dc, _, err := r.publish(c.ch, d, random.Uint64())
		if err != nil {
			return nil, err
		}
		confirms <- dc
	}
	sentIn := time.Since(began)
	close(confirms)
	if bad := <-unconfirmed; bad > 0 {
		return nil, fmt.Errorf("%d of %d publishes were not confirmed", bad, n)
	}
	var all []arrival
	select {
	case all = <-arrivals:
	case <-time.After(longestDelay + 3*time.Minute):
		return nil, fmt.Errorf("not all of %d messages came back", n)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	from, until := began.Add(longestDelay).UnixMilli(), began.Add(total).UnixMilli()
	var late []int64
	for _, a := range all {
		if a.due >= from && a.due < until {
			late = append(late, a.late)
		}
	}
	slices.Sort(late)
	if len(late) == 0 {
		return nil, errors.New("nothing came back in time to be counted")
	}
	at := func(q float64) float64 { return float64(late[int(q*float64(len(late)-1))]) }
	name := fmt.Sprintf("%s: late at %d/s, delays uniform to %s", r.name, rate, longestDelay)
	return []figure{
		{Name: name + ", p50", Value: at(.5), Unit: "ms"},
		{Name: name + ", p99", Value: at(.99), Unit: "ms", Ratio: fmt.Sprintf("%d messages, sent at %.0f/s", len(late), float64(n)/sentIn.Seconds())},
	}, nil
}
