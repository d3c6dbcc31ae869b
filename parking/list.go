package parking

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/hopback/hopback/internal/reading"
)

// Messages goes through the messages that the filter picks, oldest first. It
// changes nothing: all that it reads is held meanwhile and back in its place, in
// its order, when the loop ends, however it ends. Other readers do not see what
// is held, so a loop should not wait for people; RabbitMQ ends one after 30
// minutes (consumer_timeout).
//
// An error ends it, and is its last pair. A message may be kept after the loop.
func (q *Queue) Messages(ctx context.Context, f Filter) iter.Seq2[*Message, error] {
	return q.look(ctx, f, nil)
}

// look is Messages, with the number of messages that were read, picked or not.
func (q *Queue) look(ctx context.Context, f Filter, progress func(seen, total int)) iter.Seq2[*Message, error] {
	if progress == nil {
		progress = q.o.Progress
	}
	return func(yield func(*Message, error) bool) {
		fail := func(err error) {
			if err != nil {
				yield(nil, fmt.Errorf("look into %q: %w", q.name, err))
			}
		}
		if err := f.Validate(); err != nil {
			fail(err)
			return
		}
		r, err := q.read(ctx, reading.Options{Look: true})
		if err != nil {
			fail(err)
			return
		}
		stopped, seen := false, 0
		for ; ; seen++ {
			if progress != nil && seen&255 == 0 {
				progress(seen, r.Total())
			}
			var it reading.Item
			var ok bool
			if it, ok, err = r.Next(ctx); err != nil || !ok {
				break
			}
			if m := describe(q.name, it.Delivery); f.Match(m) && !yield(m, nil) {
				stopped = true
				break
			}
		}
		if progress != nil {
			progress(seen, r.Total())
		}
		if err = errors.Join(err, q.giveBack(ctx, r)); !stopped {
			fail(err)
		}
	}
}

// ErrNotFound says that no message has the ID.
var ErrNotFound = errors.New("no message has this ID")

// AmbiguousError says that a shortened ID is that of several messages.
type AmbiguousError struct {
	ID  string
	IDs []string // the first of them
}

func (e *AmbiguousError) Error() string {
	return fmt.Sprintf("%q is the beginning of several IDs: %s: write more of it", e.ID, strings.Join(e.IDs, ", "))
}

// Find finds a message by its ID, which may be shortened to its first
// characters, at least MinID. Of several messages with one ID, copies of one
// message, it gives the oldest.
func (q *Queue) Find(ctx context.Context, id string) (*Message, error) {
	var found *Message
	var ids []string
	for m, err := range q.Messages(ctx, Filter{IDs: []string{id}}) {
		if err != nil {
			return nil, err
		}
		if found == nil {
			found = m
		}
		if m.ID == id {
			if found.ID != id {
				found = m
			}
			ids = []string{id}
			break
		}
		if !slices.Contains(ids, m.ID) && len(ids) < 5 {
			ids = append(ids, m.ID)
		}
	}
	switch {
	case found == nil:
		return nil, fmt.Errorf("%w: %q in %q", ErrNotFound, id, q.name)
	case len(ids) > 1:
		return nil, &AmbiguousError{ID: id, IDs: ids}
	}
	return found, nil
}

// fullID is how long the IDs are that Hopback gives.
const fullID = 32

// Exact gives a filter whose shortened IDs are written out, so that what is
// taken out by them is what was meant: an *AmbiguousError where one is the
// beginning of the IDs of several of the messages that the filter picks. One of
// which there is no message stays as it is. It looks into the queue, unless no ID
// is shortened.
func (q *Queue) Exact(ctx context.Context, f Filter) (Filter, error) {
	if !slices.ContainsFunc(f.IDs, func(id string) bool { return len(id) < fullID }) {
		return f, nil
	}
	found := make([][]string, len(f.IDs))
	for m, err := range q.Messages(ctx, f) {
		if err != nil {
			return f, err
		}
		for i, id := range f.IDs {
			if strings.HasPrefix(m.ID, id) && !slices.Contains(found[i], m.ID) && len(found[i]) < 5 {
				found[i] = append(found[i], m.ID)
			}
		}
	}
	f.IDs = slices.Clone(f.IDs)
	for i, ids := range found {
		switch {
		case len(ids) == 1:
			f.IDs[i] = ids[0]
		case len(ids) > 1 && !slices.Contains(ids, f.IDs[i]):
			return f, &AmbiguousError{ID: f.IDs[i], IDs: ids}
		}
	}
	return f, nil
}

// Group is a number of messages that have something in common.
type Group struct {
	// Key is what they have in common, empty where they lack it.
	Key string
	// ID is a short name of the key, for filters: see FingerprintID.
	ID    string
	Count int
	Bytes int64 // of their bodies

	// FirstParked and LastParked are the earliest and the latest time at which one
	// of them was parked.
	FirstParked, LastParked time.Time

	// Sample is the oldest of them, without its body.
	Sample *Message
}

// Groupings are what messages can be grouped by.
var Groupings = []string{"error-type", "reason", "fingerprint", "error", "queue", "policy", "exchange", "routing-key", "header:NAME"}

// key gives the function that finds a message's group.
func key(by string) (func(*Message) string, error) {
	switch by {
	case "error-type":
		return func(m *Message) string { return m.ErrorType }, nil
	case "reason":
		return func(m *Message) string { return m.Reason }, nil
	case "fingerprint":
		known := map[[2]string]string{} // most messages have one of a few errors
		return func(m *Message) string {
			e := [2]string{m.ErrorType, m.Error}
			s, ok := known[e]
			if !ok {
				s = m.Fingerprint()
				if len(known) < 10_000 {
					known[e] = s
				}
			}
			return s
		}, nil
	case "error":
		return func(m *Message) string { return m.Error }, nil
	case "queue":
		return func(m *Message) string { return m.Queue }, nil
	case "policy":
		return func(m *Message) string { return m.Policy }, nil
	case "exchange":
		return func(m *Message) string { return m.Exchange }, nil
	case "routing-key":
		return func(m *Message) string { return m.RoutingKey }, nil
	}
	if name, ok := strings.CutPrefix(by, "header:"); ok && name != "" {
		return func(m *Message) string {
			if v, ok := m.Delivery.Headers[name]; ok {
				return plain(v)
			}
			return ""
		}, nil
	}
	return nil, fmt.Errorf("group by %q cannot work: use one of %s", by, strings.Join(Groupings, ", "))
}

// MaxGroups bounds the groups that are told apart; what else there is goes into
// one with the key OtherGroups.
const (
	MaxGroups   = 10_000
	OtherGroups = "(others)"
)

// Grouping is what Groups found.
type Grouping struct {
	// Seen is how many messages were read, Picked how many the filter picked.
	Seen, Picked int
	Groups       []Group // the largest first
}

// Groups counts the messages that the filter picks by what they have in common,
// one of Groupings. It changes nothing, as Messages does not. progress may be
// nil: then it is that of the Options.
func (q *Queue) Groups(ctx context.Context, f Filter, by string, progress func(seen, total int)) (Grouping, error) {
	var g Grouping
	k, err := key(by)
	if err != nil {
		return g, err
	}
	c := newCounter(k)
	for m, err := range q.look(ctx, f, func(seen, total int) {
		g.Seen = seen
		if progress != nil {
			progress(seen, total)
		}
	}) {
		if err != nil {
			return g, err
		}
		c.add(m)
	}
	g.Picked, g.Groups = c.n, c.sorted()
	return g, nil
}

// counter counts messages by a key.
type counter struct {
	key    func(*Message) string
	groups map[string]*Group
	n      int
}

func newCounter(key func(*Message) string) *counter {
	return &counter{key: key, groups: map[string]*Group{}}
}

func (c *counter) add(m *Message) {
	c.n++
	k := c.key(m)
	g := c.groups[k]
	if g == nil && len(c.groups) >= MaxGroups {
		k = OtherGroups
		g = c.groups[k]
	}
	if g == nil {
		sample := *m
		d := *m.Delivery
		d.Body = nil
		sample.Delivery = &d
		g = &Group{Key: k, ID: FingerprintID(k), Sample: &sample}
		c.groups[k] = g
	}
	g.Count++
	g.Bytes += int64(m.Size)
	if at := m.ParkedAt; !at.IsZero() {
		if g.FirstParked.IsZero() || at.Before(g.FirstParked) {
			g.FirstParked = at
		}
		if at.After(g.LastParked) {
			g.LastParked = at
		}
	}
}

func (c *counter) sorted() []Group {
	list := make([]Group, 0, len(c.groups))
	for _, g := range c.groups {
		list = append(list, *g)
	}
	slices.SortFunc(list, func(a, b Group) int { return cmp.Or(b.Count-a.Count, strings.Compare(a.Key, b.Key)) })
	return list
}
