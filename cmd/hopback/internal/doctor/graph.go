package doctor

import (
	"slices"
	"strings"

	"github.com/hopback/hopback/internal/routingkey"
)

// key is a routing key as far as it is known: exact, or a pattern of a topic
// exchange that it matches. "#" is any key.
type key struct {
	text string
	wild bool
}

var anyKey = key{"#", true}

// end is a queue that a message may arrive in.
type end struct {
	queue string
	sure  bool // it does, whatever its headers are
}

// route is where an exchange sends a message of a key. A name that no exchange
// has leads nowhere.
func (v *view) route(exchange string, k key) []end {
	return v.routeFrom(exchange, k, true, map[string]bool{})
}

func (v *view) routeFrom(exchange string, k key, sure bool, seen map[string]bool) (ends []end) {
	if exchange == "" {
		if _, ok := v.queues[k.text]; ok && !k.wild {
			return []end{{k.text, sure}}
		}
		return nil
	}
	e := v.exchanges[exchange]
	if e == nil || seen[exchange] {
		return nil
	}
	seen[exchange] = true
	certain := false
	for _, b := range v.leaving[exchange] {
		match, exact := matches(e.kind(), b, k)
		if !match {
			continue
		}
		certain = certain || exact
		if b.Kind == "exchange" {
			ends = append(ends, v.routeFrom(b.Destination, k, sure && exact, seen)...)
		} else if v.queues[b.Destination] != nil {
			ends = append(ends, end{b.Destination, sure && exact})
		}
	}
	if alternate, ok := v.alternate(e); ok && !certain {
		ends = append(ends, v.routeFrom(alternate, k, sure && len(ends) == 0, seen)...)
	}
	return ends
}

// kind is how the exchange routes. A delayed-message exchange says by which rule.
func (e *Exchange) kind() string {
	if e.Type == delayedExchange {
		t, _ := e.Args.Text("x-delayed-type")
		return t
	}
	return e.Type
}

// matches reports whether a binding takes a message of a key, and whether it does
// so whatever else the message is.
func matches(kind string, b Binding, k key) (match, exact bool) {
	switch kind {
	case "fanout":
		return true, true
	case "direct":
		if k.wild {
			return routingkey.Overlap(k.text, b.Key), false
		}
		return k.text == b.Key, true
	case "topic":
		// Every key that matches k matches "#", and a pattern matches itself.
		return routingkey.Overlap(k.text, b.Key), !k.wild || b.Key == "#" || b.Key == k.text
	}
	return true, false // headers, hashes, or whatever a plugin does
}

// alternate is the alternate exchange: an argument, or else what the policy says.
func (v *view) alternate(e *Exchange) (string, bool) {
	if a, ok := e.Args.Text("alternate-exchange"); ok {
		return a, true
	}
	return v.policy[e.PolicyName].Definition.Text("alternate-exchange")
}

// keysInto are the keys that a queue's messages come with, as its bindings show.
// One without bindings gets what is published to it by its name.
func (v *view) keysInto(q *Queue) (keys []key) {
	add := func(k key) {
		if !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	for _, b := range v.arriving[q.Name] {
		kind := ""
		if e := v.exchanges[b.Source]; e != nil {
			kind = e.kind()
		}
		switch {
		case kind == "direct", kind == "topic" && !routingkey.Wildcard(b.Key):
			add(key{b.Key, false})
		case kind == "topic":
			add(key{b.Key, true})
		default:
			add(anyKey)
		}
	}
	if len(keys) == 0 {
		add(key{q.Name, false})
	}
	return keys
}

// exact are the keys of which nothing is open, and whether they are all.
func exact(keys []key) (texts []string, all bool) {
	all = true
	for _, k := range keys {
		if k.wild {
			all = false
		} else {
			texts = append(texts, k.text)
		}
	}
	return texts, all
}

// deadKeys are the keys of what dies in a queue: its dead-letter routing key, or
// those that the messages came with.
func (v *view) deadKeys(q *Queue) []key {
	if k, ok := q.deadKey(); ok {
		return []key{{k, false}}
	}
	return v.keysInto(q)
}

// deaths is where what dies in a queue may arrive.
func (v *view) deaths(q *Queue) (ends []end) {
	dlx, ok := q.dlx()
	if !ok {
		return nil
	}
	for _, k := range v.deadKeys(q) {
		for _, e := range v.route(dlx, k) {
			if i := slices.IndexFunc(ends, func(o end) bool { return o.queue == e.queue }); i >= 0 {
				ends[i].sure = ends[i].sure || e.sure
			} else {
				ends = append(ends, e)
			}
		}
	}
	return ends
}

// Scope says which queues to look at. The zero Scope is all of them.
type Scope struct {
	// Queue is one queue, with what it reaches.
	Queue string
	// Routes restricts to the work queues of the configuration, and what they
	// reach.
	Routes bool
}

// within is the queues of a scope, or nil for all.
func (v *view) within(s Scope) map[string]bool {
	var start []string
	switch {
	case s.Queue != "":
		start = []string{s.Queue}
	case s.Routes:
		for name := range v.routes {
			start = append(start, name)
		}
	default:
		return nil
	}
	in := map[string]bool{}
	for len(start) > 0 {
		name := start[0]
		start = start[1:]
		if in[name] {
			continue
		}
		in[name] = true
		start = append(start, v.reached(name)...)
	}
	return in
}

// reached is where the messages of a queue may go next. From a shared slot they
// return to where they came from, so it leads nowhere else.
func (v *view) reached(name string) (next []string) {
	q := v.queues[name]
	if q != nil && !v.slot(name) {
		for _, d := range v.deaths(q) {
			if d.sure {
				next = append(next, d.queue)
			}
		}
	}
	_, route := v.routes[name]
	if !route && !v.managed[name] {
		return next
	}
	for _, p := range v.prefixes {
		next = append(next, p+".lost")
		for _, b := range v.leaving[p+".error"] {
			if b.Key == name {
				next = append(next, b.Destination)
			}
		}
		for _, s := range v.Queues {
			base, _, _ := strings.Cut(s.Name, ".delay.")
			if v.slot(s.Name) && (base == p || base == p+"."+name) {
				next = append(next, s.Name)
			}
		}
	}
	if route {
		next = append(next, v.routes[name].Parking)
	}
	return next
}
