package integration

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/simulate"
)

// The tolerance of the simulator, which docs/simulate.md states: between the
// real load curve and the simulated one, of all calls at most so many (as a
// share) may have happened at another time, later or earlier; the calls in all,
// and the peak, may differ by so much.
const (
	simulateShifted = 0.10
	simulateCalls   = 0.10
	simulatePeak    = 0.30
)

// simulatedWorld is the scenario that is played on both sides, in seconds where
// reality has minutes: 400 calls hang and then fail at once, the dependency is
// down for 5.5 s more, with no spike near its end, and has room for 50 calls a second, and 15 a second go on
// coming. Calls may stand in line for four seconds, many times what a broker on
// a busy machine is late: what it does to a herd that is to be refused within
// milliseconds depends on that lateness more than on the policy.
func simulatedWorld(seed uint64, broker simulate.Broker) simulate.Scenario {
	return simulate.Scenario{
		Name: "validation", Seed: seed, Window: time.Second, Until: 5 * time.Minute,
		Traffic:   []simulate.Traffic{{Messages: 400}, {At: 2 * time.Second, Rate: 15, For: 16 * time.Second}},
		Consumers: simulate.Consumers{Count: 4, Concurrency: 100, Prefetch: 100},
		Dependency: simulate.Dependency{
			Capacity: 50, Line: 4 * time.Second, Latency: 20 * time.Millisecond, FailAfter: 5 * time.Millisecond,
			Spells: []simulate.Spell{{For: 2 * time.Second, Hang: true}, {At: 2 * time.Second, For: 5500 * time.Millisecond}},
		},
		Broker: broker,
	}
}

// scripted is the dependency of that world, played in this process and on the
// clock of the machine. It shares no code with the simulator.
type scripted struct {
	s     simulate.Scenario
	once  sync.Once
	start time.Time // of the first call

	mu   sync.Mutex
	free time.Time // when it has answered everyone in line
	at   []time.Duration
	ok   int
}

var errScripted = errors.New("scripted failure")

func (d *scripted) call(context.Context, *hopback.Message) error {
	d.once.Do(func() { d.start = time.Now() })
	now := time.Now()
	since := now.Sub(d.start)
	d.mu.Lock()
	d.at = append(d.at, since)
	d.mu.Unlock()
	dep := d.s.Dependency
	for _, sp := range dep.Spells {
		if since < sp.At || since >= sp.At+sp.For {
			continue
		}
		if sp.Hang {
			time.Sleep(sp.At + sp.For - since)
		} else {
			time.Sleep(dep.FailAfter)
		}
		return errScripted
	}
	d.mu.Lock()
	begin := now
	if d.free.After(begin) {
		begin = d.free
	}
	full := begin.Sub(now) > dep.Line
	if !full {
		d.free = begin.Add(time.Duration(float64(time.Second) / dep.Capacity))
		d.ok++
	}
	d.mu.Unlock()
	if full {
		time.Sleep(dep.FailAfter)
		return errScripted
	}
	time.Sleep(begin.Sub(now) + dep.Latency)
	return nil
}

// calls are the calls by window.
func (d *scripted) calls() []float64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	var curve []float64
	for _, at := range d.at {
		i := int(at / d.s.Window)
		for len(curve) <= i {
			curve = append(curve, 0)
		}
		curve[i]++
	}
	return curve
}

// The same scenario on a real broker with the real consumer gives the simulator's
// load curve, within the tolerance that is stated above. The simulated curve is
// the mean over seeds: the delays of reality have a seed that nobody knows.
func TestSoakSimulatorAgainstReality(t *testing.T) {
	soak(t)
	broker := measureSlots(t)
	for _, jitter := range []struct {
		name   string
		policy hopback.Policy
	}{
		{"none", hopback.Policy{Schedule: hopback.Schedule{Jitter: hopback.NoJitter, Max: 8 * time.Second}, MaxRetries: 12}},
		{"full", hopback.Policy{Schedule: hopback.Schedule{Jitter: hopback.Full, Max: 8 * time.Second}, MaxRetries: 12}},
		{"equal", hopback.Policy{Schedule: hopback.Schedule{Jitter: "equal", Max: 8 * time.Second}, MaxRetries: 12}},
	} {
		t.Run(jitter.name, func(t *testing.T) {
			route := hopback.Route{Queue: "work", Policy: jitter.policy, Mechanism: hopback.Wheel, Precision: hopback.PrecisionTwo}
			real, handled, lost := playScenario(t, route)
			simulated, seeds := []float64{}, 20.0
			var parked, waiting int64
			for seed := range uint64(seeds) {
				report, err := simulate.Run(t.Context(), simulatedWorld(seed, broker), simulate.Route(route))
				if err != nil {
					t.Fatal(err)
				}
				r := report.Results[0]
				parked, waiting = parked+r.Parked, waiting+r.Waiting
				for i, step := range r.Curve.Steps {
					for len(simulated) <= i {
						simulated = append(simulated, 0)
					}
					simulated[i] += float64(step.Calls) / seeds
				}
			}
			all := simulatedWorld(0, broker).Messages()
			if int64(handled+lost) != all || waiting > 0 || math.Abs(float64(lost)-float64(parked)/seeds) > 0.05*float64(all) {
				t.Errorf("%d handled and %d parked of %d; simulated: %.1f parked", handled, lost, all, float64(parked)/seeds)
			}
			compareCurves(t, jitter.name, real, simulated)
		})
	}
}

// measureSlots measures how fast and how late this broker lets a herd out of a
// slot, on this machine as busy as it is: that is what the simulator has to be
// told of it. The middle nine tenths of 400 messages give the rate, and the
// first the lateness.
func measureSlots(t *testing.T) simulate.Broker {
	w := newWorld(t)
	w.declare("work", "quorum")
	const herd, wait = 400, 2 * time.Second
	c := &calls{}
	start := make(chan struct{})
	route := quickRoute("work", 1)
	route.Policy.Base, route.Policy.Max, route.Policy.MaxRetryAfter, route.Ladder = wait, wait, wait, []time.Duration{wait}
	w.runConsumer(hopback.ConsumerConfig{
		Route: route, Concurrency: herd, Prefetch: herd,
		Handler: c.handler(func(_ context.Context, m *hopback.Message) error {
			if m.Attempt > 1 {
				return nil
			}
			<-start // all fail in one instant
			return errScripted
		}),
	})
	var ids []string
	for i := range herd {
		ids = append(ids, fmt.Sprint(i))
	}
	w.send("work", ids...)
	eventually(t, "all wait", func() bool { return len(c.of()) == herd })
	failed := time.Now()
	close(start)
	eventually(t, "all are back", func() bool { return len(c.of()) == 2*herd })
	var back []time.Duration
	for _, k := range c.of() {
		if k.Attempt == 2 {
			back = append(back, k.Began.Sub(failed)-wait)
		}
	}
	slices.Sort(back)
	rate := 0.9 * herd / (back[herd*95/100] - back[herd*5/100]).Seconds()
	b := simulate.Broker{Confirm: 10 * time.Millisecond, Hop: max(back[0], 0).Round(time.Millisecond), Rate: math.Round(rate)}
	t.Logf("the slots of this broker, now: %.0f messages a second, the first %s late", rate, back[0].Round(time.Millisecond))
	return b
}

// playScenario plays the scenario on the broker and returns the calls by window,
// and how many messages were handled and parked.
func playScenario(t *testing.T, route hopback.Route) (curve []float64, handled, parked int) {
	w := newWorld(t)
	w.declare("work", "quorum")
	s := simulatedWorld(0, simulate.Broker{})
	d := &scripted{s: s}
	for range s.Consumers.Count {
		w.runConsumer(hopback.ConsumerConfig{
			Route: route, Concurrency: s.Consumers.Concurrency, Prefetch: s.Consumers.Prefetch, Handler: hopback.HandlerFunc(d.call),
		})
	}
	var ids []amqp.Publishing
	for i := range s.Traffic[0].Messages {
		ids = append(ids, amqp.Publishing{DeliveryMode: amqp.Persistent, MessageId: fmt.Sprint(i), Body: []byte("x")})
	}
	w.publish("", "work", ids...)
	eventually(t, "the first call", func() bool { return len(d.calls()) > 0 })
	steady := s.Traffic[1]
	n := int(steady.Rate * steady.For.Seconds())
	for i := range n {
		time.Sleep(time.Until(d.start.Add(steady.At + time.Duration(float64(i)/steady.Rate*float64(time.Second)))))
		w.send("work", fmt.Sprintf("steady-%d", i))
	}
	all := int(s.Messages())
	for end := time.Now().Add(s.Until + patience); ; time.Sleep(100 * time.Millisecond) {
		handled, parked = len(w.events.of("handled")), len(w.events.of("parked"))
		if handled+parked >= all || time.Now().After(end) {
			return d.calls(), handled, parked
		}
	}
}

// compareCurves holds two curves of calls by window against the tolerance, and
// logs both.
func compareCurves(t *testing.T, name string, real, simulated []float64) {
	t.Helper()
	for len(real) < len(simulated) {
		real = append(real, 0)
	}
	for len(simulated) < len(real) {
		simulated = append(simulated, 0)
	}
	var sums [2]float64
	peaks := [2]float64{}
	var b strings.Builder
	for i := range real {
		sums[0], sums[1] = sums[0]+real[i], sums[1]+simulated[i]
		peaks[0], peaks[1] = max(peaks[0], real[i]), max(peaks[1], simulated[i])
	}
	// The distance of the two distributions over time, as Kolmogorov and Smirnov
	// measure it, in windows: a spike at the edge of two may fall into either.
	shifted, a, before := 0.0, 0.0, 0.0
	next := 0.0
	for i := range real {
		a += real[i] / sums[0]
		at := before + simulated[i]/sums[1]
		next = at
		if i+1 < len(simulated) {
			next += simulated[i+1] / sums[1]
		}
		switch {
		case a < before:
			shifted = max(shifted, before-a)
		case a > next:
			shifted = max(shifted, a-next)
		}
		before = at
		if real[i] > 0 || simulated[i] >= 0.5 {
			fmt.Fprintf(&b, "%3d s  real %4.0f %-40s simulated %4.0f %s\n", i, real[i], bar(real[i], peaks[0]), simulated[i], bar(simulated[i], peaks[0]))
		}
	}
	t.Logf("%s: calls %.0f, simulated %.0f; peak %.0f, simulated %.0f; shifted %.1f %%\n%s", name, sums[0], sums[1], peaks[0], peaks[1], 100*shifted, b.String())
	if off := math.Abs(sums[0]-sums[1]) / sums[1]; off > simulateCalls {
		t.Errorf("%s: %.0f calls, simulated %.0f: %.0f %% apart", name, sums[0], sums[1], 100*off)
	}
	if shifted > simulateShifted {
		t.Errorf("%s: %.1f %% of the calls at another time", name, 100*shifted)
	}
	if off := math.Abs(peaks[0]-peaks[1]) / peaks[1]; off > simulatePeak {
		t.Errorf("%s: peak of %.0f, simulated %.0f", name, peaks[0], peaks[1])
	}
}

func bar(n, most float64) string {
	return strings.Repeat("█", int(math.Round(n/max(most, 1)*40)))
}
