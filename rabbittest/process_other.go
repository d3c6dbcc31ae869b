//go:build !unix

package rabbittest

import (
	"errors"
	"io"
)

var errUnsupported = errors.New("rabbittest: private brokers need Linux, macOS or another UNIX")

func newProcesses(Installation, string, bool, string, string, ports, io.Writer) (host, error) {
	return nil, errUnsupported
}

func lockFile(string) (func(), error) { return nil, errUnsupported }
