//go:build unix

package rabbittest

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// standIn is a program in place of docker that notes how it is called; its "run"
// stays until its "kill". It knows nothing of containers: these tests check that
// the engine is called as its manual wants, and the calls' order, no more.
const standIn = `#!/bin/sh
echo "$*" >> "$0.calls"
case $1 in
  run) echo booting; mkfifo "$0.fifo"; read -r _ < "$0.fifo"; rm "$0.fifo" ;;
  kill) echo > "$0.fifo" ;;
  exec) case $* in *eval*) echo ok ;; *) echo out ;; esac ;;
esac
`

func TestContainerCommands(t *testing.T) {
	dir := t.TempDir()
	engine := filepath.Join(dir, "docker")
	if err := os.WriteFile(engine, []byte(standIn), 0o755); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	c, err := newContainer(engine, "4.0", data, true, "abc", Options{}, ports{amqp: 20001, management: 20002}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time is a restart, on the same volume and ports
		if err := c.start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the stand-in runs", func() bool {
			_, err := os.Stat(engine + ".fifo")
			return err == nil
		})
		if out, err := c.ctl(t.Context(), "status"); err != nil || string(out) != "out\n" {
			t.Errorf("ctl: %q, %v", out, err)
		}
		if err := c.eval(t.Context(), "ok."); err != nil {
			t.Errorf("eval: %v", err)
		}
		if err := c.term(t.Context()); err != nil {
			t.Fatal(err)
		}
		receive(t, "the end of the container", c.exited())
	}
	if err := c.start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the stand-in runs", func() bool {
		_, err := os.Stat(engine + ".fifo")
		return err == nil
	})
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(data); !os.IsNotExist(err) {
		t.Errorf("the data folder is left: %v", err)
	}

	text, err := os.ReadFile(engine + ".calls")
	if err != nil {
		t.Fatal(err)
	}
	run := fmt.Sprintf("run --rm --name hopback-abc --hostname hopback --volume hopback-abc:/var/lib/rabbitmq"+
		" --volume %[1]s/rabbitmq.conf:/etc/rabbitmq/conf.d/90-hopback.conf:ro"+
		" --volume %[1]s/advanced.config:/etc/rabbitmq/advanced.config:ro"+
		" --volume %[1]s/enabled_plugins:/etc/rabbitmq/enabled_plugins:ro"+
		" --publish 127.0.0.1:20001:5672 --publish 127.0.0.1:20002:15672"+
		" docker.io/library/rabbitmq:4.0-management", data)
	life := []string{
		run, "exec hopback-abc rabbitmqctl --quiet status", "exec hopback-abc rabbitmqctl --quiet eval ok.",
		"kill --signal TERM hopback-abc",
	}
	want := slices.Concat(life, life, []string{
		run, "kill --signal KILL hopback-abc", "rm -f hopback-abc", "volume rm -f hopback-abc",
	})
	if got := strings.Split(strings.TrimSpace(string(text)), "\n"); !slices.Equal(got, want) {
		t.Errorf("calls:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestContainerConf(t *testing.T) {
	conf := Options{}.conf(ports{amqp: 20001, management: 20002}, true)
	if strings.Contains(conf, "127.0.0.1") || strings.Contains(conf, "2000") {
		t.Errorf("inside a container the listeners are the image's, but the configuration is:\n%s", conf)
	}
	if !strings.Contains(conf, "loopback_users = none\n") {
		t.Errorf("guest could not connect from outside the container:\n%s", conf)
	}
}
