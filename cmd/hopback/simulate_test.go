package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/cobra"
)

// The pictures of the documentation are those that the simulator makes.
func TestPicturesAreUpToDate(t *testing.T) {
	for _, i := range illustrations {
		t.Run(i.file, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), i.file)
			cmd := &cobra.Command{}
			cmd.SetContext(t.Context())
			if err := i.make(cmd, file); err != nil {
				t.Fatal(err)
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			have, err := os.ReadFile(filepath.Join("..", "..", "docs", "pictures", i.file))
			if err != nil {
				t.Fatal(err)
			}
			if string(have) != string(want) {
				t.Errorf("docs/pictures/%s differs from what the simulator draws: run make docs", i.file)
			}
		})
	}
}
