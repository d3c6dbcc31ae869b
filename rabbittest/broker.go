package rabbittest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// startTimeout bounds a start whose context has no deadline. A broker is up in a
// few seconds; several at once on a busy machine with two processors need more.
const startTimeout = 3 * time.Minute

// stopTimeout bounds a polite stop whose context has no deadline.
const stopTimeout = time.Minute

// Broker is a private RabbitMQ. Its methods may be called from any goroutine.
type Broker struct {
	o       Options
	version string
	node    string
	dir     string
	ports   ports
	host    host
	log     *os.File
	unlock  func()
	http    *http.Client

	mu     sync.Mutex // serialises what changes the broker's state
	closed bool
}

// Run starts a private broker and returns when it accepts connections. The
// context bounds the start alone: the broker runs until [Broker.Close], and at
// the latest until the calling process has ended, however it ends.
//
// Without an installed broker Run uses a running docker or podman; without
// either it returns a [*NotInstalledError].
func Run(ctx context.Context, o Options) (*Broker, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	// A port may be taken between our look and the broker's start; others then.
	var b *Broker
	var err error
	for range 3 {
		b, err = run(ctx, o)
		if err == nil || ctx.Err() != nil || !portTaken(err) {
			break
		}
	}
	return b, err
}

// portTaken reports whether a start failed in the words of the broker, or of its
// port mapper, for a port that is in use.
func portTaken(err error) bool {
	return strings.Contains(err.Error(), "eaddrinuse") || strings.Contains(err.Error(), "ddress already in use")
}

// none in $HOPBACK_TEST_BROKER keeps tests from starting any broker.
const none = "none"

var errNone = errors.New("HOPBACK_TEST_BROKER is none: no broker is started")

func run(ctx context.Context, o Options) (b *Broker, err error) {
	want := o.Version
	if want == "" {
		want = os.Getenv("HOPBACK_TEST_BROKER")
	}
	if want == none {
		return nil, errNone
	}
	in, err := o.find(want)
	engine := ""
	if err != nil {
		if o.Home != "" {
			return nil, err
		}
		if engine = findEngine(ctx); engine == "" {
			return nil, err
		}
		in.Version = want
	}

	id := make([]byte, 6)
	_, _ = rand.Read(id) // never fails
	b = &Broker{o: o, version: in.Version, dir: o.Dir}
	b.http = &http.Client{
		Timeout: 30 * time.Second,
		// A connection a request: cheap on loopback, and no connection of an
		// earlier life of the broker is ever used again.
		Transport: &http.Transport{DisableKeepAlives: true},
	}
	defer func() {
		if err != nil {
			b.discard()
			b = nil
		}
	}()
	if err := b.prepare(hex.EncodeToString(id), engine != ""); err != nil {
		return b, fmt.Errorf("preparing a private broker: %w", err)
	}
	out := io.Writer(b.log)
	if o.Log != nil {
		out = io.MultiWriter(b.log, o.Log)
	}
	if engine != "" {
		b.host, err = newContainer(engine, want, b.dir, o.Dir == "", hex.EncodeToString(id), o, b.ports, out)
	} else {
		var h host
		h, err = newProcesses(in, b.dir, o.Dir == "", hex.EncodeToString(id), b.node, b.ports, out)
		if err == nil {
			b.host = h
		}
	}
	if err != nil {
		return b, fmt.Errorf("preparing RabbitMQ %s: %w", in.Version, err)
	}
	if err := b.start(ctx); err != nil {
		return b, err
	}
	if b.version == "" || engine != "" {
		if v := b.serverVersion(); v != "" {
			b.version = v
		}
	}
	return b, nil
}

// prepare makes the data folder with everything the broker reads from it.
func (b *Broker) prepare(id string, container bool) error {
	var err error
	if b.dir == "" {
		if b.dir, err = os.MkdirTemp("", "hopback-rabbit-"); err != nil {
			return err
		}
	}
	if b.dir, err = filepath.Abs(b.dir); err != nil {
		return err
	}
	for _, d := range []string{"home", "tmp", "data", "log", "generated"} {
		if err := os.MkdirAll(filepath.Join(b.dir, d), 0o700); err != nil {
			return err
		}
	}
	if b.unlock, err = lockFile(filepath.Join(b.dir, "lock")); err != nil {
		return fmt.Errorf("%s is in use by another broker: %w", b.dir, err)
	}
	p, err := freePorts(4)
	if err != nil {
		return err
	}
	b.ports = ports{amqp: p[0], management: p[1], epmd: p[2], dist: p[3]}
	secret := rand.Text()
	if m := b.o.cluster; m != nil {
		b.ports.epmd, secret = m.epmd, m.cookie
	}
	for _, want := range []struct {
		port int
		is   *int
	}{{b.o.Port, &b.ports.amqp}, {b.o.ManagementPort, &b.ports.management}} {
		if want.port == 0 {
			continue
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", want.port))
		if err != nil {
			return fmt.Errorf("port %d cannot be used: %w", want.port, err)
		}
		l.Close()
		*want.is = want.port
	}

	// The data belongs to a node of one name: a folder that is used again keeps it.
	nodeFile := filepath.Join(b.dir, "node")
	name, err := os.ReadFile(nodeFile)
	if err != nil {
		name = []byte("hopback-" + id + "@localhost")
	}
	b.node = strings.TrimSpace(string(name))
	cookie := filepath.Join(b.dir, "home", ".erlang.cookie")
	_ = os.Remove(cookie) // it is read-only, and may be from an earlier use
	for _, f := range []struct {
		path, text string
		mode       os.FileMode
	}{
		{nodeFile, b.node + "\n", 0o600},
		{cookie, secret, 0o400},
		{filepath.Join(b.dir, "rabbitmq.conf"), b.o.conf(b.ports, container), 0o644},
		{filepath.Join(b.dir, "advanced.config"), b.o.advanced(), 0o644},
		{filepath.Join(b.dir, "enabled_plugins"), b.o.enabledPlugins(), 0o644},
	} {
		if err := os.WriteFile(f.path, []byte(f.text), f.mode); err != nil {
			return err
		}
	}
	b.log, err = os.OpenFile(b.logFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	return err
}

// discard undoes a start that failed.
func (b *Broker) discard() {
	if b.host != nil {
		_ = b.host.close()
	}
	if b.log != nil {
		_ = b.log.Close()
	}
	if b.unlock != nil {
		b.unlock()
	}
	if b.o.Dir == "" && b.dir != "" {
		_ = os.RemoveAll(b.dir)
	}
}

func (b *Broker) logFile() string { return filepath.Join(b.dir, "broker.log") }

// URL is the AMQP URL of the default virtual host, as the user guest.
func (b *Broker) URL() string {
	return fmt.Sprintf("amqp://guest:guest@127.0.0.1:%d/", b.ports.amqp)
}

// ManagementURL is the base URL of the management API and its web pages, with
// the user guest, and "" when the broker runs without them.
func (b *Broker) ManagementURL() string {
	if b.o.NoManagement {
		return ""
	}
	return fmt.Sprintf("http://guest:guest@127.0.0.1:%d", b.ports.management)
}

// Version is the broker's version in full, for example "4.0.5".
func (b *Broker) Version() string { return b.version }

// Dir is the data folder.
func (b *Broker) Dir() string { return b.dir }

// LogTail is the end of the broker's own output, at most n bytes of it.
func (b *Broker) LogTail(n int64) string {
	f, err := os.Open(b.logFile())
	if err != nil {
		return ""
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && st.Size() > n {
		_, _ = f.Seek(-n, io.SeekEnd)
	}
	text, _ := io.ReadAll(f)
	return string(bytes.TrimSpace(text))
}

var errClosed = errors.New("the broker is closed")

// isRunning reports whether the broker's processes are there.
func (b *Broker) isRunning() bool {
	select {
	case <-b.host.exited():
		return false
	default:
		return true
	}
}

// Exited is closed when the broker that runs now has ended, by itself or by one
// of the methods. After another start there is another channel.
func (b *Broker) Exited() <-chan struct{} { return b.host.exited() }

// Start starts the broker again after [Broker.Stop], [Broker.Kill] or its own
// death, with the same data and ports, and returns when it accepts connections
// and every quorum queue has a leader. A running broker is left as it is.
func (b *Broker) Start(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.startLocked(ctx)
}

func (b *Broker) startLocked(ctx context.Context) error {
	if b.closed {
		return fmt.Errorf("starting the broker: %w", errClosed)
	}
	if b.isRunning() {
		return nil
	}
	var err error
	for range 3 {
		if err = b.start(ctx); err == nil || ctx.Err() != nil || !bootRace(err) {
			break
		}
	}
	if err != nil {
		return err
	}
	return b.waitForLeaders(ctx)
}

// bootRace reports whether a start failed for a race in the broker's own boot, for
// which its operator would start it again. On 4.0.5, with
// deprecated_features.permit.transient_nonexcl_queues = false and queues on disk,
// the check for such queues may come before their table is there, which ends the
// boot (one start in 24 on a busy machine).
func bootRace(err error) bool {
	return strings.Contains(err.Error(), "are_transient_nonexcl_used")
}

// start launches the broker and waits until it is usable.
func (b *Broker) start(ctx context.Context) error {
	ctx, cancel := withDefault(ctx, startTimeout)
	defer cancel()
	var logged int64
	if st, err := b.log.Stat(); err == nil {
		logged = st.Size()
	}
	if err := b.host.start(); err != nil {
		return fmt.Errorf("starting RabbitMQ %s: %w", b.version, err)
	}
	if err := b.waitUntilUp(ctx, logged); err != nil {
		kerr := b.host.kill()
		return fmt.Errorf("starting RabbitMQ %s: %w\n%s", b.version, errors.Join(err, kerr), b.whyNot(logged))
	}
	return nil
}

// waitUntilUp returns when AMQP and, unless left out, the HTTP API answer, and
// the boot is over. logged is how long the log was before the start.
func (b *Broker) waitUntilUp(ctx context.Context, logged int64) error {
	exited := b.host.exited()
	var since time.Time // it answers
	for {
		select {
		case <-exited:
			return errors.New("it ended before it was up")
		case <-ctx.Done():
			return fmt.Errorf("waiting for it to be up: %w", ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
		if since.IsZero() {
			if b.answersAMQP(ctx) && (b.o.NoManagement || b.answersHTTP(ctx)) {
				since = time.Now()
			}
			continue
		}
		// Clients are let in a moment before the boot is over, and a stop in that
		// moment is reported as a failed boot (4.3.6). The wait is bounded, since
		// the words are all there is to go by.
		if bytes.Contains(b.logFrom(logged), []byte(" completed with ")) || time.Since(since) > 10*time.Second {
			return nil
		}
	}
}

// logFrom is the broker's output from an offset on, at most 1 MiB of it.
func (b *Broker) logFrom(offset int64) []byte {
	f, err := os.Open(b.logFile())
	if err != nil {
		return nil
	}
	defer f.Close()
	text, _ := io.ReadAll(io.NewSectionReader(f, offset, 1<<20))
	return text
}

// whyNot is what the broker said about a start that failed: from its first error
// on, since what follows are the crash reports of everything around it.
func (b *Broker) whyNot(logged int64) string {
	const most = 3000
	text := b.logFrom(logged)
	first := bytes.Index(text, []byte("[error]"))
	if boot := bytes.Index(text, []byte("BOOT FAILED")); first < 0 || boot >= 0 && boot < first {
		first = boot
	}
	if first < 0 {
		return b.LogTail(most)
	}
	text = text[1+bytes.LastIndexByte(text[:first], '\n'):]
	return string(text[:min(len(text), most)])
}

func (b *Broker) answersAMQP(ctx context.Context) bool {
	// A bare TCP connection first: cheap while nobody listens.
	tcp, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", b.ports.amqp))
	if err != nil {
		return false
	}
	tcp.Close()
	c, err := amqp.DialConfig(b.URL(), amqp.Config{Dial: amqp.DefaultDial(10 * time.Second)})
	if err != nil {
		return false
	}
	c.Close()
	return true
}

func (b *Broker) answersHTTP(ctx context.Context) bool {
	return b.Get(ctx, "/api/whoami", nil) == nil
}

// Stop stops the broker politely: it closes every connection (reply code 320)
// and writes what it has to its disk. The ports stay this broker's.
func (b *Broker) Stop(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stopLocked(ctx)
}

func (b *Broker) stopLocked(ctx context.Context) error {
	if b.closed {
		return fmt.Errorf("stopping the broker: %w", errClosed)
	}
	if !b.isRunning() {
		return nil
	}
	ctx, cancel := withDefault(ctx, stopTimeout)
	defer cancel()
	if err := b.host.term(ctx); err != nil {
		return fmt.Errorf("stopping the broker: %w", err)
	}
	select {
	case <-b.host.exited():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stopping the broker: %w", ctx.Err())
	}
}

// Restart is Stop, then Start.
func (b *Broker) Restart(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.stopLocked(ctx); err != nil {
		return err
	}
	return b.startLocked(ctx)
}

// Kill ends the broker as a crash would (SIGKILL to all its processes), with
// whatever it had not yet written. Clients see their connections break without
// a closing handshake.
func (b *Broker) Kill(context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return fmt.Errorf("killing the broker: %w", errClosed)
	}
	return b.host.kill()
}

// Close ends the broker and removes all that it left: processes, and the data
// folder unless it was given in Options. A second Close does nothing.
func (b *Broker) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil
	}
	var err error
	if b.o.Dir != "" {
		err = b.stopLocked(context.Background()) // the data will be used again
	}
	b.closed = true
	err = errors.Join(err, b.host.close())
	b.unlock()
	return errors.Join(err, b.log.Close())
}

// waitForLeaders returns when every quorum queue answers through a leader. Right
// after a start it may have none for a moment, and a publish or a declaration
// then waits or fails.
func (b *Broker) waitForLeaders(ctx context.Context) error {
	ctx, cancel := withDefault(ctx, startTimeout)
	defer cancel()
	if !b.o.NoManagement {
		var queues []struct {
			Type string `json:"type"`
		}
		if err := b.Get(ctx, "/api/queues?disable_stats=true", &queues); err != nil {
			return fmt.Errorf("waiting for queues: %w", err)
		}
		quorum := false
		for _, q := range queues {
			quorum = quorum || q.Type == "quorum" || q.Type == "rabbit_quorum_queue"
		}
		if !quorum {
			return nil
		}
	}
	err := b.host.eval(ctx, `
		Ask = fun(Ask, Server) -> case ra:members(Server, 1000) of {ok, _, _} -> ok; _ -> timer:sleep(50), Ask(Ask, Server) end end,
		[Ask(Ask, amqqueue:get_pid(Q)) || Q <- rabbit_amqqueue:list(), amqqueue:get_type(Q) =:= rabbit_quorum_queue], ok.`)
	if err != nil {
		return fmt.Errorf("waiting for the leaders of quorum queues: %w", err)
	}
	return nil
}

// Ctl runs rabbitmqctl of the broker's own version against it and returns what
// it printed, without banners (--quiet). It takes one to three seconds.
func (b *Broker) Ctl(ctx context.Context, args ...string) ([]byte, error) {
	return b.host.ctl(ctx, args...)
}

func (b *Broker) serverVersion() string {
	c, err := amqp.Dial(b.URL())
	if err != nil {
		return ""
	}
	defer c.Close()
	v, _ := c.Properties["version"].(string)
	return v
}

// withDefault gives a context a deadline if it has none.
func withDefault(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d)
}
