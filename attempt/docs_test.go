package attempt_test

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/hopback/hopback/attempt"
)

// docs/contract.md is the contract for people. These tests keep it to the one
// that runs.

func contract(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../docs/contract.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Every vector that the document names exists.
func TestContractNamesVectors(t *testing.T) {
	lists := regexp.MustCompile(`(?m)^\*Vectors: (.*)\*$`).FindAllStringSubmatch(contract(t), -1)
	if len(lists) < 10 {
		t.Fatalf("only %d lists of vectors found", len(lists))
	}
	cases := map[string]bool{}
	for _, list := range lists {
		for _, reference := range strings.Split(list[1], " · ") {
			file, name, ok := strings.Cut(reference, " › ")
			if !ok {
				t.Errorf("%q names no case", reference)
				continue
			}
			if !cases[file] {
				cases[file] = true
				for _, name := range caseNames(t, file+".json") {
					cases[file+" › "+name] = true
				}
			}
			if !cases[reference] {
				t.Errorf("%s.json has no case %q", file, name)
			}
		}
	}
}

// caseNames reads the names of the cases of any file, and sees that each is
// there once.
func caseNames(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		Cases []struct{ Name string }
	}
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	var names []string
	seen := map[string]bool{}
	for _, c := range v.Cases {
		if c.Name == "" || seen[c.Name] {
			t.Errorf("%s: the name %q is empty or there twice", file, c.Name)
		}
		seen[c.Name] = true
		names = append(names, c.Name)
	}
	return names
}

// The example of a message's headers is the vector that it claims to be.
func TestContractExample(t *testing.T) {
	_, block, ok := strings.Cut(contract(t), "```headers\n")
	if !ok {
		t.Fatal("no example")
	}
	block, _, _ = strings.Cut(block, "\n```")
	shown := map[string][2]string{}
	for _, row := range strings.Split(block, "\n") {
		fields := strings.Fields(row)
		if len(fields) < 3 {
			t.Fatalf("row %q", row)
		}
		shown[fields[0]] = [2]string{fields[1], strings.TrimSpace(strings.SplitN(row, "  "+fields[1]+" ", 2)[1])}
	}
	for _, c := range load[life](t, "transitions.json") {
		if c.Name != "the second failure" {
			continue
		}
		for k, v := range c.Successor.Headers {
			row, ok := shown[k]
			delete(shown, k)
			switch {
			case !ok:
				t.Errorf("%s is not shown", k)
			case v.id:
				if row[0] != "string" {
					t.Errorf("%s is shown as %v", k, row)
				}
			case row[0] != typeWord(v.value) || row[1] != fmt.Sprint(v.value):
				t.Errorf("%s is shown as %v, the vector has %T %v", k, row, v.value, v.value)
			}
		}
		for k := range shown {
			t.Errorf("%s is shown, but not in the vector", k)
		}
		return
	}
	t.Fatal("no such vector")
}

func typeWord(v any) string { return fmt.Sprintf("%T", v) }

// Every header and every reason of the package has a row in the document.
func TestContractIsComplete(t *testing.T) {
	text := contract(t)
	for _, name := range append(fuzzKeys[:23:23],
		attempt.ReasonExhausted, attempt.ReasonPermanent, attempt.ReasonExpired, attempt.ReasonCrashLoop,
		attempt.ReasonLostRoute, attempt.ReasonTooLarge, attempt.ReasonBadCounter, attempt.ReasonUnknownOrigin,
	) {
		if !regexp.MustCompile("(?m)^\\| .*`" + name + "`.* \\|").MatchString(text) {
			t.Errorf("%s has no row", name)
		}
	}
	if fuzzKeys[22] != attempt.HeaderDeadline || strings.HasPrefix(fuzzKeys[23], "x-retry-") {
		t.Error("the list of our headers has changed: count again")
	}
	if !strings.Contains(text, fmt.Sprintf("This is version %d.", attempt.Version)) {
		t.Error("the version is another one")
	}
}
