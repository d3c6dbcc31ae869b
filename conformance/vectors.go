package conformance

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hopback/hopback/attempt"
)

// WriteVectors writes the golden vectors of the message contract into a folder, with
// a README.md that says what they mean and a schema.json that describes their form,
// and returns the names of the files. The folder is made where it is missing; files
// of these names in it are replaced. See attempt.Vectors.
func WriteVectors(dir string) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("write the vectors: %w", err)
	}
	var names []string
	all := attempt.Vectors()
	entries, err := fs.ReadDir(all, ".")
	if err != nil {
		return nil, fmt.Errorf("read the vectors: %w", err)
	}
	for _, e := range entries {
		text, err := fs.ReadFile(all, e.Name())
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, e.Name()), text, 0o644)
		}
		if err != nil {
			return names, fmt.Errorf("write the vectors: %w", err)
		}
		names = append(names, e.Name())
	}
	return names, nil
}
