package main

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/cmd/hopback/internal/config"
	"github.com/hopback/hopback/cmd/hopback/internal/explain"
	"github.com/hopback/hopback/delay"
)

// chartColumns is the width of the chart, on every terminal the same.
const chartColumns = 80

// shownRetries is how many retries explain lists before it skips to the last.
const shownRetries = 25

func explainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain",
		Short: "Show what a policy does to a message that keeps failing",
		Long: `Shows for each retry the backoff before jitter (ceiling), the least, the mean and
the most that it waits, the delay slots that it may wait in, and when it runs,
counted from the first failure; then the same as a chart, with the band that
jitter makes of it shaded. The last line is the time until the message is
parked. The handler's own time comes on top. Nothing is asked of a broker.

With -c it explains the policies of a file, each with the mechanism of the routes
that use it; without, one policy given by flags, whose names and defaults are
those of the file. Flags given beside -c and --policy replace what the file says,
to see what a change would do.

Exit status: 0 explained; 1 an error.

With --output json one object goes to standard output: policies, each with name,
routes, mechanism, settings, retries (retry, and in milliseconds ceiling, least,
mean, most, slots, then, after_least, after_mean, after_most), omitted, expires,
may_expire, and total (least, mean, most in milliseconds).`,
		Example: `  hopback explain -c hopback.yaml
  hopback explain -c hopback.yaml --policy standard --max 5m
  hopback explain --backoff exponential --base 1s --factor 2 --max 60s --jitter full --max-retries 5
  hopback explain --backoff list --delays 10s,1m,10m --jitter none --mechanism ladder --ladder 10s,1m,10m`,
		Args: cobra.NoArgs,
	}
	file := cmd.Flags().StringP("config", "c", "", "the configuration file; - is standard input")
	must(cmd.MarkFlagFilename("config", "yaml", "yml"))
	policy := cmd.Flags().String("policy", "", "only this policy of the file")
	settings := config.NewSettings()
	for _, s := range settings.All() {
		cmd.Flags().Var(s, s.Flag(), s.Usage())
		if words := s.Choices(); words != nil {
			must(cmd.RegisterFlagCompletionFunc(s.Flag(), cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)))
		}
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cases, prefix, err := explainCases(cmd, *file, *policy, settings)
		if err != nil {
			return err
		}
		if asJSON(cmd) {
			out := struct {
				Policies []explained `json:"policies"`
			}{}
			for _, c := range cases {
				out.Policies = append(out.Policies, newExplained(c, explain.Route(c.route, prefix, 1000)))
			}
			return printJSON(cmd, out)
		}
		for i, c := range cases {
			if i > 0 {
				fmt.Fprintln(cmd.OutOrStdout())
			}
			printExplained(cmd.OutOrStdout(), c, explain.Route(c.route, prefix, shownRetries))
		}
		return nil
	}
	return cmd
}

// explainCase is one policy with one mechanism, and the routes that have both.
type explainCase struct {
	route  hopback.Route
	queues []string
}

// explainCases lists what is to be explained.
func explainCases(cmd *cobra.Command, file, policy string, settings *config.Settings) ([]explainCase, string, error) {
	if file == "" {
		if policy != "" {
			return nil, "", errors.New("--policy names a policy of a file: name the file with -c")
		}
		r, err := settings.Over(hopback.Route{Queue: "queue"})
		return []explainCase{{route: r}}, hopback.DefaultPrefix, err
	}
	c, err := load(cmd, file)
	if err != nil {
		return nil, "", err
	}
	names := c.PolicyNames
	if policy != "" {
		names = []string{policy}
	} else {
		for _, r := range c.Routes { // the library's own, where a route uses it
			if r.Policy.Name == config.DefaultPolicy {
				if _, defined := c.Policies[config.DefaultPolicy]; !defined {
					names = append([]string{config.DefaultPolicy}, names...)
					break
				}
			}
		}
	}
	if len(names) == 0 {
		names = []string{config.DefaultPolicy}
	}
	var cases []explainCase
	for _, name := range names {
		p, err := c.PolicyOf(name)
		if err != nil {
			return nil, "", err
		}
		of, err := casesOf(p, c.Routes, settings)
		if err != nil {
			return nil, "", err
		}
		cases = append(cases, of...)
	}
	return cases, c.Prefix, nil
}

// casesOf puts the routes of a policy together that hold delays alike.
func casesOf(p hopback.Policy, routes []hopback.Route, settings *config.Settings) ([]explainCase, error) {
	var cases []explainCase
	add := func(r hopback.Route, queue string) error {
		r, err := settings.Over(r)
		if err != nil {
			return err
		}
		for i, c := range cases {
			o := c.route
			if o.Mechanism == r.Mechanism && o.Precision == r.Precision && reflect.DeepEqual(o.Ladder, r.Ladder) {
				cases[i].queues = append(cases[i].queues, queue)
				return nil
			}
		}
		c := explainCase{route: r}
		if queue != "" {
			c.queues = []string{queue}
		}
		cases = append(cases, c)
		return nil
	}
	for _, r := range routes {
		if r.Policy.Name == p.Name {
			// Slots of its own have other names and wait no longer.
			if err := add(hopback.Route{Queue: r.Queue, Policy: p, Mechanism: r.Mechanism, Ladder: r.Ladder, Precision: r.Precision}, r.Queue); err != nil {
				return nil, err
			}
		}
	}
	if len(cases) == 0 {
		err := add(hopback.Route{Queue: "queue", Policy: p}, "")
		return cases, err
	}
	return cases, nil
}

func printExplained(out io.Writer, c explainCase, e explain.Policy) {
	p := e.Route.Policy
	name := p.Name
	if name == "" {
		name = "by flags"
	}
	fmt.Fprintf(out, "policy %s: %s\n", name, describePolicy(p))
	if len(c.queues) > 0 {
		fmt.Fprintf(out, "routes: %s\n", strings.Join(c.queues, ", "))
	}
	fmt.Fprintf(out, "mechanism: %s\n\n", describeMechanism(e.Route))
	if len(e.Retries) > 0 {
		printRetries(out, e)
		for _, line := range explain.Chart(e, chartColumns, short) {
			fmt.Fprintln(out, line)
		}
		fmt.Fprintln(out)
	}
	fmt.Fprintln(out, conclusion(e))
}

func printRetries(out io.Writer, e explain.Policy) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "RETRY\tCEILING\tLEAST\tMEAN\tMOST\tWAITS IN\tRUNS AFTER")
	for i, r := range e.Retries {
		if e.Omitted > 0 && i == len(e.Retries)-1 {
			fmt.Fprintf(w, "…\t%d more\t\t\t\t\t\n", e.Omitted)
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Number, short(r.Ceiling), short(r.Wait.Least), short(r.Wait.Mean), short(r.Wait.Most), slotsOf(r), span(r.After))
	}
	_ = w.Flush()
	fmt.Fprintln(out)
}

// span writes the least, the mean and the most, or the one that they are.
func span(s explain.Span) string {
	if s.Least == s.Most {
		return short(s.Mean)
	}
	return fmt.Sprintf("%s – %s (mean %s)", short(s.Least), short(s.Most), short(s.Mean))
}

func slotsOf(r explain.Retry) string {
	s := labels(r.Slots)
	if len(r.Then) > 0 {
		s += ", then " + labels(r.Then)
	}
	return s
}

func labels(ds []time.Duration) string {
	if len(ds) > 3 {
		return fmt.Sprintf("%s … %s", delay.Label(ds[0]), delay.Label(ds[len(ds)-1]))
	}
	var ls []string
	for _, d := range ds {
		ls = append(ls, delay.Label(d))
	}
	return strings.Join(ls, " or ")
}

func conclusion(e explain.Policy) string {
	p := e.Route.Policy
	switch n := e.Route.Policy.MaxRetries; {
	case n <= 0:
		return "parked at its first failure"
	case e.Expires:
		last := 0
		if len(e.Retries) > 0 {
			last = e.Retries[len(e.Retries)-1].Number
		}
		return fmt.Sprintf("parked by max_age, %s, after at most %s of %d: at most %s after its first failure",
			short(p.MaxAge), plural(last, "retry"), n, short(e.Total.Most))
	default:
		s := fmt.Sprintf("parked after %s: %s after its first failure", plural(n, "retry"), span(e.Total))
		if e.MayExpire {
			s += fmt.Sprintf(", or earlier by max_age, %s", short(p.MaxAge))
		}
		return s
	}
}

func describePolicy(p hopback.Policy) string {
	var parts []string
	switch p.Backoff {
	case hopback.Exponential:
		parts = append(parts, fmt.Sprintf("exponential from %s, × %g", short(p.Base), p.Factor))
		if p.Jitter == hopback.Decorrelated {
			parts = []string{"from " + short(p.Base)}
		}
	case hopback.List:
		var ds []string
		for _, d := range p.Delays {
			ds = append(ds, short(d))
		}
		parts = append(parts, "list "+strings.Join(ds, ", "))
	default:
		parts = append(parts, fmt.Sprintf("%s from %s", p.Backoff, short(p.Base)))
	}
	parts = append(parts, "at most "+short(p.Max))
	switch p.Jitter {
	case hopback.NoJitter:
		parts = append(parts, "no jitter")
	case hopback.Proportional:
		parts = append(parts, fmt.Sprintf("jitter ± %g %%", 100*p.JitterRatio))
	default:
		parts = append(parts, string(p.Jitter)+" jitter")
	}
	return strings.Join(append(parts, plural(max(p.MaxRetries, 0), "retry")), ", ")
}

func describeMechanism(r hopback.Route) string {
	if r.Mechanism == hopback.Ladder {
		var ds []string
		for _, d := range r.Ladder {
			ds = append(ds, delay.Label(d))
		}
		return "ladder of " + strings.Join(ds, ", ")
	}
	if r.Mechanism == hopback.Native {
		return "native: the broker holds any delay, to the millisecond"
	}
	if r.Mechanism == hopback.Plugin {
		return "plugin: " + delay.PluginCost
	}
	if r.Mechanism == hopback.NativeLinear {
		return "native-linear: the broker waits base × n, without jitter, for consumers that are not Hopback's"
	}
	if r.Precision == hopback.PrecisionAuto {
		return "wheel, two digits of a delay; one, where there is jitter, while many messages are retried"
	}
	return fmt.Sprintf("wheel, precision %s", r.Precision)
}

// explained is an explanation for programs.
type explained struct {
	Name      string           `json:"name"`
	Routes    []string         `json:"routes"`
	Mechanism string           `json:"mechanism"`
	Settings  map[string]any   `json:"settings"`
	Retries   []explainedRetry `json:"retries"`
	Omitted   int              `json:"omitted"`
	Expires   bool             `json:"expires"`
	MayExpire bool             `json:"may_expire"`
	Total     explainedTotal   `json:"total"`
}

type explainedTotal struct {
	Least float64 `json:"least"`
	Mean  float64 `json:"mean"`
	Most  float64 `json:"most"`
}

type explainedRetry struct {
	Retry      int       `json:"retry"`
	Ceiling    float64   `json:"ceiling"`
	Least      float64   `json:"least"`
	Mean       float64   `json:"mean"`
	Most       float64   `json:"most"`
	Slots      []float64 `json:"slots"`
	Then       []float64 `json:"then"`
	AfterLeast float64   `json:"after_least"`
	AfterMean  float64   `json:"after_mean"`
	AfterMost  float64   `json:"after_most"`
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func allMS(ds []time.Duration) []float64 {
	out := []float64{}
	for _, d := range ds {
		out = append(out, ms(d))
	}
	return out
}

func newExplained(c explainCase, e explain.Policy) explained {
	out := explained{
		Name: e.Route.Policy.Name, Routes: c.queues, Mechanism: e.Route.Mechanism, Settings: config.Written(e.Route),
		Retries: []explainedRetry{}, Omitted: e.Omitted, Expires: e.Expires, MayExpire: e.MayExpire,
		Total: explainedTotal{ms(e.Total.Least), ms(e.Total.Mean), ms(e.Total.Most)},
	}
	if out.Routes == nil {
		out.Routes = []string{}
	}
	for _, r := range e.Retries {
		out.Retries = append(out.Retries, explainedRetry{
			r.Number, ms(r.Ceiling), ms(r.Wait.Least), ms(r.Wait.Mean), ms(r.Wait.Most),
			allMS(r.Slots), allMS(r.Then), ms(r.After.Least), ms(r.After.Mean), ms(r.After.Most),
		})
	}
	return out
}
