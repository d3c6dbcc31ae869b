package hopback_test

import (
	"os"
	"strings"
	"testing"
)

// The README's program is the one in examples/quickstart, which compiles.
func TestReadmeShowsTheQuickstart(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(readme), "```go\n")
	shown, _, _ := strings.Cut(rest, "```")
	program, err := os.ReadFile("examples/quickstart/main.go")
	if err != nil {
		t.Fatal(err)
	}
	_, code, _ := strings.Cut(string(program), "docs/quickstart.md.\n")
	if shown != code {
		t.Errorf("README.md shows another program than examples/quickstart/main.go:\n%s", shown)
	}
}
