package topology

import (
	"context"
	"encoding/json"
	"fmt"
)

// Read reads one resource of the management API, an object or a list, and decodes
// its JSON into a pointer, as [json.Decoder] does with UseNumber. The path's
// segments, after "/api", are given as they are and escaped here; of a resource
// that belongs to a virtual host one of them is m.Vhost. query is empty or begins
// with "?".
//
// It is for what no other method shows: figures, consumers, policies. What it
// returns is the broker's, and some of it lags by seconds. It sends a GET and
// nothing else.
func (m *Management) Read(ctx context.Context, into any, query string, segments ...string) error {
	err := m.get(ctx, query, func(d *json.Decoder) error { return d.Decode(into) }, segments...)
	if err != nil {
		return fmt.Errorf("%w (virtual host %q)", err, m.vhost())
	}
	return nil
}

// Lookup is [Management.Read] for a resource that need not be there: false where it
// is not.
func (m *Management) Lookup(ctx context.Context, into any, query string, segments ...string) (bool, error) {
	found, err := m.one(ctx, query, into, segments...)
	if err != nil {
		return false, fmt.Errorf("%w (virtual host %q)", err, m.vhost())
	}
	return found, nil
}
