package topology

import (
	"fmt"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// What follows reads the broker's words. They are the same on 3.10.8, 4.0.5 and
// 4.3.6, but for the name of the permission, which 3.10 leaves out. A reply text
// holds 255 bytes; a longer one is cut and ends in "...", so any part of it may be
// missing. (4.x cuts at 255 characters: with long names beyond ASCII the text does
// not fit, and the broker ends the connection with 541 instead of answering.)

// mismatch reads a 406 such as
//
//	PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'a' in vhost
//	'/': received '10000' but current is '5000'
//
// for a declaration of the named item that wants these values (the zero Value for
// what it does not mention). It returns nil for any other text.
func mismatch(err *amqp.Error, kind, name string, want func(key string) Value) *MismatchError {
	if err.Code != amqp.PreconditionFailed {
		return nil
	}
	_, rest, ok := strings.Cut(err.Reason, "inequivalent arg '")
	if !ok {
		return nil
	}
	// The name is known, and may contain whatever it likes.
	key, rest, ok := strings.Cut(rest, "' for "+kind+" '"+name+"' in vhost '")
	if !ok { // cut inside of the name: the values are lost
		if key, _, ok = strings.Cut(key, "' for "+kind+" '"); !ok {
			return nil
		}
	}
	_, rest, _ = strings.Cut(rest, "': received ")
	w := want(key)
	return &MismatchError{Kind: kind, Name: name, Key: key, Want: w, Have: conclude(key, w, current(rest, w)), Err: err}
}

// current is the value after "but current is". Types are told only where one of
// the two sides is "none": "the value '10000' of type 'long'".
func current(rest string, want Value) Value {
	const sep = " but current is "
	have, found := "", false
	// What was received is known, which finds the right place even where a value
	// contains these very words.
	for _, received := range []string{"'" + want.Text + "'", typed(want), "none"} {
		if have, found = strings.CutPrefix(rest, received+sep); found {
			break
		}
	}
	if !found {
		i := strings.LastIndex(rest, sep)
		if i < 0 {
			return Value{Type: unknownType}
		}
		have = rest[i+len(sep):]
	}
	if have == "none" {
		return Value{}
	}
	if v, ok := strings.CutPrefix(have, "the value '"); ok {
		if i := strings.LastIndex(v, typeMark); i >= 0 {
			return Value{Type: wireType(strings.TrimSuffix(v[i+len(typeMark):], "'")), Text: v[:i]}
		}
		return Value{Type: unknownType, Text: strings.ToValidUTF8(v, "")}
	}
	have = strings.TrimPrefix(have, "'")
	v, ok := strings.CutSuffix(have, "'")
	if !ok {
		return Value{Type: unknownType, Text: strings.ToValidUTF8(have, "")}
	}
	if v == "" {
		return Value{Type: "string"} // nothing else is written as nothing
	}
	return Value{Text: v}
}

const typeMark = "' of type '"

func typed(v Value) string {
	for broker, ours := range wireTypes {
		if ours == v.Type {
			return "the value '" + v.Text + typeMark + broker + "'"
		}
	}
	return "none"
}

// conclude finds the type of what the broker has, where it did not say.
func conclude(key string, want, have Value) Value {
	if have.Type != "" || have.Text == "" {
		return have
	}
	switch key {
	case "type", "x-dead-letter-exchange", "x-dead-letter-routing-key", "x-dead-letter-strategy",
		"x-overflow", queueType, "alternate-exchange":
		have.Type = "string"
		if key == "type" { // an Erlang atom: ''x-random'' when it is no plain word
			have.Text = strings.Trim(have.Text, "'")
		}
		return have
	case "durable", "auto_delete", "internal":
		have.Type = "bool"
		return have
	case "x-message-ttl", "x-expires", "x-max-length", "x-max-length-bytes", "x-max-priority":
		have.Type = "integer" // the broker refuses others when the queue is made
		return have
	}
	if have.Text != want.Text {
		return have
	}
	// The same text, and yet another value: it is the type.
	switch class(want.Type) {
	case "integer", "bool":
		have.Type = "string"
	case "string":
		have.Type = "integer"
		if have.Text == "true" || have.Text == "false" {
			have.Type = "bool"
		}
	}
	return have
}

// wireTypes are RabbitMQ's names of the types of AMQP 0-9-1, and ours.
var wireTypes = map[string]string{
	"byte": "int8", "short": "int16", "signedint": "int32", "long": "int64",
	"unsignedbyte": "uint8", "unsignedshort": "uint16", "unsignedint": "uint32",
	"longstr": "string", "bool": "bool", "float": "float32", "double": "float64",
	"decimal": "decimal", "timestamp": "timestamp", "table": "table", "array": "array",
	"binary": "bytes", "void": "void",
}

func wireType(broker string) string {
	if t, ok := wireTypes[broker]; ok {
		return t
	}
	return broker
}

// resource is something that a permission is needed on.
type resource struct{ kind, name, permission string }

func (r resource) String() string { return fmt.Sprintf("%s %q", r.kind, r.name) }

// access reads a 403 such as
//
//	ACCESS_REFUSED - configure access to queue 'a' in vhost '/' refused for user 'u'
//	ACCESS_REFUSED - access to queue 'a' in vhost '/' refused for user 'u'
//
// the second from 3.10, where the permission is concluded from what the step
// needs, in the order in which the broker asks. It returns nil for a 403 of
// another sort, such as a reserved name.
func access(err *amqp.Error, kind, name string, needs []resource) *AccessError {
	if err.Code != amqp.AccessRefused || len(needs) == 0 {
		return nil
	}
	before, rest, ok := strings.Cut(err.Reason, "access to ")
	if !ok {
		return nil
	}
	a := &AccessError{Kind: kind, Name: name, Permission: needs[0].permission, Resource: needs[0].String(), Err: err}
	told := ""
	for _, p := range []string{"configure", "write", "read"} {
		if strings.HasSuffix(before, " "+p+" ") {
			told = p
		}
	}
	if told != "" {
		a.Permission = told
	}
	for _, n := range needs {
		if (told == "" || told == n.permission) && strings.HasPrefix(rest, n.kind+" '"+n.name+"' in vhost '") {
			a.Permission, a.Resource = n.permission, n.String()
			return a
		}
	}
	if res, _, ok := strings.Cut(rest, " in vhost '"); ok {
		a.Resource = res // something that we did not think of, such as a topic
	}
	return a
}

// notFound reads a 404 such as
//
//	NOT_FOUND - no queue 'a' in vhost '/'
//
// and tells it from the one of a queue that exists on a node that is down.
func notFound(err *amqp.Error) (*MissingError, bool) {
	_, rest, ok := strings.Cut(err.Reason, "NOT_FOUND - no ")
	if err.Code != amqp.NotFound || !ok {
		return nil, false
	}
	kind, rest, _ := strings.Cut(rest, " '")
	name := rest
	if i := strings.LastIndex(rest, "' in vhost '"); i >= 0 {
		name = rest[:i]
	}
	switch kind {
	case "queue":
		return &MissingError{Queue: name, Err: err}, true
	case "exchange":
		return &MissingError{Exchange: name, Err: err}, true
	}
	return nil, false
}
