package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// startDev runs hopback dev until its first line of output.
func startDev(t *testing.T, args ...string) (cmd *exec.Cmd, line string, tmp string, stderr *bytes.Buffer) {
	t.Helper()
	demoBroker(t)
	tmp, err := os.MkdirTemp("", "dev-") // short, for the names of sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(tmp) })
	cmd = exec.Command("hopback", append([]string{"dev"}, args...)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr = &bytes.Buffer{}
	cmd.Stderr = stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		_ = cmd.Wait()
		t.Fatalf("no output: %v\n%s", lines.Err(), stderr)
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return cmd, lines.Text(), tmp, stderr
}

// stop sends a signal and waits for the end, which must leave nothing behind.
func stop(t *testing.T, cmd *exec.Cmd, tmp string, stderr *bytes.Buffer) {
	t.Helper()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("ended with %v\n%s", err, stderr)
	}
	if folders, _ := leftovers(t, tmp, ""); len(folders) > 0 {
		t.Errorf("left behind: %q", folders)
	}
}

func TestDev(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	l.Close()
	cmd, line, tmp, stderr := startDev(t, "--port", port, "--management", "--output", "json")
	var up struct {
		Version       string `json:"version"`
		URL           string `json:"url"`
		ManagementURL string `json:"management_url"`
		Data          string `json:"data"`
	}
	if err := json.Unmarshal([]byte(line), &up); err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	if want := "amqp://guest:guest@127.0.0.1:" + port + "/"; up.URL != want || up.ManagementURL == "" || up.Version == "" {
		t.Errorf("got %s, want the URL %s", line, want)
	}
	conn, err := amqp.Dial(up.URL)
	if err != nil {
		t.Fatal(err)
	}
	ch, err := conn.Channel()
	if err == nil {
		_, err = ch.QueueDeclare("q", true, false, false, false, nil)
	}
	if err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(up.Data); err != nil {
		t.Error(err)
	}
	stop(t, cmd, tmp, stderr) // with a client still connected
	if _, err := amqp.Dial(up.URL); err == nil {
		t.Error("something still answers")
	}
}

// The data of one run is there in the next.
func TestDevKeepsItsData(t *testing.T) {
	t.Parallel()
	data, err := os.MkdirTemp("", "data-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(data) })
	for i := range 2 {
		cmd, line, tmp, stderr := startDev(t, "--data", data, "-o", "json")
		var up struct{ URL string }
		if err := json.Unmarshal([]byte(line), &up); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		conn, err := amqp.DialConfig(up.URL, amqp.Config{Dial: amqp.DefaultDial(10 * time.Second)})
		if err != nil {
			t.Fatal(err)
		}
		ch, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			_, err = ch.QueueDeclare("kept", true, false, false, false, nil)
		} else {
			_, err = ch.QueueDeclarePassive("kept", true, false, false, false, nil)
		}
		if err != nil {
			t.Errorf("run %d: %v", i+1, err)
		}
		conn.Close()
		stop(t, cmd, tmp, stderr)
	}
}

// A broker that dies is no clean end.
func TestDevNoticesTheEndOfItsBroker(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/environ"); err != nil {
		t.Skip("needs /proc, to find the broker's processes")
	}
	cmd, _, tmp, stderr := startDev(t, "-o", "json")
	id := brokerOf(t, tmp)
	environs, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, f := range environs {
		env, err := os.ReadFile(f)
		if err != nil || !bytes.Contains(env, []byte("HOPBACK_RABBITTEST="+id+"\x00")) {
			continue
		}
		if pid, err := strconv.Atoi(strings.Split(f, "/")[2]); err == nil && pid != cmd.Process.Pid {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	err := cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(stderr.String(), "the broker has ended by itself") {
		t.Errorf("%v\n%s", err, stderr)
	}
}

// brokerOf is the id that the processes of the only broker in a folder carry.
func brokerOf(t *testing.T, tmp string) string {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join(tmp, "hopback-rabbit-*", "node"))
	if len(files) != 1 {
		t.Fatalf("brokers: %q", files)
	}
	name, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	id, _, _ := strings.Cut(strings.TrimPrefix(string(name), "hopback-"), "@")
	return id
}

func TestDevInterruptedWhileItStarts(t *testing.T) {
	t.Parallel()
	demoBroker(t)
	tmp, err := os.MkdirTemp("", "dev-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(tmp) })
	cmd := exec.Command("hopback", "dev")
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	said, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(said)
	lines.Scan() // starting …
	for range 1000 {
		if folders, _ := leftovers(t, tmp, ""); len(folders) > 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	var rest strings.Builder
	for lines.Scan() {
		rest.WriteString(lines.Text())
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 130 {
		t.Errorf("ended with %v, want exit status 130\n%s", err, rest.String())
	}
	if folders, _ := leftovers(t, tmp, ""); len(folders) > 0 {
		t.Errorf("left behind: %q", folders)
	}
}

func TestDevSaysWhatIsInstalled(t *testing.T) {
	cmd := exec.Command("hopback", "dev", "--version", "9.9")
	cmd.Env = []string{"PATH=/nowhere", "HOME=" + os.Getenv("HOME")} // no container engine either
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "RabbitMQ 9.9 is not installed") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestDevOnATakenPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	out, err := exec.Command("hopback", "dev", "--port", strconv.Itoa(port)).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "port "+strconv.Itoa(port)+" cannot be used") {
		t.Errorf("%v\n%s", err, out)
	}
}
