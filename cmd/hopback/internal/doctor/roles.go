package doctor

import (
	"regexp"
	"slices"
	"strings"

	"github.com/hopback/hopback"
)

// role is what a queue is for. Of our own queues, and of those that a
// configuration names, it is known; of others it is concluded from what they look
// like.
type role int

const (
	// work: consumers take from it.
	work role = iota
	// holding: messages wait in it for a delay, and leave it by dead-lettering.
	holding
	// parking: messages rest in it until a person decides.
	parking
	// other: of no concern here: streams, and queues that end with their connection.
	other
)

// view is a snapshot with what the checks look up in it.
type view struct {
	*Snapshot
	queues    map[string]*Queue
	exchanges map[string]*Exchange
	leaving   map[string][]Binding // by source
	arriving  map[string][]Binding // by destination queue
	policy    map[string]Policy    // by name

	prefixes []string                 // of retry set-ups of ours
	routes   map[string]hopback.Route // of the configuration, with defaults, by work queue
	managed  map[string]bool          // work queues that our way back leads to
	parked   map[string]bool          // queues that our hand-off parks in
	feeders  map[string][]*Queue      // who dead-letters into a queue, for certain
	roles    map[string]role
}

func newView(s *Snapshot) *view {
	v := &view{
		Snapshot: s, queues: map[string]*Queue{}, exchanges: map[string]*Exchange{},
		leaving: map[string][]Binding{}, arriving: map[string][]Binding{}, policy: map[string]Policy{},
		routes: map[string]hopback.Route{}, managed: map[string]bool{}, parked: map[string]bool{},
		feeders: map[string][]*Queue{}, roles: map[string]role{},
	}
	for _, q := range s.Queues {
		v.queues[q.Name] = q
	}
	for _, e := range s.Exchanges {
		v.exchanges[e.Name] = e
	}
	for _, b := range s.Bindings {
		if b.Source == "" {
			continue // the default exchange's, which every queue has
		}
		v.leaving[b.Source] = append(v.leaving[b.Source], b)
		if b.Kind == "queue" {
			v.arriving[b.Destination] = append(v.arriving[b.Destination], b)
		}
	}
	for _, p := range s.Policies {
		v.policy[p.Name] = p
	}
	for _, r := range s.Routes {
		r = r.WithDefaults()
		v.routes[r.Queue] = r
	}
	v.findOurs()
	for _, q := range s.Queues {
		for _, d := range v.deaths(q) {
			if d.sure {
				v.feeders[d.queue] = append(v.feeders[d.queue], q)
			}
		}
	}
	for _, q := range s.Queues {
		v.roles[q.Name] = v.guess(q)
	}
	return v
}

// retryQueue is the header that our way back is chosen by.
const retryQueue = "x-retry-queue"

// findOurs finds the prefixes of our set-ups, and the queues in them. Without a
// configuration a prefix shows by its way back, a headers exchange that looks for
// our header.
func (v *view) findOurs() {
	prefix := v.Prefix
	if prefix == "" {
		prefix = hopback.DefaultPrefix
	}
	v.prefixes = []string{prefix}
	for source, bindings := range v.leaving {
		p, is := strings.CutSuffix(source, ".return")
		ours := slices.ContainsFunc(bindings, func(b Binding) bool { _, ok := b.Args[retryQueue]; return ok })
		if is && ours && p != prefix {
			v.prefixes = append(v.prefixes, p)
		}
	}
	slices.Sort(v.prefixes[1:])
	for _, p := range v.prefixes {
		for _, b := range v.leaving[p+".return"] {
			if b.Kind == "queue" && !v.slot(b.Destination) {
				v.managed[b.Destination] = true
			}
		}
		for _, b := range v.leaving[p+".error"] {
			if b.Kind == "queue" {
				v.parked[b.Destination] = true
			}
		}
		v.parked[p+".lost"] = true
	}
	for _, r := range v.routes {
		v.parked[r.Parking] = true
	}
}

var slotName = regexp.MustCompile(`^(.*)\.delay\.[0-9]+m?s$`)

// slot reports whether a name is that of a delay slot of ours.
func (v *view) slot(name string) bool {
	m := slotName.FindStringSubmatch(name)
	return m != nil && slices.ContainsFunc(v.prefixes, func(p string) bool {
		return m[1] == p || strings.HasPrefix(m[1], p+".")
	})
}

// ours reports whether the queue's role is known and not guessed.
func (v *view) ours(name string) bool {
	_, route := v.routes[name]
	return route || v.slot(name) || v.parked[name] || v.managed[name]
}

// guess says what a queue is for.
func (v *view) guess(q *Queue) role {
	_, route := v.routes[q.Name]
	_, dies := q.dlx()
	_, ttl := q.ttl()
	switch {
	case q.Type == stream:
		return other
	case v.slot(q.Name):
		return holding
	case route:
		return work
	case v.parked[q.Name]:
		return parking
	case v.managed[q.Name], slices.ContainsFunc(v.prefixes, func(p string) bool { return q.Name == p+".failed" }):
		return work // also what rejected messages of other languages come into
	case q.Exclusive:
		return other // a reply queue, which ends with its connection
	case dies && ttl && (hinted(q.Name, holdingWords) || v.returns(q) || count(q.Consumers) == 0 && v.leadsOn(q)):
		return holding
	case dies && count(q.Consumers) == 0 && hinted(q.Name, holdingWords):
		return holding // with a TTL in each message
	case !dies && v.looksParked(q):
		return parking
	}
	return work
}

// returns reports whether what dies in q goes back to where it died before: the
// usual retry queue, W -> q -> W.
func (v *view) returns(q *Queue) bool {
	for _, d := range v.deaths(q) {
		if d.sure && d.queue != q.Name && slices.ContainsFunc(v.feeders[q.Name], func(f *Queue) bool { return f.Name == d.queue }) {
			return true
		}
	}
	return false
}

// leadsOn reports whether what dies in q goes on, and not to where dead letters
// rest: a work queue with a TTL looks like a delay otherwise.
func (v *view) leadsOn(q *Queue) bool {
	return slices.ContainsFunc(v.deaths(q), func(d end) bool { return d.sure && !v.parked[d.queue] && !hinted(d.queue, parkingWords) })
}

// looksParked reports whether a queue without a way out looks like an end: dead
// letters lead into it, and it is called like one or nobody takes from it.
func (v *view) looksParked(q *Queue) bool {
	fed := slices.ContainsFunc(v.feeders[q.Name], func(f *Queue) bool {
		_, ttl := f.ttl()
		return !ttl && f.Name != q.Name && !hinted(f.Name, holdingWords) // not on the way back from a delay
	})
	if hinted(q.Name, parkingWords) {
		return fed || count(q.Consumers) == 0
	}
	// Without such a name only beside a feeder that is alive: in a set-up whose
	// consumers are all away, a work queue looks the same.
	return fed && count(q.Consumers) == 0 && len(v.arriving[q.Name]) == 0 &&
		slices.ContainsFunc(v.feeders[q.Name], func(f *Queue) bool { return count(f.Consumers) > 0 })
}

// What people call such queues, as a part of the name.
var (
	holdingWords = []string{"delay", "delayed", "delays", "retry", "retries", "wait", "waiting", "backoff", "later", "hold"}
	parkingWords = []string{
		"parked", "parking", "dlq", "dead", "deadletter", "deadletters", "error", "errors", "failed", "poison", "undeliverable",
	}
)

func hinted(name string, words []string) bool {
	parts := strings.FieldsFunc(strings.ToLower(name), func(r rune) bool {
		return !(r >= 'a' && r <= 'z')
	})
	return slices.ContainsFunc(parts, func(p string) bool { return slices.Contains(words, p) })
}

// with lists the queues of a role, in the order of the snapshot.
func (v *view) with(r role) (all []*Queue) {
	for _, q := range v.Queues {
		if v.roles[q.Name] == r {
			all = append(all, q)
		}
	}
	return all
}

// guessed is for reasons: what is known needs no such word.
func (v *view) guessed(q *Queue) string {
	if v.ours(q.Name) {
		return ""
	}
	if v.roles[q.Name] == parking {
		return " (that it is a parking queue is concluded from its name and from what leads into it)"
	}
	return " (that it holds delays is concluded from its settings and its name)"
}
