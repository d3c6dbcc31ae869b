package simulate

import (
	"errors"
	"fmt"
	"time"

	"github.com/hopback/hopback"
)

// Scenario is a world to try policies in. It is a plain value; the yaml tags
// are the keys of a scenario file.
type Scenario struct {
	// Name and About say what it is, in a word and in a sentence.
	Name  string `yaml:"name"`
	About string `yaml:"about"`

	// Seed fixes everything that is random.
	Seed uint64 `yaml:"seed"`

	// Traffic is what producers send. Several entries add up.
	Traffic []Traffic `yaml:"traffic"`

	Consumers  Consumers  `yaml:"consumers"`
	Dependency Dependency `yaml:"dependency"`
	Broker     Broker     `yaml:"broker"`

	// Window is the step of the load curve, and what peaks are measured in: the
	// peak is the window with the most calls. 0 means 1 s.
	Window time.Duration `yaml:"window"`

	// Until ends the simulation though messages wait. 0 means 25 h, an hour
	// longer than the default policy lets a message live. At most 49 days.
	Until time.Duration `yaml:"until"`
}

// Traffic is a number of messages over a span of time.
type Traffic struct {
	// At is when the first may come, and For how long they keep coming; a For of
	// 0 sends all of them in the same millisecond.
	At  time.Duration `yaml:"at"`
	For time.Duration `yaml:"for"`

	// Messages is how many come in all. Rate is another way to say it, in
	// messages a second over For.
	Messages int64   `yaml:"messages"`
	Rate     float64 `yaml:"rate"`

	// Poison is the share of them, 0 to 1, that fails however often it is tried.
	// Such a message costs the dependency a call each time.
	Poison float64 `yaml:"poison"`
}

func (t Traffic) messages() int64 {
	if t.Messages > 0 {
		return t.Messages
	}
	return int64(t.Rate*t.For.Seconds() + 0.5)
}

// Consumers are the processes that read the work queue, all alike.
type Consumers struct {
	// Count is how many there are. 0 means 10.
	Count int `yaml:"count"`

	// Concurrency is how many handlers each runs at once. 0 means 10, as in
	// hopback.ConsumerConfig.
	Concurrency int `yaml:"concurrency"`

	// Prefetch is how many unsettled messages each may have. 0 means what
	// hopback.ConsumerConfig makes of it: four times Concurrency, 50 to 2000.
	Prefetch int `yaml:"prefetch"`
}

// Broker is how long the broker takes. The zero value takes no time.
type Broker struct {
	// Confirm is the time from a publish to its confirm, which is when a failed
	// message is settled and its prefetch is free again.
	Confirm time.Duration `yaml:"confirm"`

	// Hop is how much later than its TTL a message leaves a slot.
	Hop time.Duration `yaml:"hop"`

	// Rate is how many messages a second leave the slots, all together. Those of
	// a herd that are due in the same instant leave one after the other: a real
	// broker takes the edge off a spike. 0 means any number.
	Rate float64 `yaml:"rate"`
}

// What a zero field means.
const (
	defaultWindow      = time.Second
	defaultUntil       = 25 * time.Hour
	defaultCount       = 10
	defaultConcurrency = 10
	defaultLatency     = 20 * time.Millisecond
	defaultLine        = 500 * time.Millisecond
	defaultTimeout     = 30 * time.Second
	defaultRecovery    = 10 * time.Second
	maxPrefetch        = 2000 // of a quorum queue

	// longest is what 32 bits of milliseconds can count, less an attempt.
	longest = 49 * 24 * time.Hour
)

// WithDefaults returns the scenario with every zero field replaced by its
// default. The slices are copies.
func (s Scenario) WithDefaults() Scenario {
	set := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	set(&s.Window, defaultWindow)
	set(&s.Until, defaultUntil)
	if s.Consumers.Count == 0 {
		s.Consumers.Count = defaultCount
	}
	if s.Consumers.Concurrency == 0 {
		s.Consumers.Concurrency = defaultConcurrency
	}
	if s.Consumers.Prefetch == 0 {
		s.Consumers.Prefetch = min(max(4*s.Consumers.Concurrency, 50), maxPrefetch)
	}
	s.Dependency = s.Dependency.withDefaults()
	s.Traffic = append([]Traffic(nil), s.Traffic...)
	return s
}

// Validate reports every field that cannot work, each as a
// *hopback.ConfigError that names it, its value and the fix.
func (s Scenario) Validate() error {
	s = s.WithDefaults()
	var errs []error
	check := func(ok bool, field string, value any, fix string) {
		if !ok {
			errs = append(errs, &hopback.ConfigError{Field: field, Value: fmt.Sprint(value), Fix: fix})
		}
	}
	check(len(s.Traffic) > 0, "traffic", "", "say what is sent, such as {messages: 1000} or {rate: 50, for: 2m}")
	total := int64(0)
	for i, t := range s.Traffic {
		at := fmt.Sprintf("traffic[%d].", i)
		check(t.At >= 0 && t.At <= longest, at+"at", t.At, "use 0s to 49 days")
		check(t.For >= 0 && t.For <= longest, at+"for", t.For, "use 0s to 49 days")
		check(t.Messages >= 0, at+"messages", t.Messages, "use a positive number")
		check(t.Rate >= 0 && t.Rate <= 1e9, at+"rate", t.Rate, "use messages a second, at most 1e9")
		check(t.Messages == 0 || t.Rate == 0, at+"rate", t.Rate, "give messages or a rate, not both")
		check(t.Rate == 0 || t.For > 0, at+"for", t.For, "a rate needs to know for how long, such as 2m")
		check(t.messages() > 0, at+"messages", t.messages(), "send at least one message: give messages, or a rate with for")
		check(share(t.Poison), at+"poison", t.Poison, "use a share from 0 to 1")
		total += max(t.messages(), 0)
	}
	check(total <= 1<<31, "traffic", total, "send at most 2147483648 messages in all")
	c := s.Consumers
	check(c.Count >= 1 && c.Count <= 10_000, "consumers.count", c.Count, "use 1 to 10000")
	check(c.Concurrency >= 1 && c.Concurrency <= 10_000, "consumers.concurrency", c.Concurrency, "use 1 to 10000")
	check(c.Prefetch >= 1 && c.Prefetch <= maxPrefetch, "consumers.prefetch", c.Prefetch, "use 1 to 2000: quorum queues allow no more")
	check(s.Broker.Confirm >= 0 && s.Broker.Confirm <= time.Minute, "broker.confirm", s.Broker.Confirm, "use 0s to 1m")
	check(s.Broker.Hop >= 0 && s.Broker.Hop <= time.Hour, "broker.hop", s.Broker.Hop, "use 0s to 1h")
	check(s.Broker.Rate >= 0 && s.Broker.Rate <= 1e6, "broker.rate", s.Broker.Rate, "use messages a second, at most 1e6; 0 means any number")
	check(s.Window >= time.Millisecond && s.Window <= time.Hour, "window", s.Window, "use 1ms to 1h")
	check(s.Until > 0 && s.Until <= longest, "until", s.Until, "use a positive duration of at most 49 days")
	check(s.Until/max(s.Window, 1) <= maxBins, "window", s.Window, fmt.Sprintf("the curve would have more than %d steps: use a longer window or a shorter until", maxBins))
	s.Dependency.check(check)
	return errors.Join(errs...)
}

func share(p float64) bool { return p >= 0 && p <= 1 }

// Messages is how many messages the scenario sends.
func (s Scenario) Messages() int64 {
	n := int64(0)
	for _, t := range s.Traffic {
		n += t.messages()
	}
	return n
}

// Over is when the last trouble of the dependency is over, counted from the
// start; false where it has none or the last never ends.
func (s Scenario) Over() (time.Duration, bool) {
	over := time.Duration(0)
	for _, sp := range s.Dependency.Spells {
		if sp.For == 0 {
			return 0, false
		}
		over = max(over, sp.At+sp.For)
	}
	return over, len(s.Dependency.Spells) > 0
}

// Outage is a scenario to test policies in: a dependency that takes 100 calls a
// second is asked for 50, goes down for d after ten seconds, comes back with
// half of its capacity for ten seconds, and collapses when it is asked for more
// than it can do. Ten consumers of ten handlers each.
func Outage(d time.Duration) Scenario {
	return Scenario{
		Name:    "outage",
		About:   fmt.Sprintf("a dependency with room for 100 calls a second, asked for 50, is down for %s", d),
		Seed:    1,
		Traffic: []Traffic{{For: 10*time.Second + d, Rate: 50}},
		Dependency: Dependency{
			Capacity: 100, Collapse: 0.5, Recovery: 5 * time.Second,
			Spells: []Spell{{At: 10 * time.Second, For: d}},
		},
		Broker: Broker{Confirm: 2 * time.Millisecond, Hop: 10 * time.Millisecond},
	}
}
