package topology

import (
	"errors"
	"fmt"
)

// What can be wrong with an item, for [errors.Is]. Each is also a type with the
// details, for [errors.As].
var (
	// ErrMismatch: it exists with other arguments, a [MismatchError].
	ErrMismatch = errors.New("exists with other arguments")
	// ErrAccess: the account lacks a permission, an [AccessError].
	ErrAccess = errors.New("permission missing")
	// ErrMissing: it does not exist and is not ours to declare, a [MissingError].
	ErrMissing = errors.New("does not exist")
	// ErrDrift: the broker differs from the topology, a [DriftError].
	ErrDrift = errors.New("the broker differs from the topology")
)

// MismatchError says that an item exists, but not as it should be. The item is
// left as it is: RabbitMQ cannot change the arguments of a queue or an exchange.
type MismatchError struct {
	Kind string // "queue" or "exchange"
	Name string
	// Key is the argument that differs, or "type", "durable", "auto_delete" or
	// "internal". Brokers name the first one that they find; there may be more,
	// which [MakePlan] lists.
	Key string
	// Want is what the topology says, Have what the broker has. Brokers tell
	// values without their types; unless Apply was given [WithManagement], the
	// type of Have is concluded where it can be and "" where it cannot.
	Want, Have Value
	// Err is the broker's answer, an *amqp.Error with code 406; nil when the
	// difference was read over HTTP instead (see [Apply]).
	Err error
}

func (e *MismatchError) Error() string {
	s := fmt.Sprintf("declare %s %q: %s is %v here, but %v on the broker", e.Kind, e.Name, e.Key, e.Want, e.Have)
	if e.Want.Text == e.Have.Text && e.Want.Type != e.Have.Type {
		s += " (they look alike, but a value of another type is another value for RabbitMQ)"
	}
	return s + "; an existing " + e.Kind + " cannot be changed: delete it once it is empty and unused, or use another name or prefix"
}

// Unwrap returns the broker's answer.
func (e *MismatchError) Unwrap() error { return e.Err }

// Is makes errors.Is(err, ErrMismatch) true.
func (e *MismatchError) Is(target error) bool { return target == ErrMismatch }

// AccessError says which permission the account lacks to declare, bind or unbind an
// item that may not be there, or that it may not look at.
type AccessError struct {
	Kind string // "exchange", "queue" or "binding": what was to be made, or unbound
	Name string
	// Permission is "configure", "write" or "read". Brokers before 4.0 do not say
	// which; it is then the one that this step asks for first.
	Permission string
	// Resource is what the permission is needed on, for example queue "orders".
	// To declare takes configure on the item itself, and for one that names a
	// dead-letter or alternate exchange also read on it and write on that exchange;
	// to bind or unbind takes write on the destination and read on the source.
	Resource string
	// Err is the broker's answer, an *amqp.Error with code 403.
	Err error

	unbind bool // it was to be removed
}

func (e *AccessError) Error() string {
	verb := "declare " + e.Kind
	if e.Kind == "binding" {
		verb = "make binding"
	}
	if e.unbind {
		verb = "remove binding"
	}
	return fmt.Sprintf("%s %q: the account needs %s permission on %s: grant it, or apply the topology with another account first: %v",
		verb, e.Name, e.Permission, e.Resource, e.Err)
}

// Unwrap returns the broker's answer.
func (e *AccessError) Unwrap() error { return e.Err }

// Is makes errors.Is(err, ErrAccess) true.
func (e *AccessError) Is(target error) bool { return target == ErrAccess }

// MissingError says that something which is not ours to declare does not exist:
// the user's work queue, or the other end of a binding.
type MissingError struct {
	Queue    string // the queue that is missing, or ""
	Exchange string // the exchange that is missing, or ""
	// Err is the broker's answer, an *amqp.Error with code 404.
	Err error
}

func (e *MissingError) Error() string {
	if e.Exchange != "" {
		return fmt.Sprintf("exchange %q does not exist: create it first: %v", e.Exchange, e.Err)
	}
	return fmt.Sprintf("queue %q does not exist: create it, or let its route declare it: %v", e.Queue, e.Err)
}

// Unwrap returns the broker's answer.
func (e *MissingError) Unwrap() error { return e.Err }

// Is makes errors.Is(err, ErrMissing) true.
func (e *MissingError) Is(target error) bool { return target == ErrMissing }

// DriftError is what [Verify] returns when the plan is not empty.
type DriftError struct{ Plan Plan }

func (e *DriftError) Error() string {
	return "verify topology: " + ErrDrift.Error() + ":\n" + e.Plan.String()
}

// Is makes errors.Is(err, ErrDrift) true.
func (e *DriftError) Is(target error) bool { return target == ErrDrift }
