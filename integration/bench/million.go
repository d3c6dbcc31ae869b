package main

import (
	"context"
	"fmt"
	"os"
	"runtime"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/rabbittest"
)

// million lets a consumer fail very many messages and watches its memory while
// they wait: what waits must cost the consumer nothing.
func million(ctx context.Context, b *rabbittest.Broker, o options) ([]figure, error) {
	if err := declareWork(b.URL()); err != nil {
		return nil, err
	}
	figures, err := heapAsTheyWait("", o, func(n int) error {
		some := o
		some.messages = n
		if err := fill(b.URL(), workQueue, n); err != nil {
			return err
		}
		_, err := consumeAll(ctx, b.URL(), some, newCounter(n), func(context.Context, *hopback.Message) error { return errDown })
		return err
	})
	if err != nil {
		return nil, err
	}
	return figures, allWait(ctx, b.URL(), o)
}

const parts = 10 // of a million

// heapAsTheyWait lets messages come to wait in ten parts, and compares the heap after
// the first with that after the last.
func heapAsTheyWait(whose string, o options, more func(n int) error) ([]figure, error) {
	n := o.million / parts
	var heap [parts]float64
	for i := range parts {
		if err := more(n); err != nil {
			return nil, err
		}
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		heap[i] = float64(m.HeapAlloc) / (1 << 20)
		fmt.Fprintf(os.Stderr, "  %d waiting, heap %.2f MiB\n", (i+1)*n, heap[i])
	}
	return []figure{
		{Name: fmt.Sprintf("%sheap with %d waiting", whose, n), Value: heap[0], Unit: "MiB"},
		{
			Name: fmt.Sprintf("%sheap with %d waiting", whose, parts*n), Value: heap[parts-1], Unit: "MiB",
			Ratio: fmt.Sprintf("%.2f × the first", heap[parts-1]/heap[0]), Wanted: "flat",
		},
	}, nil
}

// allWait makes sure that they do.
func allWait(ctx context.Context, url string, o options) error {
	c, err := dial(url)
	if err != nil {
		return err
	}
	defer c.close()
	return waitDepth(ctx, c, slot, o.million/parts*parts)
}
