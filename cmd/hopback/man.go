package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

func manCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:    "man [DIR]",
		Short:  "Write manual pages into a folder",
		Long:   "Writes a manual page for each command into a folder, for packagers; with --markdown, all of them into one Markdown file.",
		Hidden: true,
		Args:   cobra.MaximumNArgs(1),
	}
	markdown := cmd.Flags().String("markdown", "", "write one Markdown file instead")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		root := rootCommand()
		switch {
		case *markdown != "":
			return os.WriteFile(*markdown, []byte(reference(root)), 0o644)
		case len(args) == 1:
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			root.DisableAutoGenTag = true
			return doc.GenManTree(root, &doc.GenManHeader{Title: "HOPBACK", Section: "1", Source: "Hopback", Manual: "Hopback"}, args[0])
		}
		return errors.New("name a folder: hopback man DIR")
	}
	return cmd
}

// reference is docs/cli.md: the help of every command, from the commands
// themselves.
func reference(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString(`<!-- Written by "go generate" in cmd/hopback from the help of the commands. Change it there. -->
# The command hopback

`)
	section(&b, root)
	walk(root, func(c *cobra.Command) {
		if c != root {
			fmt.Fprintf(&b, "\n## %s\n\n", c.CommandPath())
			section(&b, c)
		}
	})
	b.WriteString(referenceTail)
	return b.String()
}

// walk visits a command and all below it that are in the help.
func walk(c *cobra.Command, visit func(*cobra.Command)) {
	if c.Hidden {
		return
	}
	visit(c)
	for _, sub := range c.Commands() {
		walk(sub, visit)
	}
}

func section(b *strings.Builder, c *cobra.Command) {
	fmt.Fprintf(b, "%s.\n\n```text\n%s\n```\n", c.Short, c.Long)
	if c.Runnable() && !c.HasSubCommands() {
		fmt.Fprintf(b, "\nUsage: `%s`\n\n", c.UseLine())
		b.WriteString("| flag | default | meaning |\n|---|---|---|\n")
		flags(b, c.NonInheritedFlags())
		flags(b, c.InheritedFlags())
	}
	if c.Example != "" {
		fmt.Fprintf(b, "\n```sh\n%s\n```\n", unindent(c.Example))
	}
}

func flags(b *strings.Builder, fs *pflag.FlagSet) {
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		def := f.DefValue
		if def == "false" || def == "" || def == "0" {
			def = "–"
		} else {
			def = "`" + def + "`"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", name, def, strings.ReplaceAll(f.Usage, "|", "\\|"))
	})
}

func unindent(s string) string {
	var b bytes.Buffer
	for _, line := range strings.Split(s, "\n") {
		b.WriteString(strings.TrimPrefix(line, "  ") + "\n")
	}
	return strings.TrimRight(b.String(), "\n")
}

const referenceTail = `
## Output for programs

Every command with a result of its own takes ` + "`--output json`" + `. Results go to standard output, errors to standard error as one object with
` + "`error`" + ` and, where a configuration file is at fault, ` + "`problems`" + `. Passwords are never printed, but for those of the
private broker that ` + "`hopback dev`" + ` starts.

## Completion and manual pages

` + "```sh" + `
source <(hopback completion bash)     # zsh, fish and powershell too: hopback completion --help
hopback man /usr/local/share/man/man1
` + "```" + `
`
