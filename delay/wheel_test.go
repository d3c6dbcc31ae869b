package delay

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/hopback/hopback/topology"
)

// mechanism is a Mechanism under test with the longest delay that it is for.
type mechanism struct {
	Mechanism
	name    string
	longest time.Duration
}

func wheels() []mechanism {
	var all []mechanism
	for _, longest := range []time.Duration{
		time.Millisecond, 100 * time.Millisecond, 900 * time.Millisecond, 950 * time.Millisecond, time.Second,
		9 * time.Second, 9960 * time.Millisecond, 10 * time.Second, 60 * time.Second, 95 * time.Second, 99 * time.Second,
		time.Hour, 24 * time.Hour, Longest, 1000 * time.Hour,
	} {
		for _, p := range []Precision{Auto, One, Two} {
			all = append(all, mechanism{
				NewWheel(Names{Prefix: "hop"}, longest, p, nil), fmt.Sprintf("wheel to %s, precision %s", longest, p), min(longest, Longest),
			})
		}
	}
	return all
}

// ways is what a topology makes of a message: which exchanges a slot may be
// published to, how long it holds, and where it goes then.
type ways struct {
	ttl  map[string]time.Duration     // of a slot, by its exchange
	then map[string]map[string]string // exchange behind a slot, by slot: x-retry-then to the next slot
	back map[string]bool              // exchanges behind a slot that lead home, for what matches nothing
}

// read checks that every slot is complete and returns the ways through it.
func read(t *testing.T, top topology.Topology, home string) ways {
	t.Helper()
	if err := top.Validate(); err != nil {
		t.Fatal(err)
	}
	w := ways{ttl: map[string]time.Duration{}, then: map[string]map[string]string{}, back: map[string]bool{home: true}}
	queues := map[string]topology.Queue{}
	for _, q := range top.Queues {
		queues[q.Name] = q
	}
	kinds := map[string]string{}
	for _, e := range top.Exchanges {
		kinds[e.Name] = e.Kind
		if e.Kind == "headers" {
			if e.Args["alternate-exchange"] != home {
				t.Errorf("exchange %s: what matches nothing goes to %v, want %s", e.Name, e.Args["alternate-exchange"], home)
			}
			w.back[e.Name] = true
		}
	}
	next := map[string]string{} // slot to the exchange behind it
	for _, b := range top.Bindings {
		q, ok := queues[b.Destination]
		if !ok {
			t.Errorf("binding %s to %s: no such queue in the topology", b.Source, b.Destination)
			continue
		}
		if b.Source == q.Name { // the slot's own
			if kinds[b.Source] != "fanout" || len(b.Args) != 0 || b.Key != "" {
				t.Errorf("slot %s: exchange kind %q, binding key %q %v: any routing key must reach it", q.Name, kinds[b.Source], b.Key, b.Args)
			}
			ttl, ok := q.Args["x-message-ttl"].(int64)
			if !ok || ttl <= 0 {
				t.Errorf("slot %s: x-message-ttl is %v", q.Name, q.Args["x-message-ttl"])
			}
			w.ttl[q.Name] = time.Duration(ttl) * time.Millisecond
			for k, want := range map[string]any{
				"x-queue-type": "quorum", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
			} {
				if q.Args[k] != want {
					t.Errorf("slot %s: %s is %v, want %v", q.Name, k, q.Args[k], want)
				}
			}
			if _, has := q.Args["x-expires"]; has {
				t.Errorf("slot %s expires, and what it holds with it", q.Name)
			}
			next[q.Name], _ = q.Args["x-dead-letter-exchange"].(string)
			continue
		}
		if b.Args["x-match"] != "all-with-x" || b.Args["x-retry-then"] != b.Destination {
			t.Errorf("binding %s to %s matches %v", b.Source, b.Destination, b.Args)
		}
		if w.then[b.Source] == nil {
			w.then[b.Source] = map[string]string{}
		}
		w.then[b.Source][b.Destination] = b.Destination
	}
	for slot, x := range next {
		if !w.back[x] {
			t.Errorf("slot %s lets its messages go into %q, which is not declared", slot, x)
		}
		w.then[slot] = w.then[x] // by slot from here on
	}
	if len(w.ttl) != len(top.Queues) {
		t.Errorf("%d queues, %d of them are complete slots", len(top.Queues), len(w.ttl))
	}
	return w
}

// follow is where a hold leads: how long a message waits in all and in how many
// slots. It fails for a way that the topology does not have.
func (w ways) follow(h Hold) (total time.Duration, hops int, err error) {
	ttl, ok := w.ttl[h.Exchange]
	if !ok {
		return 0, 0, fmt.Errorf("published to %q, which is not in the topology", h.Exchange)
	}
	total, hops = ttl, 1
	if h.Then == "" {
		return total, hops, nil
	}
	next, ok := w.then[h.Exchange][h.Then]
	if !ok {
		return 0, 0, fmt.Errorf("from %q to %q: no such binding", h.Exchange, h.Then)
	}
	if w.ttl[next] >= ttl {
		return 0, 0, fmt.Errorf("from %q to %q: not a lower slot", h.Exchange, h.Then)
	}
	if got, want := decade(w.ttl[next])*10, decade(ttl); got != want {
		return 0, 0, fmt.Errorf("from %q to %q: not in the next lower decade", h.Exchange, h.Then)
	}
	return total + w.ttl[next], hops + 1, nil
}

// someRequest is a request as a policy makes them: the bounds hold the delay.
func someRequest(r *rand.Rand, longest time.Duration) Request {
	q := Request{Random: r.Uint64(), Exact: r.IntN(2) == 0}
	// Spread over the decades, with all kinds of remainders.
	q.Delay = time.Duration(math.Pow(10, 3+r.Float64()*math.Log10(float64(longest)/1000)))
	switch r.IntN(4) {
	case 0:
		q.Delay = q.Delay.Round(100 * time.Millisecond)
	case 1:
		q.Delay = longest
	case 2:
		q.Delay = q.Delay.Truncate(time.Millisecond)
	}
	if q.Delay > longest {
		q.Delay = longest
	}
	if r.IntN(2) == 0 {
		q.Max = longest - time.Duration(r.Int64N(int64(longest-q.Delay)+1))
		q.Min = time.Duration(r.Int64N(int64(q.Delay) + 1))
	}
	return q
}

// Whatever is asked for, at whatever load: the message lands in a slot that is
// declared, waits in at most two, for as long as the hold says, and is let go
// into a binding that is there. That of an exact delay is not shorter; one with
// jitter stays within its bounds and near what was asked.
func TestWheelHolds(t *testing.T) {
	for _, m := range wheels() {
		t.Run(m.name, func(t *testing.T) {
			w := read(t, m.Topology(), "hop.return")
			r := rand.New(rand.NewPCG(1, uint64(m.longest)))
			for range 3000 {
				q := someRequest(r, m.longest)
				h := m.Hold(q)
				total, hops, err := w.follow(h)
				if err != nil {
					t.Fatalf("%+v gives %+v: %v", q, h, err)
				}
				checkHold(t, q, h, total, hops)
			}
		})
	}
}

func checkHold(t *testing.T, q Request, h Hold, total time.Duration, hops int) {
	t.Helper()
	switch {
	case total != h.Delay:
		t.Fatalf("%+v gives %+v, and waits %s", q, h, total)
	case hops > 2:
		t.Fatalf("%+v gives %+v, %d hops", q, h, hops)
	case q.Exact && h.Delay < q.Delay:
		t.Fatalf("%+v is exact and gives %s: too early", q, h.Delay)
	case h.Delay > 2*max(q.Delay, Shortest):
		t.Fatalf("%+v gives %s", q, h.Delay)
	}
	if q.Exact {
		return
	}
	// A bound that lies between two slots cannot be kept on both sides: below
	// Min is the worse of the two, since Max keeps nobody waiting for nothing.
	if h.Delay < q.Min && q.Delay >= Shortest {
		t.Fatalf("%+v gives %s: below Min", q, h.Delay)
	}
	if down := h.Delay / 2; q.Max >= Shortest && h.Delay > q.Max && down >= max(q.Min, Shortest) && q.Delay/decade(q.Delay)*decade(q.Delay) >= max(q.Min, Shortest) {
		t.Fatalf("%+v gives %s: above Max", q, h.Delay)
	}
}

// A delay with jitter is rounded both ways, so that its mean stays; the error
// of the mean of n draws with one digit is below unit/2/sqrt(n), six times that
// is allowed.
func TestWheelKeepsTheMean(t *testing.T) {
	for _, p := range []Precision{One, Two} {
		w := NewWheel(Names{Prefix: "hop"}, time.Hour, p, nil)
		r := rand.New(rand.NewPCG(3, 3))
		for _, d := range []time.Duration{
			110 * time.Millisecond, 3400 * time.Millisecond, 3456 * time.Millisecond, 9960 * time.Millisecond,
			11 * time.Second, 59 * time.Second, 61700 * time.Millisecond, 1234567 * time.Millisecond,
		} {
			const n = 20_000
			unit := decade(d)
			if p == Two && unit > Shortest {
				unit /= 10
			}
			sum, seen := 0.0, map[time.Duration]int{}
			for range n {
				h := w.Hold(Request{Delay: d, Random: r.Uint64()})
				sum += h.Delay.Seconds()
				seen[h.Delay]++
			}
			mean, allowed := sum/n, 6*unit.Seconds()/2/math.Sqrt(n)
			if math.Abs(mean-d.Seconds()) > allowed {
				t.Errorf("precision %s, delay %s: mean %.4fs, want within %.4fs: %v", p, d, mean, allowed, seen)
			}
			if len(seen) > 2 {
				t.Errorf("precision %s, delay %s: %d different delays: %v", p, d, len(seen), seen)
			}
		}
	}
}

// What each digit costs and gives.
func TestWheelDigits(t *testing.T) {
	wheel := func(p Precision) *Wheel { return NewWheel(Names{Prefix: "hop"}, Longest, p, nil) }
	for _, c := range []struct {
		p     Precision
		delay time.Duration
		want  Hold
	}{
		{Two, 3400 * time.Millisecond, Hold{Exchange: "hop.delay.3s", Then: "hop.delay.400ms", Delay: 3400 * time.Millisecond}},
		{Two, 3 * time.Second, Hold{Exchange: "hop.delay.3s", Then: "", Delay: 3 * time.Second}},
		{Two, 3401 * time.Millisecond, Hold{Exchange: "hop.delay.3s", Then: "hop.delay.500ms", Delay: 3500 * time.Millisecond}},
		{Two, 101 * time.Millisecond, Hold{Exchange: "hop.delay.200ms", Then: "", Delay: 200 * time.Millisecond}},
		{Two, 0, Hold{Exchange: "hop.delay.100ms", Then: "", Delay: 100 * time.Millisecond}},
		{Two, -time.Hour, Hold{Exchange: "hop.delay.100ms", Then: "", Delay: 100 * time.Millisecond}},
		{Two, 9999 * time.Millisecond, Hold{Exchange: "hop.delay.10s", Then: "", Delay: 10 * time.Second}},
		{Two, 15 * time.Minute, Hold{Exchange: "hop.delay.900s", Then: "", Delay: 900 * time.Second}},
		{Two, time.Hour, Hold{Exchange: "hop.delay.3000s", Then: "hop.delay.600s", Delay: time.Hour}},
		{Two, 24 * time.Hour, Hold{Exchange: "hop.delay.80000s", Then: "hop.delay.7000s", Delay: 87_000 * time.Second}},
		{Two, 1000 * time.Hour, Hold{Exchange: "hop.delay.90000s", Then: "", Delay: Longest}},
		{One, 3400 * time.Millisecond, Hold{Exchange: "hop.delay.4s", Then: "", Delay: 4 * time.Second}},
		{One, 11 * time.Second, Hold{Exchange: "hop.delay.20s", Then: "", Delay: 20 * time.Second}},
		{One, 99 * time.Second, Hold{Exchange: "hop.delay.100s", Then: "", Delay: 100 * time.Second}},
		{Auto, 11 * time.Second, Hold{Exchange: "hop.delay.10s", Then: "hop.delay.1s", Delay: 11 * time.Second}},
	} {
		if got := wheel(c.p).Hold(Request{Delay: c.delay, Exact: true}); got != c.want {
			t.Errorf("precision %s, exactly %s: %+v, want %+v", c.p, c.delay, got, c.want)
		}
	}
}

// Under load a jittered delay keeps one digit, and a promised one both; when
// the load is over, two again.
func TestWheelUnderLoad(t *testing.T) {
	load := new(Load)
	w := NewWheel(Names{Prefix: "hop"}, time.Hour, Auto, load)
	other := NewWheel(Names{Prefix: "hop", Owner: "other"}, time.Hour, Auto, load)
	jittered := Request{Delay: 3400 * time.Millisecond, Random: 1 << 63}
	if h := w.Hold(jittered); h.Then == "" {
		t.Fatalf("idle: %+v, want two digits", h)
	}
	// As many as a tenth of a second holds at BusyRate, several times over, so
	// that a pause in between does not make it idle.
	busy := false
	for range 100 * BusyRate {
		if h := other.Hold(jittered); h.Then == "" {
			busy = true
			break
		}
	}
	if !busy {
		t.Fatal("never busy")
	}
	// The window may just have ended: some more, until both are seen under load.
	exact := jittered
	exact.Exact = true
	for range 100 * BusyRate {
		h, e := w.Hold(jittered), w.Hold(exact)
		if e.Then == "" {
			t.Fatalf("a promised delay lost its second digit under load: %+v", e)
		}
		if h.Then == "" {
			deadline := time.Now().Add(time.Minute)
			for w.Hold(jittered).Then == "" {
				if time.Now().After(deadline) {
					t.Fatal("still busy a minute after the load")
				}
				time.Sleep(250 * time.Millisecond)
			}
			return
		}
	}
	t.Fatal("a wheel that shares the load of a busy one is not busy")
}

// The slot that just refused a message is not taken again where there is
// another, the message still lands in a declared one, and a promised delay does
// not get shorter.
func TestWheelAvoids(t *testing.T) {
	for _, m := range wheels() {
		t.Run(m.name, func(t *testing.T) {
			w := read(t, m.Topology(), "hop.return")
			r := rand.New(rand.NewPCG(5, uint64(m.longest)))
			for range 3000 {
				q := someRequest(r, m.longest)
				first := m.Hold(q)
				q.Avoid = first.Exchange
				h := m.Hold(q)
				total, hops, err := w.follow(h)
				if err != nil {
					t.Fatalf("%+v gives %+v: %v", q, h, err)
				}
				if total != h.Delay || hops > 2 {
					t.Fatalf("%+v gives %+v, which waits %s in %d slots", q, h, total, hops)
				}
				if q.Exact && h.Delay < q.Delay {
					t.Fatalf("%+v is exact and gives %s: too early", q, h.Delay)
				}
				slots := m.Slots()
				i := slices.Index(slots, w.ttl[q.Avoid])
				longer := i+1 < len(slots)
				shorter := i > 0 && !q.Exact && slots[i-1] >= q.Min
				switch {
				case h.Exchange == q.Avoid && (longer || shorter):
					t.Fatalf("%+v gives %+v again, and there is another slot", q, h)
				case h.Delay > q.Max && q.Max > 0 && h.Delay > first.Delay && shorter:
					t.Fatalf("%+v gives %+v, above Max, and there is a shorter slot", q, h)
				case h.Delay < q.Min && first.Delay >= q.Min:
					t.Fatalf("%+v gives %+v, below Min", q, h)
				case h.Exchange != q.Avoid && w.ttl[h.Exchange] != slots[max(i-1, 0)] && w.ttl[h.Exchange] != slots[min(i+1, len(slots)-1)]:
					t.Fatalf("%+v gives %+v, which is not a neighbour", q, h)
				}
				if h.Delay > 4*max(q.Delay, Shortest) {
					t.Fatalf("%+v gives %s", q, h.Delay)
				}
			}
		})
	}
}

// Only the slots that the delays can reach are declared.
func TestWheelSlots(t *testing.T) {
	for _, c := range []struct {
		longest time.Duration
		n       int
		last    time.Duration
	}{
		{0, 1, 100 * time.Millisecond},
		{900 * time.Millisecond, 9, 900 * time.Millisecond},
		{901 * time.Millisecond, 10, time.Second}, // which may become 1 s with one digit
		{9 * time.Second, 18, 9 * time.Second},
		{9001 * time.Millisecond, 19, 10 * time.Second},
		{60 * time.Second, 24, 60 * time.Second},
		{time.Hour, 40, 4000 * time.Second},
		{24 * time.Hour, 54, Longest},
		{1000 * time.Hour, 54, Longest},
	} {
		w := NewWheel(Names{Prefix: "hop"}, c.longest, Auto, nil)
		slots := w.Slots()
		if len(slots) != c.n || slots[len(slots)-1] != c.last || slots[0] != Shortest {
			t.Errorf("longest %s: %d slots from %s to %s, want %d to %s", c.longest, len(slots), slots[0], slots[len(slots)-1], c.n, c.last)
		}
		if !slices.IsSorted(slots) || len(slices.Compact(slices.Clone(slots))) != len(slots) {
			t.Errorf("longest %s: slots are not in rising order: %v", c.longest, slots)
		}
		top := w.Topology()
		if len(top.Queues) != len(slots) {
			t.Errorf("longest %s: %d queues for %d slots", c.longest, len(top.Queues), len(slots))
		}
		if want := len(slots) + 9*((len(slots)-1)/9); len(top.Bindings) != want {
			t.Errorf("longest %s: %d bindings, want %d: one a slot, nine into each lower decade", c.longest, len(top.Bindings), want)
		}
	}
}

// Wheels of different reach in one prefix share the slots that both have, with
// the same arguments: a second policy adds decades and changes nothing.
func TestWheelsMerge(t *testing.T) {
	names := Names{Prefix: "hop"}
	all := NewWheel(names, Longest, Auto, nil).Topology()
	for _, longest := range []time.Duration{time.Millisecond, time.Second, time.Minute, time.Hour} {
		m := all.Merge(NewWheel(names, longest, Two, nil).Topology())
		if err := m.Validate(); err != nil {
			t.Errorf("longest %s: %v", longest, err)
		}
		if len(m.Queues) != len(all.Queues) || len(m.Exchanges) != len(all.Exchanges) || len(m.Bindings) != len(all.Bindings) {
			t.Errorf("longest %s: merging added to the largest wheel", longest)
		}
	}
}

// The wheel's own arithmetic for any input: no panic, a slot, a positive delay.
func FuzzWheelHold(f *testing.F) {
	f.Add(int64(3_400_000_000), false, int64(0), int64(0), uint64(1)<<63, int64(time.Hour), uint8(0))
	f.Add(int64(-1), true, int64(math.MaxInt64), int64(-5), uint64(0), int64(0), uint8(1))
	f.Add(int64(math.MaxInt64), true, int64(1), int64(1), uint64(math.MaxUint64), int64(math.MaxInt64), uint8(2))
	f.Fuzz(func(t *testing.T, d int64, exact bool, least, most int64, random uint64, longest int64, precision uint8) {
		p := []Precision{Auto, One, Two}[precision%3]
		w := NewWheel(Names{Prefix: "hop"}, time.Duration(longest), p, nil)
		q := Request{Delay: time.Duration(d), Exact: exact, Min: time.Duration(least), Max: time.Duration(most), Random: random}
		declared := map[string]time.Duration{}
		for _, s := range w.Slots() {
			declared[w.names.Slot(s)] = s
		}
		for range 2 {
			h := w.Hold(q)
			total, ok := declared[h.Exchange]
			if h.Then != "" {
				second, ok2 := declared[h.Then]
				total, ok = total+second, ok && ok2
			}
			if !ok || total != h.Delay {
				t.Fatalf("longest %s, %+v: %+v waits %s", w.longest, q, h, total)
			}
			if exact && h.Delay < min(q.Delay, w.longest) {
				t.Fatalf("longest %s, %+v: %+v is early", w.longest, q, h)
			}
			q.Avoid = h.Exchange
		}
	})
}
