package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"

	"github.com/hopback/hopback/attach"
	"github.com/hopback/hopback/cmd/hopback/internal/config"
	"github.com/hopback/hopback/topology"
)

// attachFlags are the flags of attach and detach.
type attachFlags struct {
	file     string
	policy   string
	write    bool
	request  attach.Request
	dry, yes bool
}

func (f *attachFlags) add(cmd *cobra.Command) {
	s := cmd.Flags()
	s.StringVarP(&f.file, "config", "c", config.DefaultFile, "the configuration file; - is standard input")
	must(cmd.MarkFlagFilename("config", "yaml", "yml"))
	s.BoolVar(&f.dry, "dry-run", false, "show what would be changed; change nothing")
	s.BoolVarP(&f.yes, "yes", "y", false, "do not ask")
	s.BoolVar(&f.request.Others, "with-others", false, "also the queues that dead-letter through the same exchange and key")
}

func attachCommand() *cobra.Command {
	var f attachFlags
	cmd := &cobra.Command{
		Use:   "attach QUEUE",
		Short: "Make the rejections of an existing queue flow to the router",
		Long: `Makes what the consumers of a queue reject flow to <prefix>.failed, which hopback
serve reads, without declaring the queue anew and without a change in its consumers:

  by a policy of RabbitMQ for this one queue. Policies do not merge: ours has all
  that the queue goes by now, a higher priority, and our settings.
  by a binding, where the queue was declared with x-dead-letter-exchange, since an
  argument beats a policy. --dlq says what becomes of the queues that get its dead
  letters so far: unbind takes their bindings away until the queue is detached, keep
  leaves them, and they get a copy of every failed attempt.

What is to be changed is shown, and what to know about it; then it asks. The
router's own exchanges and queues are declared where they are missing. hopback
detach gives back exactly what was. It is safe to run again, and should be when the
policy has changed that ours extends: hopback status tells.

--policy is the policy of the file by which the queue is to be retried. It is the
one of its route, and "default" where it has none: for another, write the line that
is told into the file, or let --write do that. A router that runs reads the file
again on SIGHUP.

It refuses, with a reason and a way out, what would lose messages, duplicate them
or send them in circles, and what is yours to decide.

It takes the management API, and an account with the tag policymaker.

Exit status: 0 attached, or nothing to do; 2 refused, or declined; 1 an error.

With --output json one object goes to standard output: queue, type, how (argument,
policy or binding), dry_run, applied, empty, needs (how much the router lacked),
changes (kind, verb, name, diff), notes, refusals (reason, fix), and route (policy,
in_file, line).`,
		Example: `  hopback attach orders --dry-run
  hopback attach orders --yes
  hopback attach orders --policy patient --write
  hopback attach orders --dlq unbind`,
		Args: cobra.ExactArgs(1),
	}
	f.add(cmd)
	s := cmd.Flags()
	s.StringVar(&f.policy, "policy", "", "the policy of the file for this queue (default: that of its route, else \"default\")")
	s.BoolVar(&f.write, "write", false, "write a route for the queue into the file, where there is none")
	dlq := &choice{of: []string{attach.Keep, attach.Unbind}}
	strategy := &choice{of: []string{attach.AtLeastOnce, attach.AtMostOnce}}
	s.Var(dlq, "dlq", "what becomes of who gets its dead letters so far, by an exchange: keep or unbind")
	s.Var(strategy, "strategy", "of a quorum queue: at-least-once, which makes a full queue refuse, or at-most-once (default the first, where a full queue does as before)")
	s.StringArrayVar(&f.request.Keys, "key", nil, "a routing key that messages have, for a direct dead-letter exchange; may be given several times")
	for name, c := range map[string]*choice{"dlq": dlq, "strategy": strategy} {
		must(cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(c.of, cobra.ShellCompDirectiveNoFileComp)))
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f.request.Queue, f.request.Copies, f.request.Strategy = args[0], dlq.value, strategy.value
		return f.attach(cmd)
	}
	return cmd
}

func detachCommand() *cobra.Command {
	var f attachFlags
	cmd := &cobra.Command{
		Use:   "detach QUEUE",
		Short: "Take back what attach did",
		Long: `Takes back what hopback attach made for a queue: it goes by the policy of before
again, or its dead-letter exchange leads to where it led before. What was attached
in another way is left alone, and said.

Messages that wait for a retry go on to come back; how many there are is told. For
them the queue stays bound to the way back, and its parking queue stays.

RabbitMQ deletes what is on its way from a quorum queue to its dead-letter exchange
when at-least-once ends. Detaching waits until nothing is, as far as figures of
some seconds ago show, and refuses where something stays. To rule it out stop the
queue's consumers meanwhile.

Exit status: 0 detached, or nothing to do; 2 refused, or declined; 1 an error.

With --output json one object goes to standard output: queue, type, how, dry_run,
applied, empty, changes, notes, refusals as with attach, and waiting (shared: in
the slots of all queues together; own: in slots of this queue alone).`,
		Example: `  hopback detach orders --dry-run
  hopback detach orders --yes`,
		Args: cobra.ExactArgs(1),
	}
	f.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f.request.Queue = args[0]
		return f.detach(cmd)
	}
	return cmd
}

// open reads the file, or makes do without one, and needs the management API.
func (f *attachFlags) open(cmd *cobra.Command) (*config.Config, *topology.Management, error) {
	c, err := loadAny(cmd, f.file)
	if err == nil {
		err = c.NeedBroker()
	}
	if err == nil && c.Broker.ManagementURL == "" {
		err = fmt.Errorf("%s: broker.management_url: there is none, and policies and bindings are seen nowhere else: write it into the file or set %s, "+
			"such as http://localhost:15672 (the plugin rabbitmq_management must be enabled)", c.File, config.EnvManagementURL)
	}
	if err != nil {
		return nil, nil, err
	}
	m, err := management(c)
	f.request.Prefix = c.Prefix
	return c, m, err
}

func (f *attachFlags) attach(cmd *cobra.Command) error {
	c, m, err := f.open(cmd)
	if err != nil {
		return err
	}
	route, err := f.route(c)
	if err != nil {
		return err
	}
	p, err := attach.MakePlan(cmd.Context(), m, f.request)
	if err != nil {
		return err
	}
	route.tell(p)
	return f.carryOut(cmd, c, p, route, "", func() string {
		return fmt.Sprintf("%s is attached: what its consumers reject is retried by the policy %q\nTo take it back: hopback detach %[1]s", p.Queue, route.policy)
	})
}

func (f *attachFlags) detach(cmd *cobra.Command) error {
	c, m, err := f.open(cmd)
	if err != nil {
		return err
	}
	p, err := attach.MakeDetachPlan(cmd.Context(), m, f.request)
	if err != nil {
		return err
	}
	st, err := attach.Look(cmd.Context(), m, c.Prefix)
	if err != nil {
		return err
	}
	shared, own := st.Waiting(p.Queue)
	if !p.Refused() && !p.Empty() {
		p.Notes = append(p.Notes, fmt.Sprintf("what waits for a retry goes on to come back: %s of all queues of the prefix %s, and %d in slots of this queue alone (some seconds ago)",
			plural(int(shared), "message"), c.Prefix, own))
	}
	return f.carryOut(cmd, c, p, nil, fmt.Sprintf(`{"shared": %d, "own": %d}`, shared, own), func() string {
		return p.Queue + " is detached"
	})
}

// carryOut shows a plan, asks, and applies it.
func (f *attachFlags) carryOut(cmd *cobra.Command, c *config.Config, p *attach.Plan, route *routeFor, waiting string, done func() string) error {
	out := cmd.OutOrStdout()
	report := newAttachReport(p, f.dry)
	report.Route = route.report()
	report.Waiting = rawJSON(waiting)
	todo := !p.Empty() || route.writes()
	if !asJSON(cmd) {
		printAttach(out, p, route)
	}
	finish := func(err error) error {
		if asJSON(cmd) {
			return errors.Join(err, printJSON(cmd, report))
		}
		return err
	}
	switch {
	case p.Refused():
		return errors.Join(&differs{"refused: " + p.Refusals[0].Reason, !asJSON(cmd)}, finish(nil))
	case f.dry || !todo:
		return finish(nil)
	}
	verb := "Attach"
	if p.Detach {
		verb = "Detach"
	}
	if err := confirm(cmd, f.yes, fmt.Sprintf("%s %s?", verb, p.Queue)); err != nil {
		return err
	}
	if route.writes() {
		if err := route.write(c.File); err != nil {
			return err
		}
	}
	var conn *amqp.Connection
	if !p.Needs.Empty() {
		var err error
		if conn, err = connect(cmd.Context(), cmd, c); err != nil {
			return err
		}
		defer ignore(conn)
	}
	if err := p.Apply(cmd.Context(), conn); err != nil {
		if errors.Is(err, attach.ErrRefused) {
			return &coded{exitDiffers, err}
		}
		return err
	}
	report.Applied = true
	if !asJSON(cmd) {
		fmt.Fprintln(out, done())
	}
	return finish(nil)
}

// printAttach shows a plan: what it changes, then what to know.
func printAttach(out io.Writer, p *attach.Plan, route *routeFor) {
	fmt.Fprintln(out, strings.TrimSpace(fmt.Sprintf("%s %s", p.Queue, p.Type)))
	fmt.Fprintln(out)
	if !p.Refused() && p.Empty() && !route.writes() {
		said := "nothing to do: it is attached already, by " + cmp.Or(p.How, "nothing")
		if p.Detach {
			said = "nothing to do: it is not attached"
		}
		fmt.Fprintln(out, said)
	}
	if !p.Refused() && !p.Needs.Empty() {
		fmt.Fprintf(out, "+ what a router needs: %d exchanges, queues and bindings\n", len(p.Needs.Differences))
	}
	for _, c := range p.Changes {
		for _, line := range c.Diff {
			fmt.Fprintln(out, firstLine(line, 400))
		}
	}
	if route.writes() {
		fmt.Fprintf(out, "+ in %s: %s\n", route.file, route.line)
	}
	for _, r := range p.Refusals {
		hanging(out, "refused: ", r.Reason)
		hanging(out, "    fix: ", r.Fix)
	}
	if len(p.Notes) > 0 && !(len(p.Changes) == 0 && len(p.Refusals) > 0) {
		fmt.Fprintln(out)
		for _, n := range p.Notes {
			hanging(out, "note: ", n)
		}
	}
	if !p.Refused() && !p.Empty() {
		fmt.Fprintln(out)
	}
}

// hanging writes text in lines that a terminal holds.
func hanging(out io.Writer, label, text string) {
	const width = 100
	line, indent, empty := label, strings.Repeat(" ", len(label)), true
	for _, word := range strings.Fields(firstLine(text, 4000)) {
		switch {
		case empty:
		case len([]rune(line))+1+len([]rune(word)) > width:
			fmt.Fprintln(out, line)
			line = indent
		default:
			line += " "
		}
		line += word
		empty = false
	}
	fmt.Fprintln(out, line)
}

// attachReport is a plan for programs.
type attachReport struct {
	Queue    string           `json:"queue"`
	Type     string           `json:"type"`
	How      string           `json:"how"`
	DryRun   bool             `json:"dry_run"`
	Applied  bool             `json:"applied"`
	Empty    bool             `json:"empty"`
	Needs    int              `json:"needs"`
	Changes  []attachChange   `json:"changes"`
	Notes    []string         `json:"notes"`
	Refusals []attach.Refusal `json:"refusals"`
	Route    *routeReport     `json:"route,omitempty"`
	Waiting  rawJSON          `json:"waiting,omitempty"`
}

type attachChange struct {
	Kind string   `json:"kind"`
	Verb string   `json:"verb"`
	Name string   `json:"name"`
	Diff []string `json:"diff"`
}

// rawJSON is JSON that is written as it is.
type rawJSON string

// MarshalJSON returns the text itself.
func (r rawJSON) MarshalJSON() ([]byte, error) { return []byte(r), nil }

func newAttachReport(p *attach.Plan, dry bool) *attachReport {
	r := &attachReport{
		Queue: p.Queue, Type: p.Type, How: p.How, DryRun: dry, Empty: p.Empty(), Needs: len(p.Needs.Differences),
		Changes: []attachChange{}, Notes: append([]string{}, p.Notes...), Refusals: append([]attach.Refusal{}, p.Refusals...),
	}
	for _, c := range p.Changes {
		r.Changes = append(r.Changes, attachChange{c.Kind, c.Verb, c.Name, c.Diff})
	}
	return r
}

// exists reports whether a file is there to be written to.
func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}
