package delay

import "testing"

// A herd of BusyRate in one instant is not called busy; what goes on coming is.
func TestAHerdIsNotALoad(t *testing.T) {
	var l Load
	for i := range BusyRate {
		if l.tick() {
			t.Fatalf("busy at the %dth message", i+1)
		}
	}
	// The rest takes milliseconds; the bound is for a machine that stops in it.
	for range 1_000_000 {
		if l.tick() {
			return
		}
	}
	t.Error("never busy")
}
