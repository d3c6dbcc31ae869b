package config

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"go.yaml.in/yaml/v3"
)

// schemaAccepts are the bad files that a JSON Schema cannot tell from good
// ones: references, names that are used twice, values that do not go together,
// and the difference between a key and its duplicate, which YAML readers lose.
var schemaAccepts = []string{
	"version as a float", "prefix of the broker's own", "prefix with a space",
	"url of another kind", "url without a host", "url with a bad password", "url with a bad port", "vhost with a slash", "management url of another kind",
	"zero duration", "microseconds", "a duration without end", "max beyond the longest slot", "base above max", "min_delay above max",
	"factor without effect", "delays without list", "list without delays",
	"an unknown policy", "an unknown policy, far off", "an unknown policy, and none known",
	"a queue too long", "a ladder without rungs", "rungs without a ladder", "rungs in disorder", "a rung too long",
	"parking in the work queue", "parking in another's work queue", "the same queue twice", "a queue of ours", "a parking queue of ours",
	"declare: a key without an exchange", "mechanism native-linear",
}

func resolved(t *testing.T) *jsonschema.Resolved {
	t.Helper()
	text, err := json.Marshal(Schema())
	if err != nil {
		t.Fatal(err)
	}
	var s jsonschema.Schema // as somebody else would read it
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	r, err := s.Resolve(&jsonschema.ResolveOptions{ValidateDefaults: true})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// asJSON reads YAML as an editor would, for its schema. ok is false for what is
// no YAML, or has no form in JSON.
func asJSON(text string) (v any, ok bool) {
	dec := yaml.NewDecoder(strings.NewReader(text))
	if dec.Decode(&v) != nil || dec.Decode(new(any)) == nil {
		return nil, false
	}
	b, err := json.Marshal(v)
	if err != nil || json.Unmarshal(b, &v) != nil {
		return nil, false
	}
	return v, true
}

func TestSchemaAcceptsGoodFiles(t *testing.T) {
	s := resolved(t)
	data, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"the example": string(data)}
	for _, c := range good {
		files[c.name] = c.file
	}
	for name, text := range files {
		v, ok := asJSON(text)
		if !ok {
			t.Errorf("%s: no YAML", name)
		}
		if err := s.Validate(v); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSchemaRefusesBadFiles(t *testing.T) {
	s, refused := resolved(t), 0
	for _, c := range bad {
		v, ok := asJSON(c.file)
		if !ok {
			continue
		}
		err, excused := s.Validate(v), slices.Contains(schemaAccepts, c.name)
		switch {
		case err == nil && !excused:
			t.Errorf("%s: accepted:\n%s", c.name, c.file)
		case err != nil && excused:
			t.Errorf("%s: is said to be beyond a schema, but was refused: %v", c.name, err)
		case err != nil:
			refused++
		}
	}
	if refused < 50 {
		t.Errorf("only %d files were refused", refused)
	}
}

func TestSchemaDescribesEveryKey(t *testing.T) {
	var walk func(path string, s *jsonschema.Schema)
	walk = func(path string, s *jsonschema.Schema) {
		if s == nil {
			return
		}
		if s.Description == "" {
			t.Errorf("%s has no description", path)
		}
		for name, p := range s.Properties {
			walk(path+"."+name, p)
		}
		walk(path+"[]", s.Items)
		if s.AdditionalProperties != nil && s.AdditionalProperties.Not == nil {
			walk(path+".*", s.AdditionalProperties)
		}
	}
	walk("", Schema())
}

func TestDocsAreUpToDate(t *testing.T) {
	const path = "../../../../docs/configuration.md"
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != Docs() {
		t.Error("docs/configuration.md differs from the table: run go generate in cmd/hopback")
	}
	for _, keys := range [][]Key{root.Keys, brokerKeys, policyKeys, routeKeys, declareKeys} {
		for _, k := range keys {
			if !strings.Contains(string(have), "| `"+k.Name+"` |") {
				t.Errorf("%s is missing", k.Name)
			}
		}
	}
}
