//go:build linux

package rabbittest

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// marked finds the processes that carry a marker, or name a node on their
// command line, as "pid command".
func marked(t *testing.T, id string) []string {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, d := range dirs {
		env, _ := os.ReadFile(d + "/environ")
		args, _ := os.ReadFile(d + "/cmdline")
		if strings.Contains(string(env)+string(args), id) {
			found = append(found, filepath.Base(d)+" "+strings.ReplaceAll(string(args), "\x00", " "))
		}
	}
	return found
}

// processesOf finds everything that belongs to a broker, its watchdog too.
func processesOf(t *testing.T, b *Broker) []string {
	t.Helper()
	p, ok := b.host.(*processes)
	if !ok {
		t.Skip("the broker runs in a container")
	}
	return marked(t, p.id)
}

// killVM kills the Erlang runtime alone, as a crash of the broker does.
func killVM(b *Broker) error {
	p, ok := b.host.(*processes)
	if !ok || len(p.prefix) > 0 { // in a container, or root's: not ours to look into
		return b.host.kill()
	}
	exes, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, e := range exes {
		exe, _ := os.Readlink(e)
		env, _ := os.ReadFile(filepath.Dir(e) + "/environ")
		if strings.HasPrefix(filepath.Base(exe), "beam") && strings.Contains(string(env), marker+"="+p.id) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(e)))
			return syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	return errors.New("no Erlang runtime was found")
}

// A broker must not outlive the process that started it, even one that had no
// chance to clean up. The test binary runs itself as that process.
func TestBrokerDiesWithItsParent(t *testing.T) {
	if os.Getenv("RABBITTEST_CHILD") != "" {
		b := Start(t, Options{NoManagement: true})
		fmt.Printf("child %s %s\n", b.host.(*processes).id, b.Dir())
		select {} // until it is killed
	}
	if os.Getenv("HOPBACK_TEST_BROKER") == none {
		giveUp(t, errNone)
	}
	if len(Installed()) == 0 {
		giveUp(t, &NotInstalledError{})
	}
	child := exec.Command(os.Args[0], "-test.run=^TestBrokerDiesWithItsParent$")
	child.Env = append(os.Environ(), "RABBITTEST_CHILD=1")
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer child.Wait()
	defer child.Process.Kill()
	var id, dir string
	for s := bufio.NewScanner(out); s.Scan(); {
		if _, err := fmt.Sscanf(s.Text(), "child %s %s", &id, &dir); err == nil {
			break
		}
		t.Log(s.Text())
	}
	if id == "" {
		t.Fatal("the child started no broker")
	}
	if len(marked(t, id)) < 3 { // the runtime, the port mapper, the watchdog at least
		t.Fatalf("processes of the running broker: %q", marked(t, id))
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "no process of the broker is left", func() bool { return len(marked(t, id)) == 0 })
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the data folder %s is left: %v", dir, err)
	}
}
