package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/cmd/hopback/internal/parked"
	"github.com/hopback/hopback/parking"
)

// takeFlags are the flags of the commands that take messages out.
type takeFlags struct {
	parkedFlags
	pick     filterFlags
	limit    int
	dry, yes bool
	to       string // of move
}

func (f *takeFlags) add(cmd *cobra.Command) {
	f.parkedFlags.add(cmd, false)
	f.pick.add(cmd)
	cmd.Flags().IntVar(&f.limit, "limit", 0, "at most so many, the oldest; 0 for all")
	cmd.Flags().BoolVar(&f.dry, "dry-run", false, "show how many and which; change nothing")
	cmd.Flags().BoolVarP(&f.yes, "yes", "y", false, "do not ask")
}

// taken is what a command did, for programs.
type taken struct {
	ParkedIn  string        `json:"parked_in"`
	DryRun    bool          `json:"dry_run"`
	Total     int           `json:"total"`
	Picked    *int          `json:"picked,omitempty"`
	Moved     int           `json:"moved"`
	NotPicked int           `json:"not_picked"`
	Failed    int           `json:"failed"`
	To        string        `json:"to,omitempty"`
	Export    string        `json:"export,omitempty"`
	Groups    []parkedGroup `json:"groups,omitempty"`
}

// prepare opens the queue, shows what would be taken, and asks. done says that
// there is nothing more to do.
func (f *takeFlags) prepare(cmd *cobra.Command, args []string, verb string) (l *lot, p place, filter parking.Filter, done bool, err error) {
	if f.limit < 0 {
		return nil, p, filter, false, fmt.Errorf("--limit: %d cannot work: use a number of messages, or 0 for all", f.limit)
	}
	if filter, err = f.pick.filter(); err != nil {
		return nil, p, filter, false, err
	}
	if l, err = f.open(cmd, args...); err != nil {
		return nil, p, filter, false, err
	}
	p = l.places[0]
	if err = l.canRestIn(f.to); err != nil {
		l.close()
		return nil, p, filter, false, err
	}
	if filter, err = l.exact(cmd.Context(), p.narrow(filter)); err != nil {
		l.close()
		return nil, p, filter, false, err
	}
	if !f.dry && f.yes {
		return l, p, filter, false, nil
	}
	bar := newProgress(cmd.ErrOrStderr())
	g, err := p.Groups(cmd.Context(), filter, "fingerprint", looking(bar, p.Name()))
	bar.clear()
	if err != nil {
		l.close()
		return nil, p, filter, false, explainQueue(err)
	}
	picked := g.Picked
	if f.limit > 0 {
		picked = min(picked, f.limit)
	}
	out := cmd.OutOrStdout()
	if !asJSON(cmd) {
		fmt.Fprintf(out, "%s of %s in %s\n\n", parked.Thousands(picked), plural(g.Seen, "message"), p.Name())
		printGroups(out, g.Groups, "fingerprint", 10)
	}
	if f.dry || picked == 0 {
		if asJSON(cmd) {
			t := taken{ParkedIn: p.Name(), DryRun: f.dry, Total: g.Seen, Picked: &picked}
			for _, group := range g.Groups {
				t.Groups = append(t.Groups, asGroup(p.Name(), group))
			}
			err = printJSON(cmd, t)
		}
		return l, p, filter, true, err
	}
	if err := confirm(cmd, f.yes, fmt.Sprintf("%s %s of %s?", verb, plural(picked, "message"), p.Name())); err != nil {
		l.close()
		return nil, p, filter, false, err
	}
	return l, p, filter, false, nil
}

// canRestIn refuses to move messages into a work queue: they would be handled with
// their retries used up.
func (l *lot) canRestIn(queue string) error {
	for _, r := range l.config.Routes {
		if r := r.WithDefaults(); r.Queue == queue {
			return fmt.Errorf("move to %q cannot work: it is a work queue, and they would be handled with their retries used up: use parked replay --to-queue, or the parking queue %s", queue, r.Parking)
		}
	}
	return nil
}

// finish tells what was done.
func (f *takeFlags) finish(cmd *cobra.Command, p place, r parking.MoveReport, did, to, export string, err error) error {
	if asJSON(cmd) {
		perr := printJSON(cmd, taken{
			ParkedIn: p.Name(), Total: r.Total, Moved: r.Moved, NotPicked: r.NotPicked, Failed: r.Failed, To: to, Export: export,
		})
		err = errors.Join(err, perr)
	} else {
		fmt.Fprintf(cmd.OutOrStdout(), "%s of %s %s\n", parked.Thousands(r.Moved), plural(r.Total, "message"), did)
	}
	if err == nil && r.Failed > 0 {
		return &differs{plural(r.Failed, "message") + fmt.Sprintf(" stayed: the broker did not take or confirm them (%v)", r.Why), false}
	}
	return explainQueue(err)
}

func taking(bar *progress) func(parking.MoveReport) {
	began := time.Now()
	return func(r parking.MoveReport) { bar.show(parked.Progress(r.Seen, r.Total, time.Since(began))) }
}

func parkedDiscardCommand() *cobra.Command {
	var f takeFlags
	cmd := &cobra.Command{
		Use:   "discard [QUEUE]",
		Short: "Throw parked messages away",
		Long: `Throws messages away: those that the flags pick, or all. They are exported first, to
a file in the current folder, unless --no-export says otherwise: "hopback parked
import" brings them back. A message leaves the queue only when it is in the file.

Exit status: 0 discarded; 2 declined; 1 an error; 130 after Ctrl-C.

With --output json one object goes to standard output: parked_in, dry_run, total,
picked and groups (with --dry-run), moved (how many were discarded), not_picked,
failed, export (the file).`,
		Example: `  hopback parked discard orders --type ValidationError --dry-run
  hopback parked discard orders --type ValidationError --yes
  hopback parked discard orders --until 2026-01-01 --export old.jsonl`,
		Args: cobra.MaximumNArgs(1),
	}
	f.add(cmd)
	file := cmd.Flags().String("export", "", "export to this file first; by default parked-<queue>-<time>.jsonl")
	none := cmd.Flags().Bool("no-export", false, "do not export first")
	must(cmd.MarkFlagFilename("export", "jsonl"))
	cmd.MarkFlagsMutuallyExclusive("export", "no-export")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		l, p, filter, done, err := f.prepare(cmd, args, "Discard")
		if l != nil {
			defer l.close()
		}
		if err != nil || done {
			return err
		}
		bar := newProgress(cmd.ErrOrStderr())
		o := parking.Discard{Filter: filter, Limit: f.limit, Progress: taking(bar)}
		name := ""
		if !*none {
			out, err := createExport(*file, p.Name())
			if err != nil {
				return err
			}
			name = out.Name()
			defer func() { _ = out.Close() }()
			o.Keep = func(ms []*parking.Message) error { return keep(out, ms) }
		}
		r, err := p.Discard(cmd.Context(), o)
		bar.clear()
		did := "discarded"
		if name != "" {
			did += ", after they were exported to " + name
		}
		if name != "" && r.Moved == 0 && err == nil {
			_ = os.Remove(name) // an empty file says nothing
		}
		return f.finish(cmd, p, r, did, "", name, err)
	}
	return cmd
}

// createExport creates a file that does not exist yet.
func createExport(name, queue string) (*os.File, error) {
	if name == "" {
		safe := strings.Map(func(r rune) rune {
			if r < '0' && r != '-' && r != '.' || r > '9' && r < 'A' || r > 'Z' && r < 'a' && r != '_' || r > 'z' {
				return '_'
			}
			return r
		}, queue)
		name = fmt.Sprintf("parked-%.100s-%s.jsonl", safe, time.Now().Format("20060102-150405.000"))
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600) // messages are nobody else's business
	if err != nil {
		return nil, fmt.Errorf("create the export: %w", err)
	}
	return f, nil
}

// keep writes messages, and returns when they are on disk.
func keep(f *os.File, ms []*parking.Message) error {
	var b strings.Builder
	for _, m := range ms {
		if err := m.Write(&b); err != nil {
			return err
		}
	}
	if _, err := io.WriteString(f, b.String()); err != nil {
		return fmt.Errorf("write the export: %w", err)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("write the export: %w", err)
	}
	return nil
}

func parkedMoveCommand() *cobra.Command {
	var f takeFlags
	cmd := &cobra.Command{
		Use:   "move QUEUE TO",
		Short: "Move parked messages to another queue, as they are",
		Long: `Moves messages to another queue, where they rest with their history, reason and
error. To have them handled again, use "hopback parked replay": a work queue of the
file is refused here. Each leaves its queue only when the broker has confirmed it in
the other.

Exit status: 0 moved; 2 some stay, or declined; 1 an error; 130 after Ctrl-C.

With --output json one object goes to standard output: parked_in, dry_run, total,
picked and groups (with --dry-run), moved, not_picked, failed, to.`,
		Example: `  hopback parked move orders orders.later --type ValidationError
  hopback parked move old.dlq orders.parked --yes`,
		Args: cobra.ExactArgs(2),
	}
	f.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f.to = args[1]
		l, p, filter, done, err := f.prepare(cmd, args[:1], "Move to "+args[1]+":")
		if l != nil {
			defer l.close()
		}
		if err != nil || done {
			return err
		}
		bar := newProgress(cmd.ErrOrStderr())
		r, err := p.Move(cmd.Context(), parking.Move{Filter: filter, Limit: f.limit, To: args[1], Progress: taking(bar)})
		bar.clear()
		return f.finish(cmd, p, r, "moved to "+args[1], args[1], "", err)
	}
	return cmd
}

func parkedEditCommand() *cobra.Command {
	var flags parkedFlags
	cmd := &cobra.Command{
		Use:   "edit [QUEUE] ID",
		Short: "Change a parked message",
		Long: `Opens a message in an editor ($VISUAL, $EDITOR, or vi): properties and headers with
their types, and the body. What was changed is shown, and after a confirmation the
message is replaced: the new one goes to the end of the parking queue, with the same
ID. The original is kept in a file, in the form of "hopback parked export". To have
it handled again, replay it.

With --body FILE the body is taken from a file, and no editor is opened.

Exit status: 0 replaced, or nothing was changed; 2 declined; 1 an error, or the
message is not any more what it was.

With --output json one object goes to standard output: id, parked_in, changed,
export.`,
		Example: `  hopback parked edit orders 7f3a91c2
  hopback parked edit orders 7f3a91c2 --body mended.json --yes`,
		Args: cobra.RangeArgs(1, 2),
	}
	flags.add(cmd, false)
	body := cmd.Flags().String("body", "", "take the body from this file; - is standard input")
	file := cmd.Flags().String("export", "", "keep the original in this file; by default parked-<id>-<time>.jsonl")
	yes := cmd.Flags().BoolP("yes", "y", false, "do not ask")
	must(cmd.MarkFlagFilename("body"))
	must(cmd.MarkFlagFilename("export", "jsonl"))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		l, err := flags.openFor(cmd, args[:len(args)-1])
		if err != nil {
			return err
		}
		defer l.close()
		p, m, err := l.find(cmd.Context(), args[len(args)-1])
		if err != nil {
			return err
		}
		return edit(cmd, p, m, *body, *file, *yes)
	}
	return cmd
}

func edit(cmd *cobra.Command, p place, m *parking.Message, bodyFile, exportFile string, yes bool) error {
	before := attempt.FromDelivery(m.Delivery)
	was, err := parked.Document(&before)
	if err != nil {
		return err
	}
	after := before
	if bodyFile != "" {
		if after.Body, err = readFile(cmd, bodyFile); err != nil {
			return err
		}
	} else {
		text, err := inEditor(cmd, was, m.ID)
		if err != nil {
			return err
		}
		after, err = parked.FromDocument(text, &before)
		if errors.Is(err, parked.ErrEmpty) {
			return printEdited(cmd, p, m, false, "")
		}
		if err != nil {
			return fmt.Errorf("the edited text: %w", err)
		}
	}
	is, err := parked.Document(&after)
	if err != nil {
		return err
	}
	diff := parked.Diff(was, is, style(cmd.ErrOrStderr()))
	if diff == "" {
		return printEdited(cmd, p, m, false, "")
	}
	fmt.Fprint(cmd.ErrOrStderr(), diff)
	if err := confirm(cmd, yes, fmt.Sprintf("Replace message %s in %s?", m.ID, p.Name())); err != nil {
		return err
	}
	out, err := createExport(exportFile, m.ID)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	if err := keep(out, []*parking.Message{m}); err != nil {
		return err
	}
	if err := p.Replace(cmd.Context(), m, after); err != nil {
		return explainQueue(err)
	}
	return printEdited(cmd, p, m, true, out.Name())
}

func printEdited(cmd *cobra.Command, p place, m *parking.Message, changed bool, export string) error {
	switch {
	case asJSON(cmd):
		return printJSON(cmd, map[string]any{"id": m.ID, "parked_in": p.Name(), "changed": changed, "export": export})
	case !changed:
		fmt.Fprintln(cmd.OutOrStdout(), "nothing was changed")
	default:
		fmt.Fprintf(cmd.OutOrStdout(), "%s is replaced, at the end of %s; the original is in %s\nTo send it back: hopback parked replay %s --id %s\n",
			m.ID, p.Name(), export, p.Name(), m.ID)
	}
	return nil
}

func readFile(cmd *cobra.Command, name string) ([]byte, error) {
	var b []byte
	var err error
	if name == "-" {
		b, err = io.ReadAll(cmd.InOrStdin())
	} else {
		b, err = os.ReadFile(name)
	}
	if err != nil {
		return nil, fmt.Errorf("read the body: %w", err)
	}
	return b, nil
}

// inEditor lets a person edit a text.
func inEditor(cmd *cobra.Command, text, id string) (string, error) {
	editor := os.Getenv("VISUAL")
	if editor == "" {
		editor = os.Getenv("EDITOR")
	}
	if editor == "" {
		editor = "vi"
	}
	f, err := os.CreateTemp("", "parked-*-"+strings.Trim(id, "/\\")+".txt")
	if err != nil {
		return "", fmt.Errorf("write the text to edit: %w", err)
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Close()); err != nil {
		return "", fmt.Errorf("write the text to edit: %w", err)
	}
	words := strings.Fields(editor)
	e := exec.CommandContext(cmd.Context(), words[0], append(words[1:], f.Name())...)
	e.Stdin, e.Stdout, e.Stderr = cmd.InOrStdin(), os.Stderr, os.Stderr
	if err := e.Run(); err != nil {
		return "", fmt.Errorf("run the editor %s (from $VISUAL or $EDITOR): %w", editor, err)
	}
	b, err := os.ReadFile(f.Name())
	if err != nil {
		return "", fmt.Errorf("read the edited text: %w", err)
	}
	return string(b), nil
}
