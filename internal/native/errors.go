package native

import (
	"errors"
	"fmt"
	"strings"

	amqp10 "github.com/Azure/go-amqp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/internal/link"
)

var (
	// ErrClosed is returned once the connection was closed by us.
	ErrClosed = link.ErrClosed

	// ErrDeleted: the queue was deleted while we consumed from it.
	ErrDeleted = errors.New("the queue was deleted")

	// ErrUnreadable: the receiver ended at a message that cannot be shown over
	// AMQP 1.0, or on an error that looks like it, and another receiver would
	// end there again. Consumers over AMQP 0-9-1 can read it.
	//
	// Two kinds are known. A header that is a decimal, published over AMQP
	// 0-9-1, crashes the session in RabbitMQ 4.3 (mc_amqpl has no way to convert
	// it), which counts as a crash of everything that was handed out. And
	// go-amqp cannot decode the types char and decimal.
	ErrUnreadable = errors.New("a message cannot be read over AMQP 1.0")
)

// codes are the AMQP 0-9-1 reply codes of the conditions of AMQP 1.0.
var codes = map[amqp10.ErrCond]int{
	amqp10.ErrCondNotFound:              amqp.NotFound,
	amqp10.ErrCondResourceDeleted:       amqp.NotFound,
	amqp10.ErrCondUnauthorizedAccess:    amqp.AccessRefused,
	amqp10.ErrCondResourceLocked:        amqp.ResourceLocked,
	amqp10.ErrCondPreconditionFailed:    amqp.PreconditionFailed,
	amqp10.ErrCondNotAllowed:            amqp.NotAllowed,
	amqp10.ErrCondNotImplemented:        amqp.NotImplemented,
	amqp10.ErrCondInvalidField:          amqp.SyntaxError,
	amqp10.ErrCondDecodeError:           amqp.SyntaxError,
	amqp10.ErrCondResourceLimitExceeded: amqp.ResourceError,
	amqp10.ErrCondConnectionForced:      amqp.ConnectionForced,
	amqp10.ErrCondFramingError:          amqp.FrameError,
	amqp10.ErrCondInternalError:         amqp.InternalError,
}

// translate gives an error of go-amqp the form of amqp091-go: a condition that
// the broker gave becomes an *amqp091.Error with the reply code that it has over
// AMQP 0-9-1.
func translate(err error) error {
	if err == nil {
		return nil
	}
	var remote *amqp10.Error
	if !errors.As(err, &remote) {
		var link *amqp10.LinkError
		if errors.As(err, &link) && strings.HasPrefix(link.Error(), string(amqp10.ErrCondInternalError)) {
			// By go-amqp, which closes the link over what it cannot decode.
			return fmt.Errorf("%w: %w", ErrUnreadable, err)
		}
		if strings.Contains(err.Error(), "auth failed with code") { // go-amqp has no type for it
			return &amqp.Error{Code: amqp.AccessRefused, Reason: "user name or password refused", Server: true}
		}
		return err
	}
	e := &amqp.Error{Code: codes[remote.Condition], Reason: string(remote.Condition), Server: true}
	if e.Code == 0 {
		e.Code = amqp.InternalError
	}
	if remote.Description != "" {
		e.Reason += ": " + cut(remote.Description)
	}
	switch {
	case remote.Condition == amqp10.ErrCondResourceDeleted:
		return fmt.Errorf("%w: %w", ErrDeleted, e)
	case remote.Condition == amqp10.ErrCondInternalError && strings.HasPrefix(remote.Description, "Session error"):
		return fmt.Errorf("%w: %w", ErrUnreadable, e)
	}
	return e
}

// cut keeps a text short: RabbitMQ describes a crash by its stack and the whole
// state of the process.
func cut(s string) string {
	const most = 300
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
