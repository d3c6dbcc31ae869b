package delay

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func TestLinearDelays(t *testing.T) {
	l := NewLinear(Names{Prefix: "hop"}, "orders", time.Second, 3*time.Second+500*time.Millisecond, 6)
	for n, want := range map[int64]time.Duration{
		-1: time.Second, 0: time.Second, 1: time.Second, 2: 2 * time.Second, 3: 3 * time.Second,
		4: 3500 * time.Millisecond, 5: 3500 * time.Millisecond, math.MaxInt64: 3500 * time.Millisecond,
	} {
		if got := l.Delay(n); got != want {
			t.Errorf("retry %d waits %s, want %s", n, got, want)
		}
	}
	if got, want := l.Total(), (1+2+3)*time.Second+3*3500*time.Millisecond; got != want {
		t.Errorf("in all %s, want %s", got, want)
	}
}

// The total is the sum, whatever the numbers.
func TestLinearTotal(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	for range 500 {
		least := time.Duration(1+r.IntN(10_000)) * time.Millisecond
		l := NewLinear(Names{}, "q", least, least+time.Duration(r.IntN(100_000))*time.Millisecond, int32(r.IntN(40)))
		var sum time.Duration
		for n := range int64(l.retries) {
			d := l.Delay(n + 1)
			if d < least || d > l.max || n > 0 && d < l.Delay(n) {
				t.Fatalf("%+v: retry %d waits %s", l, n+1, d)
			}
			sum += d
		}
		if l.Total() != sum {
			t.Fatalf("%+v: in all %s, want %s", l, l.Total(), sum)
		}
	}
}

// The definition is what goes to the broker, word for word.
func TestLinearPolicy(t *testing.T) {
	p := NewLinear(Names{Prefix: "hop"}, "orders.eu", 10*time.Second, 2*time.Minute, 5).Policy()
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(p.Definition)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"dead-letter-exchange":"hop.error","dead-letter-routing-key":"orders.eu","dead-letter-strategy":"at-least-once",` +
		`"delayed-retry-max":120000,"delayed-retry-min":10000,"delayed-retry-type":"all","delivery-limit":5,"overflow":"reject-publish"}`
	if string(got) != want {
		t.Errorf("definition %s\nwant       %s", got, want)
	}
	if p.Name != "hop.native-linear.orders.eu" || p.Pattern() != `^orders\.eu$` || p.ApplyTo != "quorum_queues" {
		t.Errorf("policy %q for %q, applied to %q", p.Name, p.Pattern(), p.ApplyTo)
	}
}
