//go:build unix

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hopback/hopback/cmd/hopback/internal/demo"
	"github.com/hopback/hopback/rabbittest"
)

// demoBroker skips where there is no broker, unless one is meant to be there.
func demoBroker(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("the demo takes half a minute")
	}
	if len(rabbittest.Installed()) == 0 && os.Getenv("HOPBACK_TEST_BROKER") == "" {
		t.Skip("no RabbitMQ is installed: scripts/setup.sh demo")
	}
}

// TestDemo runs the command as people do, as a program.
func TestDemo(t *testing.T) {
	exe, err := exec.LookPath("hopback") // where TestMain has put it
	if err != nil {
		t.Fatal(err)
	}
	t.Run("says what to install", func(t *testing.T) { testDemoWithoutBroker(t, exe) })
	t.Run("tells the whole story", func(t *testing.T) { testDemoStory(t, exe) })
	t.Run("Ctrl-C while the broker starts", func(t *testing.T) {
		testDemoCtrlC(t, exe, "starting a private RabbitMQ", "interrupted before anything was sent")
	})
	t.Run("Ctrl-C in the middle", func(t *testing.T) {
		testDemoCtrlC(t, exe, "the payment service goes down", "interrupted at 332 sent, ")
	})
}

// demoProcess is `hopback demo` as a process of its own, at the head of a group
// as a shell would start it, with a folder for its broker's data.
func demoProcess(t *testing.T, exe string, args ...string) (cmd *exec.Cmd, tmp string) {
	t.Helper()
	// Short, and not below t.TempDir: the runtime's sockets have short names.
	tmp, err := os.MkdirTemp("", "demo-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(tmp) })
	cmd = exec.Command(exe, append([]string{"demo"}, args...)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd, tmp
}

// leftovers are the brokers' data folders, and the processes of a broker.
func leftovers(t *testing.T, tmp, id string) (folders []string, processes int) {
	t.Helper()
	folders, _ = filepath.Glob(filepath.Join(tmp, "hopback-rabbit-*"))
	environs, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, f := range environs {
		if env, err := os.ReadFile(f); err == nil && id != "" && bytes.Contains(env, []byte("HOPBACK_RABBITTEST="+id+"\x00")) {
			processes++
		}
	}
	return folders, processes
}

func testDemoStory(t *testing.T, exe string) {
	demoBroker(t)
	cmd, tmp := demoProcess(t, exe, "--output", "json")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("hopback demo: %v\n%s\n%s", err, errs.String(), out.String())
	}
	var res demo.Result
	dec := json.NewDecoder(&out)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&res); err != nil {
		t.Fatalf("the output is not one object: %v", err)
	}
	if dec.More() {
		t.Error("there is something behind the object")
	}
	t.Logf("RabbitMQ %s: up after %d ms, in all %d ms; %+v", res.Broker, res.BrokerMS, res.TookMS, res.Total)
	if !res.OK || res.Interrupted || len(res.Problems) > 0 {
		t.Errorf("ok %t, interrupted %t, problems %q", res.OK, res.Interrupted, res.Problems)
	}
	// 50 before, 100 in the herd, 16 odd ones, to each side.
	if want := 2 * 166; res.Total.Sent != want || res.Total.Handled+res.Total.Parked != want || res.Total.Lost != 0 || res.Total.Waiting != 0 {
		t.Errorf("total %+v; want %d sent = handled + parked", res.Total, want)
	}
	for _, r := range res.Routes {
		if r.HandledFirst != 50 {
			t.Errorf("%s: %d handled the first time, want 50", r.Queue, r.HandledFirst)
		}
		if r.ParkedBy["permanent"] != 10 || r.Undecodable != 5 {
			t.Errorf("%s: parked %v, undecodable %d; want 10 permanent, 5 of them undecodable", r.Queue, r.ParkedBy, r.Undecodable)
		}
		// A slow machine, or bad luck with the draws, may exhaust one of the herd.
		if r.ParkedBy["exhausted"] < 3 || r.ParkedBy["exhausted"] != r.Parked-10 {
			t.Errorf("%s: parked %v of %d; want at least the 3 hopeless ones exhausted, and no other reason", r.Queue, r.ParkedBy, r.Parked)
		}
		if r.ParkingDepth != r.Parked {
			t.Errorf("%s: the parking queue holds %d, want %d", r.Queue, r.ParkingDepth, r.Parked)
		}
		// Hopeless orders fail with every retry, and so on: this many at least.
		if r.Retries < 100+3*res.MaxRetries {
			t.Errorf("%s: %d retries", r.Queue, r.Retries)
		}
		bars := 0
		for _, s := range r.PerSecond {
			bars += s.Retries
			if s.Retries != s.Handled+s.Refused+s.Failed {
				t.Errorf("%s: second %d does not add up: %+v", r.Queue, s.Second, s)
			}
		}
		// One that was redelivered is in two bars.
		if bars < r.Retries || r.Lateness.Count < r.Retries {
			t.Errorf("%s: %d retries, but %d in the bars and %d with a lateness", r.Queue, r.Retries, bars, r.Lateness.Count)
		}
		// Due times are in whole milliseconds.
		if r.Lateness.Min < -1 {
			t.Errorf("%s: a retry came %.1f ms before it was due", r.Queue, -r.Lateness.Min)
		}
	}
	without, with := res.Routes[0], res.Routes[1]
	if with.BusiestSecond >= without.BusiestSecond {
		t.Errorf("the busiest second has %d retries with jitter and %d without: nothing is spread", with.BusiestSecond, without.BusiestSecond)
	}
	if folders, _ := leftovers(t, tmp, ""); len(folders) > 0 {
		t.Errorf("left behind: %v", folders)
	}
}

// testDemoCtrlC interrupts the demo when it has printed something, and looks
// for what it leaves behind.
func testDemoCtrlC(t *testing.T, exe, at, says string) {
	demoBroker(t)
	if _, err := os.Stat("/proc/self/environ"); err != nil {
		t.Skip("needs /proc, to find the broker's processes")
	}
	cmd, tmp := demoProcess(t, exe)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	var said strings.Builder
	lines := bufio.NewScanner(stdout)
	for lines.Scan() && !strings.Contains(lines.Text(), at) {
		said.WriteString(lines.Text() + "\n")
	}
	id := brokerID(t, tmp)
	// What a terminal does: to the whole group.
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() {
		said.WriteString(lines.Text() + "\n")
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != exitInterrupted {
		t.Errorf("ended with %v, want exit status %d\n%s", err, exitInterrupted, said.String())
	}
	if !strings.Contains(errs.String(), says) {
		t.Errorf("standard error says %q, want %q", errs.String(), says)
	}
	if folders, processes := leftovers(t, tmp, id); len(folders) > 0 || processes > 0 {
		t.Errorf("left behind: %d processes, folders %v", processes, folders)
	}
}

// brokerID waits for the private broker's folder and its first process, and
// returns the id that all its processes carry.
func brokerID(t *testing.T, tmp string) string {
	t.Helper()
	for range 1000 {
		files, _ := filepath.Glob(filepath.Join(tmp, "hopback-rabbit-*", "node"))
		if len(files) == 1 {
			name, _ := os.ReadFile(files[0])
			id, _, _ := strings.Cut(strings.TrimPrefix(string(name), "hopback-"), "@")
			if _, processes := leftovers(t, tmp, id); processes > 0 {
				return id
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("no broker comes up")
	return ""
}

func testDemoWithoutBroker(t *testing.T, exe string) {
	// A folder of brokers that is empty, and no container engine either; what the
	// machine's packages brought is found all the same, and is not 9.9.
	cmd, _ := demoProcess(t, exe, "--version", "9.9")
	cmd.Env = append(cmd.Env, "PATH=/nowhere", "HOPBACK_BROKERS="+t.TempDir())
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("ended with %v, want exit status 1", err)
	}
	for _, want := range []string{"RabbitMQ 9.9 is not installed", "apt-get install rabbitmq-server", "scripts/setup.sh"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
}
