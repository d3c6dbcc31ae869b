package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/hopback/hopback/attach"
	"github.com/hopback/hopback/cmd/hopback/internal/config"
)

func statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status [QUEUE]",
		Short: "List the attached queues, and what waits and is parked",
		Long: `Lists the queues whose rejections flow to the router, and how; by which policy of
the file they are retried; their consumers and messages; what is parked; and what
is not in order, such as a policy that outranks ours, or one that has changed since
ours was made of it.

Messages wait in delay slots that all queues of the prefix share, where they cannot
be told apart without reading them: they are counted by slot, for the whole prefix.
A queue that can refuse messages has slots of its own, and these are counted for it.

No message is read. Figures are the management API's, and some seconds old.

Exit status: 0 listed; 2 QUEUE is not attached, or something is not in order; 1 an
error.

With --output json one object goes to standard output: prefix, routers (how many
consumers read <prefix>.failed), queues (name, type, how, by, ours, problem, policy,
in_file, consumers, ready, unacked, waiting, parking, parked), waiting_shared, slots
(queue, owner, delay_ms, messages), and own (queue, messages). What the broker has
no figure for yet is null; so is waiting for a queue without slots of its own.`,
		Example: `  hopback status
  hopback status orders --output json`,
		Args: cobra.MaximumNArgs(1),
	}
	f := attachFlags{}
	cmd.Flags().StringVarP(&f.file, "config", "c", config.DefaultFile, "the configuration file; - is standard input")
	must(cmd.MarkFlagFilename("config", "yaml", "yml"))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, m, err := f.open(cmd)
		if err != nil {
			return err
		}
		st, err := attach.Look(cmd.Context(), m, c.Prefix)
		if err != nil {
			return err
		}
		if len(args) > 0 {
			st.Queues = slices.DeleteFunc(st.Queues, func(q attach.Queue) bool { return q.Name != args[0] })
			st.Slots = slices.DeleteFunc(st.Slots, func(s attach.Slot) bool { return s.Owner != "" && s.Owner != args[0] })
		}
		r := newStatusReport(c, st)
		if asJSON(cmd) {
			err = printJSON(cmd, r)
		} else {
			printStatus(cmd.OutOrStdout(), r, args)
		}
		switch {
		case err != nil:
			return err
		case len(args) > 0 && len(st.Queues) == 0:
			return &differs{args[0] + " is not attached", !asJSON(cmd)}
		case slices.ContainsFunc(st.Queues, func(q attach.Queue) bool { return q.Problem != "" }):
			return &differs{"something is not in order", true}
		}
		return nil
	}
	return cmd
}

// statusReport is a status for programs.
type statusReport struct {
	Prefix        string        `json:"prefix"`
	Routers       *int64        `json:"routers"`
	Queues        []statusQueue `json:"queues"`
	WaitingShared int64         `json:"waiting_shared"`
	Slots         []statusSlot  `json:"slots"`
	Own           []statusDepth `json:"own"`
}

type statusQueue struct {
	Name      string `json:"name"`
	Type      string `json:"type"`
	How       string `json:"how"`
	By        string `json:"by"`
	Ours      bool   `json:"ours"`
	Problem   string `json:"problem,omitempty"`
	Policy    string `json:"policy"`
	InFile    bool   `json:"in_file"`
	Consumers *int64 `json:"consumers"`
	Ready     *int64 `json:"ready"`
	Unacked   *int64 `json:"unacked"`
	Waiting   *int64 `json:"waiting"`
	Parking   string `json:"parking,omitempty"`
	Parked    *int64 `json:"parked"`
}

type statusSlot struct {
	Queue    string `json:"queue"`
	Owner    string `json:"owner,omitempty"`
	DelayMS  int64  `json:"delay_ms"`
	Messages int64  `json:"messages"`
}

type statusDepth struct {
	Queue    string `json:"queue"`
	Messages int64  `json:"messages"`
}

func newStatusReport(c *config.Config, st *attach.Status) statusReport {
	r := statusReport{Prefix: st.Prefix, Routers: st.Routers, Queues: []statusQueue{}, Slots: []statusSlot{}, Own: []statusDepth{}}
	r.WaitingShared, _ = st.Waiting("")
	for _, q := range st.Queues {
		out := statusQueue{
			q.Name, q.Type, q.How, q.By, q.Ours, q.Problem, config.DefaultPolicy, false,
			q.Consumers, q.Ready, q.Unacked, q.Waiting, q.Parking, q.Parked,
		}
		for _, route := range c.Routes {
			if route.Queue == q.Name {
				out.Policy, out.InFile = route.Policy.Name, true
			}
		}
		r.Queues = append(r.Queues, out)
	}
	for _, s := range st.Slots {
		r.Slots = append(r.Slots, statusSlot{s.Queue, s.Owner, s.Delay.Milliseconds(), s.Messages})
	}
	for _, d := range st.Own {
		r.Own = append(r.Own, statusDepth{d.Queue, d.Messages})
	}
	return r
}

func printStatus(out io.Writer, r statusReport, asked []string) {
	number := func(n *int64) string {
		if n == nil {
			return "-"
		}
		return fmt.Sprint(*n)
	}
	switch {
	case len(r.Queues) == 0 && len(asked) > 0:
		fmt.Fprintf(out, "%s is not attached\n", asked[0])
	case len(r.Queues) == 0:
		fmt.Fprintln(out, "no queue is attached")
	default:
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "QUEUE\tTYPE\tATTACHED BY\tPOLICY\tCONSUMERS\tREADY\tUNACKED\tWAITING\tPARKED")
		for _, q := range r.Queues {
			by := q.How + " " + q.By
			if q.How == "" {
				by = "nothing"
			}
			policy := q.Policy
			if !q.InFile {
				policy += " (no route)"
			}
			waiting := "shared"
			if q.Waiting != nil {
				waiting = number(q.Waiting)
			}
			parked := number(q.Parked)
			if q.Parking != "" && q.Parking != q.Name+".parked" {
				parked += " in " + q.Parking
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", firstLine(q.Name, 60), q.Type, firstLine(by, 80), policy,
				number(q.Consumers), number(q.Ready), number(q.Unacked), waiting, parked)
		}
		_ = w.Flush()
	}
	for _, q := range r.Queues {
		if q.Problem != "" {
			hanging(out, q.Name+": ", q.Problem)
		}
	}
	if len(r.Slots) > 0 {
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "\nSLOT\tOF\tWAITING")
		for _, s := range r.Slots {
			of := "all queues"
			if s.Owner != "" {
				of = firstLine(s.Owner, 60)
			}
			fmt.Fprintf(w, "%s\t%s\t%d\n", firstLine(s.Queue, 60), of, s.Messages)
		}
		_ = w.Flush()
	}
	fmt.Fprintf(out, "\n%s in slots that all queues of the prefix %s share\n", plural(int(r.WaitingShared), "message")+" waiting", r.Prefix)
	if r.Routers != nil {
		fmt.Fprintf(out, "%s.failed is read by %s\n", r.Prefix, plural(int(*r.Routers), "router"))
	}
	for _, d := range r.Own {
		if d.Messages > 0 {
			fmt.Fprintf(out, "%s in %s\n", plural(int(d.Messages), "message"), d.Queue)
		}
	}
}
