package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/hopback/hopback/cmd/hopback/internal/config"
	"github.com/hopback/hopback/cmd/hopback/internal/parked"
	"github.com/hopback/hopback/parking"
)

func parkedCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "parked",
		Short: "Look at parked messages, understand them, decide",
		Long: `What has used up its retries, or what no retry can help, rests in the parking queue
of its work queue until a person decides: send it back (replay), mend it (edit),
put it aside (move, export), or throw it away (discard).

QUEUE is a work queue of the configuration file, its parking queue, or any other
queue that messages rest in, such as a dead letter queue of old. Without a file the
broker is taken from HOPBACK_BROKER_URL.

Looking changes nothing: count, order and dead-letter queues stay as they were.
Where the broker would count a look against a message, the commands say so, and
need --force.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(parkedListCommand(), parkedShowCommand(), parkedReplayCommand(), parkedEditCommand(),
		parkedDiscardCommand(), parkedMoveCommand(), parkedExportCommand(), parkedImportCommand(), parkedTailCommand())
	return cmd
}

// parkedFlags are the flags that all of the commands have.
type parkedFlags struct {
	file  string
	all   bool
	force bool
}

func (f *parkedFlags) add(cmd *cobra.Command, all bool) {
	cmd.Flags().StringVarP(&f.file, "config", "c", config.DefaultFile, "the configuration file; - is standard input")
	must(cmd.MarkFlagFilename("config", "yaml", "yml"))
	cmd.Flags().BoolVar(&f.force, "force", false, "look even where that costs something")
	if all {
		cmd.Flags().BoolVar(&f.all, "all", false, "the parking queues of all routes of the file")
	}
}

// lot is an open connection and the queues that a command is about.
type lot struct {
	config *config.Config
	conn   *amqp.Connection
	places []place
	bar    *progress // of looks
}

// place is a parking queue.
type place struct {
	*parking.Queue
	// work is the work queue that was asked for, empty where the parking queue
	// itself was named.
	work string
	// routes are the work queues whose parking queue it is by the file.
	routes []string
}

// narrow adds to a filter what the place asks for: of a parking queue that several
// routes share, the messages of the work queue that was named.
func (p place) narrow(f parking.Filter) parking.Filter {
	if p.work != "" && len(p.routes) > 1 && f.Queue == "" {
		f.Queue = p.work
	}
	return f
}

func (l *lot) close() { ignore(l.conn) }

// open connects and opens the queues that the arguments name.
func (f *parkedFlags) open(cmd *cobra.Command, names ...string) (*lot, error) {
	c, err := loadAny(cmd, f.file)
	if err != nil {
		return nil, err
	}
	named, err := f.named(c, names)
	if err != nil {
		return nil, err
	}
	conn, err := connect(cmd.Context(), cmd, c)
	if err != nil {
		return nil, err
	}
	l := &lot{config: c, conn: conn, bar: newProgress(cmd.ErrOrStderr())}
	m, err := management(c)
	if err != nil {
		l.close()
		return nil, err
	}
	for _, n := range named {
		o := parking.Options{Prefix: c.Prefix, Management: m, Force: f.force, Progress: looking(l.bar, n.queue)}
		q, err := parking.Open(cmd.Context(), conn, n.queue, o)
		if errors.Is(err, parking.ErrNoQueue) && n.other != "" {
			// A name of which the file knows nothing: its parking queue is missing, so it
			// is the queue itself.
			n.queue, n.work = n.other, ""
			o.Progress = looking(l.bar, n.queue)
			q, err = parking.Open(cmd.Context(), conn, n.queue, o)
		}
		if err != nil {
			l.close()
			return nil, explainQueue(err)
		}
		l.places = append(l.places, place{q, n.work, n.routes})
	}
	return l, nil
}

func explainQueue(err error) error {
	var cost *parking.CostError
	switch {
	case errors.Is(err, parking.ErrNoQueue):
		return fmt.Errorf("%w\nCheck its name, or run hopback apply", err)
	case errors.As(err, &cost):
		return fmt.Errorf("%w\nUse --force to look nevertheless", err)
	}
	return err
}

type naming struct {
	queue, other string // other is tried where queue does not exist
	work         string
	routes       []string
}

// named finds the parking queues that are meant.
func (f *parkedFlags) named(c *config.Config, names []string) ([]naming, error) {
	sharing := func(queue string) (routes []string) {
		for _, r := range c.Routes {
			if r := r.WithDefaults(); r.Parking == queue {
				routes = append(routes, r.Queue)
			}
		}
		return routes
	}
	switch {
	case f.all && len(names) > 0:
		return nil, errors.New("--all: name no queue, or leave it out")
	case f.all:
		if err := c.NeedRoutes(); err != nil {
			return nil, err
		}
		var all []naming
		for _, r := range c.Routes {
			queue := r.WithDefaults().Parking
			if !slices.ContainsFunc(all, func(n naming) bool { return n.queue == queue }) {
				all = append(all, naming{queue: queue, routes: sharing(queue)})
			}
		}
		return all, nil
	case len(names) == 0 && len(c.Routes) == 1:
		names = []string{c.Routes[0].Queue}
	case len(names) == 0:
		return nil, errors.New("which queue? Name one, or use --all for all routes of the file")
	}
	name := names[0]
	for _, r := range c.Routes {
		if r := r.WithDefaults(); r.Queue == name {
			return []naming{{queue: r.Parking, work: name, routes: sharing(r.Parking)}}, nil
		}
	}
	if routes := sharing(name); len(routes) > 0 {
		return []naming{{queue: name, routes: routes}}, nil
	}
	return []naming{{queue: name + ".parked", other: name, work: name}}, nil
}

// filterFlags are the flags that pick messages.
type filterFlags struct {
	id, header, body                                      []string
	err, kind, reason, policy, exchange, key, fingerprint string
	since, until                                          string
}

func (f *filterFlags) add(cmd *cobra.Command) {
	s := cmd.Flags()
	s.StringArrayVar(&f.id, "id", nil, "this message; the first characters do where they are those of one alone; may be given several times")
	s.StringVar(&f.err, "error", "", "whose error matches this regular expression")
	s.StringVar(&f.kind, "type", "", "whose error is of this type, with or without its package")
	s.StringVar(&f.fingerprint, "fingerprint", "", "whose error has this fingerprint, or the eight digits of one")
	s.StringVar(&f.reason, "reason", "", "parked for this reason: exhausted, permanent, …")
	s.StringVar(&f.since, "since", "", "parked since then: a time, a date, or how long ago (2h)")
	s.StringVar(&f.until, "until", "", "parked before then")
	s.StringVar(&f.policy, "policy", "", "whose last delay came from this policy")
	s.StringVar(&f.exchange, "exchange", "", "first published to this exchange")
	s.StringVar(&f.key, "routing-key", "", "first published with this routing key")
	s.StringArrayVar(&f.header, "header", nil, "with this header, name=value; may be given several times")
	s.StringArrayVar(&f.body, "body-json", nil, "with this value in its JSON body, path=value, such as customer.id=42; may be given several times")
}

func (f *filterFlags) filter() (parking.Filter, error) {
	out := parking.Filter{
		IDs: f.id, ErrorType: f.kind, Fingerprint: f.fingerprint, Reason: f.reason, Policy: f.policy,
		Exchange: f.exchange, RoutingKey: f.key,
	}
	var err error
	fail := func(flag string, err error) (parking.Filter, error) { return out, fmt.Errorf("--%s: %w", flag, err) }
	if f.err != "" {
		if out.Error, err = regexp.Compile(f.err); err != nil {
			return fail("error", err)
		}
	}
	now := time.Now()
	if f.since != "" {
		if out.Since, err = parked.When(f.since, now); err != nil {
			return fail("since", err)
		}
	}
	if f.until != "" {
		if out.Until, err = parked.When(f.until, now); err != nil {
			return fail("until", err)
		}
	}
	if out.Headers, err = parked.Pairs(f.header); err != nil {
		return fail("header", err)
	}
	if out.BodyJSON, err = parked.Pairs(f.body); err != nil {
		return fail("body-json", err)
	}
	return out, out.Validate()
}

// terminal reports whether a stream is one.
func terminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// style is colours for people at a terminal, unless they want none.
func style(out io.Writer) parked.Style {
	return parked.Style(terminal(out) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb")
}

// errDeclined ends a command whose question was answered with no.
var errDeclined = &differs{why: "nothing was done", told: false}

// confirm asks, unless --yes has answered. Where nobody can be asked it refuses.
func confirm(cmd *cobra.Command, yes bool, question string) error {
	if yes {
		return nil
	}
	if !terminal(cmd.InOrStdin()) {
		return fmt.Errorf("%s There is no terminal to ask at: use --yes to go ahead, or --dry-run to look", question)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s [y/N] ", question)
	answer, err := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the answer: %w", err)
	}
	if a := strings.ToLower(strings.TrimSpace(answer)); a != "y" && a != "yes" {
		return errDeclined
	}
	return nil
}

// parkedMessage is a message for programs.
type parkedMessage struct {
	ID            string     `json:"id"`
	Queue         string     `json:"queue"`
	ParkedIn      string     `json:"parked_in"`
	MessageID     string     `json:"message_id"`
	Reason        string     `json:"reason"`
	Error         string     `json:"error"`
	ErrorType     string     `json:"error_type"`
	Fingerprint   string     `json:"fingerprint"`
	Retries       int        `json:"retries"`
	Policy        string     `json:"policy"`
	FirstFailedAt *time.Time `json:"first_failed_at"`
	ParkedAt      *time.Time `json:"parked_at"`
	Exchange      string     `json:"exchange"`
	RoutingKey    string     `json:"routing_key"`
	OriginUnknown bool       `json:"origin_unknown"`
	Size          int        `json:"size"`
}

func asParked(m *parking.Message) parkedMessage {
	return parkedMessage{
		m.ID, m.Queue, m.ParkedIn, m.MessageID, m.Reason, m.Error, m.ErrorType, parking.FingerprintID(m.Fingerprint()), m.Retries, m.Policy,
		when(m.FirstFailedAt), when(m.ParkedAt), m.Exchange, m.RoutingKey, m.OriginUnknown, m.Size,
	}
}

func when(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// jsonArray writes an array an element at a time, so that a long list is not held
// in memory.
type jsonArray struct {
	out io.Writer
	n   int
	err error
}

func (a *jsonArray) add(v any) {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("  ", "  ")
	err := e.Encode(v)
	sep := ",\n  "
	if a.n == 0 {
		sep = "[\n  "
	}
	a.n++
	if err == nil {
		_, err = io.WriteString(a.out, sep+strings.TrimSuffix(b.String(), "\n"))
	}
	a.err = errors.Join(a.err, err)
}

func (a *jsonArray) end() error {
	text := "\n]\n"
	if a.n == 0 {
		text = "[]\n"
	}
	_, err := io.WriteString(a.out, text)
	if err = errors.Join(a.err, err); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}

// looking writes how far a look has come.
func looking(bar *progress, name string) func(seen, total int) {
	began := time.Now()
	return func(seen, total int) {
		if time.Since(began) > time.Second { // most looks are done by then
			bar.show("reading " + name + " " + parked.Progress(seen, total, time.Since(began)))
		}
	}
}

// exact writes shortened IDs out, so that no other message is taken than the one
// that was meant.
func (l *lot) exact(ctx context.Context, f parking.Filter) (parking.Filter, error) {
	defer l.bar.clear()
	out := f
	for _, p := range l.places {
		in, err := p.Exact(ctx, p.narrow(f))
		if err != nil {
			return f, explainQueue(err)
		}
		if len(l.places) == 1 {
			out.IDs = in.IDs
			break
		}
		out.IDs = slices.Clone(out.IDs)
		for i, id := range in.IDs {
			switch {
			case id == f.IDs[i] || id == out.IDs[i]:
			case out.IDs[i] != f.IDs[i]:
				return f, &parking.AmbiguousError{ID: f.IDs[i], IDs: []string{out.IDs[i], id}}
			default:
				out.IDs[i] = id
			}
		}
	}
	return out, nil
}

// find finds a message by its ID in the first of the places that has it.
func (l *lot) find(ctx context.Context, id string) (place, *parking.Message, error) {
	defer l.bar.clear()
	var last error
	for _, p := range l.places {
		m, err := p.Find(ctx, id)
		if err == nil {
			return p, m, nil
		}
		if last = err; !errors.Is(err, parking.ErrNotFound) {
			break
		}
	}
	return place{}, nil, explainQueue(last)
}
