package conformance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
	"github.com/hopback/hopback/router"
	"github.com/hopback/hopback/topology"
)

// bench is what is set up around the consumer: its queue, a router, and taps that
// see what passes.
type bench struct {
	cfg    Config
	ledger *ledger

	conn      *amqp.Connection
	ch        *amqp.Channel // in confirm mode; for one goroutine
	returns   chan amqp.Return
	watching  sync.WaitGroup
	madeQueue bool              // the work queue is ours
	made      topology.Topology // by us, to be removed
	tap       string            // sees what goes to the router
	refusing  string            // refuses what it is given

	stopRouter context.CancelFunc
	routerDone chan error
}

var (
	errOthers = errors.New("another router reads there")
	errInUse  = errors.New("somebody else uses it")
)

// brokerPatience bounds what the broker answers in milliseconds.
const brokerPatience = 30 * time.Second

// dial connects; the errors of amqp091-go and of net/url can have the password in
// them, and so are not passed on with it.
func dial(ctx context.Context, rawURL string) (*amqp.Connection, error) {
	props := amqp.NewConnectionProperties()
	props.SetClientConnectionName("hopback conformance")
	conn, err := amqp.DialConfig(rawURL, amqp.Config{
		Heartbeat: 10 * time.Second, Properties: props,
		Dial: func(network, addr string) (net.Conn, error) {
			raw, err := (&net.Dialer{Timeout: brokerPatience}).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return raw, raw.SetDeadline(time.Now().Add(brokerPatience)) // for the handshake
		},
	})
	var quoted *url.Error
	if errors.As(err, &quoted) {
		err = quoted.Err
	}
	if err != nil {
		return nil, fmt.Errorf("connect to the broker: %w", err)
	}
	return conn, nil
}

// setUp makes everything. What it has made before an error is removed by tearDown.
func setUp(ctx context.Context, cfg Config) (*bench, error) {
	b := &bench{cfg: cfg, ledger: newLedger()}
	var err error
	if b.conn, err = dial(ctx, cfg.URL); err != nil {
		return b, err
	}
	if err := b.openChannel(); err != nil {
		return b, err
	}
	if err := b.checkRouter(); err != nil {
		return b, err
	}
	if err := b.makeQueue(ctx); err != nil {
		return b, err
	}
	if !cfg.RouterRuns {
		if err := b.startRouter(ctx); err != nil {
			return b, err
		}
	}
	return b, b.watch(ctx)
}

func (b *bench) openChannel() error {
	ch, err := b.conn.Channel()
	if err != nil {
		return fmt.Errorf("open a channel: %w", err)
	}
	b.ch, b.returns = ch, ch.NotifyReturn(make(chan amqp.Return, 1000))
	if err := ch.Confirm(false); err != nil {
		return fmt.Errorf("switch confirms on: %w", err)
	}
	return nil
}

// do runs a step on a channel of its own, which an error may close.
func (b *bench) do(what string, step func(*amqp.Channel) error) error {
	ch, err := b.conn.Channel()
	if err == nil {
		err = step(ch)
		_ = ch.Close()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// look is what a passive declaration shows of a queue.
func (b *bench) look(queue string) (q amqp.Queue, there bool, err error) {
	err = b.do(fmt.Sprintf("look at queue %q", queue), func(ch *amqp.Channel) error {
		q, err = ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		return err
	})
	var refused *amqp.Error
	if errors.As(err, &refused) && refused.Code == amqp.NotFound {
		return q, false, nil
	}
	return q, err == nil, err
}

// checkRouter makes sure that there is a router, or that there is none.
func (b *bench) checkRouter() error {
	q, there, err := b.look(b.cfg.failed())
	switch {
	case err != nil:
		return err
	case b.cfg.RouterRuns && (!there || q.Consumers == 0):
		return fmt.Errorf("use the router that runs: nobody reads the queue %q: start `hopback serve`, or leave it to the run", b.cfg.failed())
	case !b.cfg.RouterRuns && there && q.Consumers > 0:
		return fmt.Errorf("start a router: queue %q: %w: use that one, or another prefix, or end the other run", b.cfg.failed(), errOthers)
	}
	return nil
}

// route is the work queue's, for a router of our own.
func (b *bench) route() router.Route {
	return router.Route{Route: hopback.Route{
		Queue: b.cfg.Queue, Policy: b.cfg.Policy,
		Mechanism: hopback.Ladder, Ladder: []time.Duration{shortDelay, longDelay},
	}}
}

// deliveryLimit of a queue that we make: so many crashes, and one more, are forgiven.
const deliveryLimit = 3

func (b *bench) makeQueue(ctx context.Context) error {
	cfg := b.cfg
	if cfg.own() {
		// What an earlier run has left that was killed.
		if err := b.remove(b.ours()); err != nil {
			return err
		}
	}
	q, there, err := b.look(cfg.Queue)
	switch {
	case err != nil:
		return err
	case there && q.Messages > 0 && !cfg.Force:
		return fmt.Errorf("use queue %q: it has %d messages, which the worker would handle: %w: name an empty queue, or none, or force it", cfg.Queue, q.Messages, errInUse)
	case there && q.Consumers > 0 && cfg.Worker != nil:
		return fmt.Errorf("use queue %q: it has %d consumers beside the worker: %w: end them", cfg.Queue, q.Consumers, errInUse)
	}
	if there && cfg.own() {
		return fmt.Errorf("use queue %q: it is there already, and its rejections go to the exchange that its own arguments or policy name: give the prefix of that one, such as %q", cfg.Queue, hopback.DefaultPrefix)
	}
	b.madeQueue = !there
	b.made = topology.Topology{Exchanges: []topology.Exchange{{Name: cfg.shop(), Kind: "topic"}}}
	deadTo := cfg.failed()
	if b.breakable() {
		// Rejections have a way of their own to the router, so that the one of
		// rich failures can be broken alone.
		deadTo = cfg.dead()
		b.made.Exchanges = append(b.made.Exchanges, topology.Exchange{Name: cfg.dead(), Kind: "fanout"})
	}
	if b.madeQueue {
		args := amqp.Table{"x-queue-type": cfg.QueueType, "x-dead-letter-exchange": deadTo}
		if cfg.QueueType == "quorum" {
			args["x-delivery-limit"] = int64(deliveryLimit)
			args["x-dead-letter-strategy"] = "at-least-once"
			args["x-overflow"] = "reject-publish"
		}
		b.made.Queues = append(b.made.Queues, topology.Queue{Name: cfg.Queue, Args: args, User: true, Declare: true})
	}
	if cfg.RouterRuns {
		// A router that adopts a queue makes this at its first failure.
		if _, there, err := b.look(cfg.parking()); err != nil {
			return err
		} else if !there {
			b.made.Queues = append(b.made.Queues, topology.Queue{Name: cfg.parking(), Args: parkingArgs()})
		}
	}
	needs := b.made.Merge(topology.Topology{Bindings: []topology.Binding{{Source: cfg.shop(), Destination: cfg.Queue, Key: "#"}}})
	if !b.madeQueue {
		needs = needs.Merge(topology.Topology{Queues: []topology.Queue{{Name: cfg.Queue, User: true}}})
	}
	return b.apply(ctx, needs)
}

func (b *bench) apply(ctx context.Context, t topology.Topology) error {
	ctx, cancel := context.WithTimeout(ctx, brokerPatience)
	defer cancel()
	if err := topology.Apply(ctx, b.conn, t); err != nil {
		return fmt.Errorf("prepare the broker: %w", err)
	}
	return nil
}

// breakable reports whether the way of rich failures to the router can be broken:
// neither the queue nor the router may be anybody else's.
func (b *bench) breakable() bool { return b.madeQueue && !b.cfg.RouterRuns }

// parkingArgs are those with which Hopback declares a parking queue.
func parkingArgs() amqp.Table {
	t, _ := hopback.Topology("", hopback.Route{Queue: "any"})
	for _, q := range t.Queues {
		if q.Name == "any.parked" {
			return q.Args
		}
	}
	return nil
}

// ours is what only a run can have made: by its names, under the prefix of runs.
func (b *bench) ours() topology.Topology {
	t, _ := router.Topology(b.cfg.Prefix, b.route()) // it was checked
	t.Queues = slices.DeleteFunc(t.Queues, func(q topology.Queue) bool { return !b.private(q.Name) })
	t.Exchanges = append(t.Exchanges, topology.Exchange{Name: b.cfg.shop()}, topology.Exchange{Name: b.cfg.dead()})
	return t
}

// private reports whether a queue is of runs alone.
func (b *bench) private(queue string) bool {
	return b.cfg.own() && strings.HasPrefix(queue, b.cfg.Prefix+".")
}

// startRouter runs a router until tearDown.
func (b *bench) startRouter(ctx context.Context) error {
	route := b.route()
	needs, err := router.Topology(b.cfg.Prefix, route)
	if err != nil {
		return fmt.Errorf("start a router: %w", err)
	}
	missing, err := topology.MakePlan(ctx, b.conn, nil, needs)
	if err != nil {
		return fmt.Errorf("start a router: %w", err)
	}
	b.made = b.made.Merge(lacking(needs, missing))
	r, err := router.New(router.Config{
		Client: hopback.Config{URL: b.cfg.URL, Prefix: b.cfg.Prefix, Name: "hopback conformance", Logger: b.cfg.Logger},
		Routes: []router.Route{route},
	})
	if err != nil {
		return fmt.Errorf("start a router: %w", err)
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	b.stopRouter, b.routerDone = stop, make(chan error, 1)
	go func() { b.routerDone <- r.Run(running) }()
	for deadline := time.Now().Add(2 * brokerPatience); !r.Ready(); {
		select {
		case err := <-b.routerDone:
			b.routerDone <- err
			return fmt.Errorf("start a router: %w", err)
		case <-ctx.Done():
			return fmt.Errorf("start a router: %w", ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("start a router: not subscribed within %s: %w", 2*brokerPatience, r.Healthy())
		}
	}
	if err := r.Trouble(); err != nil {
		return fmt.Errorf("start a router: %w", err)
	}
	return nil
}

// lacking is the part of a topology that a plan misses.
func lacking(t topology.Topology, p topology.Plan) topology.Topology {
	missing := map[string]bool{}
	for _, d := range p.Differences {
		if d.State == topology.Missing {
			missing[d.Kind+" "+d.Name] = true
		}
	}
	var part topology.Topology
	for _, e := range t.Exchanges {
		if missing["exchange "+e.Name] {
			part.Exchanges = append(part.Exchanges, e)
		}
	}
	for _, q := range t.Queues {
		if missing["queue "+q.Name] && !q.User {
			part.Queues = append(part.Queues, q)
		}
	}
	return part
}

// publish sends a message to the work queue, or to an exchange that leads there, and
// returns when the broker has it.
func (b *bench) publish(ctx context.Context, p *probe) error {
	ctx, cancel := context.WithTimeout(ctx, brokerPatience)
	defer cancel()
	fail := func(why any) error { return fmt.Errorf("publish to queue %q: %v", b.cfg.Queue, why) }
	exchange, key := "", b.cfg.Queue
	if p.key != "" {
		exchange, key = b.cfg.shop(), p.key
	}
	p.sent = time.Now()
	confirm, err := b.ch.PublishWithDeferredConfirmWithContext(ctx, exchange, key, true, false, p.msg)
	if err != nil {
		return fail(err)
	}
	ok, err := confirm.WaitContext(ctx)
	switch {
	case err != nil:
		return fail(err)
	case !ok:
		return fail("refused by the broker")
	}
	select {
	case r := <-b.returns:
		return fail(r.ReplyText)
	default:
		return nil
	}
}

// tearDown ends everything and removes what was made. It works without ctx, which
// may have ended.
func (b *bench) tearDown() error {
	var errs []error
	if b.stopRouter != nil {
		b.stopRouter()
		if err := <-b.routerDone; err != nil {
			errs = append(errs, err)
		}
	}
	if b.conn == nil {
		return errors.Join(errs...)
	}
	for _, t := range []topology.Topology{b.made, b.leftovers()} {
		if err := b.remove(t); err != nil {
			errs = append(errs, err)
		}
	}
	_ = b.conn.Close()
	b.watching.Wait()
	return errors.Join(errs...)
}

// leftovers is what may be there beside what was made here.
func (b *bench) leftovers() topology.Topology {
	if b.cfg.own() && b.made.Exchanges != nil {
		return b.ours()
	}
	return topology.Topology{}
}

// remove deletes queues and exchanges; what is not there is deleted already.
func (b *bench) remove(t topology.Topology) error {
	return b.do("remove what was made", func(ch *amqp.Channel) error {
		var errs []error
		for _, q := range t.Queues {
			_, err := ch.QueueDelete(q.Name, false, false, false)
			errs = append(errs, err)
		}
		for _, e := range t.Exchanges {
			errs = append(errs, ch.ExchangeDelete(e.Name, false, false))
		}
		return errors.Join(errs...)
	})
}
