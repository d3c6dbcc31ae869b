package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/cmd/hopback/internal/config"
	"github.com/hopback/hopback/router"
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

// routerFlag adds --router.
func routerFlag(cmd *cobra.Command) *bool {
	return cmd.Flags().Bool("router", false, "with what hopback serve needs as well: "+hopback.DefaultPrefix+".failed and the queues beside it")
}

// addRouter adds what a router of the routes needs.
func (t *target) addRouter() error {
	var routes []router.Route
	for _, r := range t.routes {
		if r.Mechanism != hopback.NativeLinear { // which the broker serves
			routes = append(routes, router.Route{Route: r})
		}
	}
	more, err := router.Topology(t.config.Prefix, routes...)
	if err != nil {
		return fmt.Errorf("work out the router's topology: %w", err)
	}
	t.topology = t.topology.Merge(more)
	return nil
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
	file, all, withRouter := fileFlag(cmd), allFlag(cmd), routerFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		t, err := reach(cmd, *file)
		if err != nil {
			return err
		}
		defer ignore(t.conn)
		if *withRouter {
			if err := t.addRouter(); err != nil {
				return err
			}
		}
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
  hopback apply --router   # with what hopback serve needs as well
  HOPBACK_BROKER_USERNAME=admin HOPBACK_BROKER_PASSWORD=… hopback apply -c hopback.yaml`,
		Args: cobra.NoArgs,
	}
	file, all, withRouter := fileFlag(cmd), allFlag(cmd), routerFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		t, err := reach(cmd, *file)
		if err != nil {
			return err
		}
		defer ignore(t.conn)
		if *withRouter {
			if err := t.addRouter(); err != nil {
				return err
			}
		}
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
	file, all, withRouter := fileFlag(cmd), allFlag(cmd), routerFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		t, err := reach(cmd, *file)
		if err != nil {
			return err
		}
		defer ignore(t.conn)
		if *withRouter {
			if err := t.addRouter(); err != nil {
				return err
			}
		}
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
	file, withRouter := fileFlag(cmd), routerFlag(cmd)
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
		if *withRouter {
			if err := t.addRouter(); err != nil {
				return err
			}
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
