package config

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/hopback/hopback"
)

// Settings are the keys of a policy, and those of a route that say where it
// waits, as flags: --max-retries for max_retries. They are read as the file is,
// with the same messages.
type Settings struct{ all []*Setting }

// Setting is one of them. It is a pflag.Value.
type Setting struct {
	key  Key
	text string
	set  bool
}

// NewSettings makes flags of which none is set.
func NewSettings() *Settings {
	s := &Settings{}
	for _, k := range policyKeys {
		if k.Name != "permanent_types" { // it has no say in when
			s.all = append(s.all, &Setting{key: k})
		}
	}
	for _, k := range routeKeys {
		switch k.Name {
		case "mechanism", "ladder", "precision":
			s.all = append(s.all, &Setting{key: k})
		}
	}
	return s
}

// All lists the settings, in the order of the documentation.
func (s *Settings) All() []*Setting { return s.all }

// Flag is the name of the flag, without dashes before it.
func (s *Setting) Flag() string { return strings.ReplaceAll(s.key.Name, "_", "-") }

// Usage is its line in the help.
func (s *Setting) Usage() string {
	var doc strings.Builder
	if ns := names(s.key.Choices); len(ns) > 0 {
		doc.WriteString(list(ns))
	} else {
		first, _, _ := strings.Cut(s.key.Doc, ". ")
		first = strings.TrimSuffix(strings.ReplaceAll(first, "`", ""), ".")
		doc.WriteString(strings.ToLower(first[:1]) + first[1:])
		if s.key.Kind == Duration {
			doc.WriteString(orWords(&s.key))
		}
	}
	if s.key.Default != "" {
		fmt.Fprintf(&doc, " (default %s)", s.key.Default)
	}
	return doc.String()
}

// Choices are the words that it can be, or nil.
func (s *Setting) Choices() []string { return names(s.key.Choices) }

// Set, String and Type are those of a pflag.Value.
func (s *Setting) Set(text string) error {
	s.text, s.set = text, true
	return nil
}

func (s *Setting) String() string { return "" } // the default is in the usage

// Type is the word for the value in the help.
func (s *Setting) Type() string {
	switch s.key.Kind {
	case List:
		return "durations"
	case Text:
		return "word"
	case Whole, Number:
		return "number"
	}
	return string(s.key.Kind)
}

// Over returns the route with what was set in the place of what it has, and
// checks all of it.
func (s *Settings) Over(r hopback.Route) (hopback.Route, error) {
	d := newDecoder("")
	into := route{Route: r}
	policy, rest := fieldsOf(reflect.ValueOf(&into.Policy).Elem()), fieldsOf(reflect.ValueOf(&into).Elem())
	for _, one := range s.all {
		if !one.set {
			continue
		}
		field, ok := policy[one.key.Name]
		if !ok {
			field = rest[one.key.Name]
		}
		d.value(one.node(), &one.key, field, one.key.Name)
	}
	d.checkPolicy("", into.Policy)
	alone := into.Route
	alone.Policy = hopback.Policy{}
	d.library("", alone.Validate())
	if len(d.problems) == 0 {
		return into.Route, nil
	}
	for i, p := range d.problems {
		d.problems[i].Line, d.problems[i].Column = 0, 0
		d.problems[i].Field = "--" + strings.ReplaceAll(p.Field, "_", "-")
	}
	return r, d.problems.sorted()
}

// node is the setting as the file would have it. Commas and blanks part the
// entries of a list.
func (s *Setting) node() *yaml.Node {
	if s.key.Kind != List {
		return &yaml.Node{Kind: yaml.ScalarNode, Value: s.text}
	}
	n := &yaml.Node{Kind: yaml.SequenceNode}
	for _, e := range strings.FieldsFunc(strings.Trim(s.text, "[]"), func(r rune) bool { return r == ',' || r == ' ' }) {
		n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: e})
	}
	return n
}

// Written is a route's policy and mechanism as the file would have them, with
// the values that defaults stand for.
func Written(r hopback.Route) map[string]any {
	m := map[string]any{}
	policy, rest := fieldsOf(reflect.ValueOf(&r.Policy).Elem()), fieldsOf(reflect.ValueOf(&r).Elem())
	for _, one := range NewSettings().all {
		field, ok := policy[one.key.Name]
		if !ok {
			field = rest[one.key.Name]
		}
		if v := one.key.written(field); v != nil {
			m[one.key.Name] = v
		}
	}
	return m
}

func (k *Key) written(v reflect.Value) any {
	switch k.Kind {
	case List:
		if v.Len() == 0 {
			return nil
		}
		var all []any
		for i := range v.Len() {
			all = append(all, k.Elem.written(v.Index(i)))
		}
		return all
	case Duration, Whole:
		for _, w := range k.Words {
			if v.Int() == w.Value && k.Kind == Duration {
				return w.Text
			}
			if v.Int() == w.Value {
				return 0
			}
		}
		if k.Kind == Duration {
			return time.Duration(v.Int()).String()
		}
		return v.Int()
	case Number:
		return v.Float()
	}
	return v.String()
}
