package hopback

import (
	"context"
	"encoding/json"
	"fmt"
)

// Codec turns a message's body into a value.
type Codec interface {
	Decode(m *Message, into any) error
}

// JSON decodes bodies with encoding/json, whatever their content type says.
var JSON Codec = jsonCodec{}

type jsonCodec struct{}

func (jsonCodec) Decode(m *Message, into any) error { return json.Unmarshal(m.Body, into) }

// DecodeError is the failure of a message whose body is not what the handler
// takes. It is permanent: the same bytes will not decode the next time either.
type DecodeError struct {
	Into string // the Go type
	Err  error
}

func (e *DecodeError) Error() string {
	return fmt.Sprintf("decode the body into %s: %v", e.Into, e.Err)
}
func (e *DecodeError) Unwrap() error { return e.Err }

// Handle makes a Handler of a function that takes a decoded payload. Bodies are
// JSON, or what codec decodes. A body that cannot be decoded is parked at once.
func Handle[T any](f func(ctx context.Context, payload T, m *Message) error, codec ...Codec) Handler {
	c := JSON
	if len(codec) > 0 {
		c = codec[0]
	}
	return HandlerFunc(func(ctx context.Context, m *Message) error {
		var payload T
		if err := c.Decode(m, &payload); err != nil {
			if _, says := explicitVerdict(err); says {
				return err // a codec that asks a schema registry may have reasons to try again
			}
			return Permanent(&DecodeError{Into: fmt.Sprintf("%T", payload), Err: err})
		}
		return f(ctx, payload, m)
	})
}
