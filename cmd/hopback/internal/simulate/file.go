// Package simulate is the outside of "hopback simulate": scenario files, and
// what a simulation looks like as text, table, JSON, CSV, picture and page.
package simulate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/scenarios"
	"github.com/hopback/hopback/simulate"
)

// File is a scenario file: a scenario, and the policies to try in it.
type File struct {
	simulate.Scenario `yaml:",inline"`

	// Policies are the contenders where none are named otherwise.
	Policies []Entry `yaml:"policies"`
}

// Entry is one policy of a scenario file: the name of a preset, or a mapping
// with the keys of a policy, over a preset or over the defaults.
type Entry struct{ simulate.Contender }

// UnmarshalYAML reads both forms.
func (e *Entry) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		c, err := Preset(n.Value)
		e.Contender = c
		if err != nil {
			return fmt.Errorf("line %d: %w", n.Line, err)
		}
		return nil
	}
	var head struct {
		Name   string `yaml:"name"`
		Preset string `yaml:"preset"`
	}
	if err := n.Decode(&head); err != nil {
		return err
	}
	if head.Preset != "" {
		c, err := Preset(head.Preset)
		if err != nil {
			return fmt.Errorf("line %d: %w", n.Line, err)
		}
		e.Contender = c
	}
	into := struct {
		Name           string `yaml:"name"`
		Preset         string `yaml:"preset"`
		hopback.Policy `yaml:",inline"`
	}{Policy: e.Route.Policy}
	// Decode has no option of its own for unknown keys on a node.
	text, err := yaml.Marshal(n)
	if err != nil {
		return fmt.Errorf("line %d: %w", n.Line, err)
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&into); err != nil {
		return fmt.Errorf("policy at line %d: %s", n.Line, plain(err))
	}
	e.Route.Policy = into.Policy
	if into.Name != "" {
		e.Contender.Name = into.Name
	}
	if e.Contender.Name == "" {
		return fmt.Errorf("line %d: a policy needs a name, or a preset", n.Line)
	}
	return nil
}

// plain takes the decoder's own words off an error.
func plain(err error) string {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	text = strings.TrimPrefix(text, "unmarshal errors:\n  ")
	text = strings.ReplaceAll(text, " in type simulate.File", "")
	if before, _, found := strings.Cut(text, " in type struct"); found {
		text = before
	}
	return strings.ReplaceAll(text, "\n  ", "; ")
}

// Preset is simulate.Preset with an error that lists the names.
func Preset(name string) (simulate.Contender, error) {
	c, ok := simulate.Preset(name)
	if !ok {
		return c, fmt.Errorf("there is no preset %q: use one of %s", name, strings.Join(simulate.Presets(), ", "))
	}
	return c, nil
}

// Names lists the scenarios that come with Hopback.
func Names() []string {
	found, _ := fs.Glob(scenarios.Files, "*.yaml")
	for i, f := range found {
		found[i] = strings.TrimSuffix(f, ".yaml")
	}
	slices.Sort(found)
	return found
}

// Load reads a scenario by its name or from a file; "-" is standard input.
func Load(name string, stdin io.Reader) (*File, error) {
	if slices.Contains(Names(), name) {
		data, err := scenarios.Files.ReadFile(name + ".yaml")
		if err != nil {
			return nil, fmt.Errorf("read the scenario %s: %w", name, err)
		}
		return Parse(name+".yaml", data)
	}
	in := stdin
	if name != "-" {
		f, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) && !strings.ContainsAny(name, "./") {
			return nil, fmt.Errorf("there is no scenario %q: use one of %s, or name a file", name, strings.Join(Names(), ", "))
		}
		if err != nil {
			return nil, fmt.Errorf("read the scenario: %w", err)
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("read the scenario: %w", err)
	}
	return Parse(name, data)
}

// Parse reads a scenario file that is in memory. name is its name in messages.
func Parse(name string, data []byte) (*File, error) {
	var f File
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(&f); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %s", name, plain(err))
	}
	if f.Name == "" {
		f.Name = strings.TrimSuffix(name, ".yaml")
	}
	if err := f.Scenario.Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &f, nil
}
