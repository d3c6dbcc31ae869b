package main

import (
	"fmt"
	"io"
	"os"
	"sort"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/hopback/hopback/lost"
)

func lostCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lost",
		Short: "Look after messages whose work queue had gone",
		Long: `A message whose work queue is deleted while it waits has no way back. It is not
dropped: it rests in the queue <prefix>.lost. When the work queue is there again,
"hopback lost return" sends it back.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(lostListCommand(), lostReturnCommand())
	return cmd
}

func lostListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List messages whose work queue had gone",
		Long: `Lists what is in the queue <prefix>.lost, oldest first, and says for each message
whether its work queue is there again. Looking changes nothing, but that RabbitMQ
marks the messages as redelivered.

Exit status: 0 listed; 1 an error.

With --output json one array of objects goes to standard output: id, queue,
queue_exists, message_id, error, error_type, retries, first_failed_at, due_at
(RFC 3339), exchange, routing_key, origin_unknown, size.`,
		Example: `  hopback lost list
  hopback lost list --queue orders --output json`,
		Args: cobra.NoArgs,
	}
	file := fileFlag(cmd)
	queue := cmd.Flags().String("queue", "", "only those of this work queue")
	limit := cmd.Flags().Int("limit", 100, "at most so many, up to 2000")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *limit < 1 || *limit > 2000 {
			return fmt.Errorf("--limit: %d cannot work: use a number from 1 to 2000", *limit)
		}
		c, err := load(cmd, *file)
		if err != nil {
			return err
		}
		conn, err := connect(cmd.Context(), cmd, c)
		if err != nil {
			return err
		}
		defer ignore(conn)
		l, err := lost.List(cmd.Context(), conn, lost.Options{Prefix: c.Prefix, Queue: *queue, Limit: *limit})
		if err != nil {
			return err
		}
		if asJSON(cmd) {
			return printJSON(cmd, lostMessages(l))
		}
		printLost(cmd.OutOrStdout(), c.Prefix, l)
		return nil
	}
	return cmd
}

func printLost(out io.Writer, prefix string, l lost.Listing) {
	if l.Total == 0 {
		fmt.Fprintf(out, "%s.lost is empty\n", prefix)
		return
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tWORK QUEUE\tIS THERE\tRETRIES\tWAS DUE\tSIZE\tERROR")
	for _, m := range l.Messages {
		there := "no"
		if m.QueueExists {
			there = "yes"
		}
		due := ""
		if !m.DueAt.IsZero() {
			due = m.DueAt.Local().Format(time.DateTime)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%d\t%s\n", firstLine(m.ID, 32), firstLine(m.Queue, 60), there, m.Retries, due, m.Size, firstLine(m.Error, 60))
	}
	_ = w.Flush()
	fmt.Fprintf(out, "\n%d shown of %s\n", len(l.Messages), plural(l.Total, "message"))
}

// lostMessage is a message for programs.
type lostMessage struct {
	ID            string     `json:"id"`
	Queue         string     `json:"queue"`
	QueueExists   bool       `json:"queue_exists"`
	MessageID     string     `json:"message_id"`
	Error         string     `json:"error"`
	ErrorType     string     `json:"error_type"`
	Retries       int        `json:"retries"`
	FirstFailedAt *time.Time `json:"first_failed_at"`
	DueAt         *time.Time `json:"due_at"`
	Exchange      string     `json:"exchange"`
	RoutingKey    string     `json:"routing_key"`
	OriginUnknown bool       `json:"origin_unknown"`
	Size          int        `json:"size"`
}

func lostMessages(l lost.Listing) []lostMessage {
	out := []lostMessage{}
	at := func(t time.Time) *time.Time {
		if t.IsZero() {
			return nil
		}
		return &t
	}
	for _, m := range l.Messages {
		out = append(out, lostMessage{
			m.ID, m.Queue, m.QueueExists, m.MessageID, m.Error, m.ErrorType, m.Retries,
			at(m.FirstFailedAt), at(m.DueAt), m.Exchange, m.RoutingKey, m.OriginUnknown, m.Size,
		})
	}
	return out
}

func lostReturnCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "return",
		Short: "Send messages back to their work queue, where that is there again",
		Long: `Sends each message in the queue <prefix>.lost back to its work queue, where that is
there again, and binds the queue to the way back, for the messages that still
wait. Messages whose work queue is missing stay; with --park they go to their
parking queue, with the reason lost-route.

A message leaves <prefix>.lost only after the broker has confirmed it in the other
queue. The command stops at what was there when it began, and after Ctrl-C, when
what is on its way has arrived; it can be run again at any time.

Exit status: 0 every message that was asked for was returned or parked; 2 some
stay; 1 an error; 130 after Ctrl-C.

With --output json one object goes to standard output: total, seen, returned,
parked, stayed, skipped, missing, refused, unreadable, and queues, which has
returned, parked and stayed for each work queue.`,
		Example: `  hopback lost return
  hopback lost return --queue orders
  hopback lost return --park`,
		Args: cobra.NoArgs,
	}
	file := fileFlag(cmd)
	queue := cmd.Flags().String("queue", "", "only those of this work queue")
	park := cmd.Flags().Bool("park", false, "park those whose work queue is missing")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := load(cmd, *file)
		if err != nil {
			return err
		}
		conn, err := connect(cmd.Context(), cmd, c)
		if err != nil {
			return err
		}
		defer ignore(conn)
		bar := newProgress(cmd.ErrOrStderr())
		r, err := lost.Return(cmd.Context(), conn, lost.Options{
			Prefix: c.Prefix, Queue: *queue, Park: *park,
			Progress: func(r lost.Report) {
				bar.show(fmt.Sprintf("%d of %d: %d returned, %d parked", r.Seen, r.Total, r.Returned, r.Parked))
			},
		})
		bar.clear()
		if asJSON(cmd) {
			if perr := printJSON(cmd, lostReport(r)); perr != nil {
				return perr
			}
		} else {
			printReport(cmd.OutOrStdout(), c.Prefix, r)
		}
		if err == nil && r.Stayed > r.Skipped {
			return &differs{plural(r.Stayed-r.Skipped, "message") + " could not be moved", true}
		}
		return err
	}
	return cmd
}

func printReport(out io.Writer, prefix string, r lost.Report) {
	if r.Total == 0 {
		fmt.Fprintf(out, "%s.lost is empty\n", prefix)
		return
	}
	fmt.Fprintf(out, "%d of %s: %d returned, %d parked\n", r.Seen, plural(r.Total, "message"), r.Returned, r.Parked)
	for _, s := range []struct {
		n   int
		why string
	}{
		{r.Skipped, "of other work queues stay"},
		{r.Missing, "stay: the work queue is missing (create it, or use --park)"},
		{r.Refused, "stay: the broker did not take them where they belong"},
		{r.Unreadable, "stay: they do not say where they belong, or their counter is none"},
	} {
		if s.n > 0 {
			fmt.Fprintf(out, "%d %s\n", s.n, s.why)
		}
	}
	var names []string
	for name := range r.Queues {
		names = append(names, name)
	}
	sort.Strings(names)
	if len(names) == 0 {
		return
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nWORK QUEUE\tRETURNED\tPARKED\tSTAYED")
	for _, name := range names {
		q := r.Queues[name]
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\n", firstLine(name, 60), q.Returned, q.Parked, q.Stayed)
	}
	_ = w.Flush()
}

func lostReport(r lost.Report) map[string]any {
	queues := map[string]any{}
	for name, q := range r.Queues {
		queues[name] = map[string]int{"returned": q.Returned, "parked": q.Parked, "stayed": q.Stayed}
	}
	return map[string]any{
		"total": r.Total, "seen": r.Seen, "returned": r.Returned, "parked": r.Parked, "stayed": r.Stayed,
		"skipped": r.Skipped, "missing": r.Missing, "refused": r.Refused, "unreadable": r.Unreadable, "queues": queues,
	}
}

// progress is a line that is written over, for people at a terminal.
type progress struct {
	out  io.Writer // nil where there is no terminal
	last time.Time
	any  bool
}

func newProgress(out io.Writer) *progress {
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return &progress{out: out}
	}
	return &progress{}
}

func (p *progress) show(line string) {
	if p.out == nil || time.Since(p.last) < 100*time.Millisecond {
		return
	}
	p.last, p.any = time.Now(), true
	fmt.Fprintf(p.out, "\r%s\x1b[K", line)
}

func (p *progress) clear() {
	if p.any {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}
