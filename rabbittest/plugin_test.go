package rabbittest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fakeHome makes what looks like a broker's folder.
func fakeHome(t *testing.T, home string, plugins ...string) string {
	t.Helper()
	for _, p := range append(plugins, "rabbit-3.10.8") {
		if err := os.MkdirAll(filepath.Join(home, "plugins", p), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return home
}

func TestFindHome(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("HOPBACK_BROKERS", dir)
	release := fakeHome(t, filepath.Join(dir, "release"), "rabbitmq_delayed_message_exchange-3.10.2")
	tree := filepath.Join(dir, "tree")
	fakeHome(t, filepath.Join(tree, "usr/lib/rabbitmq/lib/rabbitmq_server-3.10.8"))
	for path, want := range map[string]Installation{
		release:   {Version: "3.10.8", Home: release},
		"release": {Version: "3.10.8", Home: release},
		tree:      {Version: "3.10.8", Root: tree, Home: "/usr/lib/rabbitmq/lib/rabbitmq_server-3.10.8"},
		"tree":    {Version: "3.10.8", Root: tree, Home: "/usr/lib/rabbitmq/lib/rabbitmq_server-3.10.8"},
	} {
		got, err := findHome(path)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", path, got, err, want)
		}
		if brings := got.brings(DelayedExchange); brings != strings.HasSuffix(path, "release") {
			t.Errorf("%s brings the plugin: %v", path, brings)
		}
	}
	for _, path := range []string{"nothing", filepath.Join(dir, "nothing"), dir} {
		if got, err := findHome(path); err == nil {
			t.Errorf("%s: found %+v", path, got)
		}
	}
}
