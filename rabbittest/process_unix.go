//go:build unix

package rabbittest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// marker is an environment variable that every process of a broker carries, so
// that all of them can be found, whatever session or group they moved to: the
// Erlang runtime starts its helpers in sessions of their own.
const marker = "HOPBACK_RABBITTEST"

// enterTree runs its arguments inside a Debian tree: $1 the tree, $2 the data
// folder, which is seen as /mnt inside. It runs in a mount namespace of its own,
// so the mounts are nobody else's and end with the last process in it.
const enterTree = `
T=$1 D=$2; shift 2
grep -qs localhost "$T/etc/hosts" || echo '127.0.0.1 localhost' >> "$T/etc/hosts" || exit 70
mount --rbind /proc "$T/proc" && mount --rbind /dev "$T/dev" && mount --bind "$D" "$T/mnt" || exit 71
exec chroot "$T" "$@"
`

// runBroker runs the port mapper and the server, $1 the broker's sbin folder, $2
// the data folder, where a crash dump would be written.
// The server's own script turns SIGTERM into a clean shutdown. A port mapper of
// its own, in the foreground, keeps the node's name out of the machine's mapper.
// File handles limit connections and queues; a login's usual 1024 are few.
const runBroker = `
cd "$2" || exit 72
ulimit -n 65536 2>/dev/null || ulimit -n "$(ulimit -H -n)"
epmd -address 127.0.0.1 -port "$ERL_EPMD_PORT" & e=$!
"$1/rabbitmq-server" & s=$!
trap 'kill -TERM $s' TERM
while kill -0 $s 2>/dev/null; do wait $s; r=$?; done
kill -9 $e
echo "rabbitmq-server ended with status $r (137: killed)"
`

// sweep kills every process that carries the marker $1 (the group $2 where there
// is no /proc) until none is left.
const sweep = `
sweep() {
  if [ -d /proc/self ]; then
    n=0
    while [ $n -lt 200 ]; do
      pids=$(grep -aslF "` + marker + `=$1" /proc/[0-9]*/environ | cut -d/ -f3)
      [ -n "$pids" ] || return 0
      kill -9 $pids 2>/dev/null
      n=$((n+1)); [ $n -lt 3 ] || sleep 0.05
    done
    return 1
  fi
  [ -z "$2" ] || kill -9 -- "-$2" 2>/dev/null
  return 0
}
`

// watchdog waits for its standard input to end, which it does when the process
// that started the broker is gone, however it went. Then it removes all traces:
// $1 the marker, $2 the file with the group, $3 the folder to remove or "".
const watchdog = sweep + `
trap '' INT TERM HUP
cat >/dev/null
sweep "$1" "$(cat "$2" 2>/dev/null)"
[ -z "$3" ] || rm -rf "$3"
`

// processes runs a broker as processes of this machine.
type processes struct {
	in     Installation
	dir    string // the data folder
	remove bool   // dir is ours to remove
	id     string // value of the marker
	node   string
	prefix []string // what gives us the right to enter a tree: nothing, or sudo -n
	unsh   []string // the unshare command, for a tree
	env    []string
	log    io.Writer

	alive io.Closer // our end of the watchdog's standard input
	dog   *exec.Cmd

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{}
}

// newProcesses prepares the data folder's host and starts the watchdog.
func newProcesses(in Installation, dir string, remove bool, id, node string, p ports, logTo io.Writer) (*processes, error) {
	h := &processes{in: in, dir: dir, remove: remove, id: id, node: node, log: logTo, done: make(chan struct{})}
	close(h.done)
	if in.Root != "" {
		if err := h.mayEnter(); err != nil {
			return nil, err
		}
	}
	d := h.inside()
	h.env = []string{
		marker + "=" + id,
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"LANG=C.UTF-8",
		"HOME=" + d + "/home", // holds the private .erlang.cookie
		"TMPDIR=" + d + "/tmp",
		"ERL_EPMD_PORT=" + strconv.Itoa(p.epmd),
		"ERL_EPMD_ADDRESS=127.0.0.1",
		"RABBITMQ_NODENAME=" + node,
		"RABBITMQ_DIST_PORT=" + strconv.Itoa(p.dist),
		"RABBITMQ_CONF_ENV_FILE=/dev/null",
		"RABBITMQ_CONFIG_FILE=" + d + "/rabbitmq.conf",
		"RABBITMQ_ADVANCED_CONFIG_FILE=" + d + "/advanced.config",
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + d + "/enabled_plugins",
		"RABBITMQ_GENERATED_CONFIG_DIR=" + d + "/generated",
		"RABBITMQ_MNESIA_BASE=" + d + "/data",
		"RABBITMQ_LOG_BASE=" + d + "/log",
		"RABBITMQ_LOGS=-",
		"RABBITMQ_PID_FILE=" + d + "/pid",
		// No busy waiting of the schedulers: on a small machine it takes the
		// processor from the test. Distribution on loopback only.
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=+sbwt none +sbwtdcpu none +sbwtdio none" +
			" -kernel inet_dist_use_interface {127,0,0,1}",
	}
	if in.Root == "" {
		h.env[1] = "PATH=" + os.Getenv("PATH") + ":/usr/local/sbin:/usr/sbin:/sbin"
	}
	if err := h.watch(); err != nil {
		return nil, err
	}
	return h, nil
}

// inside is the data folder as the broker sees it.
func (h *processes) inside() string {
	if h.in.Root != "" {
		return "/mnt"
	}
	return h.dir
}

// mayEnter finds a way to mount and chroot: as root, with a user namespace, or
// through sudo without a password.
func (h *processes) mayEnter() error {
	why := fmt.Sprintf("entering the tree %s needs root, sudo without a password, or user namespaces; none of them works here", h.in.Root)
	for _, try := range []struct{ prefix, unshare []string }{
		{nil, []string{"unshare", "--mount", "--propagation", "private"}},
		{nil, []string{"unshare", "--user", "--map-root-user", "--mount", "--propagation", "private"}},
		{[]string{"sudo", "-n"}, []string{"unshare", "--mount", "--propagation", "private"}},
	} {
		argv := append(append([]string{}, try.prefix...), try.unshare...)
		argv = append(argv, "sh", "-c", `mount --rbind /proc "$1/proc" && chroot "$1" /bin/true`, "sh", h.in.Root)
		out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
		if err == nil {
			h.prefix, h.unsh = try.prefix, try.unshare
			return nil
		}
		why += fmt.Sprintf("\n%s %s: %v: %s", argv[0], argv[1], err, bytes.TrimSpace(out))
	}
	return errors.New(why)
}

// command builds a command that runs inside the tree, or as it is without one.
func (h *processes) command(ctx context.Context, args ...string) *exec.Cmd {
	var argv []string
	if h.in.Root != "" {
		argv = append(argv, h.prefix...)
		if len(h.prefix) > 0 {
			argv = append(append(argv, "env", "-i"), h.env...) // sudo passes no environment on
		}
		argv = append(argv, h.unsh...)
		argv = append(argv, "sh", "-c", enterTree, "enter", h.in.Root, h.dir)
	}
	argv = append(argv, args...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = h.env
	return cmd
}

// watch starts the watchdog, in a session of its own so that no signal to the
// terminal's group ends it before its work is done.
func (h *processes) watch() error {
	rm := ""
	if h.remove {
		rm = h.dir
	}
	argv := append(append([]string{}, h.prefix...), "sh", "-c", watchdog, "watchdog", h.id, h.groupFile(), rm)
	h.dog = exec.Command(argv[0], argv[1:]...)
	h.dog.Dir = "/"
	h.dog.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in, err := h.dog.StdinPipe()
	if err != nil {
		return fmt.Errorf("making the watchdog's pipe: %w", err)
	}
	h.alive = in
	if err := h.dog.Start(); err != nil {
		return fmt.Errorf("starting the watchdog: %w", err)
	}
	return nil
}

func (h *processes) groupFile() string { return filepath.Join(h.dir, "group") }

func (h *processes) start() error {
	cmd := h.command(context.Background(), "sh", "-c", runBroker, "rabbitmq", h.in.Home+"/sbin", h.inside())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Stdout, cmd.Stderr = h.log, h.log
	// The log may be a pipe that a helper of the runtime still holds for a
	// moment after the server has gone.
	cmd.WaitDelay = 2 * time.Second
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", cmd.Path, err)
	}
	if err := os.WriteFile(h.groupFile(), []byte(strconv.Itoa(cmd.Process.Pid)), 0o600); err != nil {
		return fmt.Errorf("noting the process group: %w", err)
	}
	done := make(chan struct{})
	h.mu.Lock()
	h.cmd, h.done = cmd, done
	h.mu.Unlock()
	go func() {
		_ = cmd.Wait()               // how it ended is in the log
		_ = os.Remove(h.groupFile()) // the number may be given to another process now
		close(done)
	}()
	return nil
}

func (h *processes) exited() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.done
}

func (h *processes) term(ctx context.Context) error {
	h.mu.Lock()
	cmd := h.cmd
	h.mu.Unlock()
	if len(h.prefix) == 0 {
		return cmd.Process.Signal(syscall.SIGTERM)
	}
	argv := append(append([]string{}, h.prefix...), "kill", "-TERM", strconv.Itoa(cmd.Process.Pid))
	return exec.CommandContext(ctx, argv[0], argv[1:]...).Run()
}

func (h *processes) kill() error {
	h.mu.Lock()
	cmd, done := h.cmd, h.done
	h.mu.Unlock()
	if cmd == nil {
		return nil
	}
	group := ""
	select {
	case <-done:
	default:
		group = strconv.Itoa(cmd.Process.Pid)
	}
	argv := append(append([]string{}, h.prefix...), "sh", "-c", sweep+`sweep "$1" "$2"`, "sweep", h.id, group)
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("killing the broker's processes: %w: %s", err, bytes.TrimSpace(out))
	}
	<-done
	return nil
}

func (h *processes) ctl(ctx context.Context, args ...string) ([]byte, error) {
	cmd := h.command(ctx, append([]string{h.in.Home + "/sbin/rabbitmqctl", "--quiet"}, args...)...)
	cmd.Env = append(cmd.Env[:len(cmd.Env):len(cmd.Env)], "RABBITMQ_CTL_ERL_ARGS=+sbwt none +sbwtdcpu none +sbwtdio none")
	out, err := output(ctx, cmd)
	if err != nil {
		return nil, fmt.Errorf("rabbitmqctl %s: %w", strings.Join(args, " "), err)
	}
	return out, nil
}

// eval uses erl_call, a small program that comes with Erlang: 50 ms where
// rabbitmqctl, which boots an Erlang runtime of its own, takes a second or more.
func (h *processes) eval(ctx context.Context, expressions string) error {
	cmd := h.command(ctx, "sh", "-c", `command -v erl_call >/dev/null || exit 127; exec erl_call -sname "$1" -e`, "sh", h.node)
	cmd.Stdin = strings.NewReader(expressions + "\n")
	out, err := output(ctx, cmd)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == 127 {
		return evalByCtl(ctx, h, expressions)
	}
	if err != nil {
		return fmt.Errorf("erl_call: %w", err)
	}
	if got := string(bytes.TrimSpace(out)); got != "{ok, ok}" {
		return fmt.Errorf("erl_call: %s", got)
	}
	return nil
}

// output runs a command in a process group of its own, so that a cancelled call
// takes with it what the command has started, and returns its standard output.
func output(ctx context.Context, cmd *exec.Cmd) ([]byte, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 2 * time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, fmt.Errorf("%w: %s", err, strings.TrimSpace(errs.String()+"\n"+out.String()))
	}
	return out.Bytes(), nil
}

func (h *processes) close() error {
	err := h.kill()
	_ = h.alive.Close() // the watchdog now removes the folder
	if werr := h.dog.Wait(); werr != nil {
		err = errors.Join(err, fmt.Errorf("waiting for the watchdog: %w", werr))
	}
	return err
}
