package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/rabbittest"
)

// soaking reports whether the long variants run as well: HOPBACK_SOAK=1.
func soaking() bool { return os.Getenv("HOPBACK_SOAK") != "" }

// faultBroker is a broker of the test's own, to stop, kill and starve. It has
// RabbitMQ's own limit of the dead-letter workers, 32, so that what would block
// a slot in the field blocks it here too.
func faultBroker(t *testing.T, config ...string) *rabbittest.Broker {
	t.Helper()
	return rabbittest.Start(t, brokerOptions(rabbittest.Options{DeadLetterPrefetch: -1, Config: config}))
}

// crowd is a load of messages whose fates are known beforehand, on a classic
// and a quorum work queue at once. By the number in their id, of ten messages
// five succeed at once, two at the second attempt, one at the third, one is
// permanent at its second and one never succeeds.
type crowd struct {
	*ledger
	w      *world
	client *hopback.Client
	queues []string
	runs   []*running
	took   time.Duration // of each handler

	reconnects, retried, blocks atomic.Int64

	mu       sync.Mutex
	parked   map[string]string          // id: reason, as told by the Observer
	retryIDs map[string]map[string]bool // id: what it was called at its second and later attempts
	again    map[string]int             // id and attempt: runs of the handler
}

const crowdRetries = 3

// crowdMechanism leaves the choice to Hopback where native is tested: the quorum
// queue gets it, the classic one cannot.
func crowdMechanism() string {
	switch mechanism {
	case hopback.Native:
		return hopback.Auto
	case hopback.Plugin:
		return hopback.Plugin
	}
	return hopback.Wheel
}

var errCrowd, errCrowdPoison = errors.New("transient, for the crowd"), errors.New("poison, for the crowd")

// newCrowd declares the work queues and starts a consumer on each, over url.
func newCrowd(t *testing.T, w *world, url string, took time.Duration, change ...func(*hopback.ConsumerConfig)) *crowd {
	t.Helper()
	c := &crowd{
		ledger: newLedger(), w: w, queues: []string{"classic", "quorum"}, took: took,
		parked: map[string]string{}, retryIDs: map[string]map[string]bool{}, again: map[string]int{},
	}
	for _, q := range c.queues {
		w.declare(q, q)
	}
	c.client = w.newClient(func(cfg *hopback.Config) { cfg.URL, cfg.Name, cfg.Observer = url, "crowd", (*crowdObserver)(c) })
	c.start(change...)
	return c
}

// start runs a consumer on each queue.
func (c *crowd) start(change ...func(*hopback.ConsumerConfig)) {
	for _, q := range c.queues {
		cfg := hopback.ConsumerConfig{
			Route: hopback.Route{Queue: q, Mechanism: crowdMechanism(), Policy: hopback.Policy{
				Name: "crowd", MaxRetries: crowdRetries, MaxRetryAfter: 2 * time.Second,
				Schedule: hopback.Schedule{
					Backoff: hopback.Exponential, Base: 300 * time.Millisecond, Factor: 2, Max: 2 * time.Second, Jitter: hopback.Full,
				},
			}},
			Handler: c.handler(hopback.HandlerFunc(c.handle)),
		}
		for _, f := range change {
			f(&cfg)
		}
		c.runs = append(c.runs, c.w.runConsumerOn(c.client, cfg))
	}
}

// handle does with a message what its number says.
func (c *crowd) handle(ctx context.Context, m *hopback.Message) error {
	c.mu.Lock()
	if m.Attempt > 1 {
		if c.retryIDs[m.MessageID] == nil {
			c.retryIDs[m.MessageID] = map[string]bool{}
		}
		c.retryIDs[m.MessageID][m.RetryID] = true
	}
	c.again[fmt.Sprint(m.MessageID, " ", m.Attempt)]++
	c.mu.Unlock()
	if c.took > 0 {
		time.Sleep(c.took)
	}
	if m.Attempt <= crowdFailures(m.MessageID) {
		return errCrowd
	}
	if crowdFate(m.MessageID) == 8 {
		return hopback.Permanent(errCrowdPoison)
	}
	return nil
}

// crowdFate is the last digit of the number in an id.
func crowdFate(id string) int {
	n, err := strconv.Atoi(id[strings.LastIndexByte(id, '-')+1:])
	if err != nil {
		panic("not an id of a ledger: " + id)
	}
	return n % 10
}

// crowdFailures is how many attempts fail before something else happens.
func crowdFailures(id string) int {
	switch crowdFate(id) {
	case 5, 6, 8:
		return 1
	case 7:
		return 2
	case 9:
		return crowdRetries + 1
	}
	return 0
}

// feed sends n messages to each queue.
func (c *crowd) feed(n int) {
	for _, q := range c.queues {
		c.send(c.w, q, n)
	}
}

// settled counts the messages that were handled or parked.
func (c *crowd) settled() int {
	c.ledger.mu.Lock()
	defer c.ledger.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.handled)
	for id := range c.parked {
		if c.handled[id] == 0 {
			n++
		}
	}
	return n
}

// finish waits until every message is settled, stops the consumers, looks for
// every message and checks that each met its fate. It returns how often a
// message was handled twice or is also somewhere else.
func (c *crowd) finish(t *testing.T) int {
	t.Helper()
	c.ledger.mu.Lock()
	sent := len(c.sent)
	c.ledger.mu.Unlock()
	// Three minutes are RabbitMQ's own time for what its dead-letter workers
	// try again.
	const limit = patience + 3*time.Minute
	start, shown := time.Now(), false
	for c.settled() < sent {
		if took := time.Since(start); took > limit {
			t.Errorf("%d of %d messages are settled after %s", c.settled(), sent, limit)
			break
		} else if took > 30*time.Second && !shown {
			shown = true
			t.Logf("only %d of %d messages are settled after %s:\n%s", c.settled(), sent, took.Round(time.Second), c.w.contents())
		}
		time.Sleep(20 * time.Millisecond)
	}
	if shown {
		t.Logf("settled after %s", time.Since(start).Round(time.Second))
	}
	for _, r := range c.runs {
		if err := r.stop(); err != nil {
			t.Errorf("stop a consumer: %v", err)
		}
	}
	s := c.check(c.w)
	c.ledger.mu.Lock()
	defer c.ledger.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	crashLoops := 0
	for id := range c.sent {
		reason := c.parked[id]
		want := map[int]string{8: "permanent", 9: "exhausted"}[crowdFate(id)]
		switch {
		case reason == "crash-loop":
			crashLoops++ // lost connections count too, by the broker's own rule
		case want != "" && (c.handled[id] > 0 || reason != want):
			t.Errorf("%s: handled %d times, parked as %q; want parked as %q", id, c.handled[id], reason, want)
		case want == "" && (c.handled[id] == 0 || reason != ""):
			t.Errorf("%s: handled %d times, parked as %q; want handled", id, c.handled[id], reason)
		}
		if n := len(c.retryIDs[id]); n > 1 {
			t.Errorf("%s: its copies have %d different retry ids: duplicates cannot be recognised", id, n)
		}
	}
	runs := 0
	for _, n := range c.again {
		runs += n - 1
	}
	t.Logf("%d messages, %d retries, %d twice somewhere, %d attempts run again, %d reconnects, %d crash loops",
		sent, c.retried.Load(), len(s.Duplicates), runs, c.reconnects.Load(), crashLoops)
	return len(s.Duplicates)
}

// crowdObserver is the crowd as an Observer.
type crowdObserver crowd

var _ hopback.Observer = (*crowdObserver)(nil)

func (o *crowdObserver) Received(hopback.Received)       {}
func (o *crowdObserver) Handled(hopback.Handled)         {}
func (o *crowdObserver) Discarded(hopback.Discarded)     {}
func (o *crowdObserver) Retried(hopback.Retried)         { o.retried.Add(1) }
func (o *crowdObserver) Reconnected(hopback.Reconnected) { o.reconnects.Add(1) }

func (o *crowdObserver) Blocked(e hopback.Blocked) {
	if e.Active {
		o.blocks.Add(1)
	}
}

func (o *crowdObserver) Parked(e hopback.Parked) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.parked[e.MessageID] = e.Reason
}

// gate is a proxy that tells a client's two connections apart, by the names
// that they give the broker, and can hold back one direction of one of them.
type gate struct {
	l      net.Listener
	target string
	wg     sync.WaitGroup

	mu     sync.Mutex
	moved  *sync.Cond
	held   map[string]bool
	when   map[string][]byte // hold this from the moment that the client sends these bytes
	pairs  map[*gatePair]bool
	pubs   int
	closed bool
}

type gatePair struct {
	client, server net.Conn
	purpose        string // "consume" or "publish", once the client has told
	cut            bool
}

// The directions, as suffixes of a purpose.
const (
	toBroker = ">"
	toClient = "<"
)

// newGate starts a gate in front of the broker of an AMQP URL.
func newGate(t *testing.T, amqpURL string) *gate {
	t.Helper()
	u, err := url.Parse(amqpURL)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{l: l, target: u.Host, held: map[string]bool{}, when: map[string][]byte{}, pairs: map[*gatePair]bool{}}
	g.moved = sync.NewCond(&g.mu)
	g.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			g.wg.Go(func() { g.serve(c) })
		}
	})
	t.Cleanup(g.close)
	return g
}

// url is an AMQP URL with the gate in the place of the broker.
func (g *gate) url(amqpURL string) string {
	u, err := url.Parse(amqpURL)
	if err != nil {
		panic(err)
	}
	u.Host = g.l.Addr().String()
	return u.String()
}

// hold holds back what goes one way on the connections of one purpose, those
// to come included: hold("consume"+toBroker, true).
func (g *gate) hold(what string, on bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held[what] = on
	g.moved.Broadcast()
}

// holdFrom holds back as hold does, from the moment on that the client sends
// something on a connection of that purpose: the bytes of an AMQP method.
func (g *gate) holdFrom(what string, sends []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.when[what] = sends
}

func (g *gate) holding(what string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.held[what]
}

// published is how many publishes have gone through, give or take one that fell
// between two reads.
func (g *gate) published() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.pubs
}

// count is how many connections of one purpose there are.
func (g *gate) count(purpose string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := 0
	for p := range g.pairs {
		if p.purpose == purpose && !p.cut {
			n++
		}
	}
	return n
}

// cut resets the connections of one purpose, what is held of them included.
func (g *gate) cut(purpose string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for p := range g.pairs {
		if p.purpose == purpose {
			g.drop(p)
		}
	}
}

func (g *gate) drop(p *gatePair) {
	p.cut = true
	p.client.Close()
	p.server.Close()
	g.moved.Broadcast()
}

func (g *gate) close() {
	g.mu.Lock()
	g.closed = true
	for p := range g.pairs {
		g.drop(p)
	}
	g.mu.Unlock()
	g.l.Close()
	g.wg.Wait()
}

func (g *gate) serve(client net.Conn) {
	server, err := net.DialTimeout("tcp", g.target, 10*time.Second)
	if err != nil {
		client.Close()
		return
	}
	p := &gatePair{client: client, server: server}
	g.mu.Lock()
	g.pairs[p] = true
	if g.closed {
		g.drop(p)
	}
	g.mu.Unlock()
	var all sync.WaitGroup
	for _, way := range []struct {
		direction string
		to, from  net.Conn
	}{{toBroker, server, client}, {toClient, client, server}} {
		f := &flow{}
		all.Go(func() { g.read(p, f, way.direction, way.from) })
		all.Go(func() { g.write(p, f, way.direction, way.to) })
	}
	all.Wait()
	g.mu.Lock()
	g.drop(p)
	delete(g.pairs, p)
	g.mu.Unlock()
}

// flow is what was read one way and is not yet sent on. It is read all the time,
// so that the end of a connection is seen while its bytes are held.
type flow struct {
	bytes []byte
	ended bool
}

func (g *gate) read(p *gatePair, f *flow, direction string, from net.Conn) {
	buf := make([]byte, 32<<10)
	var begin []byte
	for {
		n, err := from.Read(buf)
		g.mu.Lock()
		f.bytes = append(f.bytes, buf[:n]...)
		f.ended = err != nil
		if direction == toBroker && p.purpose == "" {
			begin = append(begin, buf[:n]...)
			for _, purpose := range []string{"consume", "publish"} {
				if bytes.Contains(begin, []byte("("+purpose+")")) {
					p.purpose = purpose
				}
			}
		}
		if direction == toBroker && p.purpose == "publish" {
			g.pubs += bytes.Count(buf[:n], []byte{0, 60, 0, 40}) // basic.publish
		}
		for what, sends := range g.when {
			if direction == toBroker && p.purpose != "" && strings.HasPrefix(what, p.purpose) && bytes.Contains(buf[:n], sends) {
				g.held[what] = true
				delete(g.when, what)
			}
		}
		if f.ended && g.held[p.purpose+direction] {
			g.drop(p) // what is held was on its way, and is lost
		}
		g.moved.Broadcast()
		g.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (g *gate) write(p *gatePair, f *flow, direction string, to net.Conn) {
	defer to.Close()
	for {
		g.mu.Lock()
		for !p.cut && (g.held[p.purpose+direction] || len(f.bytes) == 0 && !f.ended) {
			g.moved.Wait()
		}
		send := f.bytes
		f.bytes = nil
		over := p.cut || len(send) == 0
		g.mu.Unlock()
		if over {
			return
		}
		if _, err := to.Write(send); err != nil {
			return
		}
	}
}

// hangUp forgets the test's own connection, which is dialled again when it is
// next needed: the broker may be about to close it.
func (w *world) hangUp() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn != nil {
		w.conn.Close()
		w.conn, w.pub = nil, nil
	}
}

// deleteQueue deletes a queue with what is in it.
func (w *world) deleteQueue(name string) {
	w.t.Helper()
	ch := w.channel()
	defer ch.Close()
	if _, err := ch.QueueDelete(name, false, false, false); err != nil {
		w.t.Fatalf("delete queue %q: %v", name, err)
	}
}

// deleteExchange deletes an exchange.
func (w *world) deleteExchange(name string) {
	w.t.Helper()
	ch := w.channel()
	defer ch.Close()
	if err := ch.ExchangeDelete(name, false, false); err != nil {
		w.t.Fatalf("delete exchange %q: %v", name, err)
	}
}

// unacked is how many messages of a queue are with consumers. The figure is up
// to five seconds old: wait for it.
func (w *world) unacked(queue string) int {
	w.t.Helper()
	var q struct {
		Unacked int `json:"messages_unacknowledged"`
	}
	if err := w.broker.Get(context.Background(), "/api/queues/"+w.vhost+"/"+queue, &q); err != nil {
		w.t.Fatalf("look at queue %q: %v", queue, err)
	}
	return q.Unacked
}

// contents is what the queues of the virtual host hold, for a test that waits.
func (w *world) contents() string {
	var all []struct {
		Name    string `json:"name"`
		Ready   int    `json:"messages_ready"`
		Unacked int    `json:"messages_unacknowledged"`
		Dying   int    `json:"messages_dlx"` // held by the dead-letter worker
	}
	if err := w.broker.Get(context.Background(), "/api/queues/"+w.vhost, &all); err != nil {
		return err.Error()
	}
	var b strings.Builder
	for _, q := range all {
		if q.Ready+q.Unacked+q.Dying > 0 {
			fmt.Fprintf(&b, "%s: %d ready, %d with consumers, %d being dead-lettered\n", q.Name, q.Ready, q.Unacked, q.Dying)
		}
	}
	return b.String()
}

// channels counts the open channels of connections by the names that the client
// gave them, "crowd (publish)". Up to five seconds old: wait for it.
func (w *world) channels() map[string]int {
	w.t.Helper()
	var all []struct {
		Name     string `json:"user_provided_name"`
		Channels int    `json:"channels"`
	}
	if err := w.broker.Get(context.Background(), "/api/vhosts/"+w.vhost+"/connections", &all); err != nil {
		w.t.Fatalf("list the connections: %v", err)
	}
	n := map[string]int{}
	for _, c := range all {
		n[c.Name] += c.Channels
	}
	return n
}

// within fails the test when something takes longer than a limit that no
// machine should need.
func within(t *testing.T, limit time.Duration, what string, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	select {
	case <-done:
	case <-time.After(limit):
		t.Fatalf("not within %s: %s", limit, what)
	}
}
