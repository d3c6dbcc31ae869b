package rabbittest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// findEngine is the container engine that runs on this machine, "" for none.
func findEngine(ctx context.Context) string {
	for _, e := range []string{"docker", "podman"} {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := exec.CommandContext(ctx, e, "info").Run()
		cancel()
		if err == nil {
			return e
		}
	}
	return ""
}

// container runs a broker in a container, in the foreground of an engine's
// client. Its data is in a volume of its own, so that it outlives a kill.
//
// The tests of this file use a stand-in for the engine, which checks how it is
// called and no more: no engine was at hand where they were written.
type container struct {
	engine, image, name, dir string
	remove                   bool
	o                        Options
	ports                    ports
	log                      io.Writer

	alive io.Closer // our end of the watchdog's standard input
	dog   *exec.Cmd

	mu   sync.Mutex
	done chan struct{}
}

// containerWatchdog does for containers what watchdog does for processes:
// $1 the engine, $2 the name, $3 the folder to remove or "".
const containerWatchdog = `
trap '' INT TERM HUP
cat >/dev/null
"$1" rm -f "$2" >/dev/null 2>&1
[ -z "$3" ] || { "$1" volume rm -f "$2" >/dev/null 2>&1; rm -rf "$3"; }
exit 0
`

func newContainer(engine, version, dir string, remove bool, id string, o Options, p ports, log io.Writer) (*container, error) {
	tag := "management"
	if version != "" {
		tag = version + "-management"
	}
	c := &container{
		engine: engine, image: "docker.io/library/rabbitmq:" + tag, name: "hopback-" + id, dir: dir, remove: remove,
		o: o, ports: p, log: log, done: make(chan struct{}),
	}
	close(c.done)
	rm := ""
	if remove {
		rm = dir
	}
	c.dog = exec.Command("sh", "-c", containerWatchdog, "watchdog", engine, c.name, rm)
	in, err := c.dog.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("making the watchdog's pipe: %w", err)
	}
	c.alive = in
	if err := c.dog.Start(); err != nil {
		return nil, fmt.Errorf("starting the watchdog: %w", err)
	}
	return c, nil
}

// runArgs are the arguments of the engine that start the broker.
func (c *container) runArgs() []string {
	file := func(name, inside string) string { return filepath.Join(c.dir, name) + ":" + inside + ":ro" }
	args := []string{
		"run", "--rm", "--name", c.name,
		"--hostname", "hopback", // part of the node's name, which owns the data
		"--volume", c.name + ":/var/lib/rabbitmq",
		"--volume", file("rabbitmq.conf", "/etc/rabbitmq/conf.d/90-hopback.conf"),
		"--volume", file("advanced.config", "/etc/rabbitmq/advanced.config"),
		"--volume", file("enabled_plugins", "/etc/rabbitmq/enabled_plugins"),
		"--publish", fmt.Sprintf("127.0.0.1:%d:5672", c.ports.amqp),
	}
	if !c.o.NoManagement {
		args = append(args, "--publish", fmt.Sprintf("127.0.0.1:%d:15672", c.ports.management))
	}
	return append(args, c.image)
}

func (c *container) start() error {
	cmd := exec.Command(c.engine, c.runArgs()...)
	cmd.Stdout, cmd.Stderr = c.log, c.log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", c.engine, err)
	}
	done := make(chan struct{})
	c.mu.Lock()
	c.done = done
	c.mu.Unlock()
	go func() {
		_ = cmd.Wait() // how it ended is in the log
		close(done)
	}()
	return nil
}

func (c *container) exited() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.done
}

func (c *container) command(ctx context.Context, args ...string) ([]byte, error) {
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, c.engine, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", filepath.Base(c.engine), strings.Join(args, " "), err, bytes.TrimSpace(errs.Bytes()))
	}
	return out.Bytes(), nil
}

func (c *container) term(ctx context.Context) error {
	_, err := c.command(ctx, "kill", "--signal", "TERM", c.name)
	return err
}

func (c *container) kill() error {
	done := c.exited()
	select {
	case <-done:
		return nil
	default:
	}
	_, err := c.command(context.Background(), "kill", "--signal", "KILL", c.name)
	select {
	case <-done:
		return nil
	case <-time.After(30 * time.Second):
		return errors.Join(errors.New("the container does not end"), err)
	}
}

func (c *container) ctl(ctx context.Context, args ...string) ([]byte, error) {
	return c.command(ctx, append([]string{"exec", c.name, "rabbitmqctl", "--quiet"}, args...)...)
}

func (c *container) eval(ctx context.Context, expressions string) error {
	return evalByCtl(ctx, c, expressions)
}

func (c *container) close() error {
	err := c.kill()
	_ = c.alive.Close() // the watchdog now removes volume and folder
	if werr := c.dog.Wait(); werr != nil {
		err = errors.Join(err, fmt.Errorf("waiting for the watchdog: %w", werr))
	}
	return err
}
