package topology

import "errors"

// What can be wrong with an item, for errors.Is.
var (
	ErrMismatch = errors.New("declared with other arguments")
	ErrAccess   = errors.New("permission missing")
	ErrMissing  = errors.New("missing")
	ErrDrift    = errors.New("broker differs from the topology")
)

// MismatchError says that the broker has an item with another value.
type MismatchError struct {
	Kind string
	Name string
	Key  string
	Want Value
	Have Value
	Err  error
}

func (e *MismatchError) Error() string        { return "" }
func (e *MismatchError) Unwrap() error        { return e.Err }
func (e *MismatchError) Is(target error) bool { return target == ErrMismatch }

// AccessError says which permission the account lacks.
type AccessError struct {
	Kind       string
	Name       string
	Permission string // "configure", "write" or "read"
	Resource   string
	Err        error
}

func (e *AccessError) Error() string        { return "" }
func (e *AccessError) Unwrap() error        { return e.Err }
func (e *AccessError) Is(target error) bool { return target == ErrAccess }

// MissingError says that the user's work queue does not exist.
type MissingError struct {
	Queue string
	Err   error
}

func (e *MissingError) Error() string        { return "" }
func (e *MissingError) Unwrap() error        { return e.Err }
func (e *MissingError) Is(target error) bool { return target == ErrMissing }

// DriftError carries a plan that is not empty.
type DriftError struct{ Plan Plan }

func (e *DriftError) Error() string        { return "" }
func (e *DriftError) Is(target error) bool { return target == ErrDrift }
