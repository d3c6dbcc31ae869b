package link

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/rabbittest"
)

// patience is how long a test waits for what must happen sooner or later. It
// asserts nothing about speed.
const patience = 90 * time.Second

func waitFor(t *testing.T, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !so(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

// noLeaks fails the test when goroutines of this package or of the AMQP client
// outlive it. Call it first: cleanups run last to first.
func noLeaks(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		var left []string
		for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			left = left[:0]
			buf := make([]byte, 4<<20)
			buf = buf[:runtime.Stack(buf, true)]
			for g := range strings.SplitSeq(string(buf), "\n\n") {
				if strings.Contains(g, "internal/link.Test") || strings.Contains(g, "testing.(*T).Run") {
					continue
				}
				if strings.Contains(g, "hopback/internal/link.") || strings.Contains(g, "amqp091-go.") {
					left = append(left, g)
				}
			}
			if len(left) == 0 {
				return
			}
		}
		t.Errorf("%d goroutines left:\n%s", len(left), strings.Join(left, "\n\n"))
	})
}

// told counts what a connection tells.
type told struct{ reconnects, blocks, unblocks atomic.Int64 }

func config(told *told, urls ...string) Config {
	level := slog.LevelError + 4
	if os.Getenv("HOPBACK_TEST_LOG") != "" {
		level = slog.LevelDebug
	}
	return Config{
		URLs: urls, Purpose: "publish", Name: "link test", Heartbeat: 10 * time.Minute, // the broker makes it one: no test waits for it
		Logger:      slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})),
		OnReconnect: func(time.Duration) { told.reconnects.Add(1) },
		OnBlocked: func(active bool, _ string) {
			if active {
				told.blocks.Add(1)
			} else {
				told.unblocks.Add(1)
			}
		},
	}
}

// open opens a connection that the test's end closes.
func open(t *testing.T, told *told, urls ...string) *Conn {
	t.Helper()
	c := Open(config(told, urls...))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		c.Close(ctx)
	})
	return c
}

// pair is a publisher with the connection it publishes over, and a plain
// channel beside it to look at the broker with.
type pair struct {
	t    *testing.T
	conn *Conn
	pub  *Publisher
	told *told
	ch   *amqp.Channel
}

func newPair(t *testing.T, b *rabbittest.Broker, url, through string, timeout time.Duration) *pair {
	t.Helper()
	p := &pair{t: t, told: &told{}}
	p.conn = open(t, p.told, through)
	p.pub = NewPublisher(p.conn, timeout)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		p.pub.Close(ctx)
	})
	p.ch = plain(t, url)
	return p
}

// plain is a channel that does without this package.
func plain(t *testing.T, url string) *amqp.Channel {
	t.Helper()
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

// queue declares a classic queue, whose length limit is exact.
func (p *pair) queue(name string, args amqp.Table) {
	p.t.Helper()
	if _, err := p.ch.QueueDeclare(name, true, false, false, false, args); err != nil {
		p.t.Fatal(err)
	}
}

// drain takes everything out of a queue and counts it by message id.
func (p *pair) drain(queue string) map[string]int {
	p.t.Helper()
	got := map[string]int{}
	for {
		d, ok, err := p.ch.Get(queue, true)
		if err != nil {
			p.t.Fatal(err)
		}
		if !ok {
			return got
		}
		got[d.MessageId]++
	}
}

// message is a publishing with an id.
func message(i int) amqp.Publishing {
	return amqp.Publishing{MessageId: fmt.Sprint(i), DeliveryMode: amqp.Persistent, Body: []byte("x")}
}

// publish publishes and waits for the fate.
func (p *pair) publish(exchange, key string, msg amqp.Publishing) error {
	p.t.Helper()
	fate := make(chan error, 2)
	p.pub.Publish(&Publication{Exchange: exchange, Key: key, Msg: msg, Done: func(err error) { fate <- err }})
	select {
	case err := <-fate:
		return err
	case <-time.After(patience):
		p.t.Fatalf("publish %s to %q %q: no fate within %s", msg.MessageId, exchange, key, patience)
		return nil
	}
}

// keepPublishing publishes until it is confirmed, as a hand-off does.
func (p *pair) keepPublishing(exchange, key string, msg amqp.Publishing) (tries int) {
	p.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		tries++
		err := p.publish(exchange, key, msg)
		if err == nil {
			return tries
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("publish %s: %v", msg.MessageId, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
