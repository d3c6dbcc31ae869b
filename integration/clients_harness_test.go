package integration

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
)

// Workers in other languages: those in examples/, run as processes of their own.

const examples = "../examples"

// language is one of the workers.
type language struct {
	name    string
	file    string // with the snippet of docs/rich-failures.md
	heading string // of that snippet
	stops   bool   // SIGTERM ends it in order

	// find makes the command that runs it, in examples/, or nil where the language
	// or its client is missing.
	find    func() []string
	command []string
}

// jars is where Debian puts what Java needs.
const jars = "/usr/share/java/"

var languages = []language{
	{name: "node", file: "node/fail.js", heading: "Node (amqplib)", stops: true, find: sync.OnceValue(func() []string {
		return have("node", "-e", `require("./node/node_modules/amqplib")`).with("node/worker.js")
	})},
	{name: "python", file: "python/fail.py", heading: "Python (pika)", stops: true, find: sync.OnceValue(func() []string {
		for _, p := range []string{filepath.Join(clientsFolder(), "venv/bin/python"), "/usr/bin/python3", "python3"} {
			if python := have(p, "-c", "import pika"); python != "" {
				return python.with("-B", "python/worker.py")
			}
		}
		return nil
	})},
	{name: "go", file: "go/fail.go", heading: "Go (amqp091-go)", stops: true, find: func() []string { return []string{"go"} }},
	{name: "php", file: "php/fail.php", heading: "PHP (php-amqplib)", find: sync.OnceValue(func() []string {
		return have("php", "-r", `@include "PhpAmqpLib/autoload.php"; exit(class_exists("PhpAmqpLib\Package") ? 0 : 1);`).with("php/worker.php")
	})},
	{name: "ruby", file: "ruby/fail.rb", heading: "Ruby (bunny)", find: sync.OnceValue(func() []string {
		return have("ruby", "-e", `require "bunny"`).with("ruby/worker.rb")
	})},
	{name: "java", file: "java/Worker.java", heading: "Java (the Java client)", find: sync.OnceValue(func() []string {
		if _, err := os.Stat(jars + "amqp-client.jar"); err != nil {
			return nil
		}
		return have("javac", "-version").instead("java", "-XX:TieredStopAtLevel=1", "-cp", jars+"amqp-client.jar:"+jars+"slf4j-api.jar", "java/Worker.java")
	})},
}

// program is one that is there, or empty.
type program string

// have reports whether a program does what is asked of it.
func have(name string, test ...string) program {
	cmd := exec.Command(name, test...)
	cmd.Dir = examples
	if cmd.Run() != nil {
		return ""
	}
	return program(name)
}

func (p program) with(args ...string) []string {
	return p.instead(append([]string{string(p)}, args...)...)
}

// instead is another command, if the program is there.
func (p program) instead(command ...string) []string {
	if p == "" {
		return nil
	}
	return command
}

// clientsFolder is where scripts/clients.sh puts what it makes.
func clientsFolder() string {
	if f := os.Getenv("HOPBACK_CLIENTS"); f != "" {
		return f
	}
	cache, err := os.UserCacheDir()
	if x := os.Getenv("XDG_CACHE_HOME"); x == "" && err == nil {
		if home, err := os.UserHomeDir(); err == nil {
			cache = filepath.Join(home, ".cache") // also on macOS, as the script does
		}
	}
	return filepath.Join(cache, "hopback", "clients")
}

// eachLanguage runs a test with each worker in a world of its own, side by side.
func eachLanguage(t *testing.T, f func(t *testing.T, w *world, lang language)) {
	t.Helper()
	for _, lang := range languages {
		t.Run(lang.name, func(t *testing.T) {
			t.Parallel()
			lang = lang.here(t)
			f(t, newWorld(t), lang)
		})
	}
}

// languageNamed is one of them, or the test is skipped.
func languageNamed(t *testing.T, name string) language {
	t.Helper()
	for _, lang := range languages {
		if lang.name == name {
			return lang.here(t)
		}
	}
	t.Fatalf("no worker is written in %s", name)
	return language{}
}

// here makes its command, or skips the test for the reason that the set-up left.
// Where versions of the broker were asked for, as `make test` does, the set-up has
// run: a language that is missing without a reason is a failure.
func (l language) here(t *testing.T) language {
	t.Helper()
	l.command = l.find()
	if l.name == "go" { // and so is what the tests are made with
		file := filepath.Join(t.TempDir(), "worker")
		build := exec.Command("go", "build", "-o", file, ".")
		build.Dir = filepath.Join(examples, "go")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build examples/go: %v\n%s", err, out)
		}
		l.command = []string{file}
	}
	if l.command != nil {
		return l
	}
	if reason, err := os.ReadFile(filepath.Join(clientsFolder(), l.name+".missing")); err == nil {
		t.Skip(string(reason))
	}
	if os.Getenv("HOPBACK_TEST_BROKER") != "" {
		t.Fatalf("%s or its client is not here: run scripts/clients.sh", l.name)
	}
	t.Skipf("%s or its client is not here: run scripts/clients.sh", l.name)
	return l
}

// process is a worker that runs. It is started again when it ends, as its
// supervisor would, unless it is told not to be.
type process struct {
	t    *testing.T
	lang language
	log  logBuffer // all that it said, also to standard error

	mu      sync.Mutex
	cmd     *exec.Cmd
	ready   bool // it reads from the queue
	ended   int  // how often it ended by itself
	stopped bool
	handled map[string]int   // by message id
	seen    map[string][]int // the attempts, by message id, in order
	done    chan struct{}
}

// startWorker runs a worker on the queue "work" until the test ends, and returns
// when it waits for messages. restart is how often it is started again.
func (w *world) startWorker(lang language, restarts int) *process {
	t := w.t.(*testing.T)
	t.Helper()
	p := &process{t: t, lang: lang, handled: map[string]int{}, seen: map[string][]int{}, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		for i := 0; i <= restarts; i++ {
			if err := p.run(w, lang.command); err != nil {
				fmt.Fprintf(&p.log, "it ended: %v\n", err)
			}
			p.mu.Lock()
			p.ended++
			stopped := p.stopped
			p.mu.Unlock()
			if stopped {
				return
			}
		}
	}()
	t.Cleanup(func() {
		p.mu.Lock()
		p.stopped = true
		if p.cmd != nil && p.cmd.Process != nil {
			p.cmd.Process.Kill() //nolint:errcheck // it may have ended
		}
		p.mu.Unlock()
		<-p.done
		if t.Failed() {
			t.Logf("the worker in %s said:\n%s", lang.name, &p.log)
		}
	})
	eventually(t, lang.name+" waits for messages", func() bool {
		select {
		case <-p.done:
			t.Fatalf("the worker in %s ended before it waited for messages", lang.name)
		default:
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.ready
	})
	return p
}

// run is one life of the process.
func (p *process) run(w *world, command []string) error {
	p.mu.Lock()
	if p.stopped {
		p.mu.Unlock()
		return nil
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = examples
	cmd.Env = append(os.Environ(), "HOPBACK_BROKER_URL="+w.url, "QUEUE=work", "PYTHONUNBUFFERED=1")
	cmd.Stderr = &p.log
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	p.cmd = cmd
	p.mu.Unlock()
	if err != nil {
		return err
	}
	for s := bufio.NewScanner(out); s.Scan(); {
		p.hear(s.Text())
	}
	return cmd.Wait()
}

// hear reads a line such as "handled work-7 attempt 2".
func (p *process) hear(line string) {
	fmt.Fprintln(&p.log, line)
	p.mu.Lock()
	defer p.mu.Unlock()
	what, rest, _ := strings.Cut(line, " ")
	id, number, ok := strings.Cut(rest, " attempt ")
	switch {
	case what == "waiting":
		p.ready = true
	case !ok || what != "handled" && what != "failed":
	default:
		var n int
		fmt.Sscan(number, &n) //nolint:errcheck // 0 is no attempt and fails the test
		p.seen[id] = append(p.seen[id], n)
		if what == "handled" {
			p.handled[id]++
		}
	}
}

// attempts are those of one message, in order.
func (p *process) attempts(id string) []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.seen[id])
}

// handledCount is how many different messages it handled.
func (p *process) handledCount() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.handled)
}

// endings is how often it ended.
func (p *process) endings() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended
}

// stop asks it to end by SIGTERM. Those that say so end in order, with 0.
func (p *process) stop() {
	p.t.Helper()
	p.mu.Lock()
	p.stopped = true
	err := p.cmd.Process.Signal(syscall.SIGTERM)
	p.mu.Unlock()
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Errorf("end the worker in %s: %v", p.lang.name, err)
	}
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Fatalf("the worker in %s does not end", p.lang.name)
	}
	if code := p.cmd.ProcessState.ExitCode(); p.lang.stops && code != 0 {
		p.t.Errorf("the worker in %s ended with %d when it was asked to end", p.lang.name, code)
	}
}

// tally puts what a worker handled into the ledger.
func (l *ledger) tally(p *process) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, n := range p.handled {
		l.handled[id] += n
	}
}

// sendTypes publishes messages that tell the worker by their type what becomes of
// them. Their ids are made of the type: "transient 2/0".
func (l *ledger) sendTypes(w *world, types map[string]int) {
	w.t.Helper()
	var msgs []amqp.Publishing
	l.mu.Lock()
	for kind, n := range types {
		for i := range n {
			id := fmt.Sprintf("%s/%d", kind, i)
			l.sent[id] = true
			msgs = append(msgs, amqp.Publishing{DeliveryMode: amqp.Persistent, MessageId: id, Type: kind, Body: []byte(id)})
		}
	}
	l.mu.Unlock()
	w.publish("", "work", msgs...)
}

// look waits for n messages in a queue and reads them without taking them out.
func (w *world) look(queue string, n int) map[string]amqp.Delivery {
	w.t.Helper()
	eventually(w.t, fmt.Sprintf("%d messages in %q", n, queue), func() bool { return w.depth(queue) >= n })
	ch := w.channel()
	defer ch.Close() // what is not settled goes back
	deliveries, err := ch.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		w.t.Fatalf("look into %q: %v", queue, err)
	}
	by := map[string]amqp.Delivery{}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for len(by) < n {
		select {
		case d := <-deliveries:
			by[d.MessageId] = d
		case <-ctx.Done():
			w.t.Fatalf("%d different messages in %q, want %d", len(by), queue, n)
		}
	}
	return by
}

// reasons counts parked messages by why they are.
func reasons(parked map[string]amqp.Delivery) map[string]int {
	n := map[string]int{}
	for _, d := range parked {
		n[fmt.Sprint(d.Headers[attempt.HeaderReason])]++
	}
	return n
}
