package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// place is where a value stands in the file.
type place struct {
	line, column int
	text         string // as written, where it is one word
	list, key    bool   // text is empty because it is a list or section, or because only the key matters
}

// places are the values that the file has, by their path: "routes[0].queue".
type places map[string]place

// maxNodes bounds the walk. Aliases can make a short file stand for an endless
// one; the largest honest file has some thousand values.
const maxNodes = 100_000

type decoder struct {
	name     string // of the file
	problems Problems
	places   places
	nodes    int                 // read so far
	inside   map[*yaml.Node]bool // sections being merged
}

func newDecoder(name string) *decoder {
	return &decoder{name: name, places: places{}, inside: map[*yaml.Node]bool{}}
}

// file reads the text of a whole file.
func (d *decoder) file(data []byte, into *file) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	switch err := decodeNode(dec, &doc); {
	case errors.Is(err, io.EOF):
		d.problem(1, 1, "", "the file is empty: begin with version: 1")
		return
	case err != nil:
		d.syntax(data, err)
		return
	}
	var second yaml.Node
	switch err := decodeNode(dec, &second); {
	case err == nil:
		d.problem(second.Line, second.Column, "", "a second document begins here: keep to one, and remove the line ---")
	case !errors.Is(err, io.EOF):
		d.syntax(data, err)
	}
	if len(doc.Content) != 1 {
		d.problem(1, 1, "", "the file is empty: begin with version: 1")
		return
	}
	if n := doc.Content[0]; n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		d.problem(1, 1, "", "the file is empty: begin with version: 1")
		return
	}
	d.value(doc.Content[0], &root, reflect.ValueOf(into).Elem(), "")
}

// decodeNode turns a panic of the YAML parser, which is fed whatever people
// have, into an error.
func decodeNode(dec *yaml.Decoder, n *yaml.Node) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("yaml: %v", r)
		}
	}()
	return dec.Decode(n)
}

var (
	yamlLine      = regexp.MustCompile(`^line (\d+): `)
	unknownAnchor = regexp.MustCompile(`^unknown anchor '(.*)' referenced$`)
	// The parser proper counts lines from 0, the scanner below it from 1.
	fromParser = regexp.MustCompile(`^did not find expected (<|node content|'-'|key|',')|^found (duplicate|incompatible|undefined)`)
)

// syntax reports what is not YAML at all.
func (d *decoder) syntax(data []byte, err error) {
	text, line := strings.TrimPrefix(err.Error(), "yaml: "), 1
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		line, _ = strconv.Atoi(m[1])
		if text = text[len(m[0]):]; fromParser.MatchString(text) {
			line++
		}
	}
	if m := unknownAnchor.FindStringSubmatch(text); m != nil {
		before, _, _ := strings.Cut(string(data), "*"+m[1])
		line = 1 + strings.Count(before, "\n")
	}
	if strings.Contains(text, "cannot start any token") {
		text += "; indent with spaces, and quote text that begins with a special character"
	}
	d.problem(line, 1, "", "this is not YAML: "+text)
}

// problem reports what has no value to show.
func (d *decoder) problem(line, column int, field, fix string) {
	d.problems = append(d.problems, Problem{File: d.name, Line: line, Column: column, Field: field, Fix: fix, noValue: true})
}

// refuse reports a value that cannot work.
func (d *decoder) refuse(n *yaml.Node, k *Key, field, fix string) {
	p := Problem{File: d.name, Line: n.Line, Column: n.Column, Field: field, Fix: fix}
	switch n.Kind {
	case yaml.ScalarNode:
		p.Value = shorten(Redact(n.Value))
		if k.Secret {
			p.Value = redactURL(n.Value)
		}
	case yaml.SequenceNode:
		p.Value = "a list"
	default:
		p.Value = "a section"
	}
	d.problems = append(d.problems, p)
}

// shorten keeps a message readable whatever was written.
func shorten(s string) string {
	const most = 100
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// value reads one value into a field. It reports what is wrong with it and
// reads on, so that a file's problems are found all at once.
func (d *decoder) value(n *yaml.Node, k *Key, into reflect.Value, path string) {
	if d.nodes++; d.nodes > maxNodes {
		if d.nodes == maxNodes+1 {
			d.problem(n.Line, n.Column, path, "the file has too many values: is an alias repeated without end?")
		}
		return
	}
	if n.Kind == yaml.AliasNode {
		// No loop can be endless here, since the file has a fixed depth.
		d.value(n.Alias, k, into, path)
		return
	}
	d.places[path] = place{line: n.Line, column: n.Column, text: n.Value, list: n.Kind != yaml.ScalarNode}
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		d.problem(n.Line, n.Column, path, "has no value: write one, or remove the key")
		return
	}
	if !d.shape(n, k, path) {
		return
	}
	switch k.Kind {
	case Section:
		d.section(n, k, into, path)
	case Map:
		d.mapping(n, k, into, path)
	case List:
		s := reflect.MakeSlice(into.Type(), len(n.Content), len(n.Content))
		for i, c := range n.Content {
			d.value(c, k.Elem, s.Index(i), fmt.Sprintf("%s[%d]", path, i))
		}
		into.Set(s)
	case Text:
		if d.text(n, k, path) {
			into.SetString(n.Value)
		}
	case Switch:
		into.SetBool(strings.EqualFold(n.Value, "true"))
	case Duration:
		if v, ok := d.duration(n, k, path); ok {
			into.SetInt(v)
		}
	case Whole:
		if v, ok := d.whole(n, k, path); ok {
			into.SetInt(v)
		}
	case Number:
		if v, ok := d.number(n, k, path); ok {
			into.SetFloat(v)
		}
	}
}

// shape checks what kind of node a value is: text, number, list or section.
func (d *decoder) shape(n *yaml.Node, k *Key, path string) bool {
	tag, fix := n.ShortTag(), ""
	switch k.Kind {
	case Section, Map:
		if n.Kind != yaml.MappingNode {
			fix = "write keys below it, each on a line of its own"
			if k == &root {
				fix = "begin with version: 1"
			}
		}
	case List:
		switch {
		case n.Kind == yaml.ScalarNode && k.Elem.Kind != Section:
			fix = "write a list: [" + shorten(Redact(n.Value)) + "]"
		case n.Kind != yaml.SequenceNode:
			fix = "write a list, each entry behind a dash"
		}
	case Switch:
		if tag != "!!bool" {
			fix = "write true or false"
		}
	case Whole, Number:
		switch {
		case n.Kind != yaml.ScalarNode:
			fix = "write a " + string(k.Kind)
		case tag == "!!str" && plainNumber(n.Value):
			fix = "write " + strings.TrimSpace(n.Value) + " without quotes"
		case tag == "!!float" && k.Kind == Number, tag == "!!int":
		default:
			fix = d.numberFix(k)
		}
	case Duration:
		switch {
		case n.Kind != yaml.ScalarNode:
			fix = "write one duration, such as 1s"
		case tag == "!!int", tag == "!!float", tag == "!!str":
		default:
			fix = durationFix(n.Value, k)
		}
	case Text:
		switch {
		case n.Kind != yaml.ScalarNode && len(k.Choices) > 0:
			fix = "use " + list(names(k.Choices))
		case n.Kind != yaml.ScalarNode:
			fix = "write one text"
		case len(k.Choices) > 0: // judged by its text, whatever YAML takes it for
		case tag != "!!str" && tag != "!!timestamp":
			fix = "put it in quotes, since YAML takes it for something else than text"
		}
	}
	if fix == "" {
		return true
	}
	if k == &root {
		d.problem(n.Line, n.Column, "", fix)
		return false
	}
	d.refuse(n, k, path, fix)
	return false
}

// pair is a key of a section with its value.
type pair struct{ key, value *yaml.Node }

// pairs lists what a section holds, what << merges into it last.
func (d *decoder) pairs(n *yaml.Node, path string) []pair {
	var own, merged []pair
	seen := map[string]*yaml.Node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		if key.ShortTag() == "!!merge" {
			merged = append(merged, d.merge(value, path)...)
			continue
		}
		if key.Kind != yaml.ScalarNode {
			d.problem(key.Line, key.Column, path, "a key must be one word")
			continue
		}
		if first, twice := seen[key.Value]; twice {
			d.problem(key.Line, key.Column, join(path, key.Value),
				fmt.Sprintf("is here twice: it is in line %d already, remove one", first.Line))
			continue
		}
		seen[key.Value] = key
		own = append(own, pair{key, value})
	}
	for _, p := range merged {
		if seen[p.key.Value] == nil {
			seen[p.key.Value] = p.key
			own = append(own, p)
		}
	}
	return own
}

// merge lists what a << stands for: an alias to a section, or a list of them.
func (d *decoder) merge(n *yaml.Node, path string) []pair {
	target := n
	if n.Kind == yaml.AliasNode {
		target = n.Alias
	}
	if d.nodes++; d.nodes > maxNodes || d.inside[target] {
		d.problem(n.Line, n.Column, path, "<< stands inside its own anchor, or is repeated without end: write the values out")
		return nil
	}
	d.inside[target] = true
	defer delete(d.inside, target)
	switch target.Kind {
	case yaml.MappingNode:
		return d.pairs(target, path)
	case yaml.SequenceNode:
		var all []pair
		for _, c := range target.Content {
			all = append(all, d.merge(c, path)...)
		}
		return all
	}
	d.problem(n.Line, n.Column, path, "<< needs an alias to a section, such as <<: *standard")
	return nil
}

func (d *decoder) section(n *yaml.Node, k *Key, into reflect.Value, path string) {
	if into.Kind() == reflect.Pointer {
		into.Set(reflect.New(into.Type().Elem()))
		into = into.Elem()
	}
	fields := fieldsOf(into)
	present := map[string]bool{}
	for _, p := range d.pairs(n, path) {
		key := k.find(p.key.Value)
		if key == nil {
			d.unknown(p.key, k, path)
			continue
		}
		present[key.Name] = true
		d.value(p.value, key, fields[key.Name], join(path, key.Name))
	}
	for _, key := range k.Keys {
		if key.Required && !present[key.Name] {
			d.problem(n.Line, n.Column, join(path, key.Name), "is missing: write "+key.Name+": "+key.Example)
		}
	}
}

func (d *decoder) mapping(n *yaml.Node, k *Key, into reflect.Value, path string) {
	m := reflect.MakeMap(into.Type())
	for _, p := range d.pairs(n, path) {
		at := join(path, p.key.Value)
		if strings.TrimSpace(p.key.Value) == "" || p.key.ShortTag() == "!!null" {
			d.problem(p.key.Line, p.key.Column, path, "give it a name: a text that is not empty")
			continue
		}
		if len(p.key.Value) > 200 {
			d.problem(p.key.Line, p.key.Column, path, "give it a shorter name: at most 200 bytes")
			continue
		}
		v := reflect.New(into.Type().Elem()).Elem()
		d.value(p.value, k.Elem, v, at)
		m.SetMapIndex(reflect.ValueOf(p.key.Value), v)
		d.places[at] = place{line: p.key.Line, column: p.key.Column, key: true}
	}
	into.Set(m)
}

// unknown reports a key that the section does not have, with the one that was
// probably meant.
func (d *decoder) unknown(key *yaml.Node, k *Key, path string) {
	name := key.Value
	report := func(fix string) {
		d.problem(key.Line, key.Column, join(path, shorten(Redact(name))), "is not a key here: "+fix)
	}
	if len(name) <= 64 {
		known := make([]string, 0, len(k.Keys))
		for _, c := range k.Keys {
			known = append(known, c.Name)
			if slices.Contains(c.Also, strings.ToLower(name)) {
				report("did you mean " + c.Name + "?")
				return
			}
		}
		if n := nearest(name, known); n != "" {
			report("did you mean " + n + "?")
			return
		}
		if where := home(name); where != "" {
			report("it belongs " + where)
			return
		}
	}
	var known []string
	for _, c := range k.Keys {
		known = append(known, c.Name)
	}
	report("use " + list(known))
}

// home says where a key belongs, for one that stands in the wrong section.
func home(name string) string {
	for _, s := range []struct {
		where string
		keys  []Key
	}{
		{"into broker", brokerKeys},
		{"into a policy, below policies", policyKeys},
		{"into a route, below routes", routeKeys},
		{"into a route's declare", declareKeys},
		{"at the top of the file", root.Keys},
	} {
		for _, k := range s.keys {
			if k.Name == name {
				return s.where
			}
		}
	}
	return ""
}

// fieldsOf finds the fields of a struct by their yaml tags, inlined ones too.
func fieldsOf(v reflect.Value) map[string]reflect.Value {
	fields := map[string]reflect.Value{}
	for i := range v.NumField() {
		tag, options, _ := strings.Cut(v.Type().Field(i).Tag.Get("yaml"), ",")
		switch {
		case strings.Contains(options, "inline"):
			for name, f := range fieldsOf(v.Field(i)) {
				fields[name] = f
			}
		case tag != "" && tag != "-":
			fields[tag] = v.Field(i)
		}
	}
	return fields
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func (d *decoder) text(n *yaml.Node, k *Key, path string) bool {
	for _, r := range k.Refused {
		if r.Value == n.Value {
			d.refuse(n, k, path, r.Doc)
			return false
		}
	}
	if ns := names(k.Choices); len(ns) > 0 && !slices.Contains(ns, n.Value) {
		d.refuse(n, k, path, "use "+list(ns))
		return false
	}
	if n.Value == "" {
		d.refuse(n, k, path, "write one, or remove the key")
		return false
	}
	return true
}

var number = regexp.MustCompile(`^[-+]?[0-9][0-9_]*(\.[0-9]*)?$`)

func plainNumber(s string) bool { return number.MatchString(strings.TrimSpace(s)) }

func (d *decoder) numberFix(k *Key) string {
	fix := "write a " + string(k.Kind)
	switch {
	case k.Min != nil && k.Max != nil && *k.Min == *k.Max:
		fix = "write " + trim(*k.Min)
	case k.Min != nil && k.Max != nil:
		fix += " from " + trim(*k.Min) + " to " + trim(*k.Max)
	case k.Min != nil:
		fix += " of at least " + trim(*k.Min)
	}
	return fix
}

func trim(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

func (k *Key) allows(f float64) bool {
	return (k.Min == nil || f >= *k.Min) && (k.Max == nil || f <= *k.Max)
}

func (d *decoder) whole(n *yaml.Node, k *Key, path string) (int64, bool) {
	v, err := strconv.ParseInt(n.Value, 0, 64)
	if err != nil || !k.allows(float64(v)) {
		d.refuse(n, k, path, d.numberFix(k))
		return 0, false
	}
	for _, w := range k.Words {
		if w.Text == strconv.FormatInt(v, 10) {
			return w.Value, true
		}
	}
	return v, true
}

func (d *decoder) number(n *yaml.Node, k *Key, path string) (float64, bool) {
	var v float64
	err := n.Decode(&v)
	// 0 would be taken for "not set".
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) || v == 0 || !k.allows(v) {
		fix := d.numberFix(k)
		if k.Min != nil && *k.Min == 0 {
			fix = "write a number above 0 and at most " + trim(*k.Max)
		}
		d.refuse(n, k, path, fix)
		return 0, false
	}
	return v, true
}

func (d *decoder) duration(n *yaml.Node, k *Key, path string) (int64, bool) {
	for _, w := range k.Words {
		if w.Text == n.Value {
			return w.Value, true
		}
	}
	v, err := time.ParseDuration(n.Value)
	switch {
	case err != nil || n.Value == "0":
		d.refuse(n, k, path, durationFix(n.Value, k))
	case v <= 0:
		d.refuse(n, k, path, "write a duration above zero, such as 1s"+orWords(k))
	case v%time.Millisecond != 0:
		d.refuse(n, k, path, "write whole milliseconds: brokers count in them")
	default:
		return int64(v), true
	}
	return 0, false
}

func orWords(k *Key) string {
	var s string
	for _, w := range k.Words {
		s += ", or " + w.Text
	}
	return s
}

// spoken are durations as people write them elsewhere.
var spoken = regexp.MustCompile(`^\s*([0-9][0-9_]*(?:\.[0-9]+)?)\s*([a-zA-Zµ]*)\s*$`)

// durationFix says how to write what was probably meant.
func durationFix(s string, k *Key) string {
	fix := "write a duration such as 500ms, 1s or 2h" + orWords(k)
	m := spoken.FindStringSubmatch(s)
	if m == nil {
		return fix
	}
	amount, err := strconv.ParseFloat(strings.ReplaceAll(m[1], "_", ""), 64)
	if err != nil {
		return fix
	}
	if amount == 0 {
		return "write a duration above zero, such as 1s" + orWords(k)
	}
	unit, factor := "s", 1.0
	switch strings.ToLower(m[2]) {
	case "", "s", "sec", "secs", "second", "seconds":
	case "ms", "msec", "millis", "millisecond", "milliseconds":
		unit = "ms"
	case "m", "min", "mins", "minute", "minutes":
		unit = "m"
	case "h", "hr", "hrs", "hour", "hours":
		unit = "h"
	case "d", "day", "days":
		unit, factor = "h", 24
	case "w", "week", "weeks":
		unit, factor = "h", 7*24
	default:
		return fix
	}
	written := trim(amount*factor) + unit
	if v, err := time.ParseDuration(written); err != nil || v <= 0 {
		return fix
	}
	if m[2] == "" {
		return "write the unit too: " + written + orWords(k)
	}
	return "write " + written + orWords(k)
}
