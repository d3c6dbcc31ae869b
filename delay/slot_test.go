package delay

import (
	"strings"
	"testing"
	"time"
)

func TestLabel(t *testing.T) {
	for d, want := range map[time.Duration]string{
		100 * time.Millisecond: "100ms", 900 * time.Millisecond: "900ms", time.Second: "1s", 1500 * time.Millisecond: "1500ms",
		90 * time.Second: "90s", time.Hour: "3600s", Longest: "90000s", time.Millisecond: "1ms",
	} {
		if got := Label(d); got != want {
			t.Errorf("Label(%s) is %s, want %s", d, got, want)
		}
	}
}

// The argument is in the name: no two TTLs of a wheel share one, and the same
// TTL has one name whoever asks.
func TestSlotNamesAreUnique(t *testing.T) {
	seen := map[string]time.Duration{}
	n := Names{Prefix: "hop"}
	for _, d := range append(NewWheel(n, Longest, Two, nil).Slots(), 1500*time.Millisecond, 1501*time.Millisecond, 15*time.Second) {
		if had, ok := seen[n.Slot(d)]; ok {
			t.Errorf("%s names both %s and %s", n.Slot(d), had, d)
		}
		seen[n.Slot(d)] = d
	}
}

// Slots of a route's own touch nobody else's: no exchange, queue or binding is
// in both topologies.
func TestOwnedSlotsAreApart(t *testing.T) {
	shared, owned := Names{Prefix: "hop"}, Names{Prefix: "hop", Owner: "orders"}
	for _, pair := range [][2]Mechanism{
		{NewWheel(shared, time.Hour, Two, nil), NewWheel(owned, time.Hour, Two, nil)},
		{NewLadder(shared, []time.Duration{time.Second, time.Minute}), NewLadder(owned, []time.Duration{time.Second, time.Minute})},
	} {
		names := map[string]bool{}
		for _, x := range pair[0].Topology().Exchanges {
			names[x.Name] = true
		}
		for _, q := range pair[0].Topology().Queues {
			names[q.Name] = true
		}
		own := pair[1].Topology()
		for _, x := range own.Exchanges {
			if names[x.Name] || !strings.HasPrefix(x.Name, "hop.orders.") {
				t.Errorf("%s: exchange %s is not the route's own", pair[1].Name(), x.Name)
			}
		}
		for _, q := range own.Queues {
			if names[q.Name] || !strings.HasPrefix(q.Name, "hop.orders.delay.") {
				t.Errorf("%s: queue %s is not the route's own", pair[1].Name(), q.Name)
			}
			if x := q.Args["x-dead-letter-exchange"]; names[x.(string)] {
				t.Errorf("%s: queue %s lets its messages go into %s, which is shared", pair[1].Name(), q.Name, x)
			}
		}
		read(t, own, "hop.return")
	}
}

// Every decade's exchange feeds the decade below and no other, and the lowest
// lets go straight home.
func TestDecades(t *testing.T) {
	n := Names{Prefix: "p"}
	top := NewWheel(n, Longest, Two, nil).Topology()
	for _, q := range top.Queues {
		d := time.Duration(q.Args["x-message-ttl"].(int64)) * time.Millisecond
		want := "p.return"
		if d >= time.Second {
			want = "p.then." + Label(decade(d))
		}
		if got := q.Args["x-dead-letter-exchange"]; got != want {
			t.Errorf("slot %s lets go into %v, want %s", q.Name, got, want)
		}
	}
	for d, want := range map[time.Duration]time.Duration{
		time.Millisecond: Shortest, 100 * time.Millisecond: Shortest, 999 * time.Millisecond: Shortest,
		time.Second: time.Second, 9999 * time.Millisecond: time.Second, 10 * time.Second: 10 * time.Second, Longest: 10_000 * time.Second,
	} {
		if got := decade(d); got != want {
			t.Errorf("decade of %s is %s, want %s", d, got, want)
		}
	}
}
