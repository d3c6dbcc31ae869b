package attempt_test

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
)

var orders = attempt.Source{Queue: "orders", Exchange: "shop", RoutingKey: "order.create", At: time.UnixMilli(1700000000000)}

// fail reads p and gives what is published after a failure.
func fail(t *testing.T, p amqp.Publishing) (attempt.Record, amqp.Publishing) {
	t.Helper()
	r, err := attempt.Read(&p, orders)
	if err != nil {
		t.Fatal(err)
	}
	r = r.Retry(attempt.Failure{Error: "e"}, time.Second, time.Time{}, "standard")
	return r, r.Successor(&p, 0)
}

// B44: the state is in the message, so messages with the same message-id, or
// with none, do not share it.
func TestB44DuplicateMessageIDs(t *testing.T) {
	messages := []amqp.Publishing{{MessageId: "m1"}, {MessageId: "m1"}, {}}
	ids := make([]string, len(messages))
	for n := range int32(10) {
		for i := range messages {
			var r attempt.Record
			r, messages[i] = fail(t, messages[i])
			if r.Count != n+1 {
				t.Fatalf("message %d: count %d after %d failures", i, r.Count, n+1)
			}
			if n == 0 {
				ids[i] = r.ID
			} else if r.ID != ids[i] {
				t.Fatalf("message %d: the id changed from %s to %s", i, ids[i], r.ID)
			}
		}
	}
	if ids[0] == ids[1] || ids[1] == ids[2] || ids[0] == ids[2] {
		t.Errorf("ids are shared: %v", ids)
	}
	if messages[0].MessageId != "m1" || messages[2].MessageId != "" {
		t.Errorf("message-ids became %q and %q", messages[0].MessageId, messages[2].MessageId)
	}
}

func TestIDsAreUnique(t *testing.T) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	seen := map[string]bool{}
	for range 8 {
		wg.Go(func() {
			for range 2000 {
				id := attempt.Record{}.Park(attempt.Failure{}, attempt.ReasonPermanent).ID
				mu.Lock()
				if seen[id] || !idForm.MatchString(id) {
					t.Errorf("id %q", id)
				}
				seen[id] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}

// B43: no headers at all, and a successor whose headers can be written to.
func TestB43NilHeaders(t *testing.T) {
	p := amqp.Publishing{}
	for n := range int32(11) {
		r, err := attempt.Read(&p, orders)
		if err != nil || r.Count != n {
			t.Fatalf("attempt %d: count %d, %v", n+1, r.Count, err)
		}
		_, p = fail(t, p)
	}
	if p.Headers[attempt.HeaderCount] != int32(11) || len(p.Body) != 0 || p.ContentType != "" {
		t.Errorf("after 11 failures: %+v", p)
	}
	if o := (attempt.Record{}).Original(&amqp.Publishing{}); o.Headers != nil {
		t.Errorf("an empty table became %#v", o.Headers)
	}
}

// A successor shares nothing with the message that it follows but the body.
func TestSuccessorIsADeepCopy(t *testing.T) {
	fresh := func() amqp.Table {
		return amqp.Table{
			"bytes": []byte{1, 2}, "list": []any{amqp.Table{"k": []byte{3}}, []any{int8(1)}},
			"table": amqp.Table{"inner": amqp.Table{"n": int16(1)}},
			"none":  []any(nil), "empty": []any{}, "nobytes": []byte(nil), "notable": amqp.Table(nil),
		}
	}
	p := amqp.Publishing{Headers: fresh()}
	_, s := fail(t, p)
	for k, want := range fresh() {
		if !reflect.DeepEqual(s.Headers[k], want) {
			t.Errorf("%s: %#v, want %#v", k, s.Headers[k], want)
		}
	}
	s.Headers["bytes"].([]byte)[0] = 9
	s.Headers["list"].([]any)[0].(amqp.Table)["k"].([]byte)[0] = 9
	s.Headers["list"].([]any)[1].([]any)[0] = int8(9)
	s.Headers["table"].(amqp.Table)["inner"].(amqp.Table)["n"] = int16(9)
	s.Headers["tenant"] = "other"
	if !reflect.DeepEqual(p.Headers, fresh()) {
		t.Errorf("the message changed with its successor: %#v", p.Headers)
	}
}

// B24: a negative x-delay is gone, and the delay is ours.
func TestB24DelayHeader(t *testing.T) {
	r, s := fail(t, amqp.Publishing{Headers: amqp.Table{"x-delay": int32(-5000)}})
	if v, ok := s.Headers["x-delay"]; ok {
		t.Errorf("x-delay is still there: %v", v)
	}
	if s.Headers[attempt.HeaderDelay] != int64(1000) || r.Delay != time.Second {
		t.Errorf("delay %v, header %v", r.Delay, s.Headers[attempt.HeaderDelay])
	}
}

// B30: headers copied onto a derived message do not carry the record along.
func TestB30RecordOfAnotherQueue(t *testing.T) {
	var p amqp.Publishing
	for range 4 {
		_, p = fail(t, p)
	}
	derived := amqp.Publishing{Headers: p.Headers}
	source := attempt.Source{Queue: "invoices", Exchange: "billing", RoutingKey: "invoice.new"}
	r, err := attempt.Read(&derived, source)
	if err != nil || r.Count != 0 || r.ID != "" || r.Queue != "invoices" || r.Exchange != "billing" || r.History() != nil {
		t.Fatalf("the derived message has the record %+v, %v", r, err)
	}
	s := r.Retry(attempt.Failure{Error: "e"}, time.Second, time.Time{}, "p").Successor(&derived, 0)
	if s.Headers[attempt.HeaderCount] != int32(1) || s.Headers[attempt.HeaderQueue] != "invoices" || s.Headers[attempt.HeaderID] == p.Headers[attempt.HeaderID] {
		t.Errorf("its successor has %v", s.Headers)
	}
}

func TestRetryGivesTimes(t *testing.T) {
	zone := time.FixedZone("east", 3600)
	when := time.Date(2026, 11, 30, 12, 0, 0, 123456789, zone)
	r := attempt.Record{Queue: "orders"}.Retry(attempt.Failure{At: when}, 1500*time.Microsecond, time.Time{}, "p")
	want := time.Date(2026, 11, 30, 11, 0, 0, 123000000, time.UTC)
	if r.FailedAt != want || r.FirstFailedAt != want || r.Delay != time.Millisecond || r.DueAt != want.Add(time.Millisecond) {
		t.Errorf("%+v", r)
	}
	later := r.Retry(attempt.Failure{At: when.Add(time.Hour)}, 0, when.Add(2*time.Hour), "p")
	if later.FirstFailedAt != want || later.FailedAt != want.Add(time.Hour) || later.DueAt != want.Add(2*time.Hour) || later.Delay != 0 {
		t.Errorf("%+v", later)
	}
	if r.Count != 1 || len(r.History()) != 1 || len(later.History()) != 2 {
		t.Errorf("the first record changed with the second: %+v", r)
	}

	// Without a time of the failure it is now.
	before := time.Now().Truncate(time.Millisecond)
	if at := (attempt.Record{}).Park(attempt.Failure{}, "r").FailedAt; at.Before(before) || at.After(time.Now()) {
		t.Errorf("failed at %v, now is %v", at, before)
	}
}

// Times that have no place in the contract are left away, and nothing
// overflows.
func TestExtremeTimes(t *testing.T) {
	for _, when := range []time.Time{
		time.Date(-5000, 1, 1, 0, 0, 0, 0, time.UTC), time.Unix(0, 0), time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC),
		time.Unix(math.MaxInt64>>1, 0),
	} {
		h := attempt.Record{FailedAt: when, DueAt: when, Delay: math.MinInt64}.Headers()
		for _, key := range []string{attempt.HeaderFailedAt, attempt.HeaderDueAt, attempt.HeaderDelay} {
			if v, ok := h[key]; ok {
				t.Errorf("%v: %s = %v", when, key, v)
			}
		}
	}
	r := attempt.Record{}.Retry(attempt.Failure{}, math.MaxInt64, time.Time{}, "")
	if r.Delay != 9223372036854*time.Millisecond || r.DueAt.Before(r.FailedAt) {
		t.Errorf("the longest delay: %v, due %v", r.Delay, r.DueAt)
	}
	if s := r.Headers(); s[attempt.HeaderDelay] != int64(9223372036854) {
		t.Errorf("the longest delay: %v", s[attempt.HeaderDelay])
	}
}

func TestErrorsSayWhatIsWrong(t *testing.T) {
	for v, want := range map[any]string{
		"abc": `reading x-retry-count: "abc" of type string is not a count (an integer from 0 to 2147483647)`,
		3.7:   `reading x-retry-count: 3.7 of type float64 is not a count (an integer from 0 to 2147483647)`,
		nil:   `reading x-retry-count: nothing of type void is not a count (an integer from 0 to 2147483647)`,
	} {
		if _, err := attempt.ParseCount(v); err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
	_, err := attempt.ParseCount(amqp.Table{"password": "hunter2"})
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a table is printed: %v", err)
	}
	var c *attempt.CounterError
	wrapped := fmt.Errorf("handling: %w", err)
	if !errors.Is(wrapped, attempt.ErrBadCounter) || !errors.As(wrapped, &c) || c.Type != "table" {
		t.Errorf("not found through wrapping: %#v", c)
	}
	_, err = attempt.ReadAdvice(amqp.Table{attempt.HeaderVerdict: "permament"})
	if want := `reading x-retry-verdict: "permament" of type string is not "permanent" or "discard"`; err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	_, err = attempt.ReadAdvice(amqp.Table{attempt.HeaderAfter: "5s"})
	if want := `reading x-retry-after: "5s" of type string is not a number of ms, 0 or more`; err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// A message without headers is the common case: reading it allocates nothing,
// nor does reading one with a record.
func TestReadDoesNotAllocate(t *testing.T) {
	for name, p := range map[string]amqp.Publishing{
		"no headers": {DeliveryMode: 2}, "never failed": benchMessage(), "failed once": failedMessage(1),
	} {
		if n := testing.AllocsPerRun(100, func() { sinkRecord, _ = attempt.Read(&p, benchSource) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
