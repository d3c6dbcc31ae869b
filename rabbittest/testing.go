package rabbittest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
)

// Start starts a private broker for a test (or benchmark) and closes it when the
// test ends. When the test has failed, the end of the broker's output is logged.
//
// Where no broker can be started the test is skipped, with what to install; but
// when $HOPBACK_TEST_BROKER is set, a broker is meant to be there, and the test
// fails instead. Set to "none" it skips every test that wants a broker.
func Start(t testing.TB, o ...Options) *Broker {
	t.Helper()
	b, err := Run(t.Context(), one(o))
	if err != nil {
		giveUp(t, err)
	}
	t.Cleanup(func() {
		report(t, b)
		if err := b.Close(); err != nil {
			t.Errorf("rabbittest: closing the broker: %v", err)
		}
	})
	return b
}

// shared holds the brokers of Shared by their version.
var shared struct {
	sync.Mutex
	brokers map[string]*Broker
}

// Shared is one broker for all tests of a process, started by the first that
// asks: a start costs seconds, a virtual host of one's own ([Broker.Vhost]) a
// few milliseconds. It ends with the process. Tests that use it should not stop
// it, raise its alarms or close connections that are not theirs: those start a
// broker of their own with [Start].
//
// An argument is a version, as in [Options].
func Shared(t testing.TB, version ...string) *Broker {
	t.Helper()
	v := ""
	if len(version) > 0 {
		v = version[0]
	}
	shared.Lock()
	defer shared.Unlock()
	b := shared.brokers[v]
	if b == nil {
		var err error
		if b, err = Run(t.Context(), Options{Version: v}); err != nil {
			giveUp(t, err)
		}
		if shared.brokers == nil {
			shared.brokers = map[string]*Broker{}
		}
		shared.brokers[v] = b
	}
	t.Cleanup(func() { report(t, b) })
	return b
}

// CloseShared closes the brokers of [Shared] before the process ends. There is no
// need to, but for a TestMain that looks for goroutines which are left over.
func CloseShared() error {
	shared.Lock()
	defer shared.Unlock()
	var err error
	for _, b := range shared.brokers {
		err = errors.Join(err, b.Close())
	}
	shared.brokers = nil
	return err
}

// giveUp ends a test for which there is no broker.
func giveUp(t testing.TB, err error) {
	t.Helper()
	var missing *NotInstalledError
	if errors.Is(err, errNone) || errors.As(err, &missing) && os.Getenv("HOPBACK_TEST_BROKER") == "" {
		t.Skipf("rabbittest: %v", err)
	}
	t.Fatalf("rabbittest: %v", err)
}

// report logs the end of the broker's output in a failed test.
func report(t testing.TB, b *Broker) {
	if t.Failed() {
		t.Logf("the end of the output of RabbitMQ %s:\n%s", b.version, b.LogTail(8000))
	}
}

var (
	vhosts    atomic.Int64
	notInName = regexp.MustCompile(`[^A-Za-z0-9_.-]+`)
)

// Vhost makes a fresh virtual host named after the test and returns the AMQP URL
// for it. It is deleted, with everything in it, when the test ends.
func (b *Broker) Vhost(t testing.TB) string {
	t.Helper()
	name := notInName.ReplaceAllString(t.Name(), "_")
	name = fmt.Sprintf("%.80s-%d", name, vhosts.Add(1))
	if err := b.AddVhost(t.Context(), name); err != nil {
		t.Fatalf("rabbittest: %v", err)
	}
	t.Cleanup(func() {
		b.mu.Lock()
		gone := b.closed || !b.isRunning()
		b.mu.Unlock()
		if gone {
			return
		}
		if err := b.DeleteVhost(context.Background(), name); err != nil {
			t.Errorf("rabbittest: %v", err)
		}
	})
	return b.VhostURL(name)
}
