// Command bench prints Hopback's figures beside those of bare amqp091-go, from
// one run on one broker, so that the ratios mean something on any machine.
//
//	go run ./bench                      # hand-off and happy path
//	go run ./bench -only lateness -rates 2000,4000 -for 60s
//	go run ./bench -only million
//	go run ./bench -only router -rates 2000 -rounds 3
//	go run ./bench -only mechanisms -rates 1000,2000 -for 30s
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/rabbittest"
)

type options struct {
	versions, only []string
	precisions     []string
	mechanism      string // for lateness
	messages       int
	rounds         int
	rates          []int
	duration       time.Duration
	million        int
	prefetch       int
	concurrency    int
	asJSON         bool
}

// figure is one row of the table.
type figure struct {
	Broker string  `json:"broker"`
	Name   string  `json:"name"`
	Value  float64 `json:"value"`
	Unit   string  `json:"unit"`
	Ratio  string  `json:"ratio,omitempty"`
	Wanted string  `json:"wanted,omitempty"`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	var o options
	versions := flag.String("brokers", os.Getenv("BROKERS"), "broker versions, separated by spaces; default: the first installed")
	only := flag.String("only", "handoff,happy,lateness", "which: handoff, happy, lateness, million, router, router-million, mechanisms, native")
	rates := flag.String("rates", "2000,4000", "retries a second, for lateness")
	precisions := flag.String("precision", "auto", "precisions of the wheel, for lateness: auto, one, two")
	flag.StringVar(&o.mechanism, "mechanism", hopback.Wheel, "mechanism, for lateness: wheel, native")
	flag.IntVar(&o.messages, "messages", 20_000, "messages a round, for handoff and happy")
	flag.IntVar(&o.rounds, "rounds", 5, "rounds; the median counts")
	flag.DurationVar(&o.duration, "for", time.Minute, "how long each rate is sustained, for lateness")
	flag.IntVar(&o.million, "n", 1_000_000, "messages, for million and router-million")
	flag.IntVar(&o.prefetch, "prefetch", 500, "prefetch, the same for all loops")
	flag.IntVar(&o.concurrency, "concurrency", 10, "handlers at once")
	flag.BoolVar(&o.asJSON, "json", false, "print JSON")
	profile := flag.String("cpuprofile", "", "write a CPU profile to this file")
	flag.Parse()
	if *profile != "" {
		f, err := os.Create(*profile)
		if err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	o.versions = strings.Fields(*versions)
	if len(o.versions) == 0 {
		o.versions = []string{""}
	}
	o.only = strings.Split(*only, ",")
	o.precisions = strings.Split(*precisions, ",")
	for _, r := range strings.Split(*rates, ",") {
		n, err := strconv.Atoi(r)
		if err != nil {
			return fmt.Errorf("-rates %q: use numbers separated by commas", *rates)
		}
		o.rates = append(o.rates, n)
	}
	// A service has more in memory than a loop that does nothing; with a heap of
	// 4 MiB the collector would be a third of what is measured, for all loops.
	debug.SetGCPercent(400)
	// Lost connections and the like would be news; the rest is noise here.
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))

	var all []figure
	for _, v := range o.versions {
		figures, err := runOn(ctx, v, o)
		all = append(all, figures...)
		if err != nil {
			return err
		}
	}
	if o.asJSON {
		return json.NewEncoder(os.Stdout).Encode(all)
	}
	print(os.Stdout, all)
	return nil
}

func runOn(ctx context.Context, version string, o options) ([]figure, error) {
	b, err := rabbittest.Run(ctx, rabbittest.Options{Version: version, NoManagement: true})
	if err != nil {
		return nil, err
	}
	defer b.Close()
	var all []figure
	for _, bench := range []struct {
		name string
		run  func(context.Context, *rabbittest.Broker, options) ([]figure, error)
	}{
		{"handoff", handoff}, {"happy", happy}, {"lateness", lateness}, {"million", million}, {"router", routed}, {"router-million", routerMillion}, {"mechanisms", mechanisms}, {"native", nativeSettlements},
	} {
		if !slices.Contains(o.only, bench.name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "RabbitMQ %s: %s …\n", b.Version(), bench.name)
		figures, err := bench.run(ctx, b, o)
		for i := range figures {
			figures[i].Broker = b.Version()
		}
		all = append(all, figures...)
		if err != nil {
			return all, fmt.Errorf("%s on %s: %w", bench.name, b.Version(), err)
		}
	}
	return all, nil
}

func print(w io.Writer, all []figure) {
	fmt.Fprintf(w, "%s, %d CPUs, %s/%s; broker and client on the same machine\n\n",
		runtime.Version(), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH)
	t := tabwriter.NewWriter(w, 2, 4, 2, ' ', 0)
	fmt.Fprintln(t, "RabbitMQ\tfigure\tvalue\tunit\tratio\twanted")
	for _, f := range all {
		fmt.Fprintf(t, "%s\t%s\t%.5g\t%s\t%s\t%s\n", f.Broker, f.Name, f.Value, f.Unit, f.Ratio, f.Wanted)
	}
	t.Flush()
}

func median(xs []float64) float64 {
	xs = slices.Sorted(slices.Values(xs))
	return xs[len(xs)/2]
}
