package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/hopback/hopback/cmd/hopback/internal/config"
)

func configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check the configuration file, or print its schema",
		Long: `The configuration file, hopback.yaml, names the broker, policies and routes. Every
key is described in docs/configuration.md. A small one:

  version: 1
  broker:
    url: amqp://localhost:5672/
  policies:
    standard: {backoff: exponential, base: 1s, max: 60s, max_retries: 5}
  routes:
    - {queue: orders, policy: standard}

The environment wins over the file: HOPBACK_BROKER_URL, HOPBACK_MANAGEMENT_URL,
and for the credentials of both HOPBACK_BROKER_USERNAME and
HOPBACK_BROKER_PASSWORD.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(validateCommand(), schemaCommand(), docsCommand())
	return cmd
}

func validateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "validate",
		Short: "Say what is wrong with the configuration file",
		Long: `Reads the configuration file and the environment, without a broker, and says
everything that is wrong at once: file, line, key, value, and what to write
instead.

  hopback.yaml:12: routes[0].mechanism: "nativ" cannot work: use auto, wheel or
  ladder

Exit status: 0 the file is right; 1 it is not, or cannot be read.

With --output json one object goes to standard output: file, valid, policies,
routes, and problems, each with file, line, column, field, value, fix, message.`,
		Example: `  hopback config validate
  hopback config validate -c deploy/hopback.yaml --output json
  envsubst < hopback.tmpl | hopback config validate -c -`,
		Args: cobra.NoArgs,
	}
	file := fileFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := load(cmd, *file)
		if !asJSON(cmd) {
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is right: %s, %s\n", c.File, policies(len(c.Policies)), plural(len(c.Routes), "route"))
			return nil
		}
		var problems config.Problems
		if err != nil && !errors.As(err, &problems) {
			return err
		}
		return printValidation(cmd, *file, c, problems)
	}
	return cmd
}

func policies(n int) string { return plural(n, "policy") }

// problem is a config.Problem with its message, for programs that want just that.
type problem struct {
	config.Problem
	Message string `json:"message"`
}

func printValidation(cmd *cobra.Command, file string, c *config.Config, problems config.Problems) error {
	out := struct {
		File     string    `json:"file"`
		Valid    bool      `json:"valid"`
		Policies []string  `json:"policies,omitempty"`
		Routes   []string  `json:"routes,omitempty"`
		Problems []problem `json:"problems"`
	}{File: file, Valid: c != nil, Problems: []problem{}}
	if c != nil {
		out.Policies = c.PolicyNames
		for _, r := range c.Routes {
			out.Routes = append(out.Routes, r.Queue)
		}
	}
	for _, p := range problems {
		out.Problems = append(out.Problems, problem{p, p.Error()})
	}
	if err := printJSON(cmd, out); err != nil || c != nil {
		return err
	}
	return &invalid{}
}

// invalid ends a validation whose problems are on standard output.
type invalid struct{}

func (*invalid) Error() string { return "the configuration cannot work" }

func schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of the configuration file",
		Long: `Prints the JSON Schema (2020-12) of the configuration file, for editors and CI. An
editor with a YAML language server checks the file while you type, if its first
line names the schema:

  # yaml-language-server: $schema=hopback.schema.json

"hopback config validate" finds more than a schema can.`,
		Example: "  hopback config schema > hopback.schema.json",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return printJSON(cmd, config.Schema()) },
	}
}

func docsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:    "docs",
		Short:  "Print the reference of the configuration file in Markdown",
		Hidden: true,
		Args:   cobra.NoArgs,
	}
	file := cmd.Flags().String("write", "", "write it to a file")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *file == "" {
			fmt.Fprint(cmd.OutOrStdout(), config.Docs())
			return nil
		}
		if err := os.WriteFile(*file, []byte(config.Docs()), 0o644); err != nil {
			return fmt.Errorf("write the reference: %w", err)
		}
		return nil
	}
	return cmd
}
