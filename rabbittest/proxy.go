package rabbittest

import (
	"fmt"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"
)

// Proxy is a TCP proxy on a loopback port of its own in front of a broker. It
// does to connections what networks do: cut them without a closing handshake,
// let them hang, refuse them, slow them down.
type Proxy struct {
	l      net.Listener
	target string
	wg     sync.WaitGroup

	mu     sync.Mutex
	moved  *sync.Cond // frozen, closed or a pair's end has changed
	pairs  map[*pair]struct{}
	frozen bool
	refuse bool
	delay  time.Duration
	closed bool
}

// pair is one client connection and the one to the broker that serves it.
type pair struct {
	client, server *net.TCPConn
	cut            bool // guarded by Proxy.mu
}

// Proxy starts a proxy in front of the broker, which lasts until the test ends.
func (b *Broker) Proxy(t testing.TB) *Proxy {
	t.Helper()
	p, err := NewProxy(fmt.Sprintf("127.0.0.1:%d", b.ports.amqp))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// NewProxy starts a proxy in front of any TCP address, until Close.
func NewProxy(target string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("starting a proxy in front of %s: %w", target, err)
	}
	p := &Proxy{l: l, target: target, pairs: map[*pair]struct{}{}}
	p.moved = sync.NewCond(&p.mu)
	p.wg.Add(1)
	go p.accept()
	return p, nil
}

// Addr is the proxy's own address, host:port.
func (p *Proxy) Addr() string { return p.l.Addr().String() }

// URL is the AMQP URL given, with the proxy's address in place of the broker's.
func (p *Proxy) URL(amqpURL string) string {
	u, err := url.Parse(amqpURL)
	if err != nil {
		panic("rabbittest: Proxy.URL: not a URL")
	}
	u.Host = p.Addr()
	return u.String()
}

// Cut resets every connection through the proxy, on both sides and without any
// farewell, and returns how many there were. New connections are let through.
func (p *Proxy) Cut() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.pairs)
	for c := range p.pairs {
		p.drop(c)
	}
	return n
}

// Freeze holds back all bytes, in both directions and also of connections that
// are opened meanwhile (they are accepted, and hear nothing), until it is called
// with false; nothing is lost then.
func (p *Proxy) Freeze(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = on
	p.moved.Broadcast()
}

// Refuse makes the proxy reset new connections at once; those that are open go on.
func (p *Proxy) Refuse(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = on
}

// Delay holds back every piece of data for d before it is sent on, so a round
// trip takes 2d longer. 0 switches it off.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Close cuts every connection and stops the proxy. A second Close does nothing.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	for c := range p.pairs {
		p.drop(c)
	}
	p.mu.Unlock()
	p.l.Close()
	p.wg.Wait()
}

// drop resets both sides of a pair; p.mu is held.
func (p *Proxy) drop(c *pair) {
	c.cut = true
	delete(p.pairs, c)
	for _, conn := range []*net.TCPConn{c.client, c.server} {
		_ = conn.SetLinger(0) // RST in place of FIN
		_ = conn.Close()
	}
	p.moved.Broadcast()
}

func (p *Proxy) accept() {
	defer p.wg.Done()
	for {
		conn, err := p.l.Accept()
		if err != nil {
			return // closed
		}
		p.wg.Go(func() { p.serve(conn.(*net.TCPConn)) })
	}
}

func (p *Proxy) serve(client *net.TCPConn) {
	p.mu.Lock()
	refuse := p.refuse
	p.mu.Unlock()
	var server net.Conn
	var err error
	if !refuse {
		server, err = net.DialTimeout("tcp", p.target, 10*time.Second)
	}
	if refuse || err != nil {
		_ = client.SetLinger(0)
		client.Close()
		return
	}
	c := &pair{client: client, server: server.(*net.TCPConn)}
	p.mu.Lock()
	p.pairs[c] = struct{}{}
	if p.closed {
		p.drop(c)
	}
	p.mu.Unlock()

	var both sync.WaitGroup
	both.Go(func() { p.copy(c, c.server, c.client) })
	both.Go(func() { p.copy(c, c.client, c.server) })
	both.Wait()
	p.mu.Lock()
	delete(p.pairs, c)
	p.mu.Unlock()
	c.client.Close()
	c.server.Close()
}

// copy forwards one direction until its source ends or the pair is cut.
func (p *Proxy) copy(c *pair, to, from *net.TCPConn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if !p.pass(c) {
			return
		}
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				from.Close()
				return
			}
		}
		if err == io.EOF {
			_ = to.CloseWrite()
			return
		}
		if err != nil {
			to.Close()
			return
		}
	}
}

// pass waits as long as the proxy is frozen or slow; false: the pair was cut.
func (p *Proxy) pass(c *pair) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d := p.delay; d > 0 && !c.cut {
		p.mu.Unlock()
		time.Sleep(d)
		p.mu.Lock()
	}
	for p.frozen && !c.cut {
		p.moved.Wait()
	}
	return !c.cut
}
