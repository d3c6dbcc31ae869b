package attach

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hopback/hopback/topology"
)

// The arguments of our bindings. Exchanges do not look at them, and headers
// exchanges not at names that begin with x- (3.10.8, 4.0.5 and 4.3.6).
const (
	argAttached = "x-hopback-attached" // the queue
	argUnbound  = "x-hopback-unbound"  // what was taken away for it, in JSON
)

// unbound is a binding that was taken away.
type unbound struct {
	Destination string `json:"destination"`
	Kind        string `json:"destination_type"`
	Key         string `json:"routing_key"`
	Args        table  `json:"arguments,omitempty"`
}

// toUs reports whether a binding leads to the router's queue.
func (s *survey) toUs(b binding) bool { return b.Destination == s.failed() }

// bind attaches by bindings on the exchange that the queue's argument names.
func (s *survey) bind(p *Plan, q *queue, x string, r Request) {
	p.How = ByBinding
	kind := s.kind(x)
	switch {
	case x == "":
		to, _ := q.dlxKey()
		p.refuse(fmt.Sprintf("declare the queue anew with x-dead-letter-exchange %q, or without that argument, when it is empty; "+
			"or let the consumers read from a new queue that is attached", s.failed()),
			"the queue was declared with the default exchange as its dead-letter exchange, so that its dead letters go to the queue %q by name. "+
				"An argument beats every policy, and the default exchange takes no binding", to)
		return
	case kind == "":
		p.refuse(fmt.Sprintf("create the exchange %q (a fanout will do) and attach again", x),
			"the queue was declared with x-dead-letter-exchange %q, and there is no such exchange: what is rejected is dropped now, and no binding can be made", x)
		return
	case !slices.Contains([]string{"direct", "topic", "fanout", "headers"}, kind):
		p.refuse(fmt.Sprintf("bind %q to %q yourself", s.failed(), x),
			"the dead-letter exchange %q has the type %s, and how that routes is not known here", x, kind)
		return
	}
	keys := s.deadKeys(q)
	var mine, others []binding // that take the queue's dead letters now
	for _, b := range s.matching(x, keys) {
		if s.toUs(b) {
			mine = append(mine, b)
		} else {
			others = append(others, b)
		}
	}
	open, needKeys := s.open(kind, keys, mine, r)
	if len(open) == 0 && len(mine) > 0 {
		s.takeAgain(p, q, x, others, r)
		return
	}
	if needKeys && len(r.Keys) == 0 {
		p.refuse("name the routing keys that its messages have, by --key",
			"its dead letters go to the direct exchange %q with the routing key that each message has, and a direct exchange must be told each key; "+
				"which ones there are, the queue's own bindings do not say. What has another key is dropped there, as it is today", x)
	}
	s.decideCopies(p, q, x, others, r)
	want := s.wanted(q, x, kind, open, others, r)
	s.decideOthers(p, q, x, kind, want, r)
	if p.Refused() {
		return
	}
	for _, b := range want {
		p.Changes = append(p.Changes, Change{Kind: "binding", Verb: "create", Name: b.name(), Diff: []string{"+ binding " + b.name()}, binding: &b})
	}
	if r.Copies == Unbind {
		p.take(others)
	}
	if r.Copies == Unbind && len(others) > 0 {
		p.note("bindings cannot be exchanged in one step: ours is made first, so that nothing is lost, and a message that is rejected in the milliseconds between goes both ways")
	}
	p.note("the queue was declared with x-dead-letter-exchange %q, and an argument beats every policy: so it is attached by a binding on that exchange. "+
		"What anything else publishes there with this key flows to the router too, and is parked in %s.parked as unknown-origin", x, s.failed())
	if q.Type == quorum && !s.atLeastOnce(q) {
		p.note("the step from the queue to %q stays at most once, as it is now", x)
	}
}

// take removes bindings that detaching puts back.
func (p *Plan) take(others []binding) {
	for _, b := range others {
		p.Changes = append(p.Changes, Change{
			Kind: "binding", Verb: "delete", Name: b.name(),
			Diff: []string{"- binding " + b.name() + ", which detaching puts back"}, binding: &b,
		})
	}
}

// takeAgain is for a queue that is bound to us already: it takes away what was to be
// taken away then and is there, since attaching was interrupted, or since somebody
// bound it again.
func (s *survey) takeAgain(p *Plan, q *queue, x string, others []binding, r Request) {
	back, err := s.boundAgain(q, x)
	if err != nil {
		p.refuse("detach the queue first, then attach it again", "%v", err)
		return
	}
	switch {
	case r.Copies == Unbind && len(back) < len(others):
		p.refuse("detach the queue first, then attach it again",
			"the queue is attached by a binding on %q already, beside others that are left", x)
	case r.Copies == Keep && len(back) > 0:
		p.refuse("detach the queue first, then attach it again with --dlq "+Keep,
			"the queue was attached with --dlq %s, and the binding %s is to be taken away", Unbind, back[0].name())
	default:
		p.take(back)
		p.stays = s.mine(q.Name)
	}
}

// boundAgain are the bindings on an exchange that were to be taken away for a queue,
// and are there.
func (s *survey) boundAgain(q *queue, x string) (back []binding, err error) {
	for _, b := range s.mine(q.Name) {
		taken, err := b.taken()
		if err != nil {
			return nil, err
		}
		for _, t := range taken {
			same := func(had binding) bool { return had.Properties == t.Properties && had.name() == t.name() }
			var there bool
			if t.Properties, there = properties(s.bindings, t); there && t.Source == x && !slices.ContainsFunc(back, same) {
				back = append(back, t)
			}
		}
	}
	return back, nil
}

// dlxKey is the routing key that the queue gives its dead letters.
func (q *queue) dlxKey() (string, bool) {
	if k, ok := q.Args.Text(argKey); ok {
		return k, true
	}
	return q.Effective.Text(keyKey)
}

// open are the keys whose messages do not get to us yet; needKeys is true where a
// direct exchange would have to be told keys that nobody knows.
func (s *survey) open(kind string, keys []key, mine []binding, r Request) (open []key, needKeys bool) {
	for _, k := range r.Keys {
		if kind == "direct" && !slices.Contains(keys, key{k, false}) {
			keys = append(slices.Clip(keys), key{k, false})
		}
	}
	if kind == "topic" && slices.Contains(keys, anyKey) {
		keys = []key{anyKey}
	}
	for _, k := range keys {
		if kind == "direct" && k.wild {
			needKeys = true
			continue
		}
		if !slices.ContainsFunc(mine, func(b binding) bool { return covers(kind, b, k) }) {
			open = append(open, k)
		}
		if kind == "fanout" || kind == "headers" {
			break // one takes everything
		}
	}
	return open, needKeys
}

// decideCopies refuses until it is said what becomes of those who get the queue's
// dead letters now.
func (s *survey) decideCopies(p *Plan, q *queue, x string, others []binding, r Request) {
	if len(others) == 0 {
		return
	}
	var names []string
	for _, b := range others {
		names = append(names, b.name())
		path, back := s.comesBack(b, q)
		if back && r.Copies != Unbind {
			p.refuse(fmt.Sprintf("attach with --dlq %s, which takes the binding %s away, and puts it back when the queue is detached. What waits there now comes back once more", Unbind, b.name()),
				"dead letters come back to %q by %s already: beside the router every failure would come back twice, and more each time", q.Name, strings.Join(path, " -> "))
			return
		}
		if r.Copies == Unbind && !restorable(b.Args) {
			p.refuse("use --dlq "+Keep+", or unbind it yourself",
				"the binding %s has arguments that could not be put back exactly over HTTP", b.name())
			return
		}
	}
	if r.Copies == "" {
		p.refuse(fmt.Sprintf("say which: --dlq %s takes these bindings away while the queue is attached, so that failures are retried and only then parked, "+
			"where the route says (parking: may be the same dead letter queue); --dlq %s leaves them, and they get a copy of every failed attempt", Unbind, Keep),
			"the dead-letter exchange %q leads elsewhere too: %s", x, strings.Join(names, ", "))
		return
	}
	if r.Copies == Keep {
		p.note("a copy of every failed attempt goes on to go where it goes now, in addition to the retry: %s", strings.Join(names, ", "))
	}
}

// comesBack reports whether dead letters of a queue that take a binding may come back
// to it, and the way.
func (s *survey) comesBack(b binding, q *queue) ([]string, bool) {
	if b.Kind == "exchange" {
		return s.exchangeLeadsBack(b.Destination, q)
	}
	return s.leadsBack(b.Destination, q.Name)
}

func (s *survey) exchangeLeadsBack(x string, q *queue) ([]string, bool) {
	for _, k := range s.deadKeys(q) {
		for _, end := range s.ends(x, k, map[string]bool{}) {
			if path, back := s.leadsBack(end, q.Name); back {
				return append([]string{x}, path...), true
			}
		}
	}
	return nil, false
}

// restorable reports whether arguments are what they were after a way through JSON,
// which tells neither the width of a number nor bytes from text.
func restorable(args table) bool {
	for _, v := range args {
		switch v.(type) {
		case string, bool:
		default:
			return false
		}
	}
	return true
}

// wanted are the bindings that are wanted. Where others are taken away there is
// one for each of their keys, so that all that they took gets to us.
func (s *survey) wanted(q *queue, x, kind string, open []key, others []binding, r Request) []binding {
	var keys []string
	add := func(k string) {
		if !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	if r.Copies == Unbind && (kind == "direct" || kind == "topic") {
		for _, b := range others {
			add(b.Key)
		}
	}
	for _, k := range open {
		if kind == "fanout" || kind == "headers" {
			add("")
		} else if !slices.ContainsFunc(keys, func(had string) bool { return covers(kind, binding{Key: had}, k) }) {
			add(k.text)
		}
	}
	var want []binding
	for i, k := range keys {
		args := table{argAttached: q.Name}
		if kind == "headers" {
			args["x-match"] = "all" // with no header to look at: everything
		}
		if i == 0 && r.Copies == Unbind && len(others) > 0 {
			var list []unbound
			for _, b := range others {
				list = append(list, unbound{b.Destination, b.Kind, b.Key, b.Args})
			}
			text, _ := json.Marshal(list) // nothing in it can fail
			args[argUnbound] = string(text)
		}
		want = append(want, binding{Source: x, Destination: s.failed(), Kind: "queue", Key: k, Args: args})
	}
	return want
}

// decideOthers refuses until it is said that other queues may be attached too.
func (s *survey) decideOthers(p *Plan, q *queue, x, kind string, want []binding, r Request) {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(s.queues)) {
		o := s.queues[name]
		if to, ok := o.dlx(); !ok || to != x || o == q {
			continue
		}
		keys := s.deadKeys(o)
		if slices.ContainsFunc(want, func(b binding) bool {
			return slices.ContainsFunc(keys, func(k key) bool { return takes(kind, b, k) })
		}) {
			names = append(names, name)
			if s.waits(o) != "" {
				p.refuse("give "+name+" a dead-letter exchange or key of its own",
					"the queue %q, in which messages wait for their retry, dead-letters through %q too: its messages would be parked as expired", name, x)
			}
		}
	}
	if len(names) == 0 {
		return
	}
	list := strings.Join(names, ", ")
	if !r.Others {
		p.refuse("attach them together, by --with-others; or give the queue a dead-letter exchange or key of its own",
			"other queues dead-letter through the exchange %q with a key that the binding takes: %s. Their failures would be retried too, each by the route of its own queue, or by the policy default", x, list)
		return
	}
	p.note("attached with it, since they dead-letter through %q with the same key: %s", x, list)
}

// mine are the bindings that were made to attach a queue.
func (s *survey) mine(queue string) (found []binding) {
	for _, b := range s.bindings {
		if name, ok := b.Args.Text(argAttached); ok && name == queue && s.toUs(b) {
			found = append(found, b)
		}
	}
	return found
}

// taken is what was taken away for a binding of ours.
func (b binding) taken() ([]binding, error) {
	text, ok := b.Args.Text(argUnbound)
	if !ok {
		return nil, nil
	}
	var list []unbound
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, fmt.Errorf("read what was unbound for %s: %w", b.name(), err)
	}
	var all []binding
	for _, u := range list {
		all = append(all, binding{Source: b.Source, Destination: u.Destination, Kind: u.Kind, Key: u.Key, Args: u.Args})
	}
	return all, nil
}

// properties finds what the API calls a binding now.
func properties(have []binding, b binding) (string, bool) {
	same := func(h binding) bool {
		return h.Source == b.Source && h.Destination == b.Destination && h.Kind == b.Kind && h.Key == b.Key &&
			len(topology.Compare(map[string]any(b.Args), map[string]any(h.Args))) == 0
	}
	if i := slices.IndexFunc(have, same); i >= 0 {
		return have[i].Properties, true
	}
	return "", false
}
