package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/hopback/hopback/cmd/hopback/internal/demo"
)

// demoCommand is `hopback demo`.
func demoCommand() *cobra.Command {
	o := demo.DefaultOptions()
	var keep bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show the whole of Hopback in half a minute, on a private broker",
		Long: `Starts a private RabbitMQ and runs two routes on it side by side, the same but
for their jitter. 100 orders on each fail at once, because a payment service
goes down, and come back while it recovers with room for few; other orders
cannot be decoded, break a rule, or fail for ever. The bars are the retries per
second. Then a table accounts for every message.

The broker is stopped and its data is removed at the end, after Ctrl-C too; with
--keep it runs on until Ctrl-C, so that the parked messages can be looked at. No
other broker is touched.

Exit status: 0 if sent = handled + parked, nothing is lost or left waiting, and
the parking queues hold what was reported; 130 after Ctrl-C; 1 otherwise.

With --output json one object goes to standard output, times in milliseconds:
ok, problems, interrupted, broker_counted, broker_version, broker_start_ms,
took_ms, messages, outage_ms, seed, room_per_second, max_retries, total (sent,
handled, parked, waiting, lost, duplicates), and routes, without jitter and
with: queue, jitter, the numbers of total, handled_first_time,
handled_after_retries, parked_by_reason, parked_undecodable, parking_depth,
unknown, retries, calls_failed_down, calls_refused_overloaded, busiest_second,
busiest_100ms, last_handled_ms, lateness (count, min_ms, p50_ms, p99_ms,
max_ms), and per_second (second, retries, handled, refused, failed). On a
terminal the bars go to standard error meanwhile.`,
		Example: `  hopback demo
  hopback demo --version 4.3 --outage 10s
  hopback demo --output json | jq .total`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case asJSON(cmd) && keep:
				return errors.New("--keep cannot work with --output json: leave one of them out")
			case asJSON(cmd):
				return runDemoJSON(cmd, o)
			}
			return runDemo(cmd.Context(), o, keep, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.Messages, "messages", o.Messages, "how many fail together on each side, 10 to 1000")
	f.DurationVar(&o.Outage, "outage", o.Outage, "how long the payment service is down, 1s to 30s")
	f.StringVar(&o.Version, "version", "", "the RabbitMQ to start, such as 4.3, where several are installed")
	f.BoolVar(&keep, "keep", false, "keep the broker until Ctrl-C, to look at what was parked")
	f.Uint64Var(&o.Seed, "seed", o.Seed, "of the load: same seed, same orders")
	return cmd
}

// keepText says what to do with a broker that is kept.
const keepText = `
 The broker runs on until Ctrl-C. In another terminal:

   export HOPBACK_BROKER_URL=%s
   hopback parked list %s

 docs/parking.md says what else there is to do.
`

// runDemo shows the story and the table.
func runDemo(ctx context.Context, o demo.Options, keep bool, out io.Writer) error {
	s := screen(out)
	o.View = demo.NewView(s)
	defer o.View.Close()
	kept := false
	if keep {
		o.Keep = func(url string, res *demo.Result) {
			kept = res.WriteTable(out, s.Colour) == nil
			fmt.Fprintf(out, keepText, url, res.Routes[1].Queue)
			<-ctx.Done()
		}
	}
	res, err := demo.Run(ctx, o)
	switch {
	case errors.Is(err, demo.ErrInterrupted):
		return interruptedDemo(res)
	case res == nil || res.Total.Sent == 0:
		return err
	case kept:
		return errors.Join(err, res.Err())
	}
	if werr := res.WriteTable(out, s.Colour); werr != nil {
		return errors.Join(err, fmt.Errorf("write the table: %w", werr))
	}
	if err != nil {
		return err
	}
	return res.Err()
}

// runDemoJSON prints the numbers alone. Who waits at a terminal may look on.
func runDemoJSON(cmd *cobra.Command, o demo.Options) error {
	if s := screen(cmd.ErrOrStderr()); s.Live {
		o.View = demo.NewView(s)
		defer o.View.Close()
	}
	res, err := demo.Run(cmd.Context(), o)
	if res != nil {
		if werr := printJSON(cmd, res); werr != nil {
			return errors.Join(err, werr)
		}
	}
	switch {
	case errors.Is(err, demo.ErrInterrupted):
		return interruptedDemo(res)
	case err != nil:
		return err
	}
	return res.Err()
}

// interruptedDemo is the end after Ctrl-C, with which the context of the command
// has ended. The broker is stopped already.
func interruptedDemo(res *demo.Result) error {
	at := "before anything was sent"
	if res != nil && res.Total.Sent > 0 {
		at = "at " + res.Standing()
	}
	return fmt.Errorf("interrupted %s\nThe private broker is stopped, and its data is removed", at)
}

// screen finds out how to draw on an output. A terminal that calls itself dumb
// is treated as a file; NO_COLOR is as on https://no-color.org.
func screen(out io.Writer) demo.Screen {
	s := demo.Screen{Out: out, Columns: func() int { return 80 }}
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 {
		s.Columns = func() int { return n }
	}
	f, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return s
	}
	s.Live = os.Getenv("TERM") != "dumb"
	s.Colour = s.Live && os.Getenv("NO_COLOR") == ""
	s.Columns = func() int {
		if n, _, err := term.GetSize(int(f.Fd())); err == nil && n > 0 {
			return n
		}
		return 80
	}
	return s
}
