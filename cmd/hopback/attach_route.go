package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/attach"
	"github.com/hopback/hopback/cmd/hopback/internal/config"
)

// routeFor is how the file says that a queue is retried.
type routeFor struct {
	queue, policy string
	inFile        bool // it has a route
	file          string
	line          string // of a route to add
	before, text  []byte // the file, and with it, when it shall be written
	notes         []string
	refusal       *attach.Refusal
}

type routeReport struct {
	Policy string `json:"policy"`
	InFile bool   `json:"in_file"`
	Line   string `json:"line,omitempty"`
}

// route finds the policy of a queue, which --policy must agree with.
func (f *attachFlags) route(c *config.Config) (*routeFor, error) {
	r := &routeFor{queue: f.request.Queue, policy: config.DefaultPolicy, file: c.File}
	if !exists(c.File) {
		r.file = config.DefaultFile // there is none yet
	}
	if f.policy != "" {
		if _, err := c.PolicyOf(f.policy); err != nil {
			return nil, fmt.Errorf("--policy: %w", err)
		}
	}
	if i := slices.IndexFunc(c.Routes, func(o hopback.Route) bool { return o.Queue == r.queue }); i >= 0 {
		route := c.Routes[i]
		r.inFile, r.policy = true, route.Policy.Name
		if f.policy != "" && f.policy != r.policy {
			r.refusal = &attach.Refusal{
				Reason: fmt.Sprintf("the route of %q in %s has the policy %q, not %q", r.queue, c.File, r.policy, f.policy),
				Fix:    "change it there, and send SIGHUP to the routers that run",
			}
		}
		switch route.Mechanism {
		case hopback.NativeLinear:
			r.refusal = &attach.Refusal{
				Reason: fmt.Sprintf("the route of %q has the mechanism native-linear: the broker itself retries it, and the router leaves it alone", r.queue),
				Fix:    "use hopback apply for that; or choose another mechanism for the route",
			}
		case hopback.Native, hopback.Plugin:
			r.notes = append(r.notes, fmt.Sprintf("the route has the mechanism %s, which a router cannot use: what comes through it waits in the wheel", route.Mechanism))
		}
		return r, nil
	}
	r.line = fmt.Sprintf("- {queue: %s}", quoteYAML(r.queue))
	if f.policy != "" && f.policy != config.DefaultPolicy {
		r.policy = f.policy
		r.line = fmt.Sprintf("- {queue: %s, policy: %s}", quoteYAML(r.queue), quoteYAML(f.policy))
	}
	if f.write {
		return r, r.prepare(c)
	}
	if r.policy != config.DefaultPolicy {
		r.refusal = &attach.Refusal{
			Reason: fmt.Sprintf("%s has no route for %q: routers would retry it by the policy %q, not by %q", r.file, r.queue, config.DefaultPolicy, r.policy),
			Fix:    fmt.Sprintf("add to its routes: %s, and send SIGHUP to the routers that run; or let --write add it", r.line),
		}
		return r, nil
	}
	r.notes = append(r.notes, fmt.Sprintf("no route names the queue: a router serves it by the policy %q, unless it runs with --unrouted park, and parks in %s.parked. "+
		"To choose, add to the routes of %s: %s", config.DefaultPolicy, r.queue, r.file, r.line))
	return r, nil
}

// quoteYAML writes a name so that it is a text within braces.
func quoteYAML(s string) string {
	var n yaml.Node
	n.SetString(s)
	n.Style = 0
	text, err := yaml.Marshal(&n)
	plain := strings.TrimSuffix(string(text), "\n")
	if err != nil || strings.ContainsAny(plain, "\n,[]{}") {
		return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\t", `\t`).Replace(s) + `"`
	}
	return plain
}

// tell adds to a plan what there is to say.
func (r *routeFor) tell(p *attach.Plan) {
	if r.refusal != nil {
		p.Refusals = append(p.Refusals, *r.refusal)
	}
	p.Notes = append(p.Notes, r.notes...)
}

func (r *routeFor) writes() bool { return r != nil && r.text != nil }

func (r *routeFor) report() *routeReport {
	if r == nil {
		return nil
	}
	return &routeReport{Policy: r.policy, InFile: r.inFile, Line: r.line}
}

// prepare adds the route to the text of the file, and reads that to make sure that
// nothing else has changed.
func (r *routeFor) prepare(c *config.Config) error {
	if !exists(c.File) {
		return fmt.Errorf("--write: there is no file %s to write a route into: name one with -c", c.File)
	}
	before, err := os.ReadFile(c.File)
	if err != nil {
		return fmt.Errorf("--write: %w", err)
	}
	byHand := fmt.Errorf("--write: %s is written in a way that cannot be added to safely: add to its routes by hand: %s", c.File, r.line)
	after, ok := addRoute(before, r.line)
	if !ok {
		return byHand
	}
	was, err := config.Parse(c.File, before, nil)
	if err != nil {
		return err
	}
	is, err := config.Parse(c.File, after, nil)
	if err != nil || len(is.Routes) != len(was.Routes)+1 {
		return byHand
	}
	added := is.Routes[len(is.Routes)-1]
	if added.Queue != r.queue || added.Policy.Name != r.policy || !reflect.DeepEqual(is.Routes[:len(was.Routes)], append([]hopback.Route{}, was.Routes...)) ||
		!reflect.DeepEqual(is.Policies, was.Policies) {
		return byHand
	}
	r.before, r.text = before, after
	r.notes = append(r.notes, "routers that run read the file again on SIGHUP, and until then serve the queue by the policy "+config.DefaultPolicy)
	return nil
}

// addRoute adds a line to the routes of a configuration file, behind the last one,
// and leaves all else as it is, comments too. It is false where the routes are not
// a list with an item a line.
func addRoute(text []byte, line string) ([]byte, bool) {
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil || len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode || doc.Content[0].Style&yaml.FlowStyle != 0 {
		return nil, false
	}
	newline := "\n"
	if bytes.Contains(text, []byte("\r\n")) {
		newline = "\r\n"
	}
	root := doc.Content[0]
	for i := 0; i+1 < len(root.Content); i += 2 {
		if root.Content[i].Value != "routes" {
			continue
		}
		list := root.Content[i+1]
		if list.Kind != yaml.SequenceNode || list.Style&yaml.FlowStyle != 0 || len(list.Content) == 0 {
			return nil, false
		}
		last, indent := lastLine(list), strings.Repeat(" ", list.Column-1)
		lines := strings.SplitAfter(string(text), "\n")
		if last > len(lines) {
			return nil, false
		}
		head := strings.Join(lines[:last], "")
		if !strings.HasSuffix(head, "\n") {
			head += newline
		}
		return []byte(head + indent + line + newline + strings.Join(lines[last:], "")), true
	}
	head := string(text)
	if head != "" && !strings.HasSuffix(head, "\n") {
		head += newline
	}
	return []byte(head + "routes:" + newline + "  " + line + newline), true
}

// lastLine is the last line on which something of a node begins.
func lastLine(n *yaml.Node) int {
	line := n.Line
	for _, c := range n.Content {
		line = max(line, lastLine(c))
	}
	return line
}

// errChanged: somebody else wrote into the file while the question stood.
var errChanged = errors.New("the file has been changed meanwhile, and is left as it is: run this again")

// write replaces the file at once, with the permissions that it has.
func (r *routeFor) write(file string) error {
	file, err := filepath.EvalSymlinks(file)
	if err != nil {
		return fmt.Errorf("write the route: %w", err)
	}
	if now, err := os.ReadFile(file); err != nil || !bytes.Equal(now, r.before) {
		return fmt.Errorf("write the route into %s: %w", file, cmp.Or(err, errChanged))
	}
	info, err := os.Stat(file)
	if err != nil {
		return fmt.Errorf("write the route: %w", err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(file), ".hopback-*.yaml")
	if err != nil {
		return fmt.Errorf("write the route: %w", err)
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	_, err = tmp.Write(r.text)
	err = errors.Join(err, tmp.Chmod(info.Mode().Perm()), tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), file)
	}
	if err != nil {
		return fmt.Errorf("write the route: %w", err)
	}
	return nil
}
