package backoff_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/hopback/hopback/backoff"
)

var sink time.Duration

// Every kind with every jitter. The target is 50 ns and no allocation a call.
func BenchmarkDelay(b *testing.B) {
	for _, kind := range backoff.Kinds() {
		for _, jitter := range backoff.Jitters() {
			s := backoff.Schedule{Backoff: kind, Jitter: jitter, Max: time.Hour}
			if kind == backoff.List {
				s.Delays = seconds(10, 60, 600)
			}
			s = s.WithDefaults()
			b.Run(fmt.Sprintf("%s/%s", kind, jitter), func(b *testing.B) {
				b.ReportAllocs()
				n, bits := int64(0), uint64(0)
				for b.Loop() {
					n = n%12 + 1
					bits += 0x9e3779b97f4a7c15
					sink = s.Delay(n, sink, bits)
				}
			})
		}
	}
}

// The dearest schedules: factors without a shortcut, late retries, defaults not written out.
func BenchmarkDelayWorst(b *testing.B) {
	for _, bench := range []struct {
		name string
		s    backoff.Schedule
		n    int64
	}{
		{"factor 1.5, retry 12", backoff.Schedule{Factor: 1.5, Max: time.Hour, Jitter: backoff.Proportional}, 12},
		{"factor 1.1, retry 80", backoff.Schedule{Factor: 1.1, Max: time.Hour, Jitter: backoff.Proportional}, 80},
		{"factor 1.001, retry 8000", backoff.Schedule{Factor: 1.001, Max: time.Hour, Jitter: backoff.Proportional}, 8000},
		{"factor 1.000001, last retry", backoff.Schedule{Factor: 1.000001, Max: 1<<63 - 1, Jitter: backoff.Proportional}, 1<<63 - 1},
		{"fibonacci, last retry", backoff.Schedule{Backoff: backoff.Fibonacci, Max: time.Hour}, 1<<63 - 1},
		{"list of 10, no defaults", backoff.Schedule{Backoff: backoff.List, Delays: seconds(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)}, 5},
		{"zero schedule", backoff.Schedule{}, 5},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			bits := uint64(0)
			for b.Loop() {
				bits += 0x9e3779b97f4a7c15
				sink = bench.s.Delay(bench.n, sink, bits)
			}
		})
	}
}

func BenchmarkSeed(b *testing.B) {
	b.ReportAllocs()
	n := int64(0)
	for b.Loop() {
		n++
		sink = time.Duration(backoff.Seed("7c9e6679-7425-40de-944b-e07fc1f90ae7", n))
	}
}

func BenchmarkBand(b *testing.B) {
	for _, jitter := range backoff.Jitters() {
		b.Run(string(jitter), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, sink, _ = backoff.Schedule{Jitter: jitter}.Band(10)
			}
		})
	}
}
