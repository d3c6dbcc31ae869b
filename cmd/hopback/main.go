// Command hopback sets up, explains and looks after retries in RabbitMQ. See
// docs/cli.md, or hopback --help.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/hopback/hopback/cmd/hopback/internal/config"
)

//go:generate go run . config docs --write ../../docs/configuration.md
//go:generate go run . man --markdown ../../docs/cli.md

// Exit codes. They are documented in the help of the root command, and with
// each command that has others.
const (
	exitDone        = 0
	exitError       = 1
	exitDiffers     = 2
	exitInterrupted = 130 // as a shell has it for SIGINT
)

// commands is everything that hopback can do, in the order of its help.
func commands() []*cobra.Command {
	return []*cobra.Command{
		demoCommand(),
		devCommand(),
		explainCommand(),
		simulateCommand(),
		configCommand(),
		planCommand(),
		applyCommand(),
		verifyCommand(),
		exportCommand(),
		serveCommand(),
		attachCommand(),
		detachCommand(),
		statusCommand(),
		parkedCommand(),
		lostCommand(),
		doctorCommand(),
		conformanceCommand(),
		versionCommand(),
		manCommand(),
	}
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run is main without the process around it.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	root := rootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitDone
	}
	code := exitCode(ctx, err)
	if code == exitInterrupted && errors.Is(err, context.Canceled) {
		err = errors.New("interrupted")
	}
	report(stderr, cmd, err)
	return code
}

func rootCommand() *cobra.Command {
	cobra.EnableCommandSorting = false // theirs is the order of a first look
	root := &cobra.Command{
		Use:   "hopback",
		Short: "Retries with backoff in RabbitMQ",
		Long: `Hopback is the retry layer for RabbitMQ. A message that fails leaves the work
queue, waits in the broker for an exponential, jittered delay, comes back to
that one queue, and after its last retry rests in a parking queue until a
person decides.

This command shows it (demo, dev, explain), sets it up on a broker from one file,
hopback.yaml (config, plan, apply, verify, export), and runs the router, which gives
retries to consumers in any language (serve).

Exit status: 0 done; 1 an error, which is on standard error; 2 the broker differs
from what the file says, or something could not be moved; 130 after Ctrl-C.`,
		Example: `  hopback demo
  hopback dev
  hopback config validate
  hopback plan && hopback apply`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.PersistentFlags().VarP(&choice{value: "text", of: []string{"text", "json"}}, "output", "o", "how to print: text or json")
	must(root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp)))
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return &usageError{cmd.CommandPath(), err} })
	root.AddCommand(commands()...)
	return root
}

// exitCode is the code that an error asks for by its method ExitCode, or 1.
func exitCode(ctx context.Context, err error) int {
	var coded interface{ ExitCode() int }
	switch {
	case errors.As(err, &coded):
		return coded.ExitCode()
	case ctx.Err() != nil:
		return exitInterrupted
	}
	return exitError
}

// report writes an error to standard error, in the form that was asked for.
// Passwords are taken out wherever they came from.
func report(stderr io.Writer, cmd *cobra.Command, err error) {
	text := config.Redact(err.Error())
	var problems config.Problems
	if errors.As(err, &problems) {
		text = problems.Error() // these show no password, and how to write a URL
	}
	var quiet *differs
	switch {
	case asJSON(cmd):
		_ = json.NewEncoder(stderr).Encode(struct {
			Error    string          `json:"error"`
			Problems config.Problems `json:"problems,omitempty"`
		}{text, problems})
	case errors.As(err, &quiet) && quiet.told:
	case problems != nil:
		fmt.Fprintln(stderr, text) // in the form that editors jump to, nothing before it
	default:
		fmt.Fprintln(stderr, "hopback: "+text)
	}
}

// differs is the end of a command that worked and found, or left, a difference.
type differs struct {
	why  string
	told bool // it is on standard output already
}

func (e *differs) Error() string { return e.why }
func (e *differs) ExitCode() int { return exitDiffers }

// usageError points to the help.
type usageError struct {
	command string
	err     error
}

func (e *usageError) Error() string { return fmt.Sprintf("%v\nSee %s --help", e.err, e.command) }
func (e *usageError) Unwrap() error { return e.err }

// must is for what can only fail by a mistake in this program.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
