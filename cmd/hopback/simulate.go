package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/cmd/hopback/internal/config"
	picture "github.com/hopback/hopback/cmd/hopback/internal/simulate"
	"github.com/hopback/hopback/simulate"
)

//go:generate go run . simulate --pictures ../../docs/pictures

// defaultScenario is what a first look shows.
const defaultScenario = "thundering-herd"

// simulateOptions are the flags of hopback simulate that are not a policy's.
type simulateOptions struct {
	file     string
	policies []string
	presets  []string
	settings *config.Settings

	seed        uint64
	outage      time.Duration
	messages    int64
	rate        float64
	traffic     time.Duration
	consumers   int
	concurrency int
	prefetch    int
	capacity    float64
	latency     time.Duration
	collapse    float64
	window      time.Duration
	until       time.Duration

	advise bool
	peak   float64
	brief  bool

	svg, png, html string
	pictures       string
}

func simulateCommand() *cobra.Command {
	o := simulateOptions{settings: config.NewSettings()}
	output := &choice{value: "text", of: []string{"text", "table", "json", "csv"}}
	cmd := &cobra.Command{
		Use:   "simulate [scenario]",
		Short: "See what a policy does to a dependency that fails, before you ship it",
		Long: `Simulates producers, consumers, the delay slots and a dependency that fails, for
several policies side by side, and shows the load on the dependency over time,
what is parked, how long the backlog lasts, and in words which policy to ship.
Nothing is asked of a broker, and the same seed gives the same bytes.

The scenario is one of those that come with Hopback, or a file; without one it is
` + defaultScenario + `. Flags change it: --outage 90s takes the scenario's troubles
out and puts one outage in their place.

The policies are those of -c, or one given by flags, whose names are those of the
file, and those of --preset; with none of these, the scenario's own.

With --advise it searches base, factor, cap, jitter and retries for a policy that
parks nothing that would have succeeded, asks the dependency for at most --peak
times its capacity while it is up, and recovers fastest.

Scenarios: ` + wrapList(picture.Names(), 74) + `.
Presets: ` + wrapList(simulate.Presets(), 74) + `.

Exit status: 0 simulated; 130 after Ctrl-C, with what is known by then; 1 an error,
or with --advise no policy that achieves the goal.

With --output json one object goes to standard output, times in milliseconds and
loads in multiples of the capacity: scenario, about, seed, capacity_per_second,
window_ms, interrupted, verdict, ranking, and policies; docs/simulate.md lists
their fields. csv writes the curves, a line for each step of each policy.`,
		Example: `  hopback simulate
  hopback simulate database-failover --html failover.html
  hopback simulate --outage 90s --preset none,full --max-retries 8
  hopback simulate -c hopback.yaml --policy standard --svg standard.svg
  hopback simulate --outage 5m --advise --peak 1.5`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: cobra.FixedCompletions(picture.Names(), cobra.ShellCompDirectiveDefault),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.pictures != "" {
				return makePictures(cmd, o.pictures)
			}
			name := defaultScenario
			if len(args) > 0 {
				name = args[0]
			}
			return runSimulate(cmd, &o, name, output.value)
		},
	}
	f := cmd.Flags()
	f.VarP(output, "output", "o", "how to print: text, table, json or csv")
	must(cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(output.of, cobra.ShellCompDirectiveNoFileComp)))
	f.StringVarP(&o.file, "config", "c", "", "take the policies of a configuration file; - is standard input")
	must(cmd.MarkFlagFilename("config", "yaml", "yml"))
	f.StringSliceVar(&o.policies, "policy", nil, "only these policies of the file")
	f.StringSliceVar(&o.presets, "preset", nil, "policies that everybody knows, by name")
	must(cmd.RegisterFlagCompletionFunc("preset", cobra.FixedCompletions(simulate.Presets(), cobra.ShellCompDirectiveNoFileComp)))
	for _, s := range o.settings.All() {
		f.Var(s, s.Flag(), s.Usage())
		if words := s.Choices(); words != nil {
			must(cmd.RegisterFlagCompletionFunc(s.Flag(), cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)))
		}
	}
	f.Uint64Var(&o.seed, "seed", 0, "of everything random (default the scenario's)")
	f.DurationVar(&o.outage, "outage", 0, "one outage of this length, 10s after the start, in the place of the scenario's troubles")
	f.Int64Var(&o.messages, "messages", 0, "this many messages in all, spread as the scenario's traffic is")
	f.Float64Var(&o.rate, "rate", 0, "messages a second, in the place of the scenario's traffic")
	f.DurationVar(&o.traffic, "for", 0, "how long --rate goes on (default the outage and a minute)")
	f.IntVar(&o.consumers, "consumers", 0, "how many consumers there are")
	f.IntVar(&o.concurrency, "concurrency", 0, "how many handlers each of them runs")
	f.IntVar(&o.prefetch, "prefetch", 0, "how many unsettled messages each of them may have")
	f.Float64Var(&o.capacity, "capacity", 0, "how many calls a second the dependency answers")
	f.DurationVar(&o.latency, "latency", 0, "how long a call to it takes")
	f.Float64Var(&o.collapse, "collapse", 0, "how much less it serves when asked for too much; 1 halves it at double")
	f.DurationVar(&o.window, "window", 0, "the step of the curve, and what peaks are counted in")
	f.DurationVar(&o.until, "until", 0, "end the simulation here, though messages wait")
	f.BoolVar(&o.advise, "advise", false, "search for the policy to ship")
	f.Float64Var(&o.peak, "peak", 2, "for --advise: the highest load on the dependency, × its capacity")
	f.BoolVar(&o.brief, "brief", false, "do not simulate what small changes of the winner would do")
	f.StringVar(&o.svg, "svg", "", "write the picture to this file")
	f.StringVar(&o.png, "png", "", "write the picture to this file")
	f.StringVar(&o.html, "html", "", "write one self-contained page to this file")
	f.StringVar(&o.pictures, "pictures", "", "make the pictures of the documentation in this folder")
	must(f.MarkHidden("pictures"))
	return cmd
}

// wrapList puts names into lines of a help text.
func wrapList(names []string, width int) string {
	var b strings.Builder
	at := len("Scenarios: ")
	for i, n := range names {
		if i > 0 {
			b.WriteString(",")
			if at+len(n) > width {
				b.WriteString("\n")
				at = 0
			} else {
				b.WriteString(" ")
			}
		}
		b.WriteString(n)
		at += len(n) + 2
	}
	return b.String()
}

func runSimulate(cmd *cobra.Command, o *simulateOptions, name, output string) error {
	f, err := picture.Load(name, cmd.InOrStdin())
	if err != nil {
		return err
	}
	if err := o.change(cmd, &f.Scenario); err != nil {
		return err
	}
	// The messages of a simulation are a few large blocks without pointers; what
	// else it allocates is garbage at once. Collecting early costs nothing here
	// and keeps ten million messages within a gigabyte.
	defer debug.SetGCPercent(debug.SetGCPercent(20))
	contenders, err := o.contenders(cmd, f)
	if err != nil {
		return err
	}
	bar := progressBar(cmd, output)
	if o.advise {
		return o.runAdvise(cmd, f.Scenario, contenders, bar, output)
	}
	race := simulate.Race{Scenario: f.Scenario, Contenders: contenders, Progress: bar.Tell}
	report, err := race.Run(cmd.Context())
	bar.Clear()
	if report == nil {
		return err
	}
	words := o.words(cmd.Context(), report)
	if werr := o.print(cmd, report, words, output, err != nil); werr != nil {
		return werr
	}
	return err
}

// progressBar is on standard error, where that is a terminal.
func progressBar(cmd *cobra.Command, _ string) *picture.Progress {
	if f, ok := cmd.ErrOrStderr().(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return &picture.Progress{Out: f}
	}
	return nil
}

// words is the verdict, and what small changes of the winner would do.
func (o *simulateOptions) words(ctx context.Context, r *simulate.Report) []string {
	words := r.Verdict()
	if ctx.Err() != nil {
		return append([]string{"Interrupted: this is what was known by then."}, words...)
	}
	if o.brief {
		return words
	}
	changes, err := simulate.Nudge(ctx, r.Scenario, r.Ranking()[0].Contender)
	if err != nil || len(changes) == 0 {
		return words
	}
	for _, c := range changes[1:] {
		if w := c.Words(&changes[0].Result); w != "" {
			words = append(words, r.Ranking()[0].Contender.Name+" with "+w+".")
		}
	}
	return words
}

// print writes the report in the form that was asked for, and the files.
func (o *simulateOptions) print(cmd *cobra.Command, r *simulate.Report, words []string, output string, interrupted bool) error {
	out := cmd.OutOrStdout()
	var err error
	switch output {
	case "json":
		err = picture.JSON(out, r, words, interrupted)
	case "csv":
		err = picture.CSV(out, r)
	case "table":
		err = picture.Table(out, r)
	default:
		err = picture.Text(out, r, words, styleOf(out))
	}
	if err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	for _, file := range []struct {
		name  string
		write func(io.Writer, *simulate.Report, []string) error
	}{{o.svg, picture.SVG}, {o.png, picture.PNG}, {o.html, picture.HTML}} {
		if file.name == "" {
			continue
		}
		if err := writeFile(file.name, func(w io.Writer) error { return file.write(w, r, words) }); err != nil {
			return err
		}
	}
	return nil
}

func writeFile(name string, write func(io.Writer) error) error {
	f, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("write the picture: %w", err)
	}
	if err := errors.Join(write(f), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

func styleOf(out io.Writer) picture.Style {
	s := picture.Style{Columns: 100}
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		s.Colour = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
		if w, _, err := term.GetSize(int(f.Fd())); err == nil {
			s.Columns = w
		}
	}
	return s
}

// change applies the flags to a scenario.
func (o *simulateOptions) change(cmd *cobra.Command, s *simulate.Scenario) error {
	set := cmd.Flags().Changed
	if set("seed") {
		s.Seed = o.seed
	}
	if set("outage") {
		s.Name, s.About = "outage", fmt.Sprintf("a dependency is down for %s", simulate.Span(o.outage))
		s.Dependency.Spells = []simulate.Spell{{At: 10 * time.Second, For: o.outage}}
		if !set("rate") && !set("messages") {
			rate := s.Dependency.Capacity / 2
			if set("capacity") {
				rate = o.capacity / 2
			}
			s.Traffic = []simulate.Traffic{{Rate: max(rate, 1), For: o.outage + time.Minute}}
		}
		s.Until = 0
	}
	if set("rate") {
		long := o.traffic
		if long == 0 {
			over, _ := s.Over()
			long = over + time.Minute
		}
		s.Traffic = []simulate.Traffic{{Rate: o.rate, For: long}}
	}
	if set("messages") {
		all := max(1, s.Messages())
		for i, t := range s.WithDefaults().Traffic {
			n := int64(float64(o.messages) * float64(trafficOf(t)) / float64(all))
			s.Traffic[i].Messages, s.Traffic[i].Rate = max(n, 1), 0
		}
	}
	if set("consumers") {
		s.Consumers.Count = o.consumers
	}
	if set("concurrency") {
		s.Consumers.Concurrency = o.concurrency
	}
	if set("prefetch") {
		s.Consumers.Prefetch = o.prefetch
	}
	if set("capacity") {
		s.Dependency.Capacity = o.capacity
	}
	if set("latency") {
		s.Dependency.Latency = o.latency
	}
	if set("collapse") {
		s.Dependency.Collapse = o.collapse
	}
	if set("window") {
		s.Window = o.window
	}
	if set("until") {
		s.Until = o.until
	}
	return s.Validate()
}

func trafficOf(t simulate.Traffic) int64 {
	return simulate.Scenario{Traffic: []simulate.Traffic{t}}.Messages()
}

// contenders are the policies to try.
func (o *simulateOptions) contenders(cmd *cobra.Command, f *picture.File) ([]simulate.Contender, error) {
	var all []simulate.Contender
	byFlags := false
	for _, s := range o.settings.All() {
		byFlags = byFlags || cmd.Flags().Changed(s.Flag())
	}
	switch {
	case o.file != "":
		c, err := load(cmd, o.file)
		if err != nil {
			return nil, err
		}
		names := o.policies
		if len(names) == 0 {
			names = c.PolicyNames
		}
		if len(names) == 0 {
			names = []string{config.DefaultPolicy}
		}
		for _, name := range names {
			p, err := c.PolicyOf(name)
			if err != nil {
				return nil, err
			}
			cases, err := casesOf(p, c.Routes, o.settings)
			if err != nil {
				return nil, err
			}
			for i, one := range cases {
				contender := simulate.Route(one.route)
				contender.Name = name
				if i > 0 {
					contender.Name = fmt.Sprintf("%s (%s)", name, strings.Join(one.queues, ", "))
				}
				all = append(all, contender)
			}
		}
	case len(o.policies) > 0:
		return nil, errors.New("--policy names a policy of a file: name the file with -c")
	case byFlags && len(o.presets) == 0:
		r, err := o.settings.Over(hopback.Route{Queue: "queue"})
		if err != nil {
			return nil, err
		}
		one := simulate.Route(r)
		one.Name = "yours"
		all = append(all, one)
	}
	for _, name := range o.presets {
		c, err := picture.Preset(name)
		if err != nil {
			return nil, err
		}
		if byFlags && o.file == "" && c.Source == "" && c.Way == simulate.InBroker { // --preset none,full --max-retries 8
			if c.Route, err = o.settings.Over(nameless(c.Route)); err != nil {
				return nil, err
			}
		}
		all = append(all, c)
	}
	if len(all) == 0 {
		for _, e := range f.Policies {
			all = append(all, e.Contender)
		}
	}
	if len(all) == 0 {
		for _, name := range []string{"none", "full", "equal", "decorrelated"} {
			c, _ := simulate.Preset(name)
			all = append(all, c)
		}
	}
	return all, nil
}

// nameless is a route that validates.
func nameless(r hopback.Route) hopback.Route {
	if r.Queue == "" {
		r.Queue = "queue"
	}
	return r
}
