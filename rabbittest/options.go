package rabbittest

import (
	"fmt"
	"io"
	"strings"
)

// Options says which broker to start and how. The zero value is a broker that
// suits most tests: the version in $HOPBACK_TEST_BROKER (or the first one that
// is installed), with the management API, in a folder that is removed at the end.
type Options struct {
	// Version picks an installed version by its leading numbers: "3.10" finds
	// 3.10.8, "4" the first 4.x. Empty: $HOPBACK_TEST_BROKER, and when that is
	// empty too, the first of [Installed].
	Version string

	// Home picks a broker by its place instead of its version: the folder with its
	// sbin and plugins, a Debian tree, or the name of a subfolder of [Folder].
	Home string

	// NoManagement leaves the management plugin out. The broker uses less memory
	// and does not gather statistics; [Broker.Get], [Broker.Put] and the like
	// then return an error, and [Broker.Vhost] and [Broker.AddUser] take the
	// slower way through rabbitmqctl, one to three seconds each.
	NoManagement bool

	// Plugins are enabled on top of the management plugin, for example
	// "rabbitmq_stream". They must come with the installed broker.
	Plugins []string

	// Config lines are added to rabbitmq.conf, for example
	// "consumer_timeout = 60000". A line replaces the line that this package
	// would have written for the same key.
	Config []string

	// DeadLetterPrefetch is rabbit.dead_letter_worker_consumer_prefetch: how
	// many messages each quorum queue's at-least-once dead-letter worker may
	// have in flight. 0 means 512, which is what a service that retries through
	// the broker should run with: the broker's own 32 limits a delay queue to a
	// few thousand messages a second, and 32 messages that cannot be routed are
	// enough to block everything behind them. A negative value leaves the
	// broker's own default in place.
	DeadLetterPrefetch int

	// Port and ManagementPort are the TCP ports on 127.0.0.1, for a broker that
	// should be found at the same place every day. 0 is a free port.
	Port, ManagementPort int

	// Log receives the broker's own output as it comes. The output is kept in
	// the data folder in any case. Writes come from one goroutine.
	Log io.Writer

	// Dir is the data folder. Empty: a fresh temporary folder, removed by Close.
	// A folder that is given is created when missing, is kept, and its queues
	// and messages are there again when a broker is next started in it. Only
	// one broker can use a folder at a time.
	Dir string

	cluster *membership // of a node
}

// membership is what the nodes of a cluster share.
type membership struct {
	epmd   int
	cookie string
}

// validate reports the first option that cannot work, with what to write instead.
func (o Options) validate() error {
	if strings.Trim(o.Version, "0123456789.") != "" {
		return fmt.Errorf("rabbittest: Options.Version is %q: want leading version numbers such as \"4.3\"", o.Version)
	}
	for _, p := range []struct {
		field string
		port  int
	}{{"Port", o.Port}, {"ManagementPort", o.ManagementPort}} {
		if p.port < 0 || p.port > 65535 {
			return fmt.Errorf("rabbittest: Options.%s is %d: want 1 to 65535, or 0 for a free one", p.field, p.port)
		}
	}
	for _, l := range o.Config {
		if strings.ContainsAny(l, "\n\r") {
			return fmt.Errorf("rabbittest: Options.Config line %q holds a line break: give one line per element", l)
		}
		if !strings.Contains(l, "=") {
			return fmt.Errorf("rabbittest: Options.Config line %q has no \"=\": want \"key = value\" as in rabbitmq.conf", l)
		}
	}
	for _, p := range o.Plugins {
		if p == "" || strings.Trim(p, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
			return fmt.Errorf("rabbittest: Options.Plugins has %q: want a plugin's name such as \"rabbitmq_stream\"", p)
		}
	}
	return nil
}

// one returns the options that a variadic call was given, at most one value.
func one(o []Options) Options {
	switch len(o) {
	case 0:
		return Options{}
	case 1:
		return o[0]
	}
	panic("rabbittest: more than one Options given")
}

// ports of one broker, all on 127.0.0.1.
type ports struct{ amqp, management, epmd, dist int }

// conf is the text of rabbitmq.conf. Inside a container the listeners keep the
// image's own ports and addresses, since the engine publishes them on loopback.
func (o Options) conf(p ports, container bool) string {
	lines := []string{
		// Only what matters: a broker at the default level writes a line or more
		// for each connection, which on a test machine is most of its disk I/O.
		"log.console = true",
		"log.console.level = warning",
		"log.file = false",
		// A test must not be blocked because the machine's disk is nearly full;
		// the default of 50 MB is enough to see a real shortage.
		"disk_free_limit.absolute = 50MB",
		// Several brokers run side by side on a small machine. The default would
		// let each of them believe that it owns 40 to 60 % of the memory.
		"vm_memory_high_watermark.absolute = 2GB",
	}
	if container {
		// The engine forwards connections from its bridge, so the broker does not
		// see them as coming from loopback, the only place guest may come from.
		lines = append(lines, "loopback_users = none")
	} else {
		lines = append(lines, fmt.Sprintf("listeners.tcp.1 = 127.0.0.1:%d", p.amqp))
		if !o.NoManagement {
			lines = append(lines,
				"management.tcp.ip = 127.0.0.1",
				fmt.Sprintf("management.tcp.port = %d", p.management))
		}
	}
	own := map[string]bool{}
	key := func(l string) string { k, _, _ := strings.Cut(l, "="); return strings.TrimSpace(k) }
	for _, l := range o.Config {
		k := key(l)
		own[k] = true
		if strings.HasPrefix(k, "vm_memory_high_watermark.") {
			own["vm_memory_high_watermark.absolute"] = true // relative and absolute exclude each other
		}
		if strings.HasPrefix(k, "disk_free_limit.") {
			own["disk_free_limit.absolute"] = true
		}
	}
	var b strings.Builder
	for _, l := range lines {
		if !own[key(l)] {
			fmt.Fprintln(&b, l)
		}
	}
	for _, l := range o.Config {
		fmt.Fprintln(&b, l)
	}
	return b.String()
}

// advanced is the text of advanced.config, for what rabbitmq.conf has no key for.
func (o Options) advanced() string {
	n := o.DeadLetterPrefetch
	if n == 0 {
		n = 512
	}
	if n < 0 {
		return "[].\n"
	}
	return fmt.Sprintf("[{rabbit, [{dead_letter_worker_consumer_prefetch, %d}]}].\n", n)
}

// enabledPlugins is the text of the enabled_plugins file.
func (o Options) enabledPlugins() string {
	var p []string
	if !o.NoManagement {
		p = append(p, "rabbitmq_management")
	}
	p = append(p, o.Plugins...)
	return "[" + strings.Join(p, ",") + "].\n"
}
