package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/attempt"
)

// The message is the same message after its retries, parked, and replayed.

// full is a message with every property that amqp091-go knows.
func full(id string, mode uint8) amqp.Publishing {
	return amqp.Publishing{
		ContentType: "a/b", ContentEncoding: "gzip", DeliveryMode: mode, Priority: 4,
		CorrelationId: "c1", ReplyTo: "r", Expiration: "600000", MessageId: id,
		Timestamp: time.Unix(1_700_000_000, 0), Type: "T", UserId: "guest", AppId: "app",
		Headers: amqp.Table{"tenant": "acme"}, Body: []byte{0x1f, 0x8b, 0x00},
	}
}

// asPublished is the message as a handler sees it, back in the form of what was
// published, with our own headers and RabbitMQ's left out.
func asPublished(m *hopback.Message) amqp.Publishing {
	p := amqp.Publishing{
		ContentType: m.ContentType, ContentEncoding: m.ContentEncoding, DeliveryMode: m.DeliveryMode, Priority: m.Priority,
		CorrelationId: m.CorrelationID, ReplyTo: m.ReplyTo, Expiration: m.Expiration, MessageId: m.MessageID,
		Timestamp: m.Timestamp, Type: m.Type, UserId: m.UserID, AppId: m.AppID, Body: m.Body,
	}
	p.Headers = usersHeaders(m.Headers)
	return p
}

// usersHeaders leaves out what Hopback and RabbitMQ added.
func usersHeaders(h amqp.Table) amqp.Table {
	users := maps.Clone(h)
	maps.DeleteFunc(users, func(k string, _ any) bool {
		return strings.HasPrefix(k, "x-retry-") || strings.Contains(k, "death") || k == "x-delivery-count" || k == "x-acquired-count" ||
			k == "x-delay" && mechanism == hopback.Plugin // which leaves it in
	})
	if len(users) == 0 {
		return nil
	}
	return users
}

func TestAllPropertiesSurvive(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, w *world) {
		var seen calls
		var mended atomic.Bool
		w.runConsumer(hopback.ConsumerConfig{
			Route: quickRoute("work", 3),
			Handler: seen.handler(func(ctx context.Context, m *hopback.Message) error {
				if mended.Load() {
					return nil
				}
				return errBusy
			}),
		})
		sent := map[string]amqp.Publishing{}
		for _, mode := range []uint8{0, 1, 2} {
			if mode == 1 && mechanism == hopback.Native {
				continue // AMQP 1.0 tells it from none as little as RabbitMQ does
			}
			p := full(fmt.Sprint("mode ", mode), mode)
			sent[p.MessageId] = p
			w.publish("", "work", p)
		}
		bare := amqp.Publishing{MessageId: "bare"} // every other property is absent
		sent["bare"] = bare
		w.publish("", "work", bare)

		parked := w.awaitParked("work.parked", len(sent))
		for id, want := range sent {
			k := seen.of(id)
			if len(k) != 4 {
				t.Errorf("%s: %d runs, want 4", id, len(k))
			}
			for i := range k {
				got := asPublished(&k[i].Message)
				if diff := cmp.Diff(want, got, cmp.Transformer("empty", func(b []byte) string { return string(b) })); diff != "" {
					t.Errorf("%s, attempt %d: not the same message (-sent +seen):\n%s", id, i+1, diff)
				}
			}
		}
		mended.Store(true)
		for _, d := range parked {
			want := sent[d.MessageId]
			// In the queue it is persistent, and without what would end it or
			// be refused; all that is in the record.
			if d.DeliveryMode != amqp.Persistent || d.Expiration != "" || d.UserId != "" {
				t.Errorf("%s: parked with mode %d, expiration %q, user-id %q", d.MessageId, d.DeliveryMode, d.Expiration, d.UserId)
			}
			p := attempt.FromDelivery(&d)
			rec, err := attempt.Read(&p, attempt.Source{})
			if err != nil {
				t.Fatal(err)
			}
			original := rec.Original(&p)
			if diff := cmp.Diff(want, original, cmp.Transformer("empty", func(b []byte) string { return string(b) })); diff != "" {
				t.Errorf("%s: parked as another message (-sent +parked):\n%s", d.MessageId, diff)
			}
			w.publish("", "work", rec.Replay(&p, attempt.Replaying{}, 0))
		}
		eventually(t, "the replayed are handled", func() bool { return len(w.events.of("handled")) == len(sent) })
		for id, want := range sent {
			k := seen.of(id)
			last := k[len(k)-1]
			if diff := cmp.Diff(want, asPublished(&last.Message), cmp.Transformer("empty", func(b []byte) string { return string(b) })); diff != "" {
				t.Errorf("%s: replayed as another message (-sent +seen):\n%s", id, diff)
			}
			if h := last.History(); last.Attempt != 1 || last.RetryID != k[1].RetryID || len(h) != 5 || !h[4].Replay() {
				t.Errorf("%s: the replay begins with attempt %d, id %q (was %q), history %v", id, last.Attempt, last.RetryID, k[1].RetryID, last.History())
			}
		}
	})
}

// Header values keep their Go types and values, however they are nested.
func TestNestedHeadersSurvive(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, w *world) {
		headers := amqp.Table{
			"nil": nil, "empty list": []any{}, "empty table": amqp.Table{}, "empty": "", "no bytes": []byte{},
			"deep": []any{amqp.Table{"e": []any{int32(1), "s", nil, []any{amqp.Table{"f": int64(-1)}}}}},
			"dec":  amqp.Decimal{Scale: 1, Value: 30}, "bytes": []byte{0xff, 0xfe}, "text": "\xff\xfe",
			"i8": int8(-3), "u8": uint8(200), "i16": int16(-300), "u16": uint16(60_000), "i32": int32(-70_000), "u32": uint32(4_000_000_000),
			"i64": int64(1) << 60, "f32": float32(1.5), "f64": 0.1, "t": true, "f": false, "at": time.Unix(1_700_000_000, 0),
			"long": strings.Repeat("é", 1000), "é ü": "key", "x-their-own": "kept", "X-Retry-Count": "another case", "x-retry-note": "theirs",
		}
		var seen calls
		w.runConsumer(hopback.ConsumerConfig{Route: quickRoute("work", 2), Handler: seen.handler(failing(9))})
		w.publish("", "work", amqp.Publishing{MessageId: "m", Headers: headers, Body: []byte("m")})
		d := w.awaitParked("work.parked", 1)[0]
		k := seen.of()
		if len(k) != 3 {
			t.Fatalf("%d runs, want 3", len(k))
		}
		// What an attempt sees is compared with what the broker delivered the
		// first time: types as they come from the wire.
		first := usersHeaders(k[0].Headers)
		first["x-retry-note"] = k[0].Headers["x-retry-note"]
		if len(first) != len(headers) && mechanism != hopback.Native { // see docs/native.md
			t.Errorf("the first attempt sees %d headers, sent were %d", len(first), len(headers))
		}
		for name, h := range map[string]amqp.Table{"second": k[1].Headers, "third": k[2].Headers, "parked": d.Headers} {
			for key, want := range first {
				got, there := h[key]
				if !there || !cmp.Equal(want, got) {
					t.Errorf("%s: %s is %T %[3]v (%t), was %T %[5]v", name, key, got, there, want)
				}
			}
		}
		for _, key := range []string{"nil", "deep", "dec", "bytes", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "f32", "f64", "t", "at", "long"} {
			if !cmp.Equal(headers[key], first[key]) {
				t.Errorf("%s was sent as %T %[2]v and seen as %T %[3]v", key, headers[key], first[key])
			}
		}
	})
}

func TestNoHeadersNoBody(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, w *world) {
		var seen calls
		w.runConsumer(hopback.ConsumerConfig{Route: quickRoute("work", 10), Handler: seen.handler(failing(99))})
		w.publish("", "work", amqp.Publishing{})
		d := w.awaitParked("work.parked", 1)[0]
		k := seen.of()
		if len(k) != 11 {
			t.Errorf("%d runs, want 11: ten retries", len(k))
		}
		if k[0].Headers != nil || len(k[0].Body) != 0 || len(d.Body) != 0 || d.ContentType != "" || d.MessageId != "" {
			t.Errorf("it is not empty: %+v, parked %+v", k[0].Message, d)
		}
	})
}

// All state is in the message: two with the same id and one with none share
// nothing, also when every attempt runs in another consumer.
func TestMessageIDsPlayNoPart(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, w *world) {
		var seen calls
		w.publish("", "work",
			amqp.Publishing{MessageId: "same", Body: []byte("a")},
			amqp.Publishing{MessageId: "same", Body: []byte("b")},
			amqp.Publishing{Body: []byte("c")})
		for round := 1; round <= 4; round++ {
			c := w.runConsumer(hopback.ConsumerConfig{
				Route:   quickRoute("work", 3),
				Handler: seen.handler(failing(9)),
			})
			eventually(t, "three failures", func() bool {
				return len(w.events.of("retried"))+len(w.events.of("parked")) >= 3*round
			})
			if err := c.stop(); err != nil {
				t.Fatal(err)
			}
			if len(w.events.of("parked")) == 3 {
				break
			}
			eventually(t, "back", func() bool { return w.depth("work")+w.depth("work.parked") == 3 })
		}
		ids := map[any]bool{}
		for _, d := range w.awaitParked("work.parked", 3) {
			if d.Headers[attempt.HeaderCount] != int32(3) {
				t.Errorf("%s: %v", d.Body, d.Headers)
			}
			ids[d.Headers[attempt.HeaderID]] = true
		}
		if len(ids) != 3 {
			t.Errorf("retry ids %v, want three", ids)
		}
		runs := map[string]int{}
		for _, k := range seen.of() {
			runs[string(k.Body)]++
		}
		if runs["a"] != 4 || runs["b"] != 4 || runs["c"] != 4 {
			t.Errorf("runs %v, want 4 each", runs)
		}
	})
}

// What RabbitMQ or a plugin would act upon is taken off before a republish.
func TestHeadersThatActAreTakenOff(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, w *world) {
		w.declare("copied", "classic")
		w.declare("hidden", "classic")
		var seen calls
		w.runConsumer(hopback.ConsumerConfig{Route: quickRoute("work", 3), Handler: seen.handler(failing(9))})
		w.publish("", "work", amqp.Publishing{MessageId: "m", Body: []byte("m"), UserId: "guest", Headers: amqp.Table{
			"CC": []any{"copied"}, "BCC": []any{"hidden"},
			"x-delay":          int32(-5000),
			"x-delivery-count": int64(3), // by a client: a lie
			"x-received-from":  []any{amqp.Table{"uri": "amqp://elsewhere"}},
			"x-stream-offset":  int64(7),
			"x-death":          []any{amqp.Table{"queue": "work", "reason": "expired", "count": int64(1), "exchange": "x", "routing-keys": []any{"k"}}},
			"mine":             "kept",
		}})
		d := w.awaitParked("work.parked", 1)[0]
		if k := seen.of(); len(k) != 4 {
			t.Errorf("%d runs, want 4", len(k))
		}
		// One copy by the producer, none by us.
		if n, m := w.depth("copied"), w.depth("hidden"); n != 1 || m != 1 {
			t.Errorf("CC was copied %d times and BCC %d times, want once each", n, m)
		}
		for _, key := range []string{"CC", "BCC", "x-delay", "x-received-from", "x-stream-offset", "x-death"} {
			for _, k := range seen.of()[1:] {
				if v, there := k.Headers[key]; there && key != "x-death" && !(key == "x-delay" && mechanism == hopback.Plugin) {
					t.Errorf("attempt %d has %s: %v", k.Attempt, key, v)
				}
			}
			if v, there := d.Headers[key]; there {
				t.Errorf("parked with %s: %v", key, v)
			}
		}
		var cc []string
		text, _ := d.Headers[attempt.HeaderCC].(string)
		if err := json.Unmarshal([]byte(text), &cc); err != nil || len(cc) != 1 || cc[0] != "copied" {
			t.Errorf("%s is %T %[2]v", attempt.HeaderCC, d.Headers[attempt.HeaderCC])
		}
		if d.Headers["mine"] != "kept" || d.Headers[attempt.HeaderUserID] != "guest" {
			t.Errorf("parked with %v", d.Headers)
		}
		for _, k := range seen.of() {
			if k.UserID != "guest" {
				t.Errorf("attempt %d sees the user %q", k.Attempt, k.UserID)
			}
		}
	})
}

// A user-id is the publisher's own name, and RabbitMQ closes the channel of one
// that republishes another's.
func TestUserIDOfAnotherUser(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, w *world) {
		user := fmt.Sprintf("consumer-%d", rand.Uint64())
		if err := w.broker.AddUser(t.Context(), user, "secret", w.vhost, ".*", ".*", ".*"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := w.broker.Delete(context.Background(), "/api/users/"+user); err != nil {
				t.Error(err)
			}
		})
		client := w.newClient(func(c *hopback.Config) { c.URL = strings.Replace(c.URL, "guest:guest", user+":secret", 1) })
		var seen calls
		w.runConsumerOn(client, hopback.ConsumerConfig{Route: quickRoute("work", 1), Handler: seen.handler(failing(9))})
		w.publish("", "work", amqp.Publishing{MessageId: "m", UserId: "guest"})
		d := w.awaitParked("work.parked", 1)[0]
		if d.Headers[attempt.HeaderUserID] != "guest" {
			t.Errorf("parked with %v", d.Headers)
		}
		if k := seen.of(); len(k) != 2 || k[1].UserID != "guest" {
			t.Errorf("runs %+v", k)
		}
		if log := w.log.String(); strings.Contains(log, "lost the") {
			t.Error("a channel was closed")
		}
	})
}

// Near the frame's end our diagnostics shrink, and the user's headers do not.
func TestBigHeaders(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, w *world) {
		sizes := []int{1 << 10, 60 << 10, 110_000, 118_000, 121_000}
		var seen calls
		w.runConsumer(hopback.ConsumerConfig{
			Route: quickRoute("work", 12),
			Handler: seen.handler(func(context.Context, *hopback.Message) error {
				return errors.New(strings.Repeat("long error ", 200))
			}),
		})
		users := map[string]string{}
		for _, n := range sizes {
			id := fmt.Sprint(n)
			users[id] = strings.Repeat(string(rune('a'+n%26)), n)
			w.publish("", "work", amqp.Publishing{MessageId: id, Headers: amqp.Table{"big": users[id]}, Body: []byte("m")})
		}
		for _, d := range w.awaitParked("work.parked", len(sizes)) {
			if d.Headers["big"] != users[d.MessageId] {
				t.Errorf("%s: the user's header was changed", d.MessageId)
			}
			if k := seen.of(d.MessageId); len(k) != 13 {
				t.Errorf("%s: %d runs, want 13", d.MessageId, len(k))
			}
			text, _ := d.Headers[attempt.HeaderError].(string)
			if d.Headers[attempt.HeaderCount] != int32(12) || d.Headers[attempt.HeaderReason] != attempt.ReasonExhausted || !strings.HasPrefix(text, "long error") {
				t.Errorf("%s: count %v, reason %v, error %.20q", d.MessageId, d.Headers[attempt.HeaderCount], d.Headers[attempt.HeaderReason], text)
			}
			p := attempt.FromDelivery(&d)
			delete(p.Headers, "x-delivery-count") // the parking queue's own, on 3.10 already at the first look
			if n := attempt.HeaderSize(&p); n > 128<<10-8<<10 {
				t.Errorf("%s: parked with %d bytes of headers", d.MessageId, n)
			}
		}
		if log := w.log.String(); strings.Contains(log, "lost the") || strings.Contains(log, "not subscribed") {
			t.Error("a channel was closed")
		}
	})
}

// With no room left for what RabbitMQ adds in a slot, a message would come back
// as one that no consumer can read, in front of all others. It is parked.
func TestHeadersTooLargeToWait(t *testing.T) {
	aboutSlots(t)
	t.Parallel()
	eachKind(t, func(t *testing.T, w *world) {
		w.runConsumer(hopback.ConsumerConfig{Route: quickRoute("work", 3), Handler: hopback.HandlerFunc(failing(9))})
		sizes := []int{124_000, 130_450}
		users := map[string]string{}
		for _, n := range sizes {
			id := fmt.Sprint(n)
			users[id] = strings.Repeat(string(rune('a'+n%26)), n)
			w.publish("", "work", amqp.Publishing{MessageId: id, Headers: amqp.Table{"big": users[id]}, Body: []byte("m")})
		}
		w.send("work", "small")
		for _, d := range w.awaitParked("work.parked", len(sizes)+1) {
			if d.MessageId == "small" {
				continue
			}
			if d.Headers["big"] != users[d.MessageId] || d.Headers[attempt.HeaderReason] != attempt.ReasonTooLarge || d.Headers[attempt.HeaderCount] != int32(0) {
				t.Errorf("%s: parked as %v with count %v", d.MessageId, d.Headers[attempt.HeaderReason], d.Headers[attempt.HeaderCount])
			}
			if s := w.events.story(d.MessageId); s != "received 1, parked 1" {
				t.Errorf("%s: events: %s", d.MessageId, s)
			}
		}
		if log := w.log.String(); strings.Contains(log, "lost the") || strings.Contains(log, "not subscribed") {
			t.Error("a channel was closed")
		}
	})
}

// One whose headers fill the frame to the last byte cannot even be parked: there
// is no room for a reason. It stays on its queue, and others pass it.
func TestHeadersTooLargeToPark(t *testing.T) {
	aboutSlots(t)
	t.Parallel()
	eachKind(t, func(t *testing.T, w *world) {
		var seen calls
		c := w.runConsumer(hopback.ConsumerConfig{
			Route: quickRoute("work", 1), ShutdownTimeout: time.Second,
			Handler: seen.handler(failing(9)),
		})
		w.publish("", "work", amqp.Publishing{MessageId: "full", Headers: amqp.Table{"big": strings.Repeat("x", 131_000)}})
		eventually(t, "failed", func() bool { return len(seen.of("full")) == 1 && !seen.of("full")[0].Ended.IsZero() })
		w.send("work", "small")
		w.awaitParked("work.parked", 1)
		if err := c.stop(); !errors.Is(err, hopback.ErrShutdownTimeout) {
			t.Errorf("Run returned %v with a message that cannot be handed off", err)
		}
		eventually(t, "it is back on its queue", func() bool { return w.depth("work") == 1 })
		if n := len(seen.of("full")); n != 1 {
			t.Errorf("the handler ran %d times on what cannot be handed off", n)
		}
		if !strings.Contains(w.log.String(), "cannot be encoded") {
			t.Error("nothing was logged about it")
		}
	})
}

// The largest body that RabbitMQ takes since 4.0 is retried and parked like any
// other.
func TestLargestBody(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, w *world) {
		body := make([]byte, 16<<20)
		for i := range len(body) / 8 {
			body[8*i] = byte(i * 31)
		}
		var same atomic.Int32
		w.runConsumer(hopback.ConsumerConfig{
			Route: quickRoute("work", 1),
			Handler: hopback.HandlerFunc(func(_ context.Context, m *hopback.Message) error {
				if bytes.Equal(m.Body, body) {
					same.Add(1)
				}
				return errBusy
			}),
		})
		w.publish("", "work", amqp.Publishing{MessageId: "m", DeliveryMode: amqp.Persistent, Body: body})
		d := w.awaitParked("work.parked", 1)[0]
		if n := same.Load(); n != 2 || !bytes.Equal(d.Body, body) {
			t.Errorf("the body was the same in %d attempts of 2, parked %t", n, bytes.Equal(d.Body, body))
		}
	})
}

// Priorities survive, where the work queue has them.
func TestPrioritySurvives(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.declare("work", "classic", "x-max-priority", int32(9))
	var seen calls
	w.runConsumer(hopback.ConsumerConfig{Route: quickRoute("work", 2), Handler: seen.handler(failing(2))})
	for p := range uint8(10) {
		w.publish("", "work", amqp.Publishing{MessageId: fmt.Sprint(p), Priority: p})
	}
	eventually(t, "handled", func() bool { return len(w.events.of("handled")) == 10 })
	for _, k := range seen.of() {
		if fmt.Sprint(k.Priority) != k.MessageID {
			t.Errorf("%s comes back with priority %d", k.MessageID, k.Priority)
		}
	}
}
