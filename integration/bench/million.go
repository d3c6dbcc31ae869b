package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/rabbittest"
)

// million lets a consumer fail very many messages and watches its memory while
// they wait: what waits must cost the consumer nothing.
func million(ctx context.Context, b *rabbittest.Broker, o options) ([]figure, error) {
	if err := declareWork(b.URL()); err != nil {
		return nil, err
	}
	const parts = 10
	n := o
	n.messages = o.million / parts
	var heap [parts]float64
	for i := range parts {
		if err := fill(b.URL(), workQueue, n.messages); err != nil {
			return nil, err
		}
		seen := newCounter(n.messages)
		if _, err := consumeAll(ctx, b.URL(), n, seen, func(context.Context, *hopback.Message) error { return errDown }); err != nil {
			return nil, err
		}
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		heap[i] = float64(m.HeapAlloc) / (1 << 20)
		fmt.Fprintf(os.Stderr, "  %d waiting, heap %.1f MiB\n", (i+1)*n.messages, heap[i])
	}
	prep, err := dial(b.URL())
	if err != nil {
		return nil, err
	}
	defer prep.close()
	if err := waitDepth(ctx, prep, slot, parts*n.messages); err != nil {
		return nil, err
	}
	time.Sleep(time.Second)
	return []figure{
		{Name: fmt.Sprintf("heap with %d waiting", n.messages), Value: heap[0], Unit: "MiB"},
		{
			Name: fmt.Sprintf("heap with %d waiting", parts*n.messages), Value: heap[parts-1], Unit: "MiB",
			Ratio: fmt.Sprintf("%.2f × the first", heap[parts-1]/heap[0]), Wanted: "flat",
		},
	}, nil
}
