package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/cmd/hopback/internal/config"
	"github.com/hopback/hopback/cmd/hopback/internal/parked"
	"github.com/hopback/hopback/parking"
	"github.com/hopback/hopback/router"
)

// replayFlags are the flags of parked replay.
type replayFlags struct {
	parkedFlags
	pick     filterFlags
	o        parking.Replay
	resume   string
	wait     time.Duration
	dry, yes bool
}

func parkedReplayCommand() *cobra.Command {
	var f replayFlags
	cmd := &cobra.Command{
		Use:   "replay [QUEUE]",
		Short: "Send parked messages back to the queue that they failed in",
		Long: `Sends messages back: one (--id), those that the other flags pick, or all; each to
the queue that it failed in and to no other. A message leaves the parking queue only
when the broker has confirmed it there. What is sent is fixed when the command
begins: what is parked later, or comes back, is not sent again. What stays keeps its
order.

The counter starts anew (but for --keep-count); the history stays and gains a line.

With --ramp it begins with 1 message a second, then 10, then 100 and so on, each for
as long as the flag says. At a terminal, Enter pauses and goes on. Ctrl-C ends it
when what is on its way has arrived; what is left keeps its place, and --resume goes
on, also after a crash: then what was on its way, at most, is there twice, with
the same x-retry-id.

It ends with the outcome: of those that were sent, how many are parked again, may
still wait in work queues and slots (at most: these are counted, not read), and are
neither (handled, or discarded by their handler). --wait says how long to wait for
those that wait.

Exit status: 0 all that were picked were sent; 2 some stay, or it was stopped, or
declined; 1 an error; 130 after Ctrl-C.

With --output json one array goes to standard output, with an object for each
parking queue: parked_in, started, dry_run, total, picked (where it was counted
before), replayed, not_picked, homeless, failed, failure (why the first failed),
queues, missing, stopped, groups (with --dry-run), and outcome (parked_again,
waiting_at_most, handled_at_least).`,
		Example: `  hopback parked replay orders --dry-run
  hopback parked replay orders --id 7f3a91c2
  hopback parked replay orders --fingerprint 5b1d0c3e --ramp 10s --stop-on-failure-ratio 0.2
  hopback parked replay --all --type TimeoutError --rate 50 --yes`,
		Args: cobra.MaximumNArgs(1),
	}
	f.add(cmd, true)
	f.pick.add(cmd)
	s := cmd.Flags()
	s.BoolVar(&f.dry, "dry-run", false, "show how many, which, and where to; send nothing")
	s.BoolVarP(&f.yes, "yes", "y", false, "do not ask")
	s.IntVar(&f.o.Limit, "limit", 0, "at most so many of each queue, the oldest; 0 for all")
	s.Float64Var(&f.o.Rate, "rate", 0, "at most so many a second; 0 for no limit")
	s.DurationVar(&f.o.Ramp, "ramp", 0, "begin with 1 a second, then 10, 100, …, each for so long, such as 10s")
	s.Float64Var(&f.o.StopRatio, "stop-on-failure-ratio", 0, "stop when more than this part is parked again, such as 0.2; needs --rate or --ramp")
	s.BoolVar(&f.o.KeepCount, "keep-count", false, "go on with the retries that each has, instead of starting anew")
	s.StringVar(&f.o.ToQueue, "to-queue", "", "to this queue instead")
	s.StringVar(&f.o.ToExchange, "to-exchange", "", "to this exchange instead")
	s.StringVar(&f.o.ToKey, "to-routing-key", "", "with this routing key, for --to-exchange; by default the one it was first published with")
	s.StringVar(&f.resume, "resume", "", "go on with a replay that was interrupted: the time that it told at its start")
	s.DurationVar(&f.wait, "wait", 5*time.Second, "wait so long at the end for those that still wait")
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) }
	return cmd
}

// replayed is a replay for programs.
type replayed struct {
	ParkedIn  string          `json:"parked_in"`
	Started   *time.Time      `json:"started"`
	DryRun    bool            `json:"dry_run"`
	Total     int             `json:"total"`
	Picked    *int            `json:"picked,omitempty"`
	Replayed  int             `json:"replayed"`
	NotPicked int             `json:"not_picked"`
	Homeless  int             `json:"homeless"`
	Failed    int             `json:"failed"`
	Failure   string          `json:"failure,omitempty"`
	Queues    map[string]int  `json:"queues"`
	Missing   map[string]int  `json:"missing"`
	Stopped   string          `json:"stopped"`
	Groups    []parkedGroup   `json:"groups,omitempty"`
	Outcome   *replayedResult `json:"outcome,omitempty"`
}

type replayedResult struct {
	ParkedAgain int `json:"parked_again"`
	Waiting     int `json:"waiting_at_most"`
	Handled     int `json:"handled_at_least"`
}

func (f *replayFlags) run(cmd *cobra.Command, args []string) error {
	var err error
	if f.o.Filter, err = f.pick.filter(); err != nil {
		return err
	}
	if f.resume != "" {
		if f.o.Resume, err = time.Parse(time.RFC3339Nano, f.resume); err != nil {
			return fmt.Errorf("--resume: %q cannot work: use the time that the replay told at its start", f.resume)
		}
	}
	if err := f.o.Validate(); err != nil {
		return err
	}
	l, err := f.open(cmd, args...)
	if err != nil {
		return err
	}
	defer l.close()
	if f.o.Filter, err = l.exact(cmd.Context(), f.o.Filter); err != nil {
		return err
	}
	out := []replayed{}
	left := 0
	for _, p := range l.places {
		r, stay, err := f.replay(cmd, l, p)
		if r != nil {
			out = append(out, *r)
		}
		left += stay
		if err != nil {
			if asJSON(cmd) && len(out) > 0 {
				err = errors.Join(err, printJSON(cmd, out))
			}
			return explainQueue(err)
		}
	}
	if asJSON(cmd) {
		if err := printJSON(cmd, out); err != nil {
			return err
		}
	}
	if left > 0 && !f.dry {
		return &differs{plural(left, "message") + " stayed that should have been sent", true}
	}
	return nil
}

// replay does it for one parking queue. stay is how many were picked and stayed.
func (f *replayFlags) replay(cmd *cobra.Command, l *lot, p place) (r *replayed, stay int, err error) {
	o := f.o
	o.Filter = p.narrow(o.Filter)
	text := !asJSON(cmd)
	out := cmd.OutOrStdout()
	picked := 0
	if f.dry || !f.yes {
		plan, err := f.plan(cmd, p, o)
		if err != nil {
			return nil, 0, err
		}
		picked = plan.Picked
		if text {
			printPlan(out, p.Name(), plan)
		}
		if f.dry || picked == 0 {
			r := &replayed{
				ParkedIn: p.Name(), DryRun: f.dry, Total: plan.Total, Picked: &picked,
				Queues: plan.Queues, Missing: plan.Missing, Homeless: sum(plan.Missing),
			}
			for _, g := range plan.Groups {
				r.Groups = append(r.Groups, asGroup(p.Name(), g))
			}
			return r, sum(plan.Missing), nil
		}
		if err := confirm(cmd, f.yes, fmt.Sprintf("Send %s back from %s?", plural(picked, "message"), p.Name())); err != nil {
			return nil, 0, err
		}
	}
	report, err := f.send(cmd, p, o, picked)
	l.bar.clear()
	r = &replayed{
		ParkedIn: p.Name(), Started: when(report.Started), Total: report.Total, Replayed: report.Replayed, NotPicked: report.NotPicked,
		Homeless: report.Homeless, Failed: report.Failed, Queues: report.Queues, Missing: report.Missing, Stopped: report.Stopped,
	}
	if picked > 0 {
		r.Picked = &picked
	}
	if report.Why != nil {
		r.Failure = report.Why.Error()
	}
	if text {
		printReplay(out, p.Name(), report)
	}
	if err != nil {
		// Not where all of the limit were sent: without one the line would send the rest.
		left := report.Replayed < report.Total && (o.Limit == 0 || report.Replayed < o.Limit)
		if left && (report.Replayed > 0 || ctxEnded(cmd.Context())) {
			fmt.Fprintf(cmd.ErrOrStderr(), "go on with: %s\n", goOn(cmd, p, o, report))
		}
		return r, 0, err
	}
	stay = report.Homeless + report.Failed
	if report.Stopped != "" {
		stay = max(stay, 1)
	}
	if report.Replayed > 0 && o.ToQueue == "" && o.ToExchange == "" {
		result, err := f.outcome(cmd, l, p, report)
		if err != nil {
			return r, stay, err
		}
		r.Outcome = &replayedResult{result.ParkedAgain, result.Waiting, result.Handled}
		if text {
			printOutcome(out, result)
		}
	}
	return r, stay, nil
}

func ctxEnded(ctx context.Context) bool { return ctx.Err() != nil }

// goOn is the command that goes on with an interrupted replay of a place: with
// the same set, so that times are written out and a limit is what is left of it.
func goOn(cmd *cobra.Command, p place, o parking.Replay, r parking.ReplayReport) string {
	name := p.work
	if name == "" {
		name = p.Name()
	}
	line := []string{cmd.CommandPath(), quote(name)}
	for _, flag := range []string{
		"config", "force", "error", "type", "fingerprint", "reason", "policy", "exchange", "routing-key", "rate", "ramp",
		"stop-on-failure-ratio", "keep-count", "to-queue", "to-exchange", "to-routing-key",
	} {
		if fl := cmd.Flags().Lookup(flag); fl != nil && fl.Changed {
			line = append(line, "--"+flag+"="+quote(fl.Value.String()))
		}
	}
	for flag, at := range map[string]time.Time{"since": o.Filter.Since, "until": o.Filter.Until} {
		if !at.IsZero() {
			line = append(line, "--"+flag+"="+at.UTC().Format(time.RFC3339Nano))
		}
	}
	for _, id := range o.Filter.IDs {
		line = append(line, "--id="+quote(id))
	}
	for _, flag := range []string{"header", "body-json"} {
		values, _ := cmd.Flags().GetStringArray(flag)
		for _, v := range values {
			line = append(line, "--"+flag+"="+quote(v))
		}
	}
	if o.Limit > 0 {
		line = append(line, fmt.Sprintf("--limit=%d", o.Limit-r.Replayed))
	}
	slices.Sort(line[2:])
	return strings.Join(append(line, "--resume", r.Started.Format(time.RFC3339Nano)), " ")
}

// quote writes a word for a shell.
func quote(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=@%+,") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func sum(m map[string]int) (n int) {
	for _, v := range m {
		n += v
	}
	return n
}

func (f *replayFlags) plan(cmd *cobra.Command, p place, o parking.Replay) (parking.Plan, error) {
	bar := newProgress(cmd.ErrOrStderr())
	defer bar.clear()
	return p.Plan(cmd.Context(), o, looking(bar, p.Name()))
}

func printPlan(out io.Writer, name string, plan parking.Plan) {
	fmt.Fprintf(out, "%s of %s in %s, %s\n", parked.Thousands(plan.Picked), plural(plan.Total, "message"), name, plural(int(plan.Bytes), "byte"))
	printNumbers(out, "go to", plan.Queues)
	printNumbers(out, "stay: there is no queue", plan.Missing)
	if plan.Picked > 0 {
		fmt.Fprintln(out)
		printGroups(out, plan.Groups, "fingerprint", 10)
	}
}

func printNumbers(out io.Writer, what string, m map[string]int) {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		shown := firstLine(name, 60)
		if name == "" {
			shown = "(of which nobody knows the name)"
		}
		fmt.Fprintf(out, "  %s %s %s\n", parked.Thousands(m[name]), what, shown)
	}
}

// send runs the replay, with its progress and the key that pauses it.
func (f *replayFlags) send(cmd *cobra.Command, p place, o parking.Replay, picked int) (parking.ReplayReport, error) {
	bar := newProgress(cmd.ErrOrStderr())
	defer bar.clear()
	var paused atomic.Bool
	if terminal(cmd.InOrStdin()) && bar.out != nil {
		o.Paused = paused.Load
		go func() { // ends with the process, since nothing else ends a read
			in := bufio.NewReader(cmd.InOrStdin())
			for {
				if _, err := in.ReadString('\n'); err != nil {
					return
				}
				paused.Store(!paused.Load())
			}
		}()
	}
	began, told := time.Now(), false
	o.Progress = func(r parking.ReplayReport) {
		if !told {
			told = true
			if r.Total > r.Replayed && o.Resume.IsZero() {
				fmt.Fprintf(cmd.ErrOrStderr(), "replay %s (for --resume)\n", r.Started.Format(time.RFC3339Nano))
			}
		}
		bar.show(replayLine(r, picked, time.Since(began)))
	}
	return p.Replay(cmd.Context(), o)
}

// replayLine is the line of progress of a replay. How many it will be is known
// where they were counted before; else how much of the queue is read is the next
// best.
func replayLine(r parking.ReplayReport, picked int, elapsed time.Duration) string {
	line := ""
	switch {
	case picked > 0:
		line = parked.Progress(r.Replayed, picked, elapsed) + " sent"
	case r.NotPicked+r.Homeless+r.Failed == 0:
		line = parked.Progress(r.Replayed, r.Total, elapsed) + " sent"
	default:
		line = parked.Progress(r.Seen, r.Total, elapsed) + " read, " + parked.Thousands(r.Replayed) + " sent"
	}
	switch {
	case r.Paused:
		line += ", paused: Enter goes on"
	case r.Rate > 0:
		line += fmt.Sprintf(", at most %s/s", parked.Rate(r.Rate))
	}
	if r.Failed+r.Homeless > 0 {
		line += fmt.Sprintf(", %d stay", r.Failed+r.Homeless)
	}
	return line
}

func printReplay(out io.Writer, name string, r parking.ReplayReport) {
	fmt.Fprintf(out, "%s of %s sent back from %s\n", parked.Thousands(r.Replayed), plural(r.Total, "message"), name)
	printNumbers(out, "went to", r.Queues)
	for _, s := range []struct {
		n   int
		why string
	}{
		{r.NotPicked, "were not picked"},
		{r.Homeless, "stay: nobody knows their queue, or it does not exist (--to-queue names one)"},
		{r.Failed, fmt.Sprintf("stay: the broker did not take or confirm them (%v)", r.Why)},
	} {
		if s.n > 0 {
			fmt.Fprintf(out, "  %s %s\n", parked.Thousands(s.n), s.why)
		}
	}
	printNumbers(out, "stay: there is no queue", r.Missing)
	if r.Stopped != "" {
		fmt.Fprintf(out, "stopped: %s\n", r.Stopped)
	}
}

// outcome waits a little for what was sent, and looks what became of it.
func (f *replayFlags) outcome(cmd *cobra.Command, l *lot, p place, r parking.ReplayReport) (parking.Outcome, error) {
	ctx := cmd.Context()
	queues := l.waitingQueues(ctx, r)
	bar := newProgress(cmd.ErrOrStderr())
	defer bar.clear()
	// The work queue counts what was sent a moment later.
	settle := time.Now().Add(min(f.wait, 500*time.Millisecond))
	for deadline := time.Now().Add(f.wait); time.Now().Before(deadline); {
		n, err := p.Waiting(ctx, queues...)
		if err != nil {
			return parking.Outcome{}, err
		}
		if n == 0 && time.Now().After(settle) {
			break
		}
		bar.show(fmt.Sprintf("%s wait in work queues and slots, looking until %s", parked.Thousands(n), deadline.Local().Format(time.TimeOnly)))
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			deadline = time.Now()
		}
	}
	// Also after Ctrl-C: the replay itself is done.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Minute)
	defer cancel()
	defer l.bar.clear()
	return p.Outcome(ctx, parking.OutcomeQuery{Started: r.Started, Replayed: r.Replayed, Waiting: queues})
}

// waitingQueues are the queues that replayed messages may wait in: those that they
// were sent to, the slots of their routes, and what a router reads. A router holds
// in the wheel what a consumer of the library would hold elsewhere, and takes a queue
// without a route by the default policy.
func (l *lot) waitingQueues(ctx context.Context, r parking.ReplayReport) []string {
	queues := []string{router.Exchange(l.config.Prefix), router.Aside(l.config.Prefix)}
	add := func(name string) {
		if !slices.Contains(queues, name) {
			queues = append(queues, name)
		}
	}
	c := *l.config
	for name := range r.Queues {
		if slices.ContainsFunc(c.Routes, func(r hopback.Route) bool { return r.Queue == name }) {
			continue
		}
		if p, err := c.PolicyOf(config.DefaultPolicy); err == nil {
			c.Routes = append(slices.Clone(c.Routes), hopback.Route{Queue: name, Policy: p, Mechanism: hopback.Wheel})
		}
	}
	var routes []hopback.Route
	if t, err := resolve(ctx, &c, l.conn, false); err == nil {
		routes = t.routes
	}
	for name := range r.Queues {
		add(name)
		for _, route := range routes {
			if route.Queue != name {
				continue
			}
			held := route
			if held.Mechanism != hopback.Ladder {
				held.Mechanism = hopback.Wheel
			}
			for _, route := range []hopback.Route{route, held} {
				for _, q := range route.DelayMechanism(l.config.Prefix).Topology().Queues {
					add(q.Name)
				}
			}
		}
	}
	return queues
}

func printOutcome(out io.Writer, o parking.Outcome) {
	fmt.Fprintf(out, "outcome: %s parked again, ", parked.Thousands(o.ParkedAgain))
	if o.Waiting == 0 {
		fmt.Fprintf(out, "0 waiting, %s handled\n", parked.Thousands(o.Handled))
	} else {
		fmt.Fprintf(out, "at most %s waiting, at least %s handled\n", parked.Thousands(o.Waiting), parked.Thousands(o.Handled))
	}
	if !o.HandsSeen && o.Handled > 0 {
		fmt.Fprintln(out, "         (without a management URL, what handlers hold at the moment counts as handled)")
	}
}
