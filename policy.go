package hopback

import (
	"errors"
	"fmt"
	"time"

	"github.com/hopback/hopback/backoff"
	"github.com/hopback/hopback/delay"
	"github.com/hopback/hopback/internal/fate"
)

// Schedule says how long each retry waits; see package backoff.
type Schedule = backoff.Schedule

// The shapes of a backoff and of its jitter, so that a policy can be written
// without a second import.
const (
	Exponential = backoff.Exponential
	Linear      = backoff.Linear
	Constant    = backoff.Constant
	Fibonacci   = backoff.Fibonacci
	List        = backoff.List

	NoJitter     = backoff.None
	Full         = backoff.Full
	Equal        = backoff.Equal
	Proportional = backoff.Proportional
	Decorrelated = backoff.Decorrelated
)

// NoRetries as Policy.MaxRetries parks a message at its first failure.
const NoRetries = -1

// Unlimited as Policy.MaxAge switches that limit off. Then only MaxRetries
// bounds a message's life, and nothing bounds Snooze.
const Unlimited = time.Duration(-1)

// Policy says when a failed message comes back and when it stops doing so. The
// zero value is a good policy: exponential from 1 s to 60 s with full jitter,
// five retries, parked after a day.
//
// One definition serves Go, the configuration file, the JSON Schema and the
// command line: the yaml tags are the field names in all of them.
type Policy struct {
	// Name is written into the message as x-retry-policy.
	Name string `yaml:"-" json:"name,omitempty"`

	Schedule `yaml:",inline"`

	// MaxRetries is how often a message comes back after its first failure, so
	// the handler runs at most MaxRetries+1 times. 0 means 5; NoRetries means
	// none.
	MaxRetries int `yaml:"max_retries" json:"max_retries"`

	// MaxAge is the longest time between the first failure and the next retry;
	// a message whose next retry would come later is parked as expired. It
	// bounds Snooze too. 0 means 24 hours; Unlimited switches it off.
	MaxAge time.Duration `yaml:"max_age" json:"max_age"`

	// MaxRetryAfter bounds the delays that a handler chooses with RetryAfter
	// and Snooze. 0 means one hour, or Max where that is longer.
	MaxRetryAfter time.Duration `yaml:"max_retry_after" json:"max_retry_after"`

	// PermanentTypes are names of Go error types that are never retried, with
	// or without the package: "ValidationError" or "orders.ValidationError".
	PermanentTypes []string `yaml:"permanent_types" json:"permanent_types,omitempty"`

	// Permanent are errors that are never retried, matched with errors.Is.
	Permanent []error `yaml:"-" json:"-"`
}

// WithDefaults returns the policy with every zero field replaced by its
// default.
func (p Policy) WithDefaults() Policy {
	p.Schedule = p.Schedule.WithDefaults()
	if p.MaxRetries == 0 {
		p.MaxRetries = 5
	}
	if p.MaxAge == 0 {
		p.MaxAge = 24 * time.Hour
	}
	if p.MaxRetryAfter == 0 {
		p.MaxRetryAfter = max(time.Hour, p.Max)
	}
	return p
}

// Validate reports every field that cannot work, each as a *ConfigError or a
// *backoff.FieldError that names the field, its value and the fix.
func (p Policy) Validate() error { return p.validate(delay.Longest, "the longest slot") }

// validate is Validate for a mechanism that holds delays up to longest.
func (p Policy) validate(longest time.Duration, why string) error {
	p = p.WithDefaults()
	var errs []error
	if err := p.Schedule.Validate(); err != nil {
		errs = append(errs, err)
	}
	check := func(ok bool, field string, value any, fix string) {
		if !ok {
			errs = append(errs, &ConfigError{Field: field, Value: fmt.Sprint(value), Fix: fix})
		}
	}
	check(p.MaxRetries >= NoRetries, "max_retries", p.MaxRetries,
		"use a number from 0 to 1000000; in Go 0 means the default of 5, and hopback.NoRetries means none")
	check(p.MaxRetries <= 1_000_000, "max_retries", p.MaxRetries,
		"use at most 1000000: a message that fails for ever belongs in the parking queue")
	check(p.MaxAge > 0 || p.MaxAge == Unlimited, "max_age", p.MaxAge,
		"use a positive duration such as 24h")
	check(p.Max <= longest, "max", p.Max, fmt.Sprintf("use at most %s, %s", longest, why))
	check(p.MaxRetryAfter >= 0, "max_retry_after", p.MaxRetryAfter,
		"use a positive duration such as 1h")
	check(p.MaxRetryAfter <= longest, "max_retry_after", p.MaxRetryAfter, fmt.Sprintf("use at most %s, %s", longest, why))
	for i, name := range p.PermanentTypes {
		check(name != "", fmt.Sprintf("permanent_types[%d]", i), name, "name an error type, such as ValidationError")
	}
	return errors.Join(errs...)
}

// retries is MaxRetries with NoRetries read as 0.
func (p Policy) retries() int32 { return int32(max(p.MaxRetries, 0)) }

// limits are what decides about a failure.
func (p Policy) limits() fate.Limits {
	return fate.Limits{Schedule: p.Schedule, MaxRetries: p.retries(), MaxAge: p.MaxAge, MaxRetryAfter: p.MaxRetryAfter}
}

// longest is the longest delay that the policy can ask for.
func (p Policy) longest() time.Duration { return max(p.Max, p.MaxRetryAfter) }

// ConfigError says which setting cannot work and what to write instead.
// Nothing has been declared or published when one is returned.
type ConfigError struct {
	Field string // as in the configuration file, e.g. "routes[0].queue"
	Value string
	Fix   string
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("%s: %q cannot work: %s", e.Field, e.Value, e.Fix)
}
