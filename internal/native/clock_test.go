package native

import (
	"testing"
	"time"
)

// A client whose clock is off finds out by how much, and its delays are right.
func TestShiftedClock(t *testing.T) {
	url := shared(t)
	o := dial091(t, url)
	o.quorum("work")
	for _, shift := range []time.Duration{0, 10 * time.Second, -10 * time.Second} {
		c := open(t, url, func(c *Config) {
			c.Now = func() time.Time { return time.Now().Add(shift) }
			c.ClockQueue, c.ClockEvery = "hop.clock", 50*time.Millisecond
		})
		o.publish("", "work", numbered(1)...)
		r := receive(t, c, "work", 10)
		// At once: the first delay waits for the first comparison.
		d := next(t, r)
		start := time.Now()
		const delay = 700 * time.Millisecond
		if err := d.Delay(c.cfg.Now().Add(delay), nil); err != nil {
			t.Fatal(err)
		}
		d = next(t, r)
		took := time.Since(start)
		ahead, within, known := c.Skew()
		if !known || within <= 0 || within > 2*time.Second {
			t.Fatalf("shifted by %s: known %t, within %s", shift, known, within)
		}
		// Both clocks are this machine's, so the truth is known.
		if off := (ahead + shift).Abs(); off > within+time.Millisecond {
			t.Errorf("shifted by %s: %s found, within %s", shift, ahead, within)
		}
		if early := delay - took; early > within+2*time.Millisecond {
			t.Errorf("shifted by %s: back after %s, %s early, within %s", shift, took, early, within)
		}
		if took > 8*time.Second { // a clock that was not corrected would give 10 s
			t.Errorf("shifted by %s: back after %s", shift, took)
		}
		t.Logf("shifted by %s: found %s within %s; back after %s", shift, ahead, within, took)
		// It goes on, and follows the clock.
		c.clock.mu.Lock()
		first := c.clock.ours
		c.clock.mu.Unlock()
		eventually(t, "another comparison", func() bool {
			c.clock.mu.Lock()
			defer c.clock.mu.Unlock()
			return c.clock.ours.After(first)
		})
		d.Accept()
		stop(t, r)
	}
}

// An account that may not declare the queue goes by its own clock, and is told.
func TestClockWithoutPermission(t *testing.T) {
	b := brokerOf(t)
	vhost := "clock-without-permission"
	if err := b.AddVhost(t.Context(), vhost); err != nil {
		t.Fatal(err)
	}
	defer b.DeleteVhost(t.Context(), vhost) //nolint:errcheck // the broker ends with the tests
	o := dial091(t, b.VhostURL(vhost))
	o.quorum("work")
	if err := b.AddUser(t.Context(), "reader", "secret", vhost, "^$", "^$", "^work$"); err != nil {
		t.Fatal(err)
	}
	var log journal
	c := open(t, withUser(t, b.VhostURL(vhost), "reader", "secret"), func(c *Config) {
		c.ClockQueue, c.Logger = "hop.clock", log.logger()
	})
	r := receive(t, c, "work", 10)
	o.publish("", "work", numbered(1)...)
	if err := next(t, r).Delay(time.Now().Add(50*time.Millisecond), nil); err != nil {
		t.Fatal(err)
	}
	next(t, r).Accept()
	if _, _, known := c.Skew(); known {
		t.Error("the skew is known")
	}
	eventually(t, "a warning", func() bool { return contains(log.String(), "cannot compare clocks") })
	stop(t, r)
}
