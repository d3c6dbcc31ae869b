package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/hopback/hopback/cmd/hopback/internal/parked"
	"github.com/hopback/hopback/parking"
)

func parkedExportCommand() *cobra.Command {
	var flags parkedFlags
	var pick filterFlags
	cmd := &cobra.Command{
		Use:   "export [QUEUE]",
		Short: "Write parked messages to a file, one a line, with every type",
		Long: `Writes messages as JSON Lines, with the AMQP type of every header: what "hopback
parked import" publishes is equal, to the type and the byte. docs/parking.md
describes the form. The messages stay where they are.

Exit status: 0 exported; 1 an error; 130 after Ctrl-C.

With --file and --output json one object goes to standard output: file, exported
(how many).`,
		Example: `  hopback parked export orders > orders.jsonl
  hopback parked export --all --since 24h --file today.jsonl`,
		Args: cobra.MaximumNArgs(1),
	}
	flags.add(cmd, true)
	pick.add(cmd)
	file := cmd.Flags().StringP("file", "f", "-", "write to this file, which must not exist; - is standard output")
	must(cmd.MarkFlagFilename("file", "jsonl"))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		filter, err := pick.filter()
		if err != nil {
			return err
		}
		l, err := flags.open(cmd, args...)
		if err != nil {
			return err
		}
		defer l.close()
		out := cmd.OutOrStdout()
		var to *os.File
		if *file != "-" {
			if to, err = createExport(*file, ""); err != nil {
				return err
			}
			defer func() { _ = to.Close() }()
			out = to
		}
		n := 0
		for _, p := range l.places {
			if to == nil && terminal(out) {
				l.bar.out = nil // it would write over what is written meanwhile
			}
			written, err := p.Export(cmd.Context(), out, p.narrow(filter))
			n += written
			l.bar.clear()
			if err != nil {
				return explainQueue(err)
			}
		}
		if to != nil {
			if err := to.Sync(); err != nil {
				return fmt.Errorf("write the export: %w", err)
			}
		}
		if to != nil && asJSON(cmd) {
			return printJSON(cmd, map[string]any{"file": *file, "exported": n})
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "%s exported\n", plural(n, "message"))
		return nil
	}
	return cmd
}

func parkedImportCommand() *cobra.Command {
	var flags parkedFlags
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Publish the messages of an export",
		Long: `Publishes the messages of an export to the queue that each was exported from, or to
the one that --to names, mandatory and confirmed. They are those that were exported;
only what would act on the way (CC, BCC, expiration, user-id) is kept under
x-retry-*. A message that cannot be published does not stop the others.

Exit status: 0 all imported; 2 some failed; 1 an error; 130 after Ctrl-C.

With --output json one object goes to standard output: lines, imported, failed,
queues, dry_run, errors (line, id, error; the first 20).`,
		Example: `  hopback parked import orders.jsonl --dry-run
  hopback parked import orders.jsonl --to orders.parked --yes
  hopback parked export orders | hopback parked import - --to other.parked --yes`,
		Args: cobra.ExactArgs(1),
	}
	flags.add(cmd, false)
	to := cmd.Flags().String("to", "", "to this queue, instead of the one of each message")
	dry := cmd.Flags().Bool("dry-run", false, "read, and look for the queues; publish nothing")
	yes := cmd.Flags().BoolP("yes", "y", false, "do not ask")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := loadAny(cmd, flags.file)
		if err != nil {
			return err
		}
		in := cmd.InOrStdin()
		if args[0] != "-" {
			f, err := os.Open(args[0])
			if err != nil {
				return fmt.Errorf("read the export: %w", err)
			}
			defer func() { _ = f.Close() }()
			in = f
		}
		if !*dry {
			where := *to
			if where == "" {
				where = "the queues that they were exported from"
			}
			if err := confirm(cmd, *yes, fmt.Sprintf("Publish the messages of %s to %s?", args[0], where)); err != nil {
				return err
			}
		}
		conn, err := connect(cmd.Context(), cmd, c)
		if err != nil {
			return err
		}
		defer ignore(conn)
		bar := newProgress(cmd.ErrOrStderr())
		began := time.Now()
		r, err := parking.Import{From: in, To: *to, Prefix: c.Prefix, DryRun: *dry, Progress: func(r parking.ImportReport) {
			bar.show(parked.Progress(r.Imported, 0, time.Since(began)) + " imported")
		}}.Run(cmd.Context(), conn)
		bar.clear()
		if perr := printImport(cmd, r, *dry); perr != nil {
			return perr
		}
		if err == nil && r.Failed > 0 {
			return &differs{plural(r.Failed, "message") + " failed", true}
		}
		return err
	}
	return cmd
}

func printImport(cmd *cobra.Command, r parking.ImportReport, dry bool) error {
	if asJSON(cmd) {
		type failure struct {
			Line  int    `json:"line"`
			ID    string `json:"id"`
			Error string `json:"error"`
		}
		failures := []failure{}
		for _, err := range r.Errors {
			if e, ok := err.(*parking.LineError); ok { //nolint:errorlint // Errors holds nothing else
				failures = append(failures, failure{e.Line, e.ID, e.Err.Error()})
			}
		}
		return printJSON(cmd, map[string]any{
			"lines": r.Lines, "imported": r.Imported, "failed": r.Failed, "queues": r.Queues, "dry_run": dry, "errors": failures,
		})
	}
	out := cmd.OutOrStdout()
	did := "imported"
	if dry {
		did = "can be imported"
	}
	fmt.Fprintf(out, "%s of %s %s\n", parked.Thousands(r.Imported), plural(r.Lines, "message"), did)
	printNumbers(out, "to", r.Queues)
	for _, err := range r.Errors {
		fmt.Fprintln(out, "  "+firstLine(err.Error(), 200))
	}
	if more := r.Failed - len(r.Errors); more > 0 {
		fmt.Fprintf(out, "  and %d more\n", more)
	}
	return nil
}

func parkedTailCommand() *cobra.Command {
	var flags parkedFlags
	var pick filterFlags
	cmd := &cobra.Command{
		Use:   "tail [QUEUE]",
		Short: "Follow what is parked from now on",
		Long: `Shows messages as they are parked, until Ctrl-C. For a work queue of the file it
gets copies from Hopback's own exchange, and does not touch the parking queue. Any
other queue it looks into, every --every.

Exit status: 0 after Ctrl-C, or after --count messages; 1 an error.

With --output json one object a line goes to standard output, with the fields of
parked list.`,
		Example: `  hopback parked tail orders
  hopback parked tail orders --type ValidationError --output json`,
		Args: cobra.MaximumNArgs(1),
	}
	flags.add(cmd, false)
	pick.add(cmd)
	every := cmd.Flags().Duration("every", 5*time.Second, "how often to look into a queue that is not a route's")
	count := cmd.Flags().Int("count", 0, "end after so many messages; 0 for never")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		filter, err := pick.filter()
		if err != nil {
			return err
		}
		l, err := flags.open(cmd, args...)
		if err != nil {
			return err
		}
		defer l.close()
		l.bar.out = nil // looks go on and on
		p := l.places[0]
		work := p.work
		if work == "" && len(p.routes) == 1 {
			work = p.routes[0]
		}
		if work == p.Name() {
			work = ""
		}
		n := 0
		for m, err := range p.Tail(cmd.Context(), work, filter, *every) {
			if err != nil {
				return explainQueue(err)
			}
			if err := printTail(cmd, cmd.OutOrStdout(), m); err != nil {
				return err
			}
			if n++; n == *count {
				break
			}
		}
		return nil
	}
	return cmd
}

func printTail(cmd *cobra.Command, out io.Writer, m *parking.Message) error {
	if asJSON(cmd) {
		e := json.NewEncoder(out)
		e.SetEscapeHTML(false)
		if err := e.Encode(asParked(m)); err != nil {
			return fmt.Errorf("write the output: %w", err)
		}
		return nil
	}
	text := m.Error
	if m.ErrorType != "" {
		text = m.ErrorType + ": " + text
	}
	_, err := fmt.Fprintf(out, "%s  %-12s %-10s %s  %s\n", clock(m.ParkedAt), idStart(m.ID), firstLine(m.Reason, 20), firstLine(m.Queue, 40), firstLine(text, 100))
	return err
}
