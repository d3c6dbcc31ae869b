package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
)

// side is one of the two routes with everything that is its own: the consumer
// has its own connections too, as another service would.
type side struct {
	route    hopback.Route
	load     load
	payments *dependency
	ledger   *ledger
	retries  series
	client   *hopback.Client
	consumer *hopback.Consumer

	waiting int // on the broker at the end
	parking int // in the parking queue at the end
}

// observer writes the ledger of one side.
type observer struct {
	hopback.NopObserver
	ledger *ledger
}

func (o observer) Handled(e hopback.Handled) { o.ledger.handle(e, time.Now()) }
func (o observer) Retried(hopback.Retried)   { o.ledger.retry() }
func (o observer) Parked(e hopback.Parked)   { o.ledger.park(e) }

// story is one run.
type story struct {
	o     Options
	url   string
	log   logTail
	sides [2]*side // without jitter, with
	start time.Time

	counted bool // what is left on the broker is known
}

// The work queues, in the order they are shown.
const (
	queueWithout = "orders.without-jitter"
	queueWith    = "orders.with-jitter"
)

func newStory(o Options, url string) (*story, error) {
	s := &story{o: o, url: url}
	for i, r := range []hopback.Route{
		{Queue: queueWithout, Policy: o.policy(hopback.NoJitter)},
		{Queue: queueWith, Policy: o.policy(hopback.Full)},
	} {
		r.Declare = &hopback.Declare{Type: "quorum"}
		// The wheel on every version: what waits can be counted in its slots. In
		// precision auto a herd of thousands a second would be rounded to whole seconds,
		// and it is here to be seen spread.
		r.Mechanism, r.Precision = hopback.Wheel, hopback.PrecisionTwo
		sd := &side{
			route: r.WithDefaults(), load: newLoad(o.Messages, o.Seed),
			payments: newDependency(max(1, o.Messages*3/10)), ledger: newLedger(),
		}
		s.sides[i] = sd
		var err error
		sd.client, err = hopback.New(hopback.Config{
			URL: url, Name: "hopback demo " + r.Queue, Observer: observer{ledger: sd.ledger},
			Logger: slog.New(slog.NewTextHandler(&s.log, nil)),
		})
		if err != nil {
			return nil, err
		}
		sd.consumer, err = sd.client.NewConsumer(hopback.ConsumerConfig{
			Route: r, Handler: sd.handler(), ShutdownTimeout: 5 * time.Second,
			// The whole herd is in work at once, and the odd ones besides.
			Concurrency: o.Messages + oddOrders, Prefetch: o.Messages + oddOrders,
		})
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}

// run tells the story with both consumers running, stops them, and looks at
// what is left on the broker.
func (s *story) run(ctx context.Context) error {
	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var consumers sync.WaitGroup
	for _, sd := range s.sides {
		consumers.Go(func() {
			if err := sd.consumer.Run(running); err != nil {
				stop(fmt.Errorf("run the consumer of %s: %w", sd.route.Queue, err))
			}
		})
	}
	err := s.tell(running)
	if cause := context.Cause(running); cause != nil && ctx.Err() == nil {
		err = cause // a consumer ended, and that is why
	}

	for _, sd := range s.sides {
		sd.payments.become(down) // nobody may hang any more
	}
	stop(nil)
	consumers.Wait()
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	for _, sd := range s.sides {
		_ = sd.client.Close(bounded) // always nil
	}
	lerr := s.look(bounded)
	s.counted = lerr == nil
	if err == nil {
		err = lerr
	}
	return err
}

// tell lets happen what happens, until every message is handled or parked.
func (s *story) tell(ctx context.Context) error {
	s.o.View.Progress("declaring the routes")
	if err := s.ready(ctx); err != nil {
		return err
	}
	conn, err := amqp.Dial(s.url)
	if err != nil {
		return fmt.Errorf("connect the producer: %w", err)
	}
	defer conn.Close()

	policy := s.sides[0].route.Policy
	s.o.View.Begin(Scene{
		Title: [2]string{"WITHOUT JITTER", "WITH FULL JITTER"},
		Most:  s.o.Messages + hopeless + onceEach,
		State: s.state,
	})
	s.o.View.Event(fmt.Sprintf("%d orders to each side: the payment service answers", len(s.sides[0].load.before)))
	if err := s.send(conn, func(l load) []message { return l.before }); err != nil {
		return err
	}
	if err := s.settled(ctx, time.Now().Add(grace)); err != nil {
		return err
	}

	s.each(func(sd *side) { sd.payments.become(silent) })
	if err := s.send(conn, func(l load) []message { return l.herd }); err != nil {
		return err
	}
	hang, cancel := context.WithTimeoutCause(ctx, grace, errors.New("the herd did not come together"))
	defer cancel()
	for _, sd := range s.sides {
		if err := sd.payments.waitHanging(hang, len(sd.load.herd)); err != nil {
			return fmt.Errorf("wait for %d calls in flight: %w", len(sd.load.herd), context.Cause(hang))
		}
	}

	s.start = time.Now()
	s.each(func(sd *side) {
		sd.retries.begin(s.start)
		sd.payments.become(down)
	})
	s.o.View.Start(s.start)
	s.o.View.Event(fmt.Sprintf("the payment service goes down: %d payments in flight fail at once", s.o.Messages))
	if err := s.send(conn, func(l load) []message { return l.odd }); err != nil {
		return err
	}
	if err := sleepUntil(ctx, s.start.Add(s.o.Outage)); err != nil {
		return err
	}
	s.each(func(sd *side) { sd.payments.become(limited) })
	s.o.View.Event(fmt.Sprintf("it is back, with room for %.0f calls a second", s.sides[0].payments.room))

	// What never works is parked last; without jitter that takes longest.
	end := s.start.Add(longest(policy) + grace)
	if err := s.settled(ctx, end, s.announce()); err != nil {
		return err
	}
	s.o.View.End("every message is handled or parked")
	return nil
}

// grace is what a slow machine gets on top of what must take its time.
const grace = 30 * time.Second

func (s *story) each(f func(*side)) {
	for _, sd := range s.sides {
		f(sd)
	}
}

// ready waits until both consumers are subscribed.
func (s *story) ready(ctx context.Context) error {
	deadline := time.Now().Add(time.Minute)
	for _, sd := range s.sides {
		for !sd.consumer.Ready() {
			if err := sleepUntil(ctx, time.Now().Add(10*time.Millisecond)); err != nil {
				return err
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("subscribe to %s: %w", sd.route.Queue, sd.consumer.Healthy())
			}
		}
	}
	return nil
}

// send publishes a part of the load to both sides and waits for the confirms.
func (s *story) send(conn *amqp.Connection, part func(load) []message) error {
	ch, err := conn.Channel()
	if err != nil {
		return fmt.Errorf("open the producer's channel: %w", err)
	}
	defer ch.Close()
	if err := ch.Confirm(false); err != nil {
		return fmt.Errorf("switch confirms on: %w", err)
	}
	type pending struct {
		sd      *side
		id      string
		confirm *amqp.DeferredConfirmation
	}
	var all []pending
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	for i := range part(s.sides[0].load) {
		for _, sd := range s.sides { // in turn, so that neither is ahead
			m := part(sd.load)[i]
			// To the queue itself, which the consumer has declared: it is there.
			confirm, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", sd.route.Queue, false, false, m.publishing())
			if err != nil {
				return fmt.Errorf("send to %s: %w", sd.route.Queue, err)
			}
			all = append(all, pending{sd, m.id, confirm})
		}
	}
	for _, p := range all {
		if ok, err := p.confirm.WaitContext(ctx); err != nil {
			return fmt.Errorf("send to %s: wait for the confirm: %w", p.sd.route.Queue, err)
		} else if !ok {
			return fmt.Errorf("send to %s: the broker did not take it", p.sd.route.Queue)
		}
		p.sd.ledger.send(p.id)
	}
	return nil
}

// announce says when a side has nothing left that can be handled.
func (s *story) announce() func(*side, counts) {
	done := map[*side]bool{}
	return func(sd *side, c counts) {
		if done[sd] || c.open() > hopeless {
			return
		}
		done[sd] = true
		who := map[string]string{queueWithout: "without jitter", queueWith: "with full jitter"}[sd.route.Queue]
		s.o.View.Note(fmt.Sprintf("%s, every order that can be paid is paid", who))
	}
}

// settled waits until every message that was sent is handled or parked. The
// sides are looked at as it goes on.
func (s *story) settled(ctx context.Context, deadline time.Time, look ...func(*side, counts)) error {
	for {
		open := 0
		for _, sd := range s.sides {
			c := sd.ledger.counts()
			open += c.open()
			for _, f := range look {
				f(sd, c)
			}
		}
		if open == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d messages are neither handled nor parked, %s after the time that must do", open, grace)
		}
		if err := sleepUntil(ctx, time.Now().Add(20*time.Millisecond)); err != nil {
			return err
		}
	}
}

// sleepUntil returns early, with the cause, when ctx ends.
func sleepUntil(ctx context.Context, at time.Time) error {
	select {
	case <-time.After(time.Until(at)):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// state is what the view shows.
func (s *story) state() [2]State {
	var out [2]State
	for i, sd := range s.sides {
		c := sd.ledger.counts()
		out[i] = State{Seconds: sd.retries.seconds(), Handled: c.handled(), Parked: c.parked, Waiting: max(0, c.open())}
	}
	return out
}
