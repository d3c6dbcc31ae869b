package delay

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func TestPluginHolds(t *testing.T) {
	p := NewPlugin(Names{Prefix: "hop"})
	for _, c := range []struct {
		delay time.Duration
		want  time.Duration
	}{
		{0, time.Millisecond}, // at 0 the plugin would not hold it
		{-time.Hour, time.Millisecond},
		{time.Nanosecond, time.Millisecond},
		{time.Millisecond, time.Millisecond},
		{time.Millisecond + 1, 2 * time.Millisecond}, // never early
		{3456 * time.Millisecond, 3456 * time.Millisecond},
		{1000 * time.Hour, 1000 * time.Hour},
		{PluginLongest, PluginLongest},
		{PluginLongest + 1, PluginLongest}, // one more, and it would come at once
		{math.MaxInt64, PluginLongest},
	} {
		h := p.Hold(Request{Delay: c.delay, Random: 1 << 63, Avoid: "hop.delay.plugin"})
		want := Hold{Exchange: "hop.delay.plugin", Delay: c.want, XDelay: c.want.Milliseconds()}
		if h != want {
			t.Errorf("%s: %+v, want %+v", c.delay, h, want)
		}
	}
}

// What the plugin takes for a delay is a positive integer that fits 32 bits
// unsigned; with anything else the message is there at once.
func TestPluginAlwaysDelays(t *testing.T) {
	p := NewPlugin(Names{Prefix: "hop", Owner: "orders"})
	r := rand.New(rand.NewPCG(7, 7))
	for range 10_000 {
		d := time.Duration(r.Uint64()) >> r.IntN(64)
		h := p.Hold(Request{Delay: d, Exact: r.IntN(2) == 0, Random: r.Uint64()})
		switch {
		case h.XDelay < 1 || h.XDelay > math.MaxUint32:
			t.Fatalf("%s: x-delay %d", d, h.XDelay)
		case h.Delay != time.Duration(h.XDelay)*time.Millisecond:
			t.Fatalf("%s: %+v does not say what it waits", d, h)
		case h.Delay < min(d, PluginLongest) || h.Delay >= max(d, 0)+time.Millisecond+1 && d > 0:
			t.Fatalf("%s: waits %s", d, h.Delay)
		}
	}
}

// The one exchange, and the one binding on which everything depends. An
// alternate exchange would let a copy leave at once.
func TestPluginTopology(t *testing.T) {
	for owner, name := range map[string]string{"": "hop.delay.plugin", "orders": "hop.orders.delay.plugin"} {
		p := NewPlugin(Names{Prefix: "hop", Owner: owner})
		top := p.Topology()
		if err := top.Validate(); err != nil {
			t.Fatal(err)
		}
		if len(top.Exchanges) != 1 || len(top.Queues) != 0 || len(top.Bindings) != 1 || p.Slots() != nil {
			t.Fatalf("%+v, slots %v", top, p.Slots())
		}
		x, b := top.Exchanges[0], top.Bindings[0]
		if x.Name != name || x.Kind != "x-delayed-message" || x.Args["x-delayed-type"] != "fanout" || len(x.Args) != 1 {
			t.Errorf("exchange %+v", x)
		}
		if b.Source != name || b.Destination != "hop.return" || !b.ToExchange || b.Key != "" || len(b.Args) != 0 {
			t.Errorf("binding %+v", b)
		}
		if b.Source != p.Way().Source || b.Destination != p.Way().Destination {
			t.Errorf("the way is %+v, want %+v", p.Way(), b)
		}
	}
}

// Every mechanism that is not the plugin publishes mandatory.
func TestOthersHaveNoXDelay(t *testing.T) {
	names := Names{Prefix: "hop"}
	for _, m := range []Mechanism{NewWheel(names, time.Hour, Two, nil), NewLadder(names, []time.Duration{time.Second})} {
		if h := m.Hold(Request{Delay: 3400 * time.Millisecond}); h.XDelay != 0 {
			t.Errorf("%s: %+v", m.Name(), h)
		}
	}
}

// What it costs is said in the words that people look for.
func TestPluginCost(t *testing.T) {
	for _, word := range []string{"one node", "mandatory", "4294967295", "2026-01-29", "4.3"} {
		if !strings.Contains(PluginCost, word) {
			t.Errorf("%q is not in: %s", word, PluginCost)
		}
	}
}
