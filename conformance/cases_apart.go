package conformance

import (
	"context"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// apartCases run one after another, each with the worker to itself: they break
// something, or make it crash.
var apartCases = []*testCase{
	{
		name: "returned", level: Rich, about: "A rich failure that no queue takes is not acknowledged: it is published mandatory",
		probes: one(Permanent), apart: true, endOnly: true, skip: needsOwnWay,
		during: func(ctx context.Context, r *runner, c *check, probes []*probe) error {
			return brokenWay(ctx, r, c, probes[0], false, "publish mandatory, and where the message is returned do not acknowledge: close the connection, and it is delivered again")
		},
	},
	{
		name: "refused", level: Rich, about: "A rich failure that the broker refuses is not acknowledged: its confirm is waited for",
		probes: one(Permanent), apart: true, endOnly: true, skip: needsOwnWay,
		during: func(ctx context.Context, r *runner, c *check, probes []*probe) error {
			return brokenWay(ctx, r, c, probes[0], true, "switch confirms on, and acknowledge only after a positive one: at a basic.nack close the connection, and the message is delivered again")
		},
	},
	{
		name: "user-id", level: Rich, about: "The property user-id of another user is left out, which the broker would answer by closing the channel",
		probes: one("fail,handle"), apart: true,
		skip: func(cfg Config, _ *bench) string {
			if userOf(cfg.URL) == userOf(cfg.WorkerURL) {
				return "the worker connects as the same user as the runner: use --worker-url with another"
			}
			return ""
		},
		during: func(ctx context.Context, r *runner, _ *check, probes []*probe) error {
			probes[0].msg.UserId = userOf(r.cfg.URL)
			return r.publishAndWait(ctx, probes)
		},
	},
	{
		name: "crash-once", level: Basic, about: "A crash loses nothing: neither the message nor those that were handed out with it",
		probes: func(cfg Config, id func() string) []*probe {
			return append(one("crash-once,handle")(cfg, id), several(9, "reject,handle")(cfg, id)...)
		},
		apart: true, skip: needsRestarts,
		during: func(ctx context.Context, r *runner, c *check, probes []*probe) error {
			before, _, _ := r.worker.ended()
			if err := r.publishAndWait(ctx, probes); err != nil {
				return err
			}
			if after, _, _ := r.worker.ended(); r.cfg.Worker != nil && after == before {
				c.add(1, "the worker did not end", "an end without a settlement", "it runs on", fixOf(step{word: CrashOnce}))
			}
			return nil
		},
	},
	{
		name: "crash-loop", level: Basic, about: "A message that always crashes its worker is parked as crash-loop",
		probes: one(Crash), apart: true,
		skip: func(cfg Config, b *bench) string {
			switch {
			case needsRestarts(cfg, b) != "":
				return needsRestarts(cfg, b)
			case !b.madeQueue:
				return "the queue's own delivery limit is not known: leave out --queue"
			case cfg.QueueType == "classic":
				return "a classic queue has no delivery limit, and delivers such a message for ever"
			}
			return ""
		},
	},
}

func needsOwnWay(cfg Config, b *bench) string {
	if !b.breakable() {
		return "it breaks the way to the router: the queue and the router must be the runner's own"
	}
	return needsWorker(cfg)
}

func needsRestarts(cfg Config, _ *bench) string {
	if cfg.Worker == nil && !cfg.Restarted {
		return "the worker would not come back from a crash: use --run, or --restarted if something restarts it"
	}
	return ""
}

func userOf(rawURL string) string {
	uri, _ := amqp.ParseURI(rawURL)
	return uri.Username
}

// settleTime is how long a consumer has to do something about a publish that did not
// work, before it can again. Nothing is wrong where it is slower.
const settleTime = 2 * time.Second

// brokenWay lets a rich failure come to nothing, mends that, and sees whether the
// message is still there: rejected, or unsettled and delivered again.
func brokenWay(ctx context.Context, r *runner, c *check, p *probe, refuse bool, fix string) error {
	if err := r.bench.breakWay(refuse); err != nil {
		return err
	}
	mended := false
	mend := func() error {
		if mended {
			return nil
		}
		mended = true
		return r.bench.mendWay()
	}
	defer mend() //nolint:errcheck // the queues are removed anyway
	before, _, _ := r.worker.ended()
	if err := r.bench.publish(ctx, p); err != nil {
		return err
	}
	limit, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	for limit.Err() == nil {
		// It rejects the message, or ends, since it cannot settle it, or does nothing.
		if times, _, _ := r.worker.ended(); times > before || len(failures(r.ledger.of(p.id))) > 0 {
			break
		}
		select {
		case <-r.ledger.next():
		case <-time.After(20 * time.Millisecond):
		case <-limit.Done():
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := mend(); err != nil {
		return err
	}
	if len(failures(r.ledger.of(p.id))) == 0 {
		// It is unsettled, or it is lost. Without its consumer it is back in the queue.
		if err := r.stopWorker(ctx); err != nil {
			return err
		}
		n, err := r.bench.ready()
		if err != nil {
			return err
		}
		// One that was slow may have published it when the way was mended.
		limit, cancel := context.WithTimeout(ctx, settleTime)
		defer cancel()
		for n == 0 && len(failures(r.ledger.of(p.id))) == 0 && limit.Err() == nil {
			time.Sleep(20 * time.Millisecond)
		}
		if n == 0 && len(failures(r.ledger.of(p.id))) == 0 {
			c.add(1, "the message is lost: it was acknowledged, and did not reach the router", "rejected, or still in the work queue", "in no queue", fix)
			return nil
		}
		if err := r.startWorker(ctx); err != nil {
			return err
		}
	}
	return r.wait(ctx, func() bool {
		return len(in(r.ledger.of(p.id), parked)) > 0
	})
}

// survived is for what met a broken way. Only the end counts: the message may have been rejected first.
func (c *check) survived(p *probe, events []event) {
	if len(c.failures) > 0 {
		return
	}
	if n := len(in(events, parked)); n != 1 {
		c.add(0, fmt.Sprintf("the message was parked %d times", n), "once, as permanent", describe(events), fixFail)
	}
}

func contains(left []amqp.Delivery, id string) bool {
	for i := range left {
		if idOf(&left[i]) == id {
			return true
		}
	}
	return false
}
