package topology

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"
)

// The reasons were taken down from 3.10.8, 4.0.5 and 4.3.6.
func TestMismatch(t *testing.T) {
	const q1 = "PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'q1' in vhost '/': "
	evil := "a b' but current is 'c"
	for _, c := range []struct {
		name, kind, item string
		reason           string
		args             amqp.Table
		key              string
		want, have       Value
	}{
		{
			"other number", "queue", "q1", q1 + "received '2000' but current is '1000'",
			amqp.Table{"x-message-ttl": int64(2000)},
			"x-message-ttl",
			Value{"int64", "2000"},
			Value{"integer", "1000"},
		},
		{
			"string for a number", "queue", "q1", q1 + "received '1000' but current is '1000'",
			amqp.Table{"x-message-ttl": "1000"},
			"x-message-ttl",
			Value{"string", "1000"},
			Value{"integer", "1000"},
		},
		{
			"too little", "queue", "q1", q1 + "received none but current is the value '1000' of type 'signedint'",
			nil, "x-message-ttl",
			Value{},
			Value{"int32", "1000"},
		},
		{
			"too much", "queue", "q1", q1 + "received the value '1000' of type 'long' but current is none",
			amqp.Table{"x-message-ttl": int64(1000)},
			"x-message-ttl",
			Value{"int64", "1000"},
			Value{},
		},
		{
			"number for a string", "queue", "q14",
			"PRECONDITION_FAILED - inequivalent arg 'x-delivery-limit' for queue 'q14' in vhost '/': received '5' but current is '5'",
			amqp.Table{"x-delivery-limit": int64(5)},
			"x-delivery-limit",
			Value{"int64", "5"},
			Value{"string", "5"},
		},
		{
			"string for a bool", "queue", "q18",
			"PRECONDITION_FAILED - inequivalent arg 'x-single-active-consumer' for queue 'q18' in vhost '/': received 'true' but current is 'true'",
			amqp.Table{"x-single-active-consumer": "true"},
			"x-single-active-consumer",
			Value{"string", "true"},
			Value{"bool", "true"},
		},
		{
			"a type nobody tells", "queue", "q18",
			"PRECONDITION_FAILED - inequivalent arg 'x-delivery-limit' for queue 'q18' in vhost '/': received '6' but current is '5'",
			amqp.Table{"x-delivery-limit": int64(6)},
			"x-delivery-limit",
			Value{"int64", "6"},
			Value{"", "5"},
		},
		{
			"float", "queue", "q20",
			"PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'q20' in vhost '/': received '1.0e3' but current is '1000'",
			amqp.Table{"x-message-ttl": float64(1000)},
			"x-message-ttl",
			Value{"float64", "1000"},
			Value{"integer", "1000"},
		},
		{
			"a value that says: but current is", "queue", "q7",
			"PRECONDITION_FAILED - inequivalent arg 'x-dead-letter-exchange' for queue 'q7' in vhost '/': received the value 'a b' but current is 'c' of type 'longstr' but current is none",
			amqp.Table{"x-dead-letter-exchange": evil},
			"x-dead-letter-exchange",
			Value{"string", evil},
			Value{},
		},
		{
			"and on the other side", "queue", "q8",
			"PRECONDITION_FAILED - inequivalent arg 'x-dead-letter-exchange' for queue 'q8' in vhost '/': received 'x' but current is 'a b' but current is 'c'",
			amqp.Table{"x-dead-letter-exchange": "x"},
			"x-dead-letter-exchange",
			Value{"string", "x"},
			Value{"string", evil},
		},
		{
			"exchange type", "exchange", "ex",
			"PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'ex' in vhost '/': received 'fanout' but current is ''x-random''",
			amqp.Table{"type": "fanout"},
			"type",
			Value{"string", "fanout"},
			Value{"string", "x-random"},
		},
		{
			"durable", "exchange", "ex",
			"PRECONDITION_FAILED - inequivalent arg 'durable' for exchange 'ex' in vhost 'a': b': received 'true' but current is 'false'",
			nil, "durable",
			Value{"bool", "true"},
			Value{"bool", "false"},
		},
		{
			"empty string", "queue", "q", "PRECONDITION_FAILED - inequivalent arg 'x-dead-letter-exchange' for queue 'q' in vhost '/': received 'x' but current is ''",
			amqp.Table{"x-dead-letter-exchange": "x"},
			"x-dead-letter-exchange",
			Value{"string", "x"},
			Value{"string", ""},
		},
		{
			"name in quotes", "queue", "it's in vhost '/': received '1'",
			"PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'it's in vhost '/': received '1'' in vhost '/': received '2' but current is '3'",
			amqp.Table{"x-message-ttl": int64(2)},
			"x-message-ttl",
			Value{"int64", "2"},
			Value{"integer", "3"},
		},
		{
			"cut inside of the value", "queue", "q", "PRECONDITION_FAILED - inequivalent arg 'x-dead-letter-exchange' for queue 'q' in vhost '/': received 'x' but current is 'aaaa\xc3...",
			amqp.Table{"x-dead-letter-exchange": "x"},
			"x-dead-letter-exchange",
			Value{"string", "x"},
			Value{"unknown", "aaaa..."},
		},
		{
			"cut inside of the name", "queue", strings.Repeat("q", 250), "PRECONDITION_FAILED - inequivalent arg 'x-overflow' for queue 'qqqqqqq...",
			amqp.Table{"x-overflow": "x"},
			"x-overflow",
			Value{"string", "x"},
			Value{Type: "unknown"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := &amqp.Error{Code: 406, Reason: c.reason, Recover: true}
			m := mismatch(e, c.kind, c.item, func(key string) Value { return wanted(c.args, key) })
			if m == nil {
				t.Fatal("not recognised")
			}
			if m.Kind != c.kind || m.Name != c.item || m.Key != c.key || m.Want != c.want || m.Have != c.have {
				t.Errorf("got %s %q %s: want %+v have %+v", m.Kind, m.Name, m.Key, m.Want, m.Have)
			}
			var under *amqp.Error
			if !errors.As(m, &under) || under != e || !errors.Is(m, ErrMismatch) || errors.Is(m, ErrAccess) {
				t.Error("does not lead to the broker's error, or to the wrong kind")
			}
			for _, part := range []string{c.item, c.key, c.want.String(), c.have.String()} {
				if !strings.Contains(m.Error(), part) {
					t.Errorf("%q does not name %q", m.Error(), part)
				}
			}
		})
	}
}

func TestMismatchSaysWhenOnlyTheTypeDiffers(t *testing.T) {
	alike := &MismatchError{Kind: "queue", Name: "q", Key: "x-message-ttl", Want: Value{"string", "10000"}, Have: Value{"integer", "10000"}}
	if got := alike.Error(); !strings.Contains(got, `x-message-ttl is string "10000" here, but integer 10000 on the broker`) || !strings.Contains(got, "another type") {
		t.Errorf("got %s", got)
	}
	other := &MismatchError{Kind: "queue", Name: "q", Key: "x-message-ttl", Want: Value{"int64", "10000"}, Have: Value{"integer", "5000"}}
	if got := other.Error(); strings.Contains(got, "another type") {
		t.Errorf("got %s", got)
	}
}

func TestMismatchIsOnlyAMismatch(t *testing.T) {
	for _, e := range []*amqp.Error{
		{Code: 406, Reason: "PRECONDITION_FAILED - invalid arg 'x-max-priority' for queue 'big' in vhost '/' of queue type rabbit_quorum_queue"},
		{Code: 406, Reason: "PRECONDITION_FAILED - unknown exchange type 'nokind'"},
		{Code: 406, Reason: "PRECONDITION_FAILED - inequivalent arg 'x-message-..."},
		{Code: 404, Reason: "NOT_FOUND - no queue 'q' in vhost '/'"},
		{Code: 406},
	} {
		if m := mismatch(e, "queue", "q", func(string) Value { return Value{} }); m != nil {
			t.Errorf("%v was taken for %v", e, m)
		}
	}
}

func TestAccess(t *testing.T) {
	declare := []resource{{"queue", "q", "configure"}, {"queue", "q", "read"}, {"exchange", "dlx", "write"}}
	bind := []resource{{"queue", "q", "write"}, {"exchange", "x", "read"}}
	for _, c := range []struct {
		name, reason string
		needs        []resource
		permission   string // "" for: not this kind of error
		resource     string
	}{
		{"declare, 3.10", "access to queue 'q' in vhost '/' refused for user 'u'", declare, "configure", `queue "q"`},
		{"declare, 4.x", "configure access to queue 'q' in vhost '/' refused for user 'u'", declare, "configure", `queue "q"`},
		{"read for the dead letters, 4.x", "read access to queue 'q' in vhost '/' refused for user 'u'", declare, "read", `queue "q"`},
		{"dead letter exchange, 3.10", "access to exchange 'dlx' in vhost '/' refused for user 'u'", declare, "write", `exchange "dlx"`},
		{"dead letter exchange, 4.x", "write access to exchange 'dlx' in vhost '/' refused for user 'u'", declare, "write", `exchange "dlx"`},
		{"destination, 3.10", "access to queue 'q' in vhost '/' refused for user 'u'", bind, "write", `queue "q"`},
		{"source, 3.10", "access to exchange 'x' in vhost '/' refused for user 'u'", bind, "read", `exchange "x"`},
		{"source, 4.x", "read access to exchange 'x' in vhost 'a' in vhost 'b' refused for user 'u'", bind, "read", `exchange "x"`},
		{"topic", "read access to topic 'k' in exchange 'x' in vhost '/' refused for user 'u'", bind, "read", "topic 'k' in exchange 'x'"},
		{"cut short", "write access to queue 'qqqqqqq...", bind, "write", `queue "q"`},
		{"reserved name", "exchange name 'amq.foo' contains reserved prefix 'amq.*'", declare, "", ""},
		{"default exchange", "operation not permitted on the default exchange", declare, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := &amqp.Error{Code: 403, Reason: "ACCESS_REFUSED - " + c.reason, Recover: true}
			a := access(e, "queue", "q", c.needs)
			if (a == nil) != (c.permission == "") {
				t.Fatalf("got %v", a)
			}
			if a == nil {
				return
			}
			if a.Permission != c.permission || a.Resource != c.resource {
				t.Errorf("got %s on %s, want %s on %s", a.Permission, a.Resource, c.permission, c.resource)
			}
			var under *amqp.Error
			if !errors.As(a, &under) || under != e || !errors.Is(a, ErrAccess) || errors.Is(a, ErrMismatch) {
				t.Error("does not lead to the broker's error, or to the wrong kind")
			}
			if !strings.Contains(a.Error(), c.permission+" permission on "+c.resource) {
				t.Errorf("got %s", a)
			}
		})
	}
}

func TestNotFound(t *testing.T) {
	for _, c := range []struct {
		reason, queue, exchange string
		missing                 bool
	}{
		{"NOT_FOUND - no queue 'q' in vhost '/'", "q", "", true},
		{"NOT_FOUND - no exchange 'it's in vhost 'x' in vhost '/'", "", "it's in vhost 'x", true},
		{"NOT_FOUND - no queue 'qqq...", "qqq...", "", true},
		{"NOT_FOUND - home node 'rabbit@a' of durable queue 'q' in vhost '/' is down or inaccessible", "", "", false},
		{"NOT_FOUND - queue 'q' in vhost '/' process is stopped by supervisor", "", "", false},
	} {
		m, ok := notFound(&amqp.Error{Code: 404, Reason: c.reason, Recover: true})
		if ok != c.missing {
			t.Errorf("%s: missing is %t, want %t", c.reason, ok, c.missing)
		} else if ok && (m.Queue != c.queue || m.Exchange != c.exchange || !errors.Is(m, ErrMissing)) {
			t.Errorf("%s: got %+v", c.reason, m)
		}
	}
}

// FuzzReason: whatever a broker says, reading it neither panics nor invents text
// that could not be printed.
func FuzzReason(f *testing.F) {
	f.Add("PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': received '2' but current is '3'", "q", "2")
	f.Add("PRECONDITION_FAILED - inequivalent arg 'x' for queue 'q' in vhost '/': received none but current is the value '1' of type 'long'", "q", "")
	f.Add("ACCESS_REFUSED - write access to queue 'q' in vhost '/' refused for user 'u'", "q", "")
	f.Add("NOT_FOUND - no queue 'q' in vhost '/'", "q", "")
	f.Add("inequivalent arg '' for queue '' in vhost '': received  but current is '''", "", "'")
	f.Fuzz(func(t *testing.T, reason, name, text string) {
		want := func(string) Value { return Value{"string", text} }
		if m := mismatch(&amqp.Error{Code: 406, Reason: reason}, "queue", name, want); m != nil {
			if utf8.ValidString(reason) && !utf8.ValidString(m.Have.Text) {
				t.Errorf("have %q", m.Have.Text)
			}
			if m.Error() == "" || m.Want.Text != text {
				t.Errorf("got %+v", m)
			}
		}
		if a := access(&amqp.Error{Code: 403, Reason: reason}, "queue", name, []resource{{"queue", name, "configure"}}); a != nil {
			if a.Permission == "" || a.Resource == "" {
				// A resource may only be empty when the broker's is.
				if !strings.Contains(reason, "access to  in vhost '") {
					t.Errorf("got %+v", a)
				}
			}
		}
		notFound(&amqp.Error{Code: 404, Reason: reason})
	})
}
