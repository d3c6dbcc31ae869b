package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hopback/hopback"
	picture "github.com/hopback/hopback/cmd/hopback/internal/simulate"
	"github.com/hopback/hopback/simulate"
)

// runAdvise searches, and then shows what was found beside the policies that
// were asked about.
func (o *simulateOptions) runAdvise(cmd *cobra.Command, s simulate.Scenario, contenders []simulate.Contender, bar *picture.Progress, output string) error {
	advice, err := simulate.Advise(cmd.Context(), s, simulate.Goal{Peak: o.peak}, func(done, of int) { bar.Tell(int64(done), int64(of)) })
	bar.Clear()
	if err != nil {
		return err
	}
	advised := simulate.Policy("advised", advice.Best)
	report, err := simulate.Run(cmd.Context(), s, append([]simulate.Contender{advised}, contenders...)...)
	if err != nil {
		return err
	}
	o.brief = true
	words := []string{advisedWords(advice, o.peak)}
	words = append(words, o.words(cmd.Context(), report)...)
	if err := o.print(cmd, report, words, output, false); err != nil {
		return err
	}
	if output == "text" {
		fmt.Fprintf(cmd.OutOrStdout(), "\n%s", policyYAML(advice.Best))
	}
	if !advice.Met {
		return fmt.Errorf("no policy of %d achieves the goal: this is the nearest", advice.Tried)
	}
	return nil
}

func advisedWords(a *simulate.Advice, peak float64) string {
	r := a.Result
	if !a.Met {
		return fmt.Sprintf("Of %d policies none parks nothing and keeps the peak below %s the capacity. The nearest parks %s and peaks at %s.",
			a.Tried, simulate.Times(peak), simulate.Count(r.ParkedNeedlessly), simulate.Times(r.Peak))
	}
	return fmt.Sprintf("Of %d policies this one recovers fastest of those that park nothing needlessly and keep the peak below %s the capacity: peak %s, 99 in 100 of the backlog gone after %s.",
		a.Tried, simulate.Times(peak), simulate.Times(r.Peak), simulate.Span(r.Recovery99))
}

// policyYAML is the policy as hopback.yaml has it.
func policyYAML(p hopback.Policy) string {
	var b strings.Builder
	fmt.Fprintf(&b, "policies:\n  advised:\n    backoff: %s\n    base: %s\n", p.Backoff, p.Base)
	if p.Jitter != hopback.Decorrelated {
		fmt.Fprintf(&b, "    factor: %g\n", p.Factor)
	}
	fmt.Fprintf(&b, "    max: %s\n    jitter: %s\n    max_retries: %d\n", p.Max, p.Jitter, p.MaxRetries)
	return b.String()
}

// illustration is a picture of the documentation and the command that makes it.
type illustration struct {
	file string
	args []string
}

// illustrations are the pictures of docs/, by the flags of hopback simulate. The
// text around each shows the same command.
var illustrations = []illustration{
	{"thundering-herd.svg", []string{"thundering-herd"}},
	{"database-failover.svg", []string{"database-failover"}},
	{"api-brownout.svg", []string{"api-brownout"}},
	{"poison-flood.svg", []string{"poison-flood"}},
	{"slow-leak.svg", []string{"slow-leak"}},
	{"jitter.svg", []string{"thundering-herd", "--preset", "none,proportional,equal,full,decorrelated", "--max-retries", "12"}},
	{"ladder-or-wheel.svg", []string{"thundering-herd", "--preset", "wheel,wheel-one,ladder", "--max-retries", "12"}},
	{"peers.svg", []string{"database-failover", "--preset", "full,symfony,celery,celery-backoff,masstransit,nservicebus,sidekiq", "--until", "10m"}},
	{"by-hand.svg", []string{"thundering-herd", "--preset", "immediate,sleep,constant,full", "--max-retries", "12", "--until", "2m"}},
}

// makePictures makes the pictures of the documentation.
func makePictures(cmd *cobra.Command, folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("make the folder of the pictures: %w", err)
	}
	for _, i := range illustrations {
		if err := i.make(cmd, filepath.Join(folder, i.file)); err != nil {
			return err
		}
	}
	return nil
}

// make runs the command of one picture.
func (i illustration) make(cmd *cobra.Command, file string) error {
	root := rootCommand()
	root.SetArgs(append(append([]string{"simulate"}, i.args...), "--brief", "--svg", file, "--output", "table"))
	root.SetOut(io.Discard)
	root.SetErr(io.Discard)
	if err := root.ExecuteContext(cmd.Context()); err != nil {
		return fmt.Errorf("make %s: %w", i.file, err)
	}
	return nil
}
