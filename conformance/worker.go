package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// Env is what a worker needs to know.
type Env struct {
	URL      string // of the broker
	Queue    string // to consume from; it exists
	Exchange string // to publish rich failures to
}

// Worker is a consumer under test. It consumes until ctx ends, and then returns nil.
// When a message tells it to crash it gives up its connection without settling
// anything and returns; it is then called again.
type Worker func(ctx context.Context, env Env) error

// stopTimeout is how long a command has to end after SIGTERM.
const stopTimeout = 5 * time.Second

// Command is a worker that is a program: a command line for the shell, with Env in
// the variables EnvURL, EnvQueue and EnvExchange. What it prints goes to output,
// which may be nil. It is ended by SIGTERM, and after five seconds by SIGKILL,
// together with the processes that it has started.
func Command(line string, output io.Writer) Worker {
	return func(ctx context.Context, env Env) error {
		cmd := shell(line)
		cmd.Env = append(os.Environ(), EnvURL+"="+env.URL, EnvQueue+"="+env.Queue, EnvExchange+"="+env.Exchange)
		last := &tail{}
		var out io.Writer = last
		if output != nil {
			out = io.MultiWriter(last, output)
		}
		cmd.Stdout, cmd.Stderr = out, out
		cmd.WaitDelay = stopTimeout // for a grandchild that keeps the output open
		if err := cmd.Start(); err != nil {
			return &notStartedError{fmt.Errorf("start the worker: %w", err)}
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		defer killGroup(cmd) // whatever it has left behind
		select {
		case err := <-ended:
			if err == nil {
				err = errors.New("exit status 0")
			}
			// A URL has a password in it.
			if text := strings.ReplaceAll(last.String(), env.URL, "$"+EnvURL); text != "" {
				err = fmt.Errorf("%w\nits last words:\n%s", err, text)
			}
			return err
		case <-ctx.Done():
		}
		terminate(cmd)
		select {
		case <-ended:
		case <-time.After(stopTimeout):
			killGroup(cmd)
			<-ended
		}
		return nil
	}
}

type notStartedError struct{ error }

func (e *notStartedError) Unwrap() error { return e.error }

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailSize = 2000

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if over := len(t.text) - tailSize; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.ToValidUTF8(bytes.TrimSpace(t.text), []byte("�")))
}

// supervisor runs a worker, and runs it again whenever it ends by itself.
type supervisor struct {
	worker Worker
	env    Env

	cancel context.CancelFunc
	done   chan struct{}

	mu    sync.Mutex
	ends  int   // how often it ended by itself
	last  error // then
	fatal error // it cannot be started at all
}

func (s *supervisor) start(ctx context.Context) {
	ctx, s.cancel = context.WithCancel(ctx)
	s.done = make(chan struct{})
	go func() {
		defer close(s.done)
		for wait := 100 * time.Millisecond; ctx.Err() == nil; wait = min(2*wait, 2*time.Second) {
			began := time.Now()
			err := s.worker(ctx, s.env)
			if ctx.Err() != nil {
				return
			}
			if time.Since(began) > 5*time.Second {
				wait = 100 * time.Millisecond
			}
			s.mu.Lock()
			s.ends++
			s.last = err
			var not *notStartedError
			if errors.As(err, &not) {
				s.fatal = err
			}
			s.mu.Unlock()
			select {
			case <-time.After(wait):
			case <-ctx.Done():
			}
		}
	}()
}

// stop ends the worker, and returns when it has ended.
func (s *supervisor) stop() {
	if s.cancel == nil {
		return
	}
	s.cancel()
	<-s.done
	s.cancel = nil
}

func (s *supervisor) ended() (times int, last, fatal error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ends, s.last, s.fatal
}
