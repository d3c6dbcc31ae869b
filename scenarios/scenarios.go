// Package scenarios holds the scenario files that come with Hopback, for
// "hopback simulate NAME" and for tests. docs/scenarios.md explains each.
package scenarios

import "embed"

// Files are the scenario files, NAME.yaml each.
//
//go:embed *.yaml
var Files embed.FS
