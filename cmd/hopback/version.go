package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set when a release is built: -ldflags "-X main.version=v1.2.3".
var version string

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Long:    "Prints the version of this command, and the Go that built it.",
		Example: "  hopback version\n  hopback version --output json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v, commit := buildVersion()
			if asJSON(cmd) {
				return printJSON(cmd, map[string]string{
					"version": v, "commit": commit, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH,
				})
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "hopback %s (%s, %s/%s)\n", v, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}

// buildVersion is the version that this was built as, and the commit where the
// Go tool noted it.
func buildVersion() (v, commit string) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return cmp.Or(version, "unknown"), ""
	}
	dirty := false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			commit = s.Value
		case "vcs.modified":
			dirty = s.Value == "true"
		}
	}
	if dirty {
		commit += "+changed"
	}
	return cmp.Or(version, info.Main.Version, "(devel)"), commit
}
