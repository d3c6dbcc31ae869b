package attempt

import (
	"embed"
	"io/fs"
)

//go:embed testdata/README.md testdata/*.json
var vectors embed.FS

// Vectors are the golden vectors of the contract: what a program that takes part in
// it reads and writes, as typed JSON, for ports in other languages. README.md
// describes the format and schema.json is its JSON Schema. They are the files that
// the tests of this package run.
func Vectors() fs.FS {
	f, err := fs.Sub(vectors, "testdata")
	if err != nil {
		panic(err) // the name is valid
	}
	return f
}
