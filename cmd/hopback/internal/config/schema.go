package config

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// durationPattern is what time.ParseDuration reads, without signs.
const durationPattern = `^([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h))*$`

// Schema is the JSON Schema (2020-12) of the configuration file, for editors
// and CI. "hopback config validate" knows more: what a schema cannot say about
// lengths, references and values that do not go together.
func Schema() *jsonschema.Schema {
	s := root.schema()
	s.Schema = "https://json-schema.org/draft/2020-12/schema"
	s.ID = "urn:hopback:configuration:1"
	s.Title = "hopback.yaml"
	return s
}

func (k *Key) schema() *jsonschema.Schema {
	s := &jsonschema.Schema{Description: k.describe()}
	switch k.Kind {
	case Section:
		s.Type = "object"
		s.AdditionalProperties = &jsonschema.Schema{Not: &jsonschema.Schema{}}
		s.Properties = map[string]*jsonschema.Schema{}
		for i := range k.Keys {
			key := &k.Keys[i]
			s.Properties[key.Name] = key.schema()
			s.PropertyOrder = append(s.PropertyOrder, key.Name)
			if key.Required {
				s.Required = append(s.Required, key.Name)
			}
		}
	case Map:
		s.Type = "object"
		s.AdditionalProperties = k.Elem.schema()
		s.PropertyNames = &jsonschema.Schema{MinLength: jsonschema.Ptr(1), MaxLength: jsonschema.Ptr(200)}
	case List:
		s.Type = "array"
		s.Items = k.Elem.schema()
	case Switch:
		s.Type = "boolean"
	case Whole:
		s.Type = "integer"
	case Number:
		s.Type = "number"
	case Duration:
		s.Type, s.Pattern = "string", durationPattern
	case Text:
		s.Type, s.MinLength = "string", jsonschema.Ptr(1)
	}
	k.limits(s)
	k.hints(s)
	return s
}

// limits are what a value may be.
func (k *Key) limits(s *jsonschema.Schema) {
	for _, c := range k.Choices {
		s.Enum = append(s.Enum, c.Value)
	}
	if len(s.Enum) > 0 {
		s.MinLength = nil
	}
	s.Minimum, s.Maximum = k.Min, k.Max
	if k.Kind == Number && k.Min != nil && *k.Min == 0 {
		s.Minimum, s.ExclusiveMinimum = nil, k.Min
	}
	for _, w := range k.Words {
		if k.Kind == Duration {
			s.Pattern = "^" + w.Text + "$|" + s.Pattern
		}
	}
}

// hints are what an editor shows.
func (k *Key) hints(s *jsonschema.Schema) {
	if k.Default != "" && !strings.Contains(k.Default, "<") {
		s.Default = json.RawMessage(k.literal(k.Default))
	}
	if k.Example == "" {
		return
	}
	if k.Kind != List {
		var v any
		_ = json.Unmarshal([]byte(k.literal(k.Example)), &v) // literal writes JSON
		s.Examples = []any{v}
		return
	}
	var all []any
	for _, e := range strings.Split(strings.Trim(k.Example, "[]"), ", ") {
		all = append(all, e)
	}
	s.Examples = []any{all}
}

// literal is a value of the table as JSON.
func (k *Key) literal(v string) string {
	switch k.Kind {
	case Whole, Number, Switch:
		return v
	}
	b, _ := json.Marshal(v) // a string cannot fail
	return string(b)
}

// describe is the meaning with all that a schema has no keyword for.
func (k *Key) describe() string {
	var b strings.Builder
	b.WriteString(k.Doc)
	if k.Kind == Duration {
		fmt.Fprintf(&b, " A duration such as 500ms, 1s or 2h%s.", orWords(k))
	}
	if k.Unit != "" {
		fmt.Fprintf(&b, " Unit: %s.", k.Unit)
	}
	if k.Default != "" {
		fmt.Fprintf(&b, " Default: %s.", k.Default)
	}
	for _, c := range k.Choices {
		if c.Doc != "" {
			fmt.Fprintf(&b, "\n- %s: %s", c.Value, c.Doc)
		}
	}
	if k.Env != "" {
		fmt.Fprintf(&b, " The environment variable %s wins over it.", k.Env)
	}
	return b.String()
}
