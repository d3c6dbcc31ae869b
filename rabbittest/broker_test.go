package rabbittest

import (
	"testing"
	"time"
)

func TestStart(t *testing.T) {
	t0 := time.Now()
	b := Start(t)
	t.Log(b.Version(), b.URL(), time.Since(t0))
	step := func(name string, f func() error) {
		t0 := time.Now()
		if err := f(); err != nil {
			t.Fatal(name, err)
		}
		t.Log(name, time.Since(t0))
	}
	t0 = time.Now()
	u := b.Vhost(t)
	t.Log(u, time.Since(t0))
	step("alarm", func() error { return b.MemoryAlarm(t.Context(), true) })
	step("alarm off", func() error { return b.MemoryAlarm(t.Context(), false) })
	step("close", func() error { return b.CloseConnections(t.Context()) })
	step("stop", func() error { return b.Stop(t.Context()) })
	step("start", func() error { return b.Start(t.Context()) })
	step("kill", func() error { return b.Kill(t.Context()) })
	step("start", func() error { return b.Start(t.Context()) })
	step("Close", func() error { return b.Close() })
}
