package demo

import (
	"context"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback"
)

// look counts what is left on the broker. A passive declaration counts what is
// ready and takes nothing; a message on its way between two queues is in
// neither for a moment, so the count is repeated until it explains what is
// open, for two seconds at most.
func (s *story) look(ctx context.Context) error {
	conn, err := amqp.DialConfig(s.url, amqp.Config{})
	if err != nil {
		return fmt.Errorf("look at what is left: %w", err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	ch, err := conn.Channel()
	if err != nil {
		return fmt.Errorf("look at what is left: %w", err)
	}
	depth := func(queue string) int {
		if err != nil {
			return 0
		}
		var q amqp.Queue
		if q, err = ch.QueueDeclarePassive(queue, true, false, false, false, nil); err != nil {
			err = fmt.Errorf("count the messages of %s: %w", queue, err)
		}
		return q.Messages
	}
	top, terr := hopback.Topology("", s.sides[0].route, s.sides[1].route)
	if terr != nil {
		return terr
	}
	for until := time.Now().Add(2 * time.Second); ; {
		shared, open, found := 0, 0, 0
		for _, sd := range s.sides {
			sd.waiting, sd.parking = depth(sd.route.Queue), depth(sd.route.Parking)
			found += sd.waiting
			open += sd.ledger.counts().open()
		}
		for _, q := range top.Queues {
			if !s.own(q.Name) {
				shared += depth(q.Name)
			}
		}
		found += shared
		if err != nil || found == open || time.Now().After(until) {
			s.share(shared)
			return err
		}
		if serr := sleepUntil(ctx, time.Now().Add(50*time.Millisecond)); serr != nil {
			return serr
		}
	}
}

// own reports whether a queue belongs to one side alone.
func (s *story) own(queue string) bool {
	for _, sd := range s.sides {
		if queue == sd.route.Queue || queue == sd.route.Parking {
			return true
		}
	}
	return false
}

// share gives the messages of the common slots to the sides that miss some; a
// passive declaration cannot tell whose they are. More than both miss is shown
// as more, on the second side.
func (s *story) share(n int) {
	a, b := s.sides[0], s.sides[1]
	k := min(n, max(0, a.ledger.counts().open()-a.waiting))
	a.waiting += k
	b.waiting += n - k
}
