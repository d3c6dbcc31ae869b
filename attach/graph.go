package attach

import (
	"slices"
	"strings"

	"github.com/hopback/hopback/internal/routingkey"
)

// key is a routing key as far as it is known: exact, or a pattern of a topic
// exchange that it matches.
type key struct {
	text string
	wild bool
}

var anyKey = key{"#", true}

// dlx is where a queue's dead letters go, and false where they are dropped. An
// argument beats a policy (3.10.8, 4.0.5 and 4.3.6). "" is the default exchange.
func (q *queue) dlx() (string, bool) {
	if q.Type == stream {
		return "", false
	}
	if x, ok := q.Args.Text(argDLX); ok {
		return x, true
	}
	return q.Effective.Text(keyDLX)
}

// deadKeys are the routing keys that dead letters of a queue come with: the one
// that it gives them, or those that its messages came with.
func (s *survey) deadKeys(q *queue) []key {
	if k, ok := q.Args.Text(argKey); ok {
		return []key{{k, false}}
	}
	if k, ok := q.Effective.Text(keyKey); ok {
		return []key{{k, false}}
	}
	keys := []key{{q.Name, false}} // by the default exchange, from which every queue can be reached
	add := func(k key) {
		if !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	for _, b := range s.bindings {
		// hop.return gives back the key that a message had.
		if b.Kind != "queue" || b.Destination != q.Name || b.Source == s.prefix+".return" {
			continue
		}
		switch s.kind(b.Source) {
		case "direct":
			add(key{b.Key, false})
		case "topic":
			add(key{b.Key, routingkey.Wildcard(b.Key)})
		default:
			add(anyKey)
		}
	}
	return keys
}

// kind is by which rule an exchange routes, and "" where there is none. A
// delayed-message exchange says by which.
func (s *survey) kind(exchange string) string {
	e := s.exchanges[exchange]
	switch {
	case e == nil:
		return ""
	case e.Type == "x-delayed-message":
		t, _ := e.Args.Text("x-delayed-type")
		return t
	}
	return e.Type
}

// takes reports whether a binding may take a message of a key.
func takes(kind string, b binding, k key) bool {
	switch kind {
	case "direct":
		return k.text == b.Key || k.wild && routingkey.Overlap(k.text, b.Key)
	case "topic":
		return routingkey.Overlap(k.text, b.Key)
	}
	return true // fanout, headers, or whatever a plugin does
}

// covers reports whether a binding takes every message of a key.
func covers(kind string, b binding, k key) bool {
	switch kind {
	case "fanout":
		return true
	case "direct":
		return !k.wild && k.text == b.Key
	case "topic":
		return b.Key == "#" || b.Key == k.text || !k.wild && routingkey.Overlap(k.text, b.Key)
	case "headers":
		for name := range b.Args {
			if !strings.HasPrefix(name, "x-") {
				return false
			}
		}
		m, _ := b.Args.Text("x-match")
		return m == "all" || m == "" // without a header to look at, it takes everything
	}
	return false
}

// matching are the bindings of an exchange that may take one of some keys.
func (s *survey) matching(exchange string, keys []key) (found []binding) {
	kind := s.kind(exchange)
	for _, b := range s.bindings {
		if b.Source == exchange && slices.ContainsFunc(keys, func(k key) bool { return takes(kind, b, k) }) {
			found = append(found, b)
		}
	}
	return found
}

// ends are the queues that a message of some key may arrive in, published to an
// exchange.
func (s *survey) ends(exchange string, k key, seen map[string]bool) (queues []string) {
	if exchange == "" {
		if s.queues[k.text] != nil && !k.wild {
			queues = append(queues, k.text)
		}
		return queues
	}
	e := s.exchanges[exchange]
	if e == nil || seen[exchange] {
		return nil
	}
	seen[exchange] = true
	for _, b := range s.matching(exchange, []key{k}) {
		if b.Kind == "exchange" {
			queues = append(queues, s.ends(b.Destination, k, seen)...)
		} else {
			queues = append(queues, b.Destination)
		}
	}
	if alternate, ok := e.Args.Text("alternate-exchange"); ok && len(queues) == 0 {
		queues = append(queues, s.ends(alternate, k, seen)...)
	}
	return queues
}

// leadsBack reports whether dead letters that arrive in a queue may come to
// another by further deaths, and the way. What arrives in a queue of ours is
// handled by a router.
func (s *survey) leadsBack(from, to string) (path []string, back bool) {
	seen := map[string]bool{}
	var walk func(name string, k key, path []string) []string
	walk = func(name string, k key, path []string) []string {
		path = append(slices.Clip(path), name)
		if name == to {
			return path
		}
		q := s.queues[name]
		if q == nil || seen[name+"\x00"+k.text] || s.ours(name) {
			return nil
		}
		seen[name+"\x00"+k.text] = true
		x, ok := q.dlx()
		if !ok {
			return nil
		}
		dead := []key{k}
		if own := s.deadKeys(q); len(own) == 1 && own[0].text != q.Name {
			dead = own
		}
		for _, k := range dead {
			for _, end := range s.ends(x, k, map[string]bool{}) {
				if p := walk(end, k, path); p != nil {
					return p
				}
			}
		}
		return nil
	}
	for _, k := range s.deadKeys(s.queues[to]) {
		if p := walk(from, k, nil); p != nil {
			return p, true
		}
	}
	return nil, false
}
