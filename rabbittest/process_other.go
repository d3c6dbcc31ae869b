//go:build !unix

package rabbittest

import "io"

func newProcesses(Installation, string, bool, string, string, ports, io.Writer) (host, error) {
	return nil, errUnsupported
}

func lockFile(string) (func(), error) { return nil, errUnsupported }
