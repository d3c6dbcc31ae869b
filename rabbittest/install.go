package rabbittest

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// Installation is a RabbitMQ that this machine can run.
type Installation struct {
	// Version in full, for example "3.10.8".
	Version string
	// Root is the folder of the Debian tree that the broker lives in and that it
	// is started inside of (chroot), or "" for a broker of the machine itself.
	Root string
	// Home is the broker's own folder, the one with sbin and plugins, as seen
	// from inside Root.
	Home string
}

// String is the version and where it was found.
func (i Installation) String() string {
	if i.Root != "" {
		return i.Version + " in " + i.Root
	}
	return i.Version + " in " + i.Home
}

// matches reports whether the installation is of the version wanted, compared
// number by number: "3.1" is not 3.10.
func (i Installation) matches(want string) bool {
	return i.Version == want || strings.HasPrefix(i.Version, want+".")
}

// Folder is where scripts/setup.sh puts brokers that are not the machine's own:
// $HOPBACK_BROKERS, or hopback/brokers in the user's cache folder
// ($XDG_CACHE_HOME, ~/.cache). Each subfolder is a Debian tree with
// rabbitmq-server installed, or an unpacked "generic UNIX" release.
func Folder() string {
	if d := os.Getenv("HOPBACK_BROKERS"); d != "" {
		return d
	}
	cache := os.Getenv("XDG_CACHE_HOME")
	if cache == "" {
		cache = filepath.Join(os.Getenv("HOME"), ".cache")
	}
	return filepath.Join(cache, "hopback", "brokers")
}

// Installed lists the brokers that can be started here, the machine's own first,
// then those in [Folder], the newest first.
func Installed() []Installation {
	if runtime.GOOS == "windows" {
		return nil
	}
	var found []Installation
	add := func(root, home string) {
		i := Installation{Root: root, Home: home, Version: versionOf(filepath.Join(root, home))}
		same := func(o Installation) bool { return o.Root == i.Root && o.Home == i.Home }
		if i.Version != "" && !slices.ContainsFunc(found, same) {
			found = append(found, i)
		}
	}
	for _, h := range systemHomes() {
		add("", h)
	}
	system := len(found)
	dirs, _ := filepath.Glob(filepath.Join(Folder(), "*"))
	for _, d := range dirs {
		if strings.HasSuffix(d, ".partial") {
			continue // still being set up, or left behind by a set-up that was stopped
		}
		homes, _ := filepath.Glob(filepath.Join(d, "usr/lib/rabbitmq/lib/rabbitmq_server-*"))
		for _, h := range homes {
			add(d, "/"+strings.TrimPrefix(strings.TrimPrefix(h, d), "/"))
		}
		// A tree has an sbin/rabbitmq-server too, but plugins only in a release.
		if _, err := os.Stat(filepath.Join(d, "plugins")); err == nil {
			add("", d)
		}
	}
	slices.SortStableFunc(found[system:], func(a, b Installation) int { return compareVersions(b.Version, a.Version) })
	return found
}

// systemHomes are the folders where packages of the machine itself put a broker.
func systemHomes() []string {
	var homes []string
	for _, p := range []string{
		"/usr/lib/rabbitmq/lib/rabbitmq_server-*", // Debian, Ubuntu, Fedora
		"/usr/lib/rabbitmq",                       // Alpine, Arch
		"/opt/rabbitmq",                           // the container image's own place
		"/opt/homebrew/opt/rabbitmq",              // macOS, ARM
		"/usr/local/opt/rabbitmq",                 // macOS, Intel
	} {
		m, _ := filepath.Glob(p)
		homes = append(homes, m...)
	}
	// A server on the PATH may be a link into its folder, <home>/sbin/rabbitmq-server.
	if p, err := exec.LookPath("rabbitmq-server"); err == nil {
		if p, err = filepath.EvalSymlinks(p); err == nil && filepath.Base(filepath.Dir(p)) == "sbin" {
			homes = append(homes, filepath.Dir(filepath.Dir(p)))
		}
	}
	return slices.DeleteFunc(homes, func(h string) bool {
		_, err := os.Stat(filepath.Join(h, "sbin", "rabbitmq-server"))
		return err != nil
	})
}

var (
	homeVersion   = regexp.MustCompile(`rabbitmq_server-(\d+\.\d+\.\d+)`)
	pluginVersion = regexp.MustCompile(`/rabbit-(\d+\.\d+\.\d+)[^/]*$`)
)

// versionOf reads a broker's version from the name of its folder, else from the
// name of its core "plugin", plugins/rabbit-4.0.5. Asking the broker itself
// would cost a second.
func versionOf(home string) string {
	if m := homeVersion.FindStringSubmatch(filepath.Base(home)); m != nil {
		return m[1]
	}
	plugins, _ := filepath.Glob(filepath.Join(home, "plugins", "rabbit-*"))
	for _, p := range plugins {
		if m := pluginVersion.FindStringSubmatch(p); m != nil {
			return m[1]
		}
	}
	return ""
}

// compareVersions orders dotted versions by their numbers.
func compareVersions(a, b string) int {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(as), len(bs)) {
		x, _ := strconv.Atoi(as[i])
		y, _ := strconv.Atoi(bs[i])
		if x != y {
			return cmp.Compare(x, y)
		}
	}
	return cmp.Compare(len(as), len(bs))
}

// NotInstalledError says that the wanted broker is not on this machine.
// [errors.As] finds it in what [Run] returns.
type NotInstalledError struct {
	// Want is the version that was asked for, "" for any.
	Want string
	// Have are the installations that were found.
	Have []Installation
}

func (e *NotInstalledError) Error() string {
	want, arg := "RabbitMQ", "demo"
	if e.Want != "" {
		want, arg = "RabbitMQ "+e.Want, e.Want
	}
	have := "none was found"
	if len(e.Have) > 0 {
		var vs []string
		for _, i := range e.Have {
			vs = append(vs, i.String())
		}
		have = "found: " + strings.Join(vs, ", ")
	}
	return fmt.Sprintf("%s is not installed (%s; looked for the machine's own packages, in %s, and for a running docker or podman).\n"+
		"Install it with your package manager (Debian, Ubuntu: apt-get install rabbitmq-server; macOS: brew install rabbitmq), "+
		"or from a clone of Hopback: scripts/setup.sh %s", want, have, Folder(), arg)
}

// find picks the installation for a wanted version ("" for any).
func find(want string) (Installation, error) {
	have := Installed()
	for _, i := range have {
		if want == "" || i.matches(want) {
			return i, nil
		}
	}
	return Installation{}, &NotInstalledError{Want: want, Have: have}
}
