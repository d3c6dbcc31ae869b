package native

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
)

var record = amqp.Table{
	attempt.HeaderCount: int32(1), attempt.HeaderDelay: int64(300), attempt.HeaderError: "é", attempt.HeaderID: "id",
	attempt.HeaderHistory: `[{"n":1}]`, "x-flag": true, "x-big": int64(1) << 60,
}

// Each settlement does what it says, once.
func TestSettlements(t *testing.T) {
	url := shared(t)
	o := dial091(t, url)
	o.quorum("work", "x-dead-letter-exchange", "", "x-dead-letter-routing-key", "dead")
	o.quorum("dead")
	o.publish("", "work", amqp.Publishing{MessageId: "m", DeliveryMode: 2, Headers: amqp.Table{"tenant": "acme", "deep": amqp.Table{"a": int32(1)}}, Body: []byte("b")})
	r := receive(t, open(t, url), "work", 10)

	d := next(t, r)
	if d.Redelivered {
		t.Error("a first delivery is redelivered")
	}
	d.Release()
	d.Accept() // too late
	d = next(t, r)
	if !d.Redelivered || d.Msg.Headers["x-delivery-count"] != nil || d.Msg.Headers["x-acquired-count"] != int64(1) {
		t.Errorf("released: redelivered %t, headers %v", d.Redelivered, d.Msg.Headers)
	}

	start := time.Now()
	until := start.Add(300 * time.Millisecond)
	if err := d.Delay(until, record); err != nil {
		t.Fatal(err)
	}
	d = next(t, r)
	// Both clocks are this machine's.
	if early := time.Until(until); early > 2*time.Millisecond {
		t.Errorf("delivered %s too early", early)
	}
	for k, want := range record {
		if got := d.Msg.Headers[k]; !reflect.DeepEqual(got, want) {
			t.Errorf("delayed: %s is %T %v, want %T %v", k, got, got, want, want)
		}
	}
	if d.Msg.Headers["tenant"] != "acme" || d.Msg.MessageId != "m" || string(d.Msg.Body) != "b" || d.Msg.Headers["x-delivery-count"] != nil {
		t.Errorf("delayed: %+v", d.Msg)
	}

	// Again, over the same names, some of them and a new one.
	again := amqp.Table{attempt.HeaderCount: int32(2), attempt.HeaderError: "", "x-new": int64(2)}
	if err := d.Delay(time.Now().Add(50*time.Millisecond), again); err != nil {
		t.Fatal(err)
	}
	d = next(t, r)
	for k, want := range map[string]any{
		attempt.HeaderCount: int32(2), attempt.HeaderError: "", "x-new": int64(2), attempt.HeaderID: "id", "x-flag": true,
	} {
		if got := d.Msg.Headers[k]; got != want {
			t.Errorf("delayed again: %s is %T %v, want %T %v", k, got, got, want, want)
		}
	}
	// What does not change is not sent, and stays; what the caller did to the
	// headers that it was shown is of no account.
	d.Msg.Headers["x-new"] = int64(3)
	same := amqp.Table{attempt.HeaderCount: int32(3), "x-new": int64(3), attempt.HeaderID: "id", "x-flag": true}
	if err := d.Delay(time.Now().Add(20*time.Millisecond), same); err != nil {
		t.Fatal(err)
	}
	d = next(t, r)
	for k, want := range same {
		if got := d.Msg.Headers[k]; got != want {
			t.Errorf("delayed once more: %s is %T %v, want %T %v", k, got, got, want, want)
		}
	}

	// A harmful annotation leaves it unsettled.
	if err := d.Delay(time.Now(), amqp.Table{"x-a": 1.5}); !errors.Is(err, ErrAnnotation) {
		t.Fatal(err)
	}
	if err := d.DeadLetter(amqp.Table{attempt.HeaderReason: "permanent", attempt.HeaderCount: int32(2)}); err != nil {
		t.Fatal(err)
	}
	dead := o.get("dead")
	if dead.Headers[attempt.HeaderReason] != "permanent" || dead.Headers[attempt.HeaderID] != "id" || dead.Headers["x-new"] != int64(3) ||
		dead.Headers["x-last-death-reason"] != "rejected" || dead.MessageId != "m" || dead.RoutingKey != "dead" {
		t.Errorf("dead-lettered: %q %v", dead.RoutingKey, dead.Headers)
	}
	// What AMQP 1.0 does not show was there all the time.
	if !reflect.DeepEqual(dead.Headers["deep"], amqp.Table{"a": int32(1)}) || dead.Headers["tenant"] != "acme" {
		t.Errorf("dead-lettered: %v", dead.Headers)
	}
	dead.Ack(false) //nolint:errcheck // the queue goes with the virtual host

	o.publish("", "work", numbered(1)...)
	next(t, r).Accept()
	stop(t, r)
	if n := o.depth("work") + o.depth("dead"); n != 0 {
		t.Errorf("%d messages are left", n)
	}
	// After the end nothing is sent, and nothing hangs.
	d.Accept()
	d.Release()
	if !errors.Is(r.Err(), ErrClosed) {
		t.Error(r.Err())
	}
}

// How what a settlement writes reads over AMQP 0-9-1, on the queue and behind a
// dead-lettering: integers are int64, whatever they were.
func TestAnnotationsOverAMQP091(t *testing.T) {
	url := shared(t)
	o := dial091(t, url)
	o.quorum("work", "x-dead-letter-exchange", "", "x-dead-letter-routing-key", "dead", "x-dead-letter-strategy", "at-least-once", "x-overflow", "reject-publish")
	o.quorum("dead")
	// A record of the wheel's is in the message already.
	o.publish("", "work", amqp.Publishing{Headers: amqp.Table{attempt.HeaderCount: int32(1), attempt.HeaderThen: "hop.delay.1s", "mine": int32(5)}})
	r := receive(t, open(t, url), "work", 10)
	if err := next(t, r).Delay(time.Now().Add(10*time.Millisecond), record); err != nil {
		t.Fatal(err)
	}
	stop(t, r)
	check := func(where string, h amqp.Table) {
		t.Helper()
		for k, v := range record {
			want := v
			if n, ok := v.(int32); ok {
				want = int64(n)
			}
			if got := h[k]; got != want {
				t.Errorf("%s: %s is %T %v, want %T %v", where, k, got, got, want, want)
			}
		}
		if h["mine"] != int32(5) || h[attempt.HeaderThen] != "hop.delay.1s" {
			t.Errorf("%s: %v", where, h)
		}
		if n, err := attempt.ParseCount(h[attempt.HeaderCount]); err != nil || n != 1 {
			t.Errorf("%s: counter %d %v", where, n, err)
		}
	}
	d := o.get("work")
	check("on the queue", d.Headers)
	if _, ok := d.Headers[annDeliveryTime].(int64); !ok {
		t.Errorf("the time of delivery is %T %[1]v", d.Headers[annDeliveryTime])
	}
	if !d.Redelivered || d.Headers["x-delivery-count"] != nil {
		t.Errorf("redelivered %t, %v", d.Redelivered, d.Headers)
	}
	if err := d.Reject(false); err != nil {
		t.Fatal(err)
	}
	check("dead-lettered", o.get("dead").Headers)
}

// A queue without a dead-letter exchange drops what is dead-lettered: a consumer
// that uses DeadLetter must know that there is one.
func TestDeadLetterNeedsAnExchange(t *testing.T) {
	url := shared(t)
	o := dial091(t, url)
	o.quorum("work")
	o.publish("", "work", numbered(1)...)
	r := receive(t, open(t, url), "work", 10)
	if err := next(t, r).DeadLetter(nil); err != nil {
		t.Fatal(err)
	}
	stop(t, r)
	if n := o.depth("work"); n != 0 {
		t.Errorf("%d messages are left", n)
	}
}

// Delays of different lengths do not wait for each other, and none comes early.
func TestDelaysDoNotBlock(t *testing.T) {
	url := shared(t)
	o := dial091(t, url)
	o.quorum("work")
	o.publish("", "work", numbered(30)...)
	r := receive(t, open(t, url), "work", 30)
	until := map[string]time.Time{}
	for i := range 30 {
		d := next(t, r)
		at := time.Now().Add(time.Duration(100+(i*7919)%600) * time.Millisecond)
		until[string(d.Msg.Body)] = at
		if err := d.Delay(at, nil); err != nil {
			t.Fatal(err)
		}
	}
	var order []string
	for range 30 {
		d := next(t, r)
		id := string(d.Msg.Body)
		if early := time.Until(until[id]); early > 2*time.Millisecond {
			t.Errorf("%s came %s early", id, early)
		}
		order = append(order, id)
		d.Accept()
	}
	// In the order of their times, but for those that were due together when a
	// busy broker looked.
	if sorted := slices.IsSortedFunc(order, func(a, b string) int { return until[a].Compare(until[b]) }); !sorted {
		slices.Sort(order)
		if len(slices.Compact(order)) != 30 {
			t.Errorf("not each once: %v", order)
		}
	}
}

// The credit bounds what is unsettled, and what was settled makes room.
func TestCredit(t *testing.T) {
	url := shared(t)
	o := dial091(t, url)
	o.quorum("work")
	o.publish("", "work", numbered(200)...)
	for _, credit := range []int{1, 3, 10, 100} {
		c := open(t, url)
		r := receive(t, c, "work", credit)
		var held []*Delivery
		for range credit {
			held = append(held, next(t, r))
		}
		none(t, r, 100*time.Millisecond)
		// One settled lets one in, however many are still unsettled.
		for range 5 {
			held[0].Release()
			held = append(held[1:], next(t, r))
		}
		none(t, r, 50*time.Millisecond)
		stop(t, r)
		if n := o.depth("work"); n != 200 {
			t.Fatalf("credit %d: %d of 200 went back", credit, n)
		}
	}
	s, err := open(t, url).Session(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Receive(ctx(t), "work", 0); err == nil || !strings.Contains(err.Error(), "credit of 0") {
		t.Error(err)
	}
}

// A receiver that stops gives back what nobody took, finishes the rest, and does
// not count as a crash; no settled message comes again.
func TestClose(t *testing.T) {
	url := shared(t)
	o := dial091(t, url)
	o.quorum("work")
	const all = 2000
	o.publish("", "work", numbered(all)...)
	left := all
	for round := range 4 {
		c := open(t, url)
		r := receive(t, c, "work", 400)
		var held []*Delivery
		for range 300 {
			held = append(held, next(t, r))
		}
		for i, d := range held[:100] {
			if i%2 == 0 {
				d.Accept()
				left--
			} else if err := d.Delay(time.Now(), amqp.Table{"x-round": int64(round)}); err != nil {
				t.Fatal(err)
			}
		}
		r.Stop()
		for _, d := range held[100:200] {
			d.Accept()
			left--
		}
		if round%2 == 0 {
			stop(t, r) // with 100 unsettled
		} else {
			c.Close(ctx(t))
		}
		held[250].Accept() // too late
		if n := o.depth("work"); n != left {
			t.Fatalf("round %d: %d messages are left, want %d", round, n, left)
		}
	}
	r := receive(t, open(t, url), "work", 400)
	ids := map[string]int{}
	for range left {
		d := next(t, r)
		ids[d.Msg.MessageId]++
		if n := d.Msg.Headers["x-delivery-count"]; n != nil {
			t.Fatalf("%s counts as crashed: %v", d.Msg.MessageId, n)
		}
		d.Accept()
	}
	none(t, r, 100*time.Millisecond)
	if len(ids) != left {
		t.Errorf("%d different messages of %d", len(ids), left)
	}
}

// A message whose own expiration ends while it is delayed is gone: the broker
// expires it when its time of delivery has come. Who delays one must see to that.
func TestExpirationGoesOn(t *testing.T) {
	url := shared(t)
	o := dial091(t, url)
	o.quorum("work", "x-dead-letter-exchange", "", "x-dead-letter-routing-key", "dead")
	o.quorum("dead")
	r := receive(t, open(t, url), "work", 10)
	for _, c := range []struct {
		expiration string
		delay      time.Duration
		expires    bool
	}{
		{"1500", 1900 * time.Millisecond, true},
		{"600000", 100 * time.Millisecond, false},
	} {
		o.publish("", "work", amqp.Publishing{Expiration: c.expiration, Body: []byte(c.expiration)})
		d := next(t, r)
		if err := d.Delay(time.Now().Add(c.delay), record); err != nil {
			t.Fatal(err)
		}
		if !c.expires {
			d = next(t, r)
			if d.Msg.Expiration != c.expiration {
				t.Errorf("the expiration became %q", d.Msg.Expiration)
			}
			d.Accept()
			continue
		}
		dead := o.get("dead")
		if dead.Headers["x-last-death-reason"] != "expired" || dead.Headers[attempt.HeaderID] != "id" {
			t.Errorf("expired: %v", dead.Headers)
		}
		none(t, r, 50*time.Millisecond)
	}
	stop(t, r)
}
