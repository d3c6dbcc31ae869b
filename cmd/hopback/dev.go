package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hopback/hopback/rabbittest"
)

type devOptions struct {
	version, data        string
	management           bool
	port, managementPort int
}

func devCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a private RabbitMQ until Ctrl-C",
		Long: `Starts a private RabbitMQ on free loopback ports, prints its URLs, and stops it at
Ctrl-C. Its data is in a temporary folder that is removed at the end, or in the
one that --data names. No other broker is touched, and it needs no rights but to
run RabbitMQ's own programs, or a container engine where there is none.

Of several installed versions, the machine's own is taken, or the one that
--version picks by its leading numbers.

Exit status: 0 after Ctrl-C; 1 it could not start, or ended by itself.

With --output json one line goes to standard output as soon as it is up: version,
url, management_url, data.`,
		Example: `  hopback dev
  hopback dev --version 4.3 --management
  hopback dev --port 5673     # always amqp://guest:guest@127.0.0.1:5673/`,
		Args: cobra.NoArgs,
	}
	var o devOptions
	f := cmd.Flags()
	f.StringVar(&o.version, "version", "", "which of the installed versions, such as 4.3")
	f.BoolVar(&o.management, "management", false, "with the management API and its pages")
	f.IntVar(&o.port, "port", 0, "the AMQP port; 0 is a free one")
	f.IntVar(&o.managementPort, "management-port", 0, "the port of the management API, and switches it on; 0 is a free one")
	f.StringVar(&o.data, "data", "", "keep the data in this folder, and use what is in it")
	must(cmd.MarkFlagDirname("data"))
	must(cmd.RegisterFlagCompletionFunc("version", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return installed(), cobra.ShellCompDirectiveNoFileComp
	}))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return runDev(cmd, o) }
	return cmd
}

func installed() []string {
	var vs []string
	for _, i := range rabbittest.Installed() {
		vs = append(vs, i.Version)
	}
	return vs
}

func runDev(cmd *cobra.Command, o devOptions) (err error) {
	ctx := cmd.Context()
	for flag, port := range map[string]int{"port": o.port, "management-port": o.managementPort} {
		if port < 0 || port > 65535 {
			return fmt.Errorf("--%s: %d cannot work: use a number from 1 to 65535, or 0 for a free one", flag, port)
		}
	}
	if !asJSON(cmd) {
		fmt.Fprintln(cmd.ErrOrStderr(), "starting a private RabbitMQ …")
	}
	b, err := rabbittest.Run(ctx, rabbittest.Options{
		Version: o.version, Dir: o.data, Port: o.port, ManagementPort: o.managementPort,
		NoManagement: !o.management && o.managementPort == 0,
	})
	if err != nil {
		return fmt.Errorf("start a private broker: %w", err)
	}
	defer func() {
		if cerr := b.Close(); cerr != nil {
			err = errors.Join(err, fmt.Errorf("stop the broker: %w", cerr))
		}
	}()
	if err := announce(cmd, b, o.data != ""); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case <-b.Exited():
		return fmt.Errorf("the broker has ended by itself\n%s", b.LogTail(2000))
	}
}

func announce(cmd *cobra.Command, b *rabbittest.Broker, kept bool) error {
	out := cmd.OutOrStdout()
	if asJSON(cmd) {
		return json.NewEncoder(out).Encode(struct {
			Version       string `json:"version"`
			URL           string `json:"url"`
			ManagementURL string `json:"management_url,omitempty"`
			Data          string `json:"data"`
		}{b.Version(), b.URL(), b.ManagementURL(), b.Dir()})
	}
	fate := "removed at the end"
	if kept {
		fate = "kept"
	}
	var text strings.Builder
	fmt.Fprintf(&text, "RabbitMQ %s is up. In another terminal:\n\n  export HOPBACK_BROKER_URL=%s\n", b.Version(), b.URL())
	if u := b.ManagementURL(); u != "" {
		fmt.Fprintf(&text, "  export HOPBACK_MANAGEMENT_URL=%s\n", u)
	}
	fmt.Fprintf(&text, "\nIts data is in %s, and %s. Ctrl-C stops it.\n", b.Dir(), fate)
	_, err := io.WriteString(out, text.String())
	return err
}
