package integration

import (
	"context"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/parking"
	"github.com/hopback/hopback/topology"
)

// parkingURL makes this binary the process that the tests below kill: it does what
// parkingWhat says, or replays, as if that was started at parkingStarted.
const (
	parkingURL     = "HOPBACK_PARKING_CHILD"
	parkingWhat    = "HOPBACK_PARKING_WHAT"
	parkingStarted = "HOPBACK_PARKING_STARTED"
)

func init() {
	if url := os.Getenv(parkingURL); url != "" {
		child := map[string]func(string) error{"": childReplay, "move": childMove}[os.Getenv(parkingWhat)]
		if err := child(url); err != nil {
			fmt.Fprintln(os.Stderr, "the child ended:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

func childReplay(url string) error {
	started, err := time.Parse(time.RFC3339Nano, os.Getenv(parkingStarted))
	if err != nil {
		return err
	}
	conn, err := amqp.Dial(url)
	if err != nil {
		return err
	}
	q, err := parking.Open(context.Background(), conn, "work.parked", parking.Options{Force: true})
	if err != nil {
		return err
	}
	_, err = q.Replay(context.Background(), parking.Replay{Filter: parking.Filter{ErrorType: "TimeoutError"}, Resume: started})
	return err
}

func childMove(url string) error {
	conn, err := amqp.Dial(url)
	if err != nil {
		return err
	}
	q, err := parking.Open(context.Background(), conn, "work.parked", parking.Options{Force: true})
	if err != nil {
		return err
	}
	_, err = q.Move(context.Background(), parking.Move{Filter: parking.Filter{ErrorType: "TimeoutError"}, To: "later"})
	return err
}

// setUp declares what a route for the queue work needs.
func (w *world) setUp() {
	w.t.Helper()
	top, err := hopback.Topology("hop", hopback.Route{
		Queue: "work", Mechanism: hopback.Ladder, Ladder: []time.Duration{time.Second}, Declare: &hopback.Declare{},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	conn, err := amqp.Dial(w.url)
	if err != nil {
		w.t.Fatal(err)
	}
	defer conn.Close()
	if err := topology.Apply(w.t.Context(), conn, top); err != nil {
		w.t.Fatal(err)
	}
}

// parkMany parks messages 0 to n-1 of the queue work, each with an ID of its own.
func (w *world) parkMany(n int, what func(i int) (errorType, text string), body []byte) {
	w.t.Helper()
	at := time.Now().Add(-time.Hour)
	for from := 0; from < n; from += 500 {
		var msgs []amqp.Publishing
		for i := from; i < min(from+500, n); i++ {
			kind, text := what(i)
			r := attempt.Record{Queue: "work", ID: hex.EncodeToString(fmt.Appendf(nil, "%016d", i)), Exchange: "shop", RoutingKey: "order.create"}
			f := attempt.Failure{At: at, Error: text, ErrorType: kind, Consumer: "worker-1"}
			p := amqp.Publishing{MessageId: fmt.Sprint(i), Body: body}
			msgs = append(msgs, r.Park(f, attempt.ReasonExhausted).Successor(&p, 0))
		}
		w.publish("hop.error", "work", msgs...)
	}
	eventually(w.t, "all are parked", func() bool { return w.depth("work.parked") == n })
}

// killedUntilDone runs this program as what takes parked messages to a queue, again
// and again until it ends by itself without an error, and calls after each time. The
// first so many runs are killed within their work: after one of the first messages
// has come. It returns how many were.
func (w *world) killedUntilDone(to string, most, within int, after func(), env ...string) (kills int) {
	w.t.Helper()
	done := false
	for deadline := time.Now().Add(2 * patience); !done; after() {
		if time.Now().After(deadline) {
			w.t.Fatal("it does not end")
		}
		before := w.depth(to)
		child := exec.Command(os.Args[0])
		child.Env = append(append(os.Environ(), parkingURL+"="+w.url), env...)
		if err := child.Start(); err != nil {
			w.t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- child.Wait() }()
		for at := before + 1 + rand.IntN(within); kills < most; {
			if w.depth(to) >= at {
				_ = child.Process.Kill()
				kills++
				break
			}
			select {
			case err := <-ended:
				ended <- err
				at = 0
			case <-time.After(time.Millisecond):
			}
		}
		done = <-ended == nil
	}
	return kills
}

// A replay that is killed loses no message, wherever it was, and what goes on
// where it stopped sends the rest, each with the ID that it had.
func TestReplayKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setUp()
	const n = 6000
	w.parkMany(n, func(i int) (string, string) {
		if i%3 == 2 {
			return "NotFound", fmt.Sprintf("no customer %d", i)
		}
		return "TimeoutError", "timeout"
	}, []byte("x"))
	started := time.Now().UTC().Truncate(time.Millisecond)
	copies := map[string]int{}
	drain := func() {
		for _, d := range w.drain("work") {
			if id, _ := d.Headers[attempt.HeaderID].(string); id != hex.EncodeToString(fmt.Appendf(nil, "%016s", d.MessageId)) {
				t.Errorf("message %s has the ID %s", d.MessageId, id)
			}
			copies[d.MessageId]++
		}
	}
	kills := w.killedUntilDone("work", 5, 700, drain, parkingStarted+"="+started.Format(time.RFC3339Nano))
	drain()
	twice := 0
	for i := range n {
		c := copies[fmt.Sprint(i)]
		switch {
		case i%3 == 2 && c != 0:
			t.Errorf("message %d was not to be replayed", i)
		case i%3 != 2 && c == 0:
			t.Errorf("message %d is missing", i)
		case c > 1:
			twice += c - 1
		}
	}
	// What was on its way at a kill, and what was confirmed and not yet taken out.
	if most := kills * 2 * 128; twice > most {
		t.Errorf("%d came twice in %d kills, want at most %d", twice, kills, most)
	}
	t.Logf("%d kills, %d came twice", kills, twice)
	eventually(t, "the others are back", func() bool { return w.depth("work.parked") == n/3 })
	seen := map[string]bool{}
	for _, d := range w.drain("work.parked") {
		seen[d.MessageId] = true
	}
	if len(seen) != n/3 {
		t.Errorf("%d messages stayed, want %d", len(seen), n/3)
	}
}

// A move that is killed loses no message either: each is here or there. (An edit is
// a move of one message to the end of its queue.)
func TestParkingMoveKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setUp()
	w.declare("later", "quorum")
	const n = 3000
	w.parkMany(n, func(i int) (string, string) {
		if i%3 == 2 {
			return "NotFound", fmt.Sprintf("no customer %d", i)
		}
		return "TimeoutError", "timeout"
	}, []byte("x"))
	kills := w.killedUntilDone("later", 2, 500, func() {}, parkingWhat+"=move")
	eventually(t, "the others are back", func() bool { return w.depth("work.parked") == n/3 })
	copies := map[string]int{}
	for _, d := range w.drain("later") {
		copies[d.MessageId]++
	}
	for _, d := range w.drain("work.parked") {
		copies[d.MessageId] += 1000
	}
	twice := 0
	for i := range n {
		switch c := copies[fmt.Sprint(i)]; {
		case i%3 == 2 && c != 1000:
			t.Errorf("message %d was not to be moved: %d", i, c)
		case i%3 != 2 && (c == 0 || c >= 1000):
			t.Errorf("message %d is not where it was moved to: %d", i, c)
		case i%3 != 2:
			twice += c - 1
		}
	}
	if most := kills * 2 * 128; twice > most {
		t.Errorf("%d came twice in %d kills, want at most %d", twice, kills, most)
	}
	t.Logf("%d kills, %d came twice", kills, twice)
}
