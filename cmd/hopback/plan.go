package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"text/tabwriter"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/cmd/hopback/internal/config"
	"github.com/hopback/hopback/topology"
)

// target is what the configuration asks for, and the broker that shall have it.
type target struct {
	config     *config.Config
	routes     []hopback.Route // resolved
	decisions  []hopback.Decision
	topology   topology.Topology
	policies   []topology.Policy // of routes with native-linear
	vhost      string
	management *topology.Management
	conn       *amqp.Connection // nil for export
}

// loadRoutes reads a configuration that must have routes.
func loadRoutes(cmd *cobra.Command, file string) (*config.Config, error) {
	c, err := load(cmd, file)
	if err == nil {
		err = c.NeedRoutes()
	}
	return c, err
}

// resolve decides what a configuration's routes leave open. conn may be nil; then,
// and unless offline, the management API alone is asked, if there is one.
func resolve(ctx context.Context, c *config.Config, conn *amqp.Connection, offline bool) (*target, error) {
	t := &target{config: c, conn: conn}
	var err error
	if t.vhost, err = vhostOf(c); err != nil {
		return nil, err
	}
	var view hopback.View
	if !offline {
		if view, err = look(ctx, c, conn); err != nil {
			return nil, err
		}
		t.management = view.Management
	}
	t.routes, t.decisions, err = hopback.Resolve(ctx, view, c.Routes...)
	if err != nil {
		return nil, fmt.Errorf("choose mechanisms: %w", err)
	}
	t.topology, err = hopback.Topology(c.Prefix, t.routes...)
	if err != nil {
		return nil, fmt.Errorf("work out the topology: %w", err)
	}
	for _, r := range t.routes {
		if p, ok := r.RetryPolicy(c.Prefix); ok {
			t.policies = append(t.policies, p)
		}
	}
	return t, nil
}

// look is what can be seen of the broker, over either way.
func look(ctx context.Context, c *config.Config, conn *amqp.Connection) (hopback.View, error) {
	m, err := management(c)
	if err != nil {
		return hopback.View{}, err
	}
	view := hopback.View{Management: m}
	switch {
	case conn != nil:
		view.Connection, view.Capabilities = conn, hopback.ReadCapabilities(conn)
	case m != nil:
		if view.Capabilities, err = hopback.FetchCapabilities(ctx, m); err != nil {
			return view, err
		}
	}
	named := func(r hopback.Route) bool { return r.Mechanism == hopback.Plugin }
	if m != nil && slices.ContainsFunc(c.Routes, named) {
		err = view.Capabilities.ReadExchangeTypes(ctx, m)
	}
	return view, err
}

// reach is resolve with a connection, which the caller closes.
func reach(cmd *cobra.Command, file string) (*target, error) {
	c, err := loadRoutes(cmd, file)
	if err != nil {
		return nil, err
	}
	// The connection first: when nothing is there, its error says most.
	conn, err := connect(cmd.Context(), cmd, c)
	if err != nil {
		return nil, err
	}
	t, err := resolve(cmd.Context(), c, conn, false)
	if err != nil {
		ignore(conn)
		return nil, err
	}
	return t, nil
}

func (t *target) plan(ctx context.Context) (topology.Plan, error) {
	p, err := topology.MakePlan(ctx, t.conn, t.management, t.topology)
	if err != nil {
		return p, fmt.Errorf("compare the broker with %s: %w", t.config.File, err)
	}
	return p, t.planPolicies(ctx, &p)
}

func planCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Compare the broker with the configuration, and change nothing",
		Long: `Says for each route which mechanism holds its delays and why, and what the broker
lacks of the exchanges, queues and bindings that the routes need:

  +  is missing, and apply would create it
  !  is missing, and is yours to create: a work queue without "declare"
  ~  is there with another value, which apply cannot change
  -  is a binding that must not be there, and apply would unbind it: what leads
     parked messages to the parking queue of before, after a change
  x  keeps a policy of native-linear from being set
  ?  cannot be seen

With a management URL everything is compared, and a work queue that can refuse
messages (a max-length with overflow reject-publish, by argument or by policy) is
found and gets delay slots of its own. Without one, it is only seen whether
exchanges and queues are there.

Exit status: 0 nothing to do; 2 the broker differs; 1 an error.

With --output json one object goes to standard output: prefix, vhost,
broker_version, routes (queue, policy, mechanism, why, isolated, isolated_why,
parking, slots in milliseconds, warning), empty, and differences (kind, name,
state, key, want, have, note).`,
		Example: `  hopback plan
  hopback plan -c deploy/hopback.yaml --output json`,
		Args: cobra.NoArgs,
	}
	file, all := fileFlag(cmd), allFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		t, err := reach(cmd, *file)
		if err != nil {
			return err
		}
		defer ignore(t.conn)
		p, err := t.plan(cmd.Context())
		if err != nil {
			return err
		}
		if asJSON(cmd) {
			err = printJSON(cmd, t.report(p))
		} else {
			out := cmd.OutOrStdout()
			t.printRoutes(out)
			printDifferences(out, p, *all)
			fmt.Fprintln(out, summary(p))
		}
		if err == nil && !p.Empty() {
			return &differs{"the broker differs from " + t.config.File, true}
		}
		return err
	}
	return cmd
}

func applyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "apply",
		Short: "Create on the broker what the configuration needs",
		Long: `Creates the exchanges, queues and bindings that the routes need and that are
missing, and sets the policies of routes with mechanism native-linear, which takes
a management URL and an account with the tag policymaker. No queue or exchange is
ever changed or deleted, and your work queues are left alone, but for one that is
missing and that its route asks to declare. It is safe to run again, and by
several at once.

After a change of a route's parking queue, parked messages would go to the one of
before as well. With a management URL, apply unbinds that one and says so; the
queue stays, with its messages. Without one it is not seen.

The account needs the permissions configure, write and read on names that begin
with the prefix, write on the work queues to bind them, and configure on what it
declares.

Exit status: 0 all is there; 2 something is there with other arguments, and all
else was created; 1 an error.

With --output json one object goes to standard output, as with plan, with the
differences that were found before, applied, and unbound: the differences that
were bindings and are no longer there.`,
		Example: `  hopback apply
  HOPBACK_BROKER_USERNAME=admin HOPBACK_BROKER_PASSWORD=… hopback apply -c hopback.yaml`,
		Args: cobra.NoArgs,
	}
	file, all := fileFlag(cmd), allFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		t, err := reach(cmd, *file)
		if err != nil {
			return err
		}
		defer ignore(t.conn)
		return t.apply(cmd, *all)
	}
	return cmd
}

func (t *target) apply(cmd *cobra.Command, all bool) error {
	ctx := cmd.Context()
	before, err := t.plan(ctx)
	if err != nil {
		return err
	}
	// Without the management API a binding cannot be seen: Apply makes sure of all.
	var unbound topology.Plan
	err = topology.Apply(ctx, t.conn, t.topology, topology.WithManagement(t.management),
		topology.WithUnbind(func(d topology.Difference) { unbound.Differences = append(unbound.Differences, d) }))
	if err == nil {
		err = t.applyPolicies(ctx)
	}
	if asJSON(cmd) {
		r := t.report(before)
		r.Applied, r.Unbound = ptr(err == nil), reportDifferences(unbound)
		if perr := printJSON(cmd, r); perr != nil {
			return errors.Join(err, perr)
		}
	} else {
		out := cmd.OutOrStdout()
		t.printRoutes(out)
		if err == nil {
			printDifferences(out, before, all)
			fmt.Fprintln(out, applied(before))
		}
		for _, d := range unbound.Differences {
			fmt.Fprintln(out, "unbound", d.Name)
		}
	}
	if onlyMismatches(err) || errors.Is(err, topology.ErrConflict) {
		return &coded{exitDiffers, err}
	}
	return err
}

// applied says what was done about a plan.
func applied(before topology.Plan) string {
	made := 0
	for _, d := range before.Differences {
		if d.State == topology.Missing {
			made++
		}
	}
	if made == 0 && slices.ContainsFunc(before.Differences, changeable) {
		return "nothing to create: policies were changed"
	}
	if made == 0 && slices.ContainsFunc(before.Differences, extra) {
		return "nothing to create: all is there"
	}
	if made == 0 {
		return "nothing to do: all is there"
	}
	return plural(made, "item") + " created"
}

// onlyMismatches reports whether nothing went wrong but that items are there
// with other arguments.
func onlyMismatches(err error) bool {
	return errors.Is(err, topology.ErrMismatch) && !errors.Is(err, topology.ErrAccess) &&
		!errors.Is(err, topology.ErrMissing) && !errors.Is(err, context.Canceled) && !errors.Is(err, amqp.ErrClosed)
}

// coded is an error with an exit code of its own.
type coded struct {
	code int
	err  error
}

func (e *coded) Error() string { return e.err.Error() }
func (e *coded) Unwrap() error { return e.err }
func (e *coded) ExitCode() int { return e.code }

func verifyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Check that the broker has what the configuration needs",
		Long: `Says what differs, as plan does, and nothing when all is in order: for CI and
monitoring. It only reads.

Exit status: 0 in order; 2 the broker differs; 1 an error.

With --output json the object of plan goes to standard output.`,
		Example: `  hopback verify
  hopback verify || hopback apply`,
		Args: cobra.NoArgs,
	}
	file, all := fileFlag(cmd), allFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		t, err := reach(cmd, *file)
		if err != nil {
			return err
		}
		defer ignore(t.conn)
		p, err := t.plan(cmd.Context())
		if err != nil {
			return err
		}
		switch {
		case asJSON(cmd):
			err = printJSON(cmd, t.report(p))
		case !p.Empty():
			printDifferences(cmd.OutOrStdout(), p, *all)
		}
		if err == nil && !p.Empty() {
			return &differs{"the broker differs from " + t.config.File, true}
		}
		return err
	}
	return cmd
}

func exportCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Print the topology, to import it or to look at it",
		Long: `Prints the exchanges, queues and bindings that the routes need, in one of two
formats:

  definitions   RabbitMQ's own JSON, for "rabbitmqctl import_definitions", the
                boot option definitions.import_backend and the HTTP API. An
                import leaves what exists as it is. Work queues are in it only
                where their route declares them.
  mermaid       a flowchart, which GitHub, GitLab and many editors draw

No broker is needed. Where the configuration has a management URL it is asked,
as with plan, which work queues can refuse messages and so need slots of their
own; --offline leaves that out.

Exit status: 0 printed; 1 an error.`,
		Example: `  hopback export --format definitions > definitions.json
  hopback export --format mermaid --offline`,
		Args: cobra.NoArgs,
	}
	file := fileFlag(cmd)
	format := choice{value: "definitions", of: []string{"definitions", "mermaid"}}
	cmd.Flags().Var(&format, "format", "definitions or mermaid")
	must(cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{"definitions", "mermaid"}, cobra.ShellCompDirectiveNoFileComp)))
	vhost := cmd.Flags().String("vhost", "", "the virtual host to write into definitions (default: the one in the broker's URL, else /)")
	offline := cmd.Flags().Bool("offline", false, "ask no broker")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := loadRoutes(cmd, *file)
		if err != nil {
			return err
		}
		t, err := resolve(cmd.Context(), c, nil, *offline)
		if err != nil {
			return err
		}
		if format.value == "mermaid" {
			_, err = io.WriteString(cmd.OutOrStdout(), t.topology.Mermaid())
			return err
		}
		if *vhost == "" {
			*vhost = t.vhost
		}
		text, err := t.topology.Definitions(*vhost)
		if err != nil {
			return err
		}
		_, err = cmd.OutOrStdout().Write(text)
		return err
	}
	return cmd
}

// printRoutes says what was decided for each route.
func (t *target) printRoutes(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ROUTE\tPOLICY\tMECHANISM\tWHY\tSLOTS\tPARKS IN")
	for i, r := range t.routes {
		d := t.decisions[i]
		slots := fmt.Sprintf("%d of prefix %s", len(r.DelayMechanism(t.config.Prefix).Slots()), t.config.Prefix)
		if n := r.DelayMechanism(t.config.Prefix).Slots(); len(n) == 0 {
			slots = "none"
		} else if d.Isolated {
			slots = fmt.Sprintf("%d of its own", len(r.DelayMechanism(t.config.Prefix).Slots()))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", r.Queue, r.Policy.Name, d.Mechanism, d.Why, slots, r.Parking)
	}
	_ = w.Flush()
	for _, d := range t.decisions {
		if d.IsolatedWhy != "" {
			fmt.Fprintf(out, "%s gets slots of its own: the queue can refuse messages (%s), and a refused message blocks its slot\n", d.Queue, d.IsolatedWhy)
		}
	}
	t.printWarnings(out)
	fmt.Fprintln(out)
}

// printDifferences writes a line for each difference, but one for all the delay
// slots that are missing, of which there are dozens; all lists them too.
func printDifferences(out io.Writer, p topology.Plan, all bool) {
	slots := map[string][]string{}
	for _, d := range p.Differences {
		if !all && d.State == topology.Missing && slotPart.MatchString(d.Name) {
			slots[d.Kind] = append(slots[d.Kind], d.Name)
			continue
		}
		switch {
		case d.State == topology.Unknown:
			fmt.Fprintln(out, "?", d.Note)
		case d.State == topology.Differs:
			fmt.Fprintln(out, "~", d)
		case d.State == topology.Conflict:
			fmt.Fprintln(out, "x", d)
		case extra(d):
			fmt.Fprintf(out, "- %s %s: %s\n", d.Kind, d.Name, d.Note)
		case yours(d):
			fmt.Fprintf(out, "! %s %s: %s\n", d.Kind, d.Name, d.Note)
		default:
			fmt.Fprintln(out, "+", d.Kind, d.Name)
		}
	}
	for _, kind := range []string{"exchange", "queue", "binding"} {
		switch names := slots[kind]; {
		case len(names) == 1:
			fmt.Fprintln(out, "+", kind, names[0])
		case kind == "binding" && len(names) > 0:
			fmt.Fprintf(out, "+ %s of delay slots\n", plural(len(names), kind))
		case len(names) > 0:
			fmt.Fprintf(out, "+ %s of delay slots, %s … %s\n", plural(len(names), kind), names[0], names[len(names)-1])
		}
	}
}

// slotPart finds the names that package delay gives.
var slotPart = regexp.MustCompile(`\.(delay|then)\.[0-9]+m?s\b`)

func allFlag(cmd *cobra.Command) *bool {
	return cmd.Flags().Bool("all", false, "list every delay slot that is missing, instead of one line for all")
}

// yours reports whether what is missing is the user's to create.
func yours(d topology.Difference) bool { return d.State == topology.Missing && d.Note != "" }

// extra reports whether it is a binding that apply would remove.
func extra(d topology.Difference) bool { return d.State == topology.Extra }

func summary(p topology.Plan) string {
	count := func(is func(topology.Difference) bool) (n int) {
		for _, d := range p.Differences {
			if is(d) {
				n++
			}
		}
		return n
	}
	mine := count(yours)
	missing := count(func(d topology.Difference) bool { return d.State == topology.Missing }) - mine
	unbind := count(extra)
	change := count(changeable)
	differ := count(func(d topology.Difference) bool { return d.State == topology.Differs }) - change
	conflicts := count(func(d topology.Difference) bool { return d.State == topology.Conflict })
	if p.Empty() {
		return "nothing to do"
	}
	s := fmt.Sprintf("%d to create", missing)
	if mine > 0 {
		s += fmt.Sprintf(", %d missing that you create", mine)
	}
	if unbind > 0 {
		s += fmt.Sprintf(", %d to unbind", unbind)
	}
	if change > 0 {
		s += fmt.Sprintf(", %d of policies to change", change)
	}
	if conflicts > 0 {
		s += fmt.Sprintf(", %d in conflict with a policy, which you settle", conflicts)
	}
	if differ > 0 {
		s += fmt.Sprintf(", %d with other values, which only deleting them can change", differ)
	}
	return s
}

// planReport is a plan for programs.
type planReport struct {
	Prefix        string       `json:"prefix"`
	Vhost         string       `json:"vhost"`
	BrokerVersion string       `json:"broker_version"`
	Routes        []planRoute  `json:"routes"`
	Empty         bool         `json:"empty"`
	Applied       *bool        `json:"applied,omitempty"`
	Unbound       []difference `json:"unbound,omitempty"` // of apply
	Differences   []difference `json:"differences"`
}

type planRoute struct {
	hopback.Decision
	Policy  string  `json:"policy"`
	Parking string  `json:"parking"`
	Slots   []int64 `json:"slots"`
	Warning string  `json:"warning,omitempty"`
}

type difference struct {
	Kind  string `json:"kind"`
	Name  string `json:"name,omitempty"`
	State string `json:"state"`
	Key   string `json:"key,omitempty"`
	Want  *value `json:"want,omitempty"`
	Have  *value `json:"have,omitempty"`
	Note  string `json:"note,omitempty"`
}

type value struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

func (t *target) report(p topology.Plan) planReport {
	r := planReport{
		Prefix: t.config.Prefix, Vhost: t.vhost, Empty: p.Empty(),
		Routes: []planRoute{}, Differences: reportDifferences(p),
	}
	r.BrokerVersion, _ = t.conn.Properties["version"].(string)
	for i, route := range t.routes {
		pr := planRoute{Decision: t.decisions[i], Policy: route.Policy.Name, Parking: route.Parking, Slots: []int64{}, Warning: warning(t.decisions[i].Mechanism)}
		for _, s := range route.DelayMechanism(t.config.Prefix).Slots() {
			pr.Slots = append(pr.Slots, s.Milliseconds())
		}
		r.Routes = append(r.Routes, pr)
	}
	return r
}

func reportDifferences(p topology.Plan) []difference {
	all := []difference{}
	for _, d := range p.Differences {
		out := difference{Kind: d.Kind, Name: d.Name, State: d.State, Key: d.Key, Note: d.Note}
		if d.Want != (topology.Value{}) {
			out.Want = &value{d.Want.Type, d.Want.Text}
		}
		if d.Have != (topology.Value{}) {
			out.Have = &value{d.Have.Type, d.Have.Text}
		}
		all = append(all, out)
	}
	return all
}

func ptr[T any](v T) *T { return &v }
