package rabbittest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fakeBrokers makes a folder that looks like scripts/setup.sh had filled it.
func fakeBrokers(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, f := range files {
		f = filepath.Join(dir, f)
		if err := os.MkdirAll(filepath.Dir(f), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("HOPBACK_BROKERS", dir)
	return dir
}

func TestInstalled(t *testing.T) {
	dir := fakeBrokers(t,
		"77.1/usr/lib/rabbitmq/lib/rabbitmq_server-77.1.2/sbin/rabbitmq-server",
		"77.1/sbin/rabbitmq-server", // the package's wrapper, in every tree
		"77.10/usr/lib/rabbitmq/lib/rabbitmq_server-77.10.0/sbin/rabbitmq-server",
		"77.3/sbin/rabbitmq-server", // an unpacked release
		"77.3/plugins/rabbit-77.3.4.ez",
		"77.3/plugins/rabbit_common-9.9.9.ez",
		"77.4.partial/usr/lib/rabbitmq/lib/rabbitmq_server-77.4.0/sbin/rabbitmq-server",
		"notes/readme",
	)
	var got []Installation
	for _, i := range Installed() {
		if strings.HasPrefix(i.Version, "77.") {
			got = append(got, i)
		}
	}
	want := []Installation{ // the newest first, by number and not by letter
		{Version: "77.10.0", Root: filepath.Join(dir, "77.10"), Home: "/usr/lib/rabbitmq/lib/rabbitmq_server-77.10.0"},
		{Version: "77.3.4", Home: filepath.Join(dir, "77.3")},
		{Version: "77.1.2", Root: filepath.Join(dir, "77.1"), Home: "/usr/lib/rabbitmq/lib/rabbitmq_server-77.1.2"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("Installed():\n%v\nwant\n%v", got, want)
	}
	for want, version := range map[string]string{"77": "77.10.0", "77.1": "77.1.2", "77.10": "77.10.0", "77.3.4": "77.3.4"} {
		if i, err := find(want); err != nil || i.Version != version {
			t.Errorf("find(%q): %v, %v, want %s", want, i, err, version)
		}
	}
	if i, err := find("7"); err == nil {
		t.Errorf("find(%q) found %v", "7", i)
	}
}

func TestNotInstalled(t *testing.T) {
	dir := fakeBrokers(t)
	_, err := find("99.9")
	if err == nil {
		t.Fatal("found a version that does not exist")
	}
	for _, want := range []string{"RabbitMQ 99.9 is not installed", dir, "scripts/setup.sh 99.9", "apt-get install rabbitmq-server"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %q, want %q in it", err, want)
		}
	}
}

func TestConf(t *testing.T) {
	o := Options{Config: []string{
		"log.console.level = debug", "vm_memory_high_watermark.relative = 0.3", "disk_free_limit.relative = 1.0", "a.b = c = d",
	}}
	conf := o.conf(ports{amqp: 20001, management: 20002}, false)
	for line, n := range map[string]int{
		"log.console.level = debug\n":               1,
		"log.console.level = ":                      1, // ours is replaced
		"vm_memory_high_watermark.relative = 0.3\n": 1,
		"vm_memory_high_watermark.absolute":         0,
		"disk_free_limit.absolute":                  0,
		"a.b = c = d\n":                             1,
		"listeners.tcp.1 = 127.0.0.1:20001\n":       1,
		"management.tcp.ip = 127.0.0.1\n":           1,
		"management.tcp.port = 20002\n":             1,
	} {
		if got := strings.Count(conf, line); got != n {
			t.Errorf("%q is there %d times, want %d, in\n%s", line, got, n, conf)
		}
	}
	if o.NoManagement = true; strings.Contains(o.conf(ports{}, false), "management.") {
		t.Error("the configuration has keys of a plugin that is not enabled: the broker would refuse it")
	}
	for n, want := range map[int]string{
		0: "[{rabbit, [{dead_letter_worker_consumer_prefetch, 512}]}].\n",
		9: "[{rabbit, [{dead_letter_worker_consumer_prefetch, 9}]}].\n", -1: "[].\n",
	} {
		if got := (Options{DeadLetterPrefetch: n}).advanced(); got != want {
			t.Errorf("advanced.config for prefetch %d is %q, want %q", n, got, want)
		}
	}
	if got, want := (Options{Plugins: []string{"rabbitmq_stream"}}).enabledPlugins(), "[rabbitmq_management,rabbitmq_stream].\n"; got != want {
		t.Errorf("enabled_plugins is %q, want %q", got, want)
	}
}

func TestFreePorts(t *testing.T) {
	got, err := freePorts(40)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	if n := len(slices.Compact(got)); n != 40 {
		t.Errorf("40 ports were asked for, %d different ones came: %v", n, got)
	}
	if got[0] < 1024 || got[len(got)-1] >= 32768 {
		t.Errorf("ports %v reach into the range of outgoing connections", got)
	}
}
