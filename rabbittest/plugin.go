package rabbittest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// PluginBroker is the environment variable that names a broker which brings the
// delayed-message plugin, in any way that [Options].Home understands. The plugin
// is not among RabbitMQ's own, and no package of it is to be had, so without this
// tests that need it are skipped.
const PluginBroker = "HOPBACK_PLUGIN_BROKER"

// DelayedExchange is the name of the plugin, for [Options].Plugins.
const DelayedExchange = "rabbitmq_delayed_message_exchange"

// StartDelayedExchange is [Start] with the delayed-message plugin enabled, on the
// broker that $HOPBACK_PLUGIN_BROKER names. Where it names none, or one of another
// version than $HOPBACK_TEST_BROKER asks for, the test is skipped; where it names
// one that lacks the plugin, the test fails.
func StartDelayedExchange(t testing.TB, o ...Options) *Broker {
	t.Helper()
	opts := one(o)
	home := os.Getenv(PluginBroker)
	if home == "" {
		t.Skipf("rabbittest: needs a broker with the plugin %s: put the plugin into a broker's plugins folder and name that broker in $%s", DelayedExchange, PluginBroker)
	}
	in, err := findHome(home)
	if err != nil {
		t.Fatalf("rabbittest: $%s: %v", PluginBroker, err)
	}
	if !in.brings(DelayedExchange) {
		t.Fatalf("rabbittest: $%s: there is no %s among the plugins of RabbitMQ %s", PluginBroker, DelayedExchange, in)
	}
	if want := os.Getenv("HOPBACK_TEST_BROKER"); want != "" && want != none && !in.matches(want) {
		t.Skipf("rabbittest: this run is for RabbitMQ %s, and the broker with the plugin %s is %s", want, DelayedExchange, in.Version)
	}
	opts.Home = home
	opts.Plugins = append(slices.Clone(opts.Plugins), DelayedExchange)
	return Start(t, opts)
}

// brings reports whether a plugin is in the broker's plugins folder, as a folder
// or as an archive.
func (i Installation) brings(plugin string) bool {
	found, _ := filepath.Glob(filepath.Join(i.Root, i.Home, "plugins", plugin+"-*"))
	return len(found) > 0
}

// find picks the installation by its place, or for a wanted version.
func (o Options) find(want string) (Installation, error) {
	if o.Home != "" {
		return findHome(o.Home)
	}
	return find(want)
}

// findHome is the installation in a folder.
func findHome(path string) (Installation, error) {
	for _, p := range []string{path, filepath.Join(Folder(), path)} {
		if p == path && !filepath.IsAbs(path) && !strings.ContainsRune(path, filepath.Separator) {
			continue // a bare name is a subfolder of Folder, wherever the test runs
		}
		if p, err := filepath.Abs(p); err == nil {
			for _, i := range []Installation{{Home: p}, treeAt(p)} {
				if i.Home == "" {
					continue
				}
				home := filepath.Join(i.Root, i.Home)
				_, err := os.Stat(filepath.Join(home, "plugins"))
				if i.Version = versionOf(home); err == nil && i.Version != "" {
					return i, nil
				}
			}
		}
	}
	return Installation{}, fmt.Errorf("there is no RabbitMQ in %q: name the folder with sbin and plugins, a Debian tree, or a subfolder of %s", path, Folder())
}

// treeAt is the broker of a Debian tree; its Home is empty when there is none.
func treeAt(dir string) Installation {
	homes, _ := filepath.Glob(filepath.Join(dir, "usr/lib/rabbitmq/lib/rabbitmq_server-*"))
	if len(homes) == 0 {
		return Installation{}
	}
	return Installation{Root: dir, Home: "/" + strings.TrimPrefix(strings.TrimPrefix(homes[0], dir), "/")}
}
