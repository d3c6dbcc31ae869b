package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hopback/hopback/cmd/hopback/internal/config"
)

// A route is added and nothing else is touched, or the file is left alone.
func TestAddRoute(t *testing.T) {
	const line = "- {queue: new}"
	for name, c := range map[string]struct{ before, want string }{
		"none": {
			"version: 1 # one\npolicies: {a: {base: 3s}}\n",
			"version: 1 # one\npolicies: {a: {base: 3s}}\nroutes:\n  - {queue: new}\n",
		},
		"no line end": {"version: 1", "version: 1\nroutes:\n  - {queue: new}\n"},
		"one a line": {
			"version: 1\nroutes:\n  # the shop's\n  - {queue: a}   # first\n\n  - queue: b\n    policy: default # last\n# the end\n",
			"version: 1\nroutes:\n  # the shop's\n  - {queue: a}   # first\n\n  - queue: b\n    policy: default # last\n  - {queue: new}\n# the end\n",
		},
		"not at the end": {
			"version: 1\nroutes:\n- queue: a\n  declare:\n    type: quorum\n\nprefix: hop\n",
			"version: 1\nroutes:\n- queue: a\n  declare:\n    type: quorum\n- {queue: new}\n\nprefix: hop\n",
		},
		"windows":   {"version: 1\r\nroutes:\r\n- queue: a\r\n", "version: 1\r\nroutes:\r\n- queue: a\r\n- {queue: new}\r\n"},
		"in a line": {"version: 1\nroutes: [{queue: a}]\n", ""},
		"empty":     {"version: 1\nroutes:\n", ""},
		"json":      {`{"version": 1}`, ""},
	} {
		got, ok := addRoute([]byte(c.before), line)
		if ok != (c.want != "") || ok && string(got) != c.want {
			t.Errorf("%s: got %t\n%s\nwant\n%s", name, ok, got, c.want)
		}
		if !ok {
			continue
		}
		if cfg, err := config.Parse("f", got, nil); err != nil || cfg.Routes[len(cfg.Routes)-1].Queue != "new" {
			t.Errorf("%s: read as %v, %v", name, cfg, err)
		}
	}
	for _, name := range []string{"a", "a, b", "#1", "true", `it's "q"`, "{x}", "1", "a: b", "é\\"} {
		got, _ := addRoute([]byte("version: 1\n"), "- {queue: "+quoteYAML(name)+"}")
		if cfg, err := config.Parse("f", got, nil); err != nil || cfg.Routes[0].Queue != name {
			t.Errorf("%q is written as %s, and read with %v", name, got, err)
		}
	}
}

func TestHanging(t *testing.T) {
	var out strings.Builder
	hanging(&out, "note: ", strings.Repeat("word ", 30))
	for _, line := range strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n") {
		if len(line) > 100 || !strings.HasPrefix(line, "note: word") && !strings.HasPrefix(line, "      word") {
			t.Errorf("a line is %q", line)
		}
	}
}

// Who edits the file while the question stands loses nothing.
func TestAFileThatChangesMeanwhile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hopback.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	write("version: 1\n")
	c, err := config.Load(file, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := &routeFor{queue: "new", policy: config.DefaultPolicy, line: "- {queue: new}"}
	if err := r.prepare(c); err != nil {
		t.Fatal(err)
	}
	const theirs = "version: 1\nprefix: shop\n"
	write(theirs)
	if err := r.write(file); !errors.Is(err, errChanged) {
		t.Errorf("written, with %v", err)
	}
	if got, _ := os.ReadFile(file); string(got) != theirs {
		t.Errorf("the file is\n%s", got)
	}
	write("version: 1\n")
	if err := r.write(file); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("the file's mode is %v, %v", info.Mode(), err)
	}
	if c, err := config.Load(file, nil, nil); err != nil || len(c.Routes) != 1 || c.Routes[0].Queue != "new" {
		t.Errorf("read as %+v, %v", c, err)
	}
}
