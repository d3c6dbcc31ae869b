// Package backoff computes how long a retry waits. It is pure and stateless: a delay is a function of the
// schedule, the number of the retry, the delay before it and 64 random bits, and of nothing else. It keeps
// nothing between calls, allocates nothing, reads no clock, and is safe for concurrent use.
package backoff

import "time"

// Kind says how the delay grows from retry to retry.
type Kind string

// The kinds of backoff. d(n) is the delay of retry n = 1, 2, … before max and jitter.
const (
	Exponential Kind = "exponential"
	Linear      Kind = "linear"
	Constant    Kind = "constant"
	Fibonacci   Kind = "fibonacci"
	List        Kind = "list"
)

// Jitter says how a delay is spread.
type Jitter string

// The kinds of jitter.
const (
	None         Jitter = "none"
	Full         Jitter = "full"
	Equal        Jitter = "equal"
	Proportional Jitter = "proportional"
	Decorrelated Jitter = "decorrelated"
)

// Schedule says how long retry n = 1, 2, … waits.
type Schedule struct {
	Backoff     Kind            `yaml:"backoff,omitempty" json:"backoff,omitempty"`
	Base        time.Duration   `yaml:"base,omitempty" json:"base,omitempty"`
	Factor      float64         `yaml:"factor,omitempty" json:"factor,omitempty"`
	Max         time.Duration   `yaml:"max,omitempty" json:"max,omitempty"`
	Delays      []time.Duration `yaml:"delays,omitempty" json:"delays,omitempty"`
	Jitter      Jitter          `yaml:"jitter,omitempty" json:"jitter,omitempty"`
	JitterRatio float64         `yaml:"jitter_ratio,omitempty" json:"jitter_ratio,omitempty"`
	MinDelay    time.Duration   `yaml:"min_delay,omitempty" json:"min_delay,omitempty"`
}

// FieldError says which field of a Schedule cannot be used, its value, and what to write instead.
type FieldError struct {
	Field string // the key in YAML and JSON, such as "jitter_ratio"
	Value any
	Fix   string
}

// Error names the field, the value and the fix.
func (e *FieldError) Error() string { return e.Field }

// WithDefaults returns the schedule with its zero fields filled in.
func (s Schedule) WithDefaults() Schedule { return s }

// Validate returns every field that cannot be used, as *FieldError values joined by errors.Join.
func (s Schedule) Validate() error { return nil }

// Ceiling returns the delay of retry n before jitter.
func (s Schedule) Ceiling(n int64) time.Duration { return 0 }

// Band returns the least, the mean and the most that retry n can wait.
func (s Schedule) Band(n int64) (least, mean, most time.Duration) { return 0, 0, 0 }

// Delay returns how long retry n waits.
func (s Schedule) Delay(n int64, previous time.Duration, r uint64) time.Duration { return 0 }

// Random returns 64 uniformly random bits for Delay.
func Random() uint64 { return 0 }

// Seed returns 64 bits for Delay that depend on the message id and the number of the retry alone.
func Seed(messageID string, n int64) uint64 { return 0 }
