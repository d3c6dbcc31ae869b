package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hopback/hopback/cmd/hopback/internal/config"
	"github.com/hopback/hopback/cmd/hopback/internal/doctor"
)

func doctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find what is wrong with the retries on a broker",
		Long: `Reads a broker and reports what will lose, loop or delay messages: dead-letter
exchanges that lead nowhere, limits and expirations that drop what waits, bindings
that catch too much, settings that this version of RabbitMQ ignores, and more.
Each finding says what was seen, why it matters, and what to do. It only reads.
The broker need not be used with Hopback.

  error    messages get lost, loop, or will not be retried as meant
  warning  it works until something else happens: a queue that is deleted, a node
           that dies, an upgrade
  note     worth knowing, or not to be told for certain; does not count as a fault

With -c the work queues of its routes are looked at with what they reach, and the
broker is compared with the configuration. With --queue it is that queue with
what it reaches. Without both it is the whole virtual host; hopback.yaml, where
there is one, then says only where the broker is and which queues are whose.

The management API is needed, the account with the tag management, or better
monitoring, which also shows the consumers of others. Its figures lag by some
seconds, and so does a policy that has just been set. Where queues look stuck or
looping they are watched for the time of --wait; elsewhere nothing is waited for.

Exit status: 0 no error and no warning; 2 findings; 1 an error of this command.

With --output json one object goes to standard output: product, version, vhost,
queues (how many were there), watched_ms, errors, warnings, notes, and findings
(severity, check, kind, name, queue, reason, fix, docs). The checks are described
in docs/doctor.md.`,
		Example: `  hopback doctor
  hopback doctor -c hopback.yaml --output json
  hopback doctor --queue orders --wait 1m
  HOPBACK_BROKER_URL=amqp://… HOPBACK_MANAGEMENT_URL=http://… hopback doctor`,
		Args: cobra.NoArgs,
	}
	file := cmd.Flags().StringP("config", "c", "", "the configuration file, whose routes are looked at; - is standard input")
	must(cmd.MarkFlagFilename("config", "yaml", "yml"))
	queue := cmd.Flags().String("queue", "", "only this queue, with what it reaches")
	wait := cmd.Flags().Duration("wait", 10*time.Second, "how long to watch queues that look stuck or looping; 0 to not watch")
	cmd.Flags().VarP(&choice{value: "table", of: []string{"table", "json", "text"}}, "output", "o", "how to print: table (or text, the same) or json")
	must(cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp)))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *wait < 0 {
			return fmt.Errorf("--wait: %s cannot work: use 0 or a positive duration, such as 30s", *wait)
		}
		t, err := doctorReach(cmd, *file)
		if err != nil {
			return err
		}
		defer ignore(t.conn)
		s, err := examine(cmd, t, *wait)
		if err != nil {
			return err
		}
		if *queue != "" && !has(s, *queue) {
			return fmt.Errorf("--queue: the virtual host %q has no queue %q", s.Vhost, *queue)
		}
		findings := doctor.Diagnose(s, doctor.Scope{Queue: *queue, Routes: *file != ""})
		if asJSON(cmd) {
			err = printJSON(cmd, newDiagnosis(s, findings))
		} else {
			printFindings(cmd.OutOrStdout(), s, findings)
		}
		if err == nil && doctor.Count(findings, doctor.Error)+doctor.Count(findings, doctor.Warning) > 0 {
			return &differs{"the doctor has findings", true}
		}
		return err
	}
	return cmd
}

// doctorReach goes by the file that was named; else by the default one, where it is
// there; else by the environment alone. The caller closes the connection.
func doctorReach(cmd *cobra.Command, file string) (*target, error) {
	if file == "-" {
		return reach(cmd, file) // it can be read but once
	}
	named := file != ""
	if !named {
		if _, err := os.Stat(config.DefaultFile); err == nil {
			file = config.DefaultFile
		}
	}
	var c *config.Config
	var err error
	if file != "" {
		c, err = load(cmd, file)
	} else {
		c, err = config.FromEnvironment(os.Getenv)
	}
	switch {
	case err != nil:
		return nil, err
	case file == "" && c.Broker.URL == "":
		return nil, fmt.Errorf("broker.url: there is no %s here and %s is not set: set it, such as amqp://localhost:5672/, or name a file with -c",
			config.DefaultFile, config.EnvBrokerURL)
	}
	if err := needManagement(c); err != nil {
		return nil, err
	}
	if named || len(c.Routes) > 0 {
		return reach(cmd, file)
	}
	t := &target{config: c}
	if t.management, err = management(c); err != nil {
		return nil, err
	}
	t.conn, err = connect(cmd.Context(), cmd, c)
	return t, err
}

func needManagement(c *config.Config) error {
	if c.Broker.ManagementURL != "" {
		return nil
	}
	return fmt.Errorf("%s: broker.management_url: there is none, and most of what is looked at shows nowhere else: "+
		"write it into the file or set %s, such as http://localhost:15672 (the plugin rabbitmq_management must be enabled)",
		c.File, config.EnvManagementURL)
}

func examine(cmd *cobra.Command, t *target, wait time.Duration) (*doctor.Snapshot, error) {
	if err := needManagement(t.config); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), readTimeout+wait)
	defer cancel()
	s, err := doctor.Read(ctx, t.conn, t.management, doctor.Options{
		Prefix: t.config.Prefix, Routes: t.config.Routes, Topology: t.topology, RetryPolicies: t.policies, Wait: wait,
		Watching: func(queues []string, d time.Duration) {
			fmt.Fprintf(cmd.ErrOrStderr(), "watching %s for %s: %s\n", plural(len(queues), "queue"), short(d), firstLine(strings.Join(queues, ", "), 60))
		},
	})
	if err != nil {
		return nil, fmt.Errorf("examine the broker: %w", err)
	}
	return s, nil
}

// readTimeout bounds the reading. A list of 100,000 queues takes some seconds.
const readTimeout = time.Minute

func has(s *doctor.Snapshot, queue string) bool {
	for _, q := range s.Queues {
		if q.Name == queue {
			return true
		}
	}
	return false
}

// printFindings writes a table in which every row is followed by the reason and
// by what to do.
func printFindings(out io.Writer, s *doctor.Snapshot, findings []doctor.Finding) {
	fmt.Fprintf(out, "%s %s, virtual host %q, %s\n\n", s.Product, s.Version, s.Vhost, plural(len(s.Queues), "queue"))
	if len(findings) == 0 {
		fmt.Fprintln(out, "nothing found")
		return
	}
	where := func(f doctor.Finding) string { return strings.TrimSpace(f.Kind + " " + firstLine(f.Name, 60)) }
	wide := len("WHERE")
	for _, f := range findings {
		wide = max(wide, len([]rune(where(f))))
	}
	fmt.Fprintf(out, "SEVERITY  %-*s  CHECK\n", wide, "WHERE")
	for _, f := range findings {
		fmt.Fprintf(out, "%-8s  %-*s  %s\n", f.Severity, wide, where(f), f.Check)
		paragraph(out, "", f.Reason)
		paragraph(out, "fix: ", f.Fix)
		fmt.Fprintln(out)
	}
	fmt.Fprintf(out, "%s, %s, %s; more about each check in docs/doctor.md\n",
		plural(doctor.Count(findings, doctor.Error), "error"), plural(doctor.Count(findings, doctor.Warning), "warning"),
		plural(doctor.Count(findings, doctor.Note), "note"))
}

// paragraph writes text in lines that a terminal holds.
func paragraph(out io.Writer, label, text string) {
	const indent, width = 10, 100
	line := strings.Repeat(" ", indent) + label
	empty := true
	for _, word := range strings.Fields(firstLine(text, 4000)) {
		if !empty && len([]rune(line))+1+len([]rune(word)) > width {
			fmt.Fprintln(out, line)
			line, empty = strings.Repeat(" ", indent+len(label)), true
		}
		if !empty {
			line += " "
		}
		line += word
		empty = false
	}
	fmt.Fprintln(out, line)
}

// diagnosis is the answer for programs.
type diagnosis struct {
	Product   string           `json:"product"`
	Version   string           `json:"version"`
	Vhost     string           `json:"vhost"`
	Queues    int              `json:"queues"`
	WatchedMS int64            `json:"watched_ms"`
	Errors    int              `json:"errors"`
	Warnings  int              `json:"warnings"`
	Notes     int              `json:"notes"`
	Findings  []doctor.Finding `json:"findings"`
}

func newDiagnosis(s *doctor.Snapshot, findings []doctor.Finding) diagnosis {
	return diagnosis{
		s.Product, s.Version, s.Vhost, len(s.Queues), s.Watched().Milliseconds(),
		doctor.Count(findings, doctor.Error), doctor.Count(findings, doctor.Warning), doctor.Count(findings, doctor.Note), findings,
	}
}
