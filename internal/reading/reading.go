// Package reading takes messages out of a queue in their order, decides about
// them in its own time, and puts those that stay back where they were.
//
// # What a reader must know about RabbitMQ
//
// A message that was delivered and not acknowledged goes back to its queue when
// its channel is closed. On a classic queue it finds its old place. A quorum
// queue keeps what came back in a line of its own, in the order in which it came
// back, and delivers that line first. So the order is kept if everything comes
// back in order, and nobody is there to receive a part of it meanwhile.
//
// docs/decisions/0011-parking.md has the measurements behind what follows.
//
//   - One consumer's messages come back in their order when its channel is closed.
//     Those of several channels, or of several basic.gets, come back in any order
//     if they come back together. So each channel is closed only when what the one
//     before it held is counted again.
//   - A consumer with room left would receive what the others give back. So each
//     asks for no more than there is, and is cancelled when it holds that. Before
//     that nothing is acknowledged: an acknowledgement makes room. And 3.10 gives
//     back in disorder what is on its way to a consumer that is cancelled, but to
//     one that is full nothing is.
//   - A channel sends a quorum queue 32 commands at a time and keeps the others
//     back; when it is closed, those are dropped, and acknowledged messages are
//     there again. In a transaction (tx.select) the acknowledgements of one commit
//     are a single command.
package reading

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Connection is what this package needs of an *amqp.Connection.
type Connection interface {
	Channel() (*amqp.Channel, error)
}

// Options of a Reader.
type Options struct {
	// Tag names the consumers, for people who look at the broker meanwhile.
	Tag string
	// Limit is the most messages to read. 0 means all that are there.
	Limit int
	// Chunk is the most messages of one consumer. 0 means what suits. A reader that
	// is slow on purpose takes small ones, and holds little.
	Chunk int
	// Look says that nothing will be acknowledged. Such a reader needs fewer
	// consumers, so that also the end of a connection, at which all of them give
	// back at once, leaves the order alone where one was enough.
	Look bool
	// Classic says that it is a classic queue, where what comes back finds its place
	// by itself.
	Classic bool
	// Nack gives messages back with basic.nack instead of closing their channel.
	// From 4.3 a nack does not count as a delivery that failed, where the end of a
	// channel does.
	Nack bool
}

// A consumer may hold any number that fits into basic.qos, on quorum queues too:
// only one that asks for no limit at all is held to 2000 there.
const (
	lookChunk  = 65535
	lookBudget = 48 << 20 // bytes that may be on their way, for a caller that is slow
	maxChunk   = 2000
	budget     = 32 << 20 // bytes of a chunk, which is in memory as a whole
	firstChunk = 64       // while nobody knows how large the messages are
	channels   = 1500     // at most, of the 2047 that a connection has by default
)

// Reader reads what was in a queue when it was opened, and nothing that comes
// later. It is used by one goroutine.
type Reader struct {
	conn  Connection
	queue string
	o     Options

	counting  *amqp.Channel // on which nothing is held
	total     int
	consumers int
	fetched   int // messages that chunks have brought
	budget    int // bytes of a chunk
	bytes     int // of those
	fresh     bool

	chunks  []*chunk // that hold something, oldest first
	current *chunk
}

// Item is a message that the reader holds.
type Item struct {
	*amqp.Delivery
	chunk *chunk
	index int
}

// chunk is one consumer's messages, on a channel of its own.
type chunk struct {
	ch         *amqp.Channel
	deliveries <-chan amqp.Delivery
	size       int  // messages that it asked for
	received   int  // of them
	complete   bool // no more will come

	ready   []amqp.Delivery // received and not handed out
	handed  int
	settled []bool // acknowledged, by index
	held    int    // not acknowledged
	low     int    // all before are acknowledged
	tx      bool
}

// Open counts what there is. The queue must exist.
func Open(ctx context.Context, c Connection, queue string, o Options) (*Reader, error) {
	most, bytes := maxChunk, budget
	if o.Look {
		most, bytes = lookChunk, lookBudget
	}
	if o.Chunk <= 0 || o.Chunk > most {
		o.Chunk = most
	}
	ch, err := Within(ctx, c.Channel)
	if err != nil {
		return nil, fmt.Errorf("open a channel: %w", err)
	}
	q, err := inspect(ctx, ch, queue)
	if err != nil {
		go ch.Close() //nolint:errcheck // the broker has done so after a 404
		return nil, fmt.Errorf("look for the queue %q: %w", queue, err)
	}
	r := &Reader{conn: c, queue: queue, o: o, budget: bytes, counting: ch, total: q.Messages, consumers: q.Consumers}
	if o.Limit > 0 {
		r.total = min(r.total, o.Limit)
	}
	return r, nil
}

// Total is how many messages there are to read: those that were ready for
// delivery when the reader was opened, and no more than Limit. It becomes less
// when somebody else takes some before they are read.
func (r *Reader) Total() int { return r.total }

// Consumers is how many consumers the queue had when the reader was opened.
func (r *Reader) Consumers() int { return r.consumers }

// Next hands out the next message, or reports that there are no more.
func (r *Reader) Next(ctx context.Context) (it Item, ok bool, err error) {
	fail := func(err error) (Item, bool, error) { return Item{}, false, fmt.Errorf("read %q: %w", r.queue, err) }
	if ctx.Err() != nil {
		return fail(context.Cause(ctx))
	}
	c := r.current
	if c == nil || c.complete && len(c.ready) == 0 {
		if r.current = nil; r.fetched >= r.total {
			return it, false, nil
		}
		if err := r.begin(ctx); err != nil {
			return fail(err)
		}
		c = r.current
	}
	if len(c.ready) == 0 {
		n := c.size
		if r.o.Look {
			n = 1
		}
		if err := r.receive(ctx, c, n); err != nil {
			return fail(err)
		}
		if len(c.ready) == 0 { // somebody else has the rest
			return it, false, nil
		}
	}
	it = Item{&c.ready[0], c, c.handed}
	if c.ready = c.ready[1:]; len(c.ready) == 0 {
		c.ready = nil // else the slice would keep the messages that it has held
	}
	c.handed++
	r.fresh = r.fresh || !it.Redelivered
	return it, true, nil
}

// chunkSize is how many messages the next consumer asks for.
func (r *Reader) chunkSize() int {
	n := firstChunk
	if r.fetched > 0 {
		// What comes may be larger: never many times as much as was seen.
		n = min(r.budget/max(r.bytes/r.fetched, 1), 64*r.fetched)
	}
	left := r.total - r.fetched
	n = max(n, left/max(channels-len(r.chunks), 1)+1)
	return min(n, r.o.Chunk, left)
}

// begin subscribes the consumer of the next chunk.
func (r *Reader) begin(ctx context.Context) error {
	ch, err := Within(ctx, r.conn.Channel)
	if err != nil {
		return fmt.Errorf("open a channel: %w", err)
	}
	c := &chunk{ch: ch, size: r.chunkSize()}
	c.deliveries, err = Within(ctx, func() (<-chan amqp.Delivery, error) {
		if err := ch.Qos(c.size, 0, false); err != nil {
			return nil, err
		}
		return ch.Consume(r.queue, r.o.Tag, false, false, false, false, nil)
	})
	if err != nil {
		return errors.Join(err, CloseSoon(ch))
	}
	r.current = c
	r.chunks = append(r.chunks, c)
	return nil
}

// silence is how long no message may come before the reader asks whether somebody
// else may have it.
const silence = time.Second

// patience is how long it waits for a message that it asked for and that does not
// come. A broker that reads from its disk, on a machine that has much to do, is
// silent for seconds; and a consumer that is cancelled meanwhile gives back in
// disorder.
var patience = 30 * time.Second // tests change it

// receive gets n messages of a chunk ready, or fewer where somebody else has
// taken what was counted, which completes the chunk.
func (r *Reader) receive(ctx context.Context, c *chunk, n int) error {
	take := func(d amqp.Delivery) {
		c.ready = append(c.ready, d)
		c.received++
		c.held++
		r.fetched++
		r.bytes += len(d.Body) + 768 + 128*len(d.Headers) // what Go takes for it, not what went over the wire
	}
	var timer *time.Timer
	began, empty := time.Now(), 0
	for len(c.ready) < n && c.received < c.size {
		select { // a timer for each message would cost more than the message
		case d, ok := <-c.deliveries:
			if !ok {
				return amqp.ErrClosed
			}
			take(d)
			continue
		default:
		}
		if timer == nil {
			timer = time.NewTimer(silence)
			defer timer.Stop()
		} else {
			timer.Reset(silence)
		}
		select {
		case d, ok := <-c.deliveries:
			if !ok {
				return amqp.ErrClosed
			}
			take(d)
			began, empty = time.Now(), 0
		case <-timer.C:
			left, err := inspect(ctx, r.counting, r.queue)
			if err != nil {
				return err
			}
			// What others have taken must be told from what is on its way. A quorum
			// queue counts who has taken something, a cancelled consumer too. A classic
			// queue does not; but what it has sent arrives before an answer on the same
			// channel, the second at the latest: the queue is one process, which sends
			// to the channel's before it answers the first.
			switch {
			case left.Messages > 0:
			case r.o.Classic:
				for range 2 {
					if _, err := inspect(ctx, c.ch, r.queue); err != nil {
						return err
					}
				}
				empty++
			case r.consumers > 0 || left.Consumers > len(r.chunks):
				empty++
			}
			if empty == 3 || time.Since(began) > patience {
				r.total = r.fetched
				return r.finish(ctx, c)
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if c.received < c.size {
		return nil
	}
	return r.finish(ctx, c)
}

// finish cancels a chunk's consumer.
func (r *Reader) finish(ctx context.Context, c *chunk) error {
	if c.complete {
		return nil
	}
	if _, err := Within(ctx, func() (struct{}, error) { return struct{}{}, c.ch.Cancel(r.o.Tag, false) }); err != nil {
		return err
	}
	for range c.deliveries { // what came at the last moment is held, and handed out to nobody
		c.held++
		c.received++
	}
	c.complete = true
	c.settled = make([]bool, c.received)
	return nil
}
