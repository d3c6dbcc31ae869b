package config

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"unicode"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/backoff"
)

// check asks the library whether policies and routes can work, and looks at
// what no single route can know: names that are used twice.
func (d *decoder) check(c *Config, f *file) {
	d.checkPrefix(c.Prefix)
	for name, p := range f.Policies {
		p.Name = name
		f.Policies[name] = p
		c.PolicyNames = append(c.PolicyNames, name)
		d.checkPolicy("policies."+name, p)
	}
	sort.Slice(c.PolicyNames, func(i, j int) bool {
		a, b := d.places["policies."+c.PolicyNames[i]], d.places["policies."+c.PolicyNames[j]]
		return a.line < b.line || a.line == b.line && a.column < b.column
	})
	for i := range f.Routes {
		at := fmt.Sprintf("routes[%d]", i)
		c.Routes = append(c.Routes, d.checkRoute(c, &f.Routes[i], at))
		if f.Routes[i].Count == CountDeaths {
			if c.countDeaths == nil {
				c.countDeaths = map[string]bool{}
			}
			c.countDeaths[f.Routes[i].Queue] = true
		}
	}
	d.checkNames(c)
	if len(d.problems) > 0 {
		return
	}
	// The topology of the whole: names that become too long with a prefix, and
	// routes that want one exchange in two ways.
	for i, r := range c.Routes {
		if _, err := hopback.Topology(c.Prefix, r); err != nil {
			d.at(fmt.Sprintf("routes[%d].queue", i), r.Queue, err.Error())
		}
	}
	if len(d.problems) == 0 && len(c.Routes) > 0 {
		if _, err := hopback.Topology(c.Prefix, c.Routes...); err != nil {
			d.problem(d.places["routes"].line, d.places["routes"].column, "routes", err.Error())
		}
	}
}

func (d *decoder) checkPrefix(prefix string) {
	switch {
	case strings.HasPrefix(prefix, "amq."):
		d.at("prefix", prefix, "choose another: the broker keeps names that begin with amq. to itself")
	case len(prefix) > 100:
		d.at("prefix", prefix, "choose one of at most 100 bytes: AMQP names have at most 255")
	case strings.ContainsAny(prefix, " \t\r\n"):
		d.at("prefix", prefix, "choose one without spaces")
	}
}

func (d *decoder) checkPolicy(at string, p hopback.Policy) {
	// The schedule as it was written, so that an error names the key that is
	// there and not the default that it collides with.
	d.library(at, p.Schedule.Validate())
	for _, err := range leaves(p.Validate()) {
		var setting *hopback.ConfigError
		switch {
		case !errors.As(err, &setting):
		case setting.Field == "max_retry_after" && p.MaxRetryAfter == 0: // follows from max
		default:
			d.library(at, err)
		}
	}
}

func (d *decoder) checkRoute(c *Config, r *route, at string) hopback.Route {
	name := r.PolicyName
	if name == "" {
		name = DefaultPolicy
	}
	p, ok := c.Policies[name]
	switch {
	case ok:
		r.Policy = p
	case name == DefaultPolicy:
		r.Policy = hopback.Policy{Name: DefaultPolicy}
	default:
		fix := "define it below policies"
		if n := nearest(name, c.PolicyNames); n != "" {
			fix = "did you mean " + n + "?"
		} else if len(c.PolicyNames) > 0 {
			fix = "use " + list(c.PolicyNames) + ", or define it below policies"
		}
		d.at(at+".policy", name, fix)
	}
	// The policy has been judged where it stands, once for all its routes.
	alone := r.Route
	if alone.Mechanism != hopback.NativeLinear || alone.Policy.Validate() != nil { // which not every policy suits
		alone.Policy = hopback.Policy{}
	}
	if r.Queue != "" { // a missing one is reported already
		d.library(at, alone.Validate())
	}
	return r.Route
}

// checkNames finds routes that would take each other's messages.
func (d *decoder) checkNames(c *Config) {
	routes := map[string]int{}
	for i, r := range c.Routes {
		at := fmt.Sprintf("routes[%d]", i)
		if r.Queue == "" {
			continue
		}
		if first, twice := routes[r.Queue]; twice {
			d.at(at+".queue", r.Queue, fmt.Sprintf("it has a route already, routes[%d] in line %d: keep one of them",
				first, d.places[fmt.Sprintf("routes[%d]", first)].line))
			continue
		}
		routes[r.Queue] = i
		if d.ours(c.Prefix, r.Queue) {
			d.at(at+".queue", r.Queue, "choose another: queues of this name are Hopback's own; or set another prefix")
		}
	}
	for i, r := range c.Routes {
		at := fmt.Sprintf("routes[%d].parking", i)
		parking := r.WithDefaults().Parking
		if other, is := routes[parking]; is && other != i {
			d.at(at, parking, fmt.Sprintf("name another queue: it is the work queue of routes[%d], and parked messages would be worked on again", other))
		}
		if r.Queue != "" && !d.ours(c.Prefix, r.Queue) && d.ours(c.Prefix, parking) {
			d.at(at, parking, "choose another: queues of this name are Hopback's own; or set another prefix")
		}
	}
}

// ours reports whether a queue of that name would be one that Hopback declares
// for itself.
func (d *decoder) ours(prefix, queue string) bool {
	rest, ok := strings.CutPrefix(queue, prefix+".")
	return ok && (rest == "lost" || rest == "failed" || strings.HasPrefix(rest, "failed.") || strings.HasPrefix(rest, "delay."))
}

// at reports a value by its path. A key that the file does not have is
// reported where it could stand.
func (d *decoder) at(path, value, fix string) {
	p := Problem{File: d.name, Field: path, Value: shorten(value), Fix: fix}
	where, ok := d.places[path]
	for up := path; !ok && up != ""; {
		up = up[:max(strings.LastIndexAny(up, ".["), 0)]
		where, ok = d.places[up]
	}
	p.Line, p.Column = where.line, where.column
	d.problems = append(d.problems, p)
}

// library turns the errors of the library's own validation into problems of
// this file. A value is shown as it was written there: 60s, not 1m0s.
func (d *decoder) library(path string, err error) {
	for _, one := range leaves(err) {
		d.one(path, one)
	}
}

// leaves are the single errors that were joined into one.
func leaves(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error }) //nolint:errorlint // the tree is walked here
	if !ok {
		return []error{err}
	}
	var all []error
	for _, e := range joined.Unwrap() {
		all = append(all, leaves(e)...)
	}
	return all
}

func (d *decoder) one(path string, err error) {
	var setting *hopback.ConfigError
	var field *backoff.FieldError
	var name, value, fix string
	switch {
	case errors.As(err, &setting):
		name, value, fix = setting.Field, setting.Value, setting.Fix
	case errors.As(err, &field):
		name, value, fix = field.Field, fmt.Sprint(field.Value), field.Fix
	default:
		at := d.places[path]
		d.problem(at.line, at.column, path, err.Error())
		return
	}
	full := join(path, name)
	if at, ok := d.places[full]; ok && !at.list && !at.key {
		value = at.text
	}
	for _, p := range d.problems {
		// What was unreadable is reported as that, and what the library says
		// about other keys in its light is not worth hearing.
		other, beside := strings.CutPrefix(p.Field, path+".")
		if p.Field == full || strings.HasPrefix(p.Field, full+"[") || beside && word(fix, other) {
			return
		}
	}
	d.at(full, value, fix)
}

// word reports whether a text has a word in it.
func word(text, w string) bool {
	return slices.Contains(strings.FieldsFunc(text, func(r rune) bool { return r != '_' && !unicode.IsLetter(r) }), w)
}
