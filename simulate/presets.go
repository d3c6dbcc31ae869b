package simulate

import (
	"math/bits"
	"slices"
	"time"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/backoff"
	"github.com/hopback/hopback/delay"
	"github.com/hopback/hopback/topology"
)

// preset is a well-known way to retry.
type preset struct {
	name, about, source string
	make                func() Contender
}

// ours is Hopback's default policy with another jitter.
func ours(j backoff.Jitter) func() Contender {
	return func() Contender {
		return Policy("", hopback.Policy{Schedule: hopback.Schedule{Jitter: j}})
	}
}

// exactly is a policy whose delays somebody else's broker holds to the given
// step.
func exactly(step time.Duration, retries int, s backoff.Schedule) Contender {
	return Contender{
		Route: hopback.Route{Policy: hopback.Policy{Schedule: s, MaxRetries: retries, MaxAge: hopback.Unlimited}},
		To:    precise{steps: step},
	}
}

var presets = []preset{
	{
		name: "immediate", about: "requeue at once, without end: nack with requeue=true",
		make: func() Contender { return Contender{Way: Requeued, Forever: true} },
	},
	{
		name: "constant",
		make: func() Contender {
			return Policy("", hopback.Policy{Schedule: hopback.Schedule{Backoff: hopback.Constant, Jitter: hopback.NoJitter}, MaxRetries: 60})
		},
	},
	{name: "none", make: ours(hopback.NoJitter)},
	{name: "full", make: ours(hopback.Full)},
	{name: "equal", make: ours(hopback.Equal)},
	{name: "proportional", make: ours(hopback.Proportional)},
	{name: "decorrelated", make: ours(hopback.Decorrelated)},
	{name: "wheel", make: func() Contender {
		return Contender{Route: hopback.Route{Mechanism: hopback.Wheel, Precision: hopback.PrecisionTwo}}
	}},
	{name: "wheel-one", make: func() Contender {
		return Contender{Route: hopback.Route{Mechanism: hopback.Wheel, Precision: hopback.PrecisionOne}}
	}},
	{name: "native", make: func() Contender { return Contender{Route: hopback.Route{Mechanism: hopback.Native}} }},
	{name: "ladder", make: func() Contender {
		return Contender{Route: hopback.Route{Mechanism: hopback.Ladder, Ladder: []time.Duration{
			time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second,
		}}}
	}},
	{
		name: "sleep", about: "sleep one second in the handler, 60 times, holding the message",
		make: func() Contender {
			c := exactly(time.Millisecond, 60, backoff.Schedule{Backoff: backoff.Constant, Jitter: backoff.None})
			c.Way = InHandler
			return c
		},
	},
	{
		name: "celery", about: "Celery's retry(): 3 retries, 180 s apart",
		source: "celery/app/task.py: max_retries = 3, default_retry_delay = 3 * 60",
		make: func() Contender {
			return exactly(time.Second, 3, backoff.Schedule{Backoff: backoff.Constant, Base: 3 * time.Minute, Max: 3 * time.Minute, Jitter: backoff.None})
		},
	},
	{
		name: "celery-backoff", about: "Celery's retry_backoff=True: whole seconds from 0 to 1, 2, 4, 3 retries",
		source: "celery/app/autoretry.py: retry_backoff_max 600, retry_jitter True; celery/utils/time.py, get_exponential_backoff_interval: randrange(min(600, 2^retries) + 1)",
		make: func() Contender {
			c := exactly(time.Second, 3, backoff.Schedule{Max: 10 * time.Minute})
			c.Delay = func(n int64, _ time.Duration, random uint64) time.Duration {
				limit := uint64(min(600, int64(1)<<min(n-1, 10)))
				seconds, _ := bits.Mul64(random, limit+1)
				return time.Duration(seconds) * time.Second
			}
			return c
		},
	},
	{
		name: "symfony", about: "Symfony Messenger: 1, 2, 4 s ± 10 %, 3 retries",
		source: "symfony/framework-bundle, messenger retry_strategy: max_retries 3, delay 1000, multiplier 2, max_delay 0, jitter 0.1 (since 7.1); Messenger/Retry/MultiplierRetryStrategy.php",
		make: func() Contender {
			return exactly(time.Millisecond, 3, backoff.Schedule{Max: time.Hour, Jitter: backoff.Proportional, JitterRatio: 0.1})
		},
	},
	{
		name: "masstransit", about: "MassTransit: no retry unless configured; to the _error queue at once",
		source: "MassTransit documentation, Concepts, Exceptions: with a default bus configuration the message is moved to an _error queue",
		make:   func() Contender { return exactly(time.Millisecond, hopback.NoRetries, backoff.Schedule{}) },
	},
	{
		name: "masstransit-redelivery", about: "MassTransit as its documentation configures it: 5 immediate retries, redelivery after 5, 15, 30 min",
		source: "MassTransit documentation, Concepts, Exceptions, Redelivery: UseDelayedRedelivery(5, 15, 30 min), UseMessageRetry(Immediate(5))",
		make: func() Contender {
			c := exactly(time.Millisecond, 3, backoff.Schedule{
				Backoff: backoff.List, Delays: []time.Duration{5 * time.Minute, 15 * time.Minute, 30 * time.Minute}, Jitter: backoff.None,
			})
			c.Immediate = 5
			return c
		},
	},
	{
		name: "sidekiq", about: "Sidekiq: n⁴ + 15 s + up to 9 s × (n + 1), 25 retries, three weeks",
		source: "sidekiq/lib/sidekiq/job_retry.rb: DEFAULT_MAX_RETRY_ATTEMPTS 25, delay (count**4) + 15, jitter rand(10) * (count + 1), since 6.0.2",
		make: func() Contender {
			c := exactly(time.Second, 25, backoff.Schedule{Max: delay.Longest})
			c.Delay = func(n int64, _ time.Duration, random uint64) time.Duration {
				count := min(n-1, 1000)
				draw, _ := bits.Mul64(random, 10)
				return time.Duration(count*count*count*count+15+int64(draw)*(count+1)) * time.Second
			}
			return c
		},
	},
	{
		name: "nservicebus", about: "NServiceBus: 5 immediate retries, then 3 delayed by 10, 20, 30 s, each with 5 immediate ones again",
		source: "NServiceBus documentation, Recoverability: NumberOfRetries 5 (immediate) and 3 (delayed), TimeIncrease 10 s; RabbitMQ transport, delayed delivery: a level for each bit of the seconds",
		make: func() Contender {
			c := exactly(time.Second, 3, backoff.Schedule{Backoff: backoff.Linear, Base: 10 * time.Second, Jitter: backoff.None})
			c.Immediate = 5
			c.To = precise{steps: time.Second, bits: true}
			return c
		},
	},
}

// Presets lists the names that [Preset] knows.
func Presets() []string {
	var names []string
	for _, p := range presets {
		names = append(names, p.name)
	}
	return names
}

// Preset is a well-known contender: a policy of Hopback's by its jitter, the
// loops that people write by hand, or the defaults of other job systems, whose
// Source says where they are from. What those do by means of their own, such as
// Sidekiq's polling of Redis every few seconds, is not simulated.
func Preset(name string) (Contender, bool) {
	i := slices.IndexFunc(presets, func(p preset) bool { return p.name == name })
	if i < 0 {
		return Contender{}, false
	}
	c := presets[i].make()
	c.Name, c.About, c.Source = name, presets[i].about, presets[i].source
	return c, true
}

// precise holds a delay to a step, rounded up. With bits it holds it in a binary
// ladder: a level for each bit of the number of steps.
type precise struct {
	steps time.Duration
	bits  bool
}

func (p precise) Name() string                { return "precise" }
func (p precise) Slots() []time.Duration      { return nil }
func (p precise) Topology() topology.Topology { return topology.Topology{} }

func (p precise) Hold(r delay.Request) delay.Hold {
	return delay.Hold{Delay: (max(r.Delay, 0) + p.steps - 1) / p.steps * p.steps}
}

func (p precise) hold(_ uint32, _ uint16, r delay.Request) (uint32, uint8) {
	d := p.Hold(r).Delay
	if p.bits {
		return millis(d), uint8(bits.OnesCount64(uint64(d / p.steps)))
	}
	return millis(d), 1
}
