//go:build unix

package rabbittest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Cluster is several private brokers of one version that form a cluster on this
// machine. Each node is a [Broker]: it can be stopped, killed and started again by
// itself.
type Cluster struct {
	Nodes []*Broker

	mapper *processes // what the nodes find each other by
	dir    string
}

// clusterTimeout bounds the start of a cluster whose context has no deadline.
const clusterTimeout = 5 * time.Minute

// StartCluster starts a cluster for a test and closes it when the test ends. Where
// no broker can be started it skips or fails as [Start] does.
func StartCluster(t testing.TB, nodes int, o ...Options) *Cluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), clusterTimeout)
	defer cancel()
	c, err := RunCluster(ctx, nodes, one(o))
	if err != nil {
		giveUp(t, err)
	}
	t.Cleanup(func() {
		for _, b := range c.Nodes {
			report(t, b)
		}
		if err := c.Close(); err != nil {
			t.Errorf("rabbittest: closing the cluster: %v", err)
		}
	})
	return c
}

// RunCluster starts nodes brokers that form a cluster, and returns when all of them
// know each other. The options are those of each; Dir, Port and ManagementPort
// cannot be given. It needs an installed broker: containers are not joined.
func RunCluster(ctx context.Context, nodes int, o Options) (c *Cluster, err error) {
	if o.Dir != "" || o.Port != 0 || o.ManagementPort != 0 {
		return nil, errors.New("rabbittest: a cluster cannot have Options.Dir, Port or ManagementPort: they are for one broker")
	}
	want := o.Version
	if want == "" {
		want = os.Getenv("HOPBACK_TEST_BROKER")
	}
	if want == none {
		return nil, errNone
	}
	in, err := o.find(want)
	if err != nil {
		return nil, err
	}
	ctx, cancel := withDefault(ctx, clusterTimeout)
	defer cancel()
	id := make([]byte, 6)
	_, _ = rand.Read(id) // never fails
	c = &Cluster{}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
			c = nil
		}
	}()
	if c.dir, err = os.MkdirTemp("", "hopback-cluster-"); err != nil {
		return c, fmt.Errorf("preparing a cluster: %w", err)
	}
	p, err := freePorts(1)
	if err != nil {
		return c, err
	}
	o.cluster = &membership{epmd: p[0], cookie: rand.Text()}
	if err := c.startMapper(in, hex.EncodeToString(id), p[0]); err != nil {
		return c, fmt.Errorf("starting a cluster's port mapper: %w", err)
	}
	o.Version = in.Version
	o.Config = append(append([]string{}, o.Config...), "cluster_formation.peer_discovery_backend = classic_config")
	if strings.HasPrefix(in.Version, "3.") {
		// It would wait up to a minute, at random, so that nodes do not form two
		// clusters; a lock does the same here.
		o.Config = append(o.Config, "cluster_formation.randomized_startup_delay_range.min = 0", "cluster_formation.randomized_startup_delay_range.max = 1")
	}
	names := make([]string, nodes)
	for i := range names {
		names[i] = fmt.Sprintf("hopback-%x-%d@localhost", id, i+1)
		o.Config = append(o.Config, fmt.Sprintf("cluster_formation.classic_config.nodes.%d = %s", i+1, names[i]))
	}
	return c, c.startNodes(ctx, o, names)
}

// startMapper runs a port mapper that belongs to no node: a node takes its own with
// it when it is killed, and the others could not be found any more.
func (c *Cluster) startMapper(in Installation, id string, port int) error {
	dir := filepath.Join(c.dir, "mapper")
	for _, d := range []string{"home", "tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			return err
		}
	}
	h, err := newProcesses(in, dir, false, "mapper-"+id, "none@localhost", ports{epmd: port}, io.Discard)
	if err != nil {
		return err
	}
	c.mapper = h
	cmd := h.command(context.Background(), "sh", "-c", `exec epmd -address 127.0.0.1 -port "$ERL_EPMD_PORT"`)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }()
	return awaitPort(port)
}

// startNodes starts all at once: each waits for the others to join it.
func (c *Cluster) startNodes(ctx context.Context, o Options, names []string) error {
	c.Nodes = make([]*Broker, len(names))
	errs := make([]error, len(names))
	var all sync.WaitGroup
	for i, name := range names {
		dir := filepath.Join(c.dir, fmt.Sprint(i+1))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "node"), []byte(name+"\n"), 0o600); err != nil {
			return err
		}
		one := o
		one.Dir = dir
		all.Go(func() { c.Nodes[i], errs[i] = Run(ctx, one) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("starting a cluster: %w", err)
	}
	for {
		n, err := c.Nodes[0].members(ctx)
		if err == nil && n == len(names) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("starting a cluster: %d of %d nodes know each other (%w)", n, len(names), errors.Join(err, ctx.Err()))
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// members is how many running nodes a broker sees, itself included.
func (b *Broker) members(ctx context.Context) (int, error) {
	if b.o.NoManagement {
		out, err := b.Ctl(ctx, "eval", "length(rabbit_nodes:list_running()).")
		if err != nil {
			// 3.10 has it by another name.
			if out, err = b.Ctl(ctx, "eval", "length(rabbit_nodes:all_running())."); err != nil {
				return 0, err
			}
		}
		n := 0
		_, err = fmt.Sscan(string(out), &n)
		return n, err
	}
	var nodes []struct {
		Running bool `json:"running"`
	}
	if err := b.Get(ctx, "/api/nodes?columns=name,running", &nodes); err != nil {
		return 0, err
	}
	n := 0
	for _, node := range nodes {
		if node.Running {
			n++
		}
	}
	return n, nil
}

// Node is the node's name, as a queue's leader is told by the management API.
func (b *Broker) Node() string { return b.node }

// URLs are the AMQP URLs of all nodes, the default virtual host.
func (c *Cluster) URLs() []string {
	var urls []string
	for _, b := range c.Nodes {
		urls = append(urls, b.URL())
	}
	return urls
}

// Leader is the node that leads a quorum queue of a virtual host, as seen by the
// first node that answers.
func (c *Cluster) Leader(ctx context.Context, vhost, queue string) (*Broker, error) {
	var errs []error
	for _, b := range c.Nodes {
		if !b.isRunning() {
			continue
		}
		var q struct {
			Leader string `json:"leader"`
			Node   string `json:"node"`
		}
		if err := b.Get(ctx, "/api/queues/"+url.PathEscape(vhost)+"/"+url.PathEscape(queue), &q); err != nil {
			errs = append(errs, err)
			continue
		}
		if q.Leader == "" {
			q.Leader = q.Node
		}
		for _, leader := range c.Nodes {
			if leader.node == q.Leader {
				return leader, nil
			}
		}
	}
	return nil, fmt.Errorf("looking for the leader of queue %q: %w", queue, errors.Join(append(errs, errors.New("no node tells"))...))
}

// Heal starts every node that does not run and returns when all know each other
// and every quorum queue has a leader.
func (c *Cluster) Heal(ctx context.Context) error {
	for _, b := range c.Nodes {
		if err := b.Start(ctx); err != nil {
			return err
		}
	}
	for _, b := range c.Nodes {
		for {
			n, err := b.members(ctx)
			if err == nil && n == len(c.Nodes) {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("healing the cluster: %d of %d nodes know each other (%w)", n, len(c.Nodes), errors.Join(err, ctx.Err()))
			case <-time.After(200 * time.Millisecond):
			}
		}
	}
	return nil
}

// Close ends all nodes at once and removes what they left.
func (c *Cluster) Close() error {
	var all sync.WaitGroup
	errs := make([]error, len(c.Nodes)+2)
	for i, b := range c.Nodes {
		if b == nil {
			continue
		}
		all.Go(func() {
			_ = b.Kill(context.Background()) // nobody will use the data: no polite stop
			errs[i] = b.Close()
		})
	}
	all.Wait()
	if c.mapper != nil {
		errs[len(errs)-2] = c.mapper.close()
	}
	if c.dir != "" {
		errs[len(errs)-1] = removeAll(c.dir)
	}
	return errors.Join(errs...)
}

// removeAll is os.RemoveAll for a folder that somebody may be writing into for one
// moment more.
func removeAll(dir string) (err error) {
	for range 20 {
		if err = os.RemoveAll(dir); err == nil {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return err
}

func awaitPort(port int) error {
	var err error
	for range 200 {
		var c net.Conn
		if c, err = net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), time.Second); err == nil {
			return c.Close()
		}
		time.Sleep(50 * time.Millisecond)
	}
	return err
}
