package rabbittest

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// freePorts picks n loopback ports that nobody listens on, below the range that
// the kernel hands out for outgoing connections (from 32768 on Linux): a broker
// that is stopped and started again wants the same ports back, and must not find
// that some client connection has got one of them in the meantime.
func freePorts(n int) ([]int, error) {
	const low, high, tries = 20000, 32000, 500
	var got []int
	var held []net.Listener
	defer func() {
		for _, l := range held {
			l.Close()
		}
	}()
	for range tries {
		p := low + rand.IntN(high-low)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p))
		if err != nil {
			continue
		}
		held = append(held, l)
		if got = append(got, p); len(got) == n {
			return got, nil
		}
	}
	return nil, fmt.Errorf("looking for %d free ports on 127.0.0.1 between %d and %d: %d tries found %d", n, low, high, tries, len(got))
}
