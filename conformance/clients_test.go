package conformance_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hopback/hopback/conformance"
	"github.com/hopback/hopback/rabbittest"
)

// The workers in docs/conformance.md, with the rich failures of docs/rich-failures.md,
// are right at level rich.
func TestWorkersOfTheDocs(t *testing.T) {
	t.Parallel()
	b := rabbittest.Shared(t)
	examples, err := filepath.Abs("../examples")
	if err != nil {
		t.Fatal(err)
	}
	for _, lang := range []struct {
		name, block, file, fail string
		find                    func() string // the command, or nothing
	}{
		{"node", "js", "worker.js", "node/fail.js", func() string {
			modules := examples + "/node/node_modules"
			if exec.Command("node", "-e", `require("`+modules+`/amqplib")`).Run() != nil {
				return ""
			}
			return "NODE_PATH='" + modules + "' exec node worker.js"
		}},
		{"python", "python", "worker.py", "python/fail.py", func() string {
			home, _ := os.UserHomeDir()
			for _, p := range []string{os.Getenv("HOPBACK_CLIENTS"), home + "/.cache/hopback/clients"} {
				if p += "/venv/bin/python"; exec.Command(p, "-c", "import pika").Run() == nil {
					return "exec '" + p + "' -B worker.py"
				}
			}
			for _, p := range []string{"/usr/bin/python3", "python3"} {
				if exec.Command(p, "-c", "import pika").Run() == nil {
					return "exec " + p + " -B worker.py"
				}
			}
			return ""
		}},
	} {
		t.Run(lang.name, func(t *testing.T) {
			t.Parallel()
			command := lang.find()
			if command == "" {
				t.Skipf("%s or its AMQP client is not installed", lang.name)
			}
			dir := t.TempDir()
			fail, err := os.ReadFile(filepath.Join(examples, lang.fail))
			if err != nil {
				t.Fatal(err)
			}
			for name, text := range map[string][]byte{lang.file: block(t, lang.block), filepath.Base(lang.fail): fail} {
				if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			cfg := config(t, b, nil)
			cfg.Worker = conformance.Command("cd '"+dir+"' && "+command, nil)
			cfg.Level, cfg.Prefix = conformance.Rich, "hop"
			for _, r := range run(t, cfg).Results {
				if r.Status == conformance.Failed {
					t.Error(describe(r))
				}
			}
			leavesNothing(t, b, cfg.URL)
		})
	}
}

// block is the one block of that language in docs/conformance.md that is a program.
func block(t *testing.T, language string) []byte {
	t.Helper()
	page, err := os.ReadFile("../docs/conformance.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range bytes.Split(page, []byte("\n```"+language+"\n"))[1:] {
		text, _, _ := bytes.Cut(part, []byte("\n```"))
		if bytes.Contains(text, []byte("HOPBACK_QUEUE")) {
			return append(text, '\n')
		}
	}
	t.Fatalf("docs/conformance.md has no worker in %s", language)
	return nil
}

// A command's end is told with its last words, and without the password.
func TestCommand(t *testing.T) {
	t.Parallel()
	env := conformance.Env{URL: "amqp://guest:s3cret@127.0.0.1:1/", Queue: "q"}
	err := conformance.Command(`echo "$HOPBACK_QUEUE of $HOPBACK_BROKER_URL"; exit 3`, nil)(t.Context(), env)
	if err == nil || !strings.Contains(err.Error(), "q of $HOPBACK_BROKER_URL") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("it ended with %v", err)
	}
}
