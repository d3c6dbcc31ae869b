//go:build !unix

package conformance

import "os/exec"

func shell(line string) *exec.Cmd { return exec.Command("cmd", "/C", line) }

func terminate(cmd *exec.Cmd) { _ = cmd.Process.Kill() }

func killGroup(cmd *exec.Cmd) { _ = cmd.Process.Kill() }
