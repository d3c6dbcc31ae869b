package native

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	amqp10 "github.com/Azure/go-amqp"
	amqp "github.com/rabbitmq/amqp091-go"
)

// x-death is that of AMQP 0-9-1, whatever a client wrote under its name.
func TestDeaths(t *testing.T) {
	at := time.UnixMilli(1_700_000_000_123)
	v, err := convert(&amqp10.Message{
		Data: [][]byte{nil},
		Annotations: amqp10.Annotations{
			"x-death": []any{"a client's"},
			"x-opt-deaths": []map[any]any{{
				"ttl": uint32(1000), "queue": "q", "reason": "expired", "count": uint64(3), "first-time": at, "last-time": at.Add(time.Hour),
				"exchange": "", "routing-keys": []string{"a", "b"},
			}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := amqp.Table{"x-death": []any{amqp.Table{
		"original-expiration": "1000", "queue": "q", "reason": "expired", "count": int64(3), "time": time.Unix(1_700_000_000, 0),
		"exchange": "", "routing-keys": []any{"a", "b"},
	}}}
	if !reflect.DeepEqual(v.msg.Headers, want) {
		t.Errorf("got  %#v\nwant %#v", v.msg.Headers, want)
	}
	for _, odd := range []any{nil, "text", []any{int64(1)}, []map[any]any{}} {
		v, err := convert(&amqp10.Message{Data: [][]byte{nil}, Annotations: amqp10.Annotations{"x-opt-deaths": odd}})
		if err != nil || v.msg.Headers != nil {
			t.Errorf("%v: %v %v", odd, v.msg.Headers, err)
		}
	}
}

// What came back is redelivered; what died elsewhere is not, nor what a client
// says.
func TestRedelivered(t *testing.T) {
	for _, c := range []struct {
		acquired any
		first    bool
		want     bool
	}{
		{nil, true, false},
		{nil, false, false}, // dead-lettered
		{int64(1), false, true},
		{int64(1), true, false}, // by a client
		{"1", false, false},
		{int64(0), false, false},
	} {
		m := &amqp10.Message{Data: [][]byte{nil}, Header: &amqp10.MessageHeader{FirstAcquirer: c.first, Priority: 4}, Annotations: amqp10.Annotations{}}
		if c.acquired != nil {
			m.Annotations["x-acquired-count"] = c.acquired
		}
		if v, err := convert(m); err != nil || v.redelivered != c.want {
			t.Errorf("%+v: %t %v", c, v.redelivered, err)
		}
	}
}

// What would do harm is refused before it is sent.
func TestAnnotationsThatHarm(t *testing.T) {
	for name, h := range map[string]amqp.Table{
		"a key of another kind": {"retry": "x"}, "a key of RabbitMQ's": {"x-opt-delivery-time": int64(1)}, "an empty key": {"": "x"},
		"a float": {"x-a": 1.5}, "null": {"x-a": nil}, "bytes": {"x-a": []byte("a")}, "a list": {"x-a": []any{"a"}},
		"a table": {"x-a": amqp.Table{}}, "a time": {"x-a": time.Now()}, "a decimal": {"x-a": amqp.Decimal{}}, "an int": {"x-a": 1},
		"no UTF-8": {"x-a": "\xff"}, "more than a frame": {"x-a": strings.Repeat("a", maxAnnotations)},
	} {
		if _, err := encodeAnnotations(h); !errors.Is(err, ErrAnnotation) {
			t.Errorf("%s: %v", name, err)
		}
	}
	a, err := encodeAnnotations(amqp.Table{"x-i": int32(-1), "x-u": uint8(255), "x-l": int64(1) << 50, "x-s": "é", "x-b": true})
	if want := (amqp10.Annotations{"x-i": int64(-1), "x-u": int64(255), "x-l": int64(1) << 50, "x-s": "é", "x-b": true}); err != nil || !reflect.DeepEqual(a, want) {
		t.Errorf("%v %v", a, err)
	}
}

func TestErrors(t *testing.T) {
	for cond, code := range map[string]int{
		"amqp:not-found": 404, "amqp:unauthorized-access": 403, "amqp:resource-locked": 405, "amqp:precondition-failed": 406,
		"amqp:not-allowed": 530, "amqp:resource-deleted": 404, "amqp:connection:forced": 320, "amqp:internal-error": 541, "new:one": 541,
	} {
		err := translate(&amqp10.LinkError{RemoteErr: &amqp10.Error{Condition: amqp10.ErrCond(cond), Description: "why"}})
		var e *amqp.Error
		if !errors.As(err, &e) || e.Code != code || errors.Is(err, ErrDeleted) != (cond == "amqp:resource-deleted") || errors.Is(err, ErrUnreadable) {
			t.Errorf("%s: %v", cond, err)
		}
	}
	if err := errors.New("other"); translate(err) != err || translate(nil) != nil {
		t.Error("an error that is none of the broker's has changed")
	}
}

// A time of ours, by the broker's clock.
func TestBrokerTime(t *testing.T) {
	now := time.Now()
	var k clock
	if got := k.ofBroker(now.Add(time.Second), now); got != millis(now.Add(time.Second)) {
		t.Errorf("unknown: %d", got)
	}
	// They are 10 s ahead; between 9.998 s and 10.002 s.
	var o offset
	o.narrow(now, now.Add(40*time.Millisecond), now.Add(10*time.Second+20*time.Millisecond).Truncate(time.Millisecond))
	o.narrow(now.Add(time.Second), now.Add(time.Second+4*time.Millisecond), now.Add(11*time.Second+2*time.Millisecond).Truncate(time.Millisecond))
	if o.low > 10*time.Second || o.top < 10*time.Second || o.top-o.low > 6*time.Millisecond {
		t.Fatalf("between %s and %s", o.low, o.top)
	}
	k.set(now, o)
	for _, after := range []time.Duration{0, time.Minute, time.Hour} {
		at := now.Add(after)
		got := time.UnixMilli(k.ofBroker(at.Add(5*time.Second), at))
		if off := got.Sub(at.Round(0).Add(15 * time.Second)); off < 0 || off > 4*time.Millisecond+neverEarly {
			t.Errorf("after %s: %s off", after, off)
		}
	}
	// Bounds that exclude each other: the later ones count.
	o.narrow(now, now, now.Add(-time.Hour))
	if o.top > -59*time.Minute {
		t.Errorf("after a step between %s and %s", o.low, o.top)
	}
}
