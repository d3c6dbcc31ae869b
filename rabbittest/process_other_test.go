//go:build !linux

package rabbittest

import "testing"

// Without /proc there is no looking for a broker's processes.
func processesOf(t *testing.T, _ *Broker) []string {
	t.Helper()
	t.Skip("needs /proc")
	return nil
}

func killVM(b *Broker) error { return b.host.kill() }
