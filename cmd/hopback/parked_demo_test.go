//go:build unix

package main

import (
	"bufio"
	"encoding/json"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// What docs/parking.md says of the demo's parked messages.
func TestDemoKeep(t *testing.T) {
	t.Parallel()
	demoBroker(t)
	exe, err := exec.LookPath("hopback") // where TestMain has put it
	if err != nil {
		t.Fatal(err)
	}
	cmd, _ := demoProcess(t, exe, "--keep", "--messages", "10", "--outage", "1s")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	url := ""
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if u, ok := strings.CutPrefix(strings.TrimSpace(lines.Text()), "export HOPBACK_BROKER_URL="); ok {
			url = u
		}
		if strings.Contains(lines.Text(), "docs/parking.md says") {
			break
		}
	}
	if url == "" {
		_ = cmd.Wait()
		t.Fatal("the demo ended without a broker to look at")
	}
	hopback := func(args ...string) string {
		c := exec.Command(exe, append([]string{"parked"}, args...)...)
		c.Dir = t.TempDir()
		c.Env = append(cmd.Environ(), "HOPBACK_BROKER_URL="+url)
		text, err := c.Output()
		if err != nil {
			t.Errorf("hopback parked %s: %v", strings.Join(args, " "), err)
		}
		return string(text)
	}
	if groups := hopback("list", "orders.with-jitter", "--group-by", "fingerprint"); !strings.Contains(groups, "in 3 groups") {
		t.Errorf("got %s", groups)
	}
	if plan := hopback("replay", "orders.with-jitter", "--type", "DecodeError", "--dry-run"); !strings.Contains(plan, "5 go to orders.with-jitter") {
		t.Errorf("got %s", plan)
	}
	var listed []struct{ ID string }
	if err := json.Unmarshal([]byte(hopback("list", "orders.with-jitter", "--type", "DecodeError", "--output", "json")), &listed); err != nil || len(listed) != 5 {
		t.Fatalf("%d are listed: %v", len(listed), err)
	}
	if shown := hopback("show", "orders.with-jitter", listed[0].ID); !strings.Contains(shown, "permanent") || !strings.Contains(shown, "\nHistory\n") {
		t.Errorf("got %s", shown)
	}
	replayed := hopback("replay", "orders.with-jitter", "--type", "DecodeError", "--yes", "--wait", "0s")
	if !strings.Contains(replayed, "5 of 13 messages sent back") || !strings.Contains(replayed, "outcome: 0 parked again, at most 5 waiting") {
		t.Errorf("got %s", replayed)
	}
	if left := hopback("list", "orders.with-jitter"); !strings.Contains(left, "8 shown of 8 messages") {
		t.Errorf("got %s", left)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	go func() {
		for lines.Scan() { // so that it can write to its end
		}
	}()
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("the demo ended with %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("the demo does not end")
	}
}
