package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/cmd/hopback/internal/config"
	"github.com/hopback/hopback/conformance"
)

type conformanceOptions struct {
	file, url, workerURL   string
	run, queue, prefix     string
	level, kind            choice
	cases                  []string
	useRouter, restarted   bool
	force, showOutput      bool
	patience, startTimeout time.Duration
}

func conformanceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "conformance",
		Short: "Check a consumer in any language against a live broker",
		Long: `Checks whether a consumer, in any language, does its part: whether it settles and
publishes what failed so that nothing is lost, changed or counted wrong. It
publishes messages that say what to do with them, and looks at what comes out of
the consumer. docs/conformance.md says in a page what the consumer does for it.

With --run, the command is started with HOPBACK_BROKER_URL, HOPBACK_QUEUE and
HOPBACK_EXCHANGE in its environment, and again whenever it ends, since some cases
make it crash. Without, the consumer is waited for.

It makes queues and a router of its own, whose names begin with hop-conformance,
and removes them at the end, after Ctrl-C too. With --use-router the router that
runs is used, and the policy that the configuration file gives the queue.

The levels: basic, for a consumer that rejects what failed; rich, for one that
publishes rich failures; exact, for one that keeps every header's AMQP type too.

Exit status: 0 all cases passed or were skipped; 2 some failed; 1 an error; 130
after Ctrl-C.

With --output json one object goes to standard output: passed, failed, skipped,
and runs, one for each type of queue, with broker, queue, queue_type, level, notes
and results (case, level, about, status, why_skipped, and failures with attempt,
what, expected, actual, fix).`,
		Example: `  hopback conformance --run 'node worker.js'
  hopback conformance --run 'python worker.py' --level rich --case fail --case headers
  hopback conformance --queue orders --prefix hop --url amqp://staging:5672/
  hopback conformance cases`,
		Args: cobra.NoArgs,
	}
	o := conformanceOptions{
		level: choice{value: conformance.Basic, of: conformance.Levels()},
		kind:  choice{value: "both", of: []string{"both", "quorum", "classic"}},
	}
	f := cmd.Flags()
	f.StringVarP(&o.file, "config", "c", config.DefaultFile, "the configuration file; - is standard input")
	must(cmd.MarkFlagFilename("config", "yaml", "yml"))
	f.StringVar(&o.url, "url", "", "the broker's AMQP URL, in place of the file's and of "+config.EnvBrokerURL)
	f.StringVar(&o.run, "run", "", "the command that starts the consumer, for the shell")
	f.StringVar(&o.workerURL, "worker-url", "", "the URL that the consumer connects with, where that is another")
	f.BoolVar(&o.restarted, "restarted", false, "a consumer that is not started here comes back after a crash")
	f.Var(&o.level, "level", "which cases: basic, rich or exact; each has those before it")
	f.StringArrayVar(&o.cases, "case", nil, "only this case; may be repeated")
	f.StringVar(&o.queue, "queue", "", "a work queue of yours, which must be empty, in place of one that is made")
	f.Var(&o.kind, "type", "of the queue that is made: quorum, classic, or both in turn")
	f.BoolVar(&o.force, "force", false, "use a queue that has messages; the consumer handles them")
	f.BoolVar(&o.useRouter, "use-router", false, "use the router that runs")
	f.StringVar(&o.prefix, "prefix", "", "of the router's names (default "+conformance.DefaultPrefix+", or the file's with --use-router)")
	f.DurationVar(&o.patience, "patience", 0, "how long to wait for what must come (default 20s)")
	f.DurationVar(&o.startTimeout, "start-timeout", 0, "how long to wait for the consumer (default 30s with --run)")
	f.BoolVar(&o.showOutput, "show-output", false, "show what the consumer prints, on standard error")
	for name, c := range map[string]*choice{"level": &o.level, "type": &o.kind} {
		must(cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(c.of, cobra.ShellCompDirectiveNoFileComp)))
	}
	must(cmd.RegisterFlagCompletionFunc("case", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		var names []string
		for _, c := range conformance.Cases() {
			names = append(names, c.Name+"\t"+c.About)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return runConformance(cmd, o) }
	cmd.AddCommand(conformanceCasesCommand(), conformanceVectorsCommand())
	return cmd
}

func conformanceCasesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "cases",
		Short: "List the cases",
		Long: `Lists all cases with their levels and what they check.

Exit status: 0.

With --output json one list goes to standard output: name, level, about.`,
		Example: "  hopback conformance cases",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asJSON(cmd) {
				return printJSON(cmd, conformance.Cases())
			}
			for _, c := range conformance.Cases() {
				fmt.Fprintf(cmd.OutOrStdout(), "%-18s %-6s %s\n", c.Name, c.Level, c.About)
			}
			return nil
		},
	}
}

func conformanceVectorsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "vectors",
		Short: "Write the golden vectors of the message contract",
		Long: `Writes the golden vectors into a folder: typed JSON that says what a program which
takes part in the contract reads and writes, for a port to another language to
run. README.md in it describes the format, schema.json is its JSON Schema. They
are the files that Hopback's own tests run. Files of these names are replaced.

Exit status: 0 done; 1 an error.

With --output json one object goes to standard output: dir, files.`,
		Example: "  hopback conformance vectors --dir testdata/hopback",
		Args:    cobra.NoArgs,
	}
	dir := cmd.Flags().String("dir", "hopback-vectors", "where to write them; made where it is missing")
	must(cmd.MarkFlagDirname("dir"))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		names, err := conformance.WriteVectors(*dir)
		if err != nil {
			return err
		}
		if asJSON(cmd) {
			return printJSON(cmd, struct {
				Dir   string   `json:"dir"`
				Files []string `json:"files"`
			}{*dir, names})
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s: %s: read %s first\n", *dir, plural(len(names), "file"), names[0])
		return nil
	}
	return cmd
}

// conformanceConfig is what the flags and the file say, for the queues that are made.
func conformanceConfig(cmd *cobra.Command, o conformanceOptions) (conformance.Config, error) {
	getenv := func(name string) string {
		if name == config.EnvBrokerURL && o.url != "" {
			return o.url
		}
		return os.Getenv(name)
	}
	c, err := config.Load(o.file, cmd.InOrStdin(), getenv)
	if errors.Is(err, os.ErrNotExist) && o.file == config.DefaultFile {
		c, err = config.FromEnvironment(getenv)
	}
	if err == nil {
		err = c.NeedBroker()
	}
	if err != nil {
		return conformance.Config{}, err
	}
	cfg := conformance.Config{
		URL: c.Broker.URL, WorkerURL: o.workerURL, Restarted: o.restarted, Level: o.level.value, Cases: o.cases,
		Queue: o.queue, Force: o.force, Prefix: o.prefix, RouterRuns: o.useRouter,
		Patience: o.patience, StartTimeout: o.startTimeout,
	}
	if cfg.Management, err = management(c); err != nil {
		return cfg, err
	}
	if o.run != "" {
		var output io.Writer
		if o.showOutput {
			output = cmd.ErrOrStderr()
		}
		cfg.Worker = conformance.Command(o.run, output)
	}
	if o.useRouter {
		if cfg.Prefix == "" {
			cfg.Prefix = c.Prefix
		}
		cfg.Policy, err = policyFor(c, o.queue)
	}
	return cfg, err
}

// policyFor is the policy by which a router of this file serves a queue.
func policyFor(c *config.Config, queue string) (hopback.Policy, error) {
	for _, r := range c.Routes {
		if r.Queue == queue {
			return r.Policy, nil
		}
	}
	return c.PolicyOf(config.DefaultPolicy)
}

// conformanceReport is all runs, for programs.
type conformanceReport struct {
	Passed  int                   `json:"passed"`
	Failed  int                   `json:"failed"`
	Skipped int                   `json:"skipped"`
	Runs    []*conformance.Report `json:"runs"`
}

func runConformance(cmd *cobra.Command, o conformanceOptions) error {
	cfg, err := conformanceConfig(cmd, o)
	if err != nil {
		return err
	}
	kinds := []string{"quorum", "classic"}
	switch {
	case o.kind.value != "both":
		kinds = []string{o.kind.value}
	case o.queue != "":
		kinds = kinds[:1]
	}
	all := conformanceReport{Runs: []*conformance.Report{}}
	for _, kind := range kinds {
		cfg.QueueType = kind
		var report *conformance.Report
		report, err = conform(cmd.Context(), cmd, cfg)
		if report != nil {
			all.Runs = append(all.Runs, report)
			all.Passed += report.Passed
			all.Failed += report.Failed
			all.Skipped += report.Skipped
		}
		if err != nil {
			break
		}
	}
	if asJSON(cmd) {
		err = errors.Join(err, printJSON(cmd, all))
	}
	switch {
	case err != nil:
		return err
	case all.Failed > 0:
		return &differs{plural(all.Failed, "case") + " failed", true}
	}
	return nil
}

// conform is one run. In text, its results are printed as they come.
func conform(ctx context.Context, cmd *cobra.Command, cfg conformance.Config) (*conformance.Report, error) {
	out := cmd.OutOrStdout()
	cfg.Progress = func(p conformance.Progress) {
		switch {
		case p.Result == nil:
			fmt.Fprintln(cmd.ErrOrStderr(), "…", p.Text)
		case !asJSON(cmd):
			printResult(out, p.Result)
		}
	}
	report, err := conformance.Run(ctx, cfg)
	if report != nil && !asJSON(cmd) {
		for _, note := range report.Notes {
			fmt.Fprintln(out, "note:", config.Redact(note))
		}
		queue := report.Queue
		if report.QueueType != "" {
			queue += ", a " + report.QueueType + " queue"
		}
		fmt.Fprintf(out, "\n%s, level %s, %s: %d passed, %d failed, %d skipped\n\n",
			report.Broker, report.Level, queue, report.Passed, report.Failed, report.Skipped)
	}
	return report, explainDial(err)
}

func printResult(out io.Writer, r *conformance.Result) {
	fmt.Fprintf(out, "%-8s %-18s %s\n", r.Status, r.Case, r.About)
	if r.Skipped != "" {
		fmt.Fprintf(out, "%-8s   %s\n", "", r.Skipped)
	}
	for _, f := range r.Failures {
		what := f.What
		if f.Attempt > 0 {
			what = fmt.Sprintf("attempt %d: %s", f.Attempt, what)
		}
		lines := []string{"  " + what, "    expected  " + f.Expected, "    actual    " + f.Actual, "    change    " + f.Fix}
		for _, line := range lines {
			fmt.Fprintf(out, "%-8s %s\n", "", firstLine(config.Redact(strings.ReplaceAll(line, "\n", " ")), 400))
		}
	}
}
