package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/cmd/hopback/internal/parked"
	"github.com/hopback/hopback/parking"
)

func parkedListCommand() *cobra.Command {
	var flags parkedFlags
	var pick filterFlags
	cmd := &cobra.Command{
		Use:   "list [QUEUE]",
		Short: "List parked messages, or count them by what they have in common",
		Long: `Lists what is in a parking queue, oldest first, or with --group-by counts it by what
the messages have in common: error-type, reason, fingerprint, error, queue,
policy, exchange, routing-key, or header:NAME. A fingerprint is the error's text
without numbers, ids, times and addresses, so that 10,000 failures read as the
three causes that they have.

Exit status: 0 listed; 1 an error; 130 after Ctrl-C.

With --output json one array of objects goes to standard output: id, queue (the work
queue), parked_in, message_id, reason, error, error_type, fingerprint, retries,
policy, first_failed_at, parked_at (RFC 3339, or null), exchange, routing_key,
origin_unknown, size. With --group-by: key, id (a short name of the key), parked_in,
count, bytes, first_parked_at, last_parked_at, and sample, the oldest of them. Where
--limit leaves some out, standard error says so.`,
		Example: `  hopback parked list orders
  hopback parked list orders --group-by fingerprint
  hopback parked list --all --type TimeoutError --since 2h --output json
  hopback parked list orders --body-json customer.id=42 --header tenant=acme`,
		Args: cobra.MaximumNArgs(1),
	}
	flags.add(cmd, true)
	pick.add(cmd)
	limit := cmd.Flags().Int("limit", 100, "at most so many of each queue; 0 for all")
	by := cmd.Flags().String("group-by", "", "count by error-type, reason, fingerprint, error, queue, policy, exchange, routing-key or header:NAME")
	must(cmd.RegisterFlagCompletionFunc("group-by", cobra.FixedCompletions(parking.Groupings[:len(parking.Groupings)-1], cobra.ShellCompDirectiveNoFileComp)))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *limit < 0 {
			return fmt.Errorf("--limit: %d cannot work: use a number of messages, or 0 for all", *limit)
		}
		filter, err := pick.filter()
		if err != nil {
			return err
		}
		l, err := flags.open(cmd, args...)
		if err != nil {
			return err
		}
		defer l.close()
		if *by != "" {
			return listGroups(cmd, l, filter, *by)
		}
		return listMessages(cmd, l, filter, *limit)
	}
	return cmd
}

func listMessages(cmd *cobra.Command, l *lot, filter parking.Filter, limit int) error {
	out := cmd.OutOrStdout()
	defer l.bar.clear()
	if asJSON(cmd) {
		if terminal(out) {
			l.bar.out = nil // it would write over what is written meanwhile
		}
		a := &jsonArray{out: out}
		for _, p := range l.places {
			n := 0
			for m, err := range p.Messages(cmd.Context(), p.narrow(filter)) {
				if err != nil {
					return explainQueue(err)
				}
				if limit > 0 && n == limit {
					// Not in silence: a program would take these for all.
					l.bar.clear()
					fmt.Fprintf(cmd.ErrOrStderr(), "%d shown of %s; there are more: --limit 0 shows all\n", n, p.Name())
					break
				}
				n++
				a.add(asParked(m))
			}
		}
		return a.end()
	}
	for i, p := range l.places {
		if i > 0 {
			fmt.Fprintln(out)
		}
		depth, err := p.Depth(cmd.Context())
		if err != nil {
			return err
		}
		n, more := 0, false
		w := newSheet("ID", "WORK QUEUE", "REASON", "RETRIES", "PARKED", "SIZE", "ERROR")
		for m, err := range p.Messages(cmd.Context(), p.narrow(filter)) {
			if err != nil {
				return explainQueue(err)
			}
			if limit > 0 && n == limit {
				more = true
				break
			}
			n++
			fmt.Fprintln(w, row(m))
		}
		l.bar.clear()
		if n > 0 {
			w.print(out)
		}
		switch {
		case n == 0 && depth == 0:
			fmt.Fprintf(out, "%s is empty\n", p.Name())
		case more:
			fmt.Fprintf(out, "\n%d shown of %s in %s; there are more: --limit 0 shows all, --group-by fingerprint counts them\n", n, plural(depth, "message"), p.Name())
		default:
			fmt.Fprintf(out, "\n%d shown of %s in %s\n", n, plural(depth, "message"), p.Name())
		}
	}
	return nil
}

// sheet is a table, whose first line is set off at the end: codes in a cell would
// move its column.
type sheet struct {
	text bytes.Buffer
	*tabwriter.Writer
}

func newSheet(names ...string) *sheet {
	s := &sheet{}
	s.Writer = tabwriter.NewWriter(&s.text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(s, strings.Join(names, "\t"))
	return s
}

func (s *sheet) print(out io.Writer) {
	_ = s.Flush()
	head, rest, _ := strings.Cut(s.text.String(), "\n")
	fmt.Fprintf(out, "%s\n%s", style(out).Bold(head), rest)
}

func row(m *parking.Message) string {
	text := m.Error
	if m.ErrorType != "" {
		text = m.ErrorType + ": " + text
	}
	return strings.Join([]string{
		firstLine(m.ID, 32), firstLine(m.Queue, 40), firstLine(m.Reason, 20), fmt.Sprint(m.Retries), clock(m.ParkedAt), fmt.Sprint(m.Size), firstLine(text, 70),
	}, "\t")
}

// idStart is as much of an ID as tells it from others, and can be given for it.
func idStart(id string) string { return firstLine(id[:min(len(id), 12)], 12) }

func clock(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format(time.DateTime)
}

// parkedGroup is a group for programs.
type parkedGroup struct {
	Key           string        `json:"key"`
	ID            string        `json:"id"`
	ParkedIn      string        `json:"parked_in"`
	Count         int           `json:"count"`
	Bytes         int64         `json:"bytes"`
	FirstParkedAt *time.Time    `json:"first_parked_at"`
	LastParkedAt  *time.Time    `json:"last_parked_at"`
	Sample        parkedMessage `json:"sample"`
}

func asGroup(queue string, g parking.Group) parkedGroup {
	return parkedGroup{g.Key, g.ID, queue, g.Count, g.Bytes, when(g.FirstParked), when(g.LastParked), asParked(g.Sample)}
}

func listGroups(cmd *cobra.Command, l *lot, filter parking.Filter, by string) error {
	out := cmd.OutOrStdout()
	a := &jsonArray{out: out}
	for i, p := range l.places {
		bar := newProgress(cmd.ErrOrStderr())
		g, err := p.Groups(cmd.Context(), p.narrow(filter), by, looking(bar, p.Name()))
		bar.clear()
		if err != nil {
			return explainQueue(err)
		}
		if asJSON(cmd) {
			for _, group := range g.Groups {
				a.add(asGroup(p.Name(), group))
			}
			continue
		}
		if i > 0 {
			fmt.Fprintln(out)
		}
		printGroups(out, g.Groups, by, 0)
		fmt.Fprintf(out, "\n%s of %s in %s, in %s\n", parked.Thousands(g.Picked), plural(g.Seen, "message"), p.Name(), plural(len(g.Groups), "group"))
	}
	if asJSON(cmd) {
		return a.end()
	}
	return nil
}

// printGroups writes a table of groups, at most so many.
func printGroups(out io.Writer, groups []parking.Group, by string, most int) {
	if len(groups) == 0 {
		return
	}
	columns := []string{"COUNT", strings.ToUpper(by), "GROUP", "FIRST PARKED", "LAST PARKED", "SAMPLE"}
	named := by == "fingerprint" // the only ones that a filter takes by their short name
	if !named {
		columns = slices.Delete(columns, 2, 3)
	}
	w := newSheet(columns...)
	for i, g := range groups {
		if i == most && most > 0 {
			fmt.Fprintf(w, "…\tand %s more\n", plural(len(groups)-i, "group"))
			break
		}
		name := g.Key
		if name == "" {
			name = "(none)"
		}
		cells := []string{parked.Thousands(g.Count), firstLine(name, 70), g.ID, clock(g.FirstParked), clock(g.LastParked), idStart(g.Sample.ID)}
		if !named {
			cells = slices.Delete(cells, 2, 3)
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	w.print(out)
}

func parkedShowCommand() *cobra.Command {
	var flags parkedFlags
	cmd := &cobra.Command{
		Use:   "show [QUEUE] ID",
		Short: "Show a parked message with everything that is known of it",
		Long: `Shows properties and headers with their AMQP types, the retry history as a timeline,
and the body as JSON, as text, or in hex. ID is the one that "parked list" shows;
its first characters do. Without QUEUE it is looked for in the parking queues of all
routes.

Exit status: 0 shown; 1 an error, or there is no such message.

With --output json one object goes to standard output: the fields of parked list,
and history (n, at, delay_ms, error, consumer; n is 0 for a replay) and message
(properties, headers and body with their types, in the form of parked export).`,
		Example: `  hopback parked show orders 7f3a
  hopback parked show 7f3a91c2 --raw body.bin`,
		Args: cobra.RangeArgs(1, 2),
	}
	flags.add(cmd, false)
	raw := cmd.Flags().String("raw", "", "write the body as it is to this file; - is standard output")
	must(cmd.MarkFlagFilename("raw"))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		l, err := flags.openFor(cmd, args[:len(args)-1])
		if err != nil {
			return err
		}
		defer l.close()
		_, m, err := l.find(cmd.Context(), args[len(args)-1])
		if err != nil {
			return err
		}
		switch {
		case *raw == "-":
			if _, err := cmd.OutOrStdout().Write(m.Delivery.Body); err != nil {
				return fmt.Errorf("write the body: %w", err)
			}
			return nil
		case *raw != "":
			if err := os.WriteFile(*raw, m.Delivery.Body, 0o600); err != nil {
				return fmt.Errorf("write the body: %w", err)
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "wrote %s to %s\n", plural(m.Size, "byte"), *raw)
			return nil
		case asJSON(cmd):
			return showJSON(cmd, m)
		}
		parked.Show(cmd.OutOrStdout(), m, style(cmd.OutOrStdout()))
		return nil
	}
	return cmd
}

// openFor opens the queue that is named, or the parking queues of all routes.
func (f *parkedFlags) openFor(cmd *cobra.Command, names []string) (*lot, error) {
	if len(names) == 0 {
		f.all = true
	}
	return f.open(cmd, names...)
}

func showJSON(cmd *cobra.Command, m *parking.Message) error {
	type entry struct {
		N        int32      `json:"n"`
		At       *time.Time `json:"at"`
		DelayMS  int64      `json:"delay_ms"`
		Error    string     `json:"error"`
		Consumer string     `json:"consumer"`
	}
	history := []entry{}
	for _, e := range m.History() {
		history = append(history, entry{e.N, when(e.At), e.Delay.Milliseconds(), e.Error, e.Consumer})
	}
	p := attempt.FromDelivery(m.Delivery)
	message, err := parking.Marshal(&p)
	if err != nil {
		return err
	}
	return printJSON(cmd, struct {
		parkedMessage
		History []entry         `json:"history"`
		Message json.RawMessage `json:"message"`
	}{asParked(m), history, message})
}
