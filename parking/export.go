package parking

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/hopback/hopback/attempt"
	"github.com/hopback/hopback/internal/reading"
)

// exportVersion is the version of a line of an export.
const exportVersion = 1

// exportLine is a message in an export, one a line.
type exportLine struct {
	Version    int       `json:"version"`
	ID         string    `json:"id"`
	Queue      string    `json:"queue"` // that it was read from
	Exchange   string    `json:"exchange"`
	RoutingKey string    `json:"routing_key"`
	ExportedAt time.Time `json:"exported_at"`
	exported
}

// Write writes a message as a line of an export.
func (m *Message) Write(w io.Writer) error {
	p := attempt.FromDelivery(m.Delivery)
	e, err := toExported(&p)
	if err != nil {
		return fmt.Errorf("export message %s: %w", m.ID, err)
	}
	b, err := marshal(exportLine{
		exportVersion, m.ID, m.ParkedIn, m.Delivery.Exchange, m.Delivery.RoutingKey,
		time.Now().UTC().Truncate(time.Millisecond), e,
	})
	if err == nil {
		_, err = w.Write(append(b, '\n'))
	}
	if err != nil {
		return fmt.Errorf("export message %s: %w", m.ID, err)
	}
	return nil
}

// Export writes the messages that the filter picks, one a line, oldest first,
// with the exact type of every header: what Import publishes is equal. It
// changes nothing in the queue. It returns how many were written.
func (q *Queue) Export(ctx context.Context, w io.Writer, f Filter) (int, error) {
	buffered := bufio.NewWriterSize(w, 64<<10)
	n := 0
	for m, err := range q.Messages(ctx, f) {
		if err == nil {
			err = m.Write(buffered)
		}
		if err != nil {
			return n, errors.Join(err, buffered.Flush())
		}
		n++
	}
	if err := buffered.Flush(); err != nil {
		return n, fmt.Errorf("export messages of %q: %w", q.name, err)
	}
	return n, nil
}

// Import says what to read and where to publish it.
type Import struct {
	// From is an export.
	From io.Reader
	// To is the queue to publish to. Empty means the one that each message was
	// exported from.
	To string
	// Prefix and ConfirmTimeout are as in Options.
	Prefix         string
	ConfirmTimeout time.Duration
	// DryRun reads and publishes nothing.
	DryRun bool
	// Progress, where set, is called now and then.
	Progress func(ImportReport)
}

// ImportReport counts what Run did.
type ImportReport struct {
	Lines    int // that hold a message
	Imported int // confirmed, and not returned
	Failed   int
	Queues   map[string]int
	// Errors are the first of what failed, with their lines.
	Errors []error
}

// LineError is what was wrong with a line of an export.
type LineError struct {
	Line int
	ID   string // empty where it could not be read
	Err  error
}

func (e *LineError) Error() string {
	if e.ID == "" {
		return fmt.Sprintf("line %d: %v", e.Line, e.Err)
	}
	return fmt.Sprintf("line %d, message %s: %v", e.Line, e.ID, e.Err)
}

// Unwrap returns what was wrong.
func (e *LineError) Unwrap() error { return e.Err }

const maxErrors = 20

// Run publishes the messages of an export, each to one queue, mandatory and
// confirmed. One that cannot be published does not stop the others; what the
// connection or the reading of the export stops with is the error. It may be run
// again after that: messages that were imported are there twice then, with the
// same ID.
//
// The messages are those that were exported, but for what would act on the way
// and not on them: CC, BCC, expiration and user-id are kept as x-retry-cc,
// x-retry-bcc, x-retry-expiration and x-retry-user-id, the counters that the
// broker adds to a delivery are left out, and NaN and the infinities, for which
// RabbitMQ closes a connection, become strings.
func (i Import) Run(ctx context.Context, c Connection) (ImportReport, error) {
	r := ImportReport{Queues: map[string]int{}}
	if i.ConfirmTimeout == 0 {
		i.ConfirmTimeout = 30 * time.Second
	}
	if i.Prefix == "" {
		i.Prefix = DefaultPrefix
	}
	pub := newPublisher(c, i.ConfirmTimeout)
	err := i.run(ctx, c, pub, &r)
	err = errors.Join(err, pub.settle(), pub.close())
	if i.Progress != nil {
		i.Progress(r)
	}
	if err != nil {
		return r, fmt.Errorf("import messages: %w", err)
	}
	return r, nil
}

func (i Import) run(ctx context.Context, c Connection, pub *publisher, r *ImportReport) error {
	failed := func(line int, id string, err error) {
		r.Failed++
		if len(r.Errors) < maxErrors {
			r.Errors = append(r.Errors, &LineError{line, id, err})
		}
	}
	known := map[string]error{}
	in := bufio.NewReaderSize(i.From, 64<<10)
	told := time.Now()
	for line := 1; ; line++ {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		b, err := in.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read line %d: %w", line, err)
		}
		end := err != nil
		if len(b) > 0 && string(b) != "\n" {
			r.Lines++
			if err := i.line(ctx, c, pub, r, known, b, func(id string, err error) { failed(line, id, err) }); err != nil {
				return err
			}
		}
		if i.Progress != nil && time.Since(told) > 100*time.Millisecond {
			told = time.Now()
			i.Progress(*r)
		}
		if end {
			return nil
		}
	}
}

func (i Import) line(ctx context.Context, c Connection, pub *publisher, r *ImportReport, known map[string]error, b []byte, failed func(string, error)) error {
	var l exportLine
	if err := strict(b, &l); err != nil {
		failed("", err)
		return nil
	}
	if l.Version != exportVersion {
		failed(l.ID, fmt.Errorf("it has version %d, and this program reads %d", l.Version, exportVersion))
		return nil
	}
	p, err := l.publishing()
	if err != nil {
		failed(l.ID, err)
		return nil
	}
	to := i.To
	if to == "" {
		to = l.Queue
	}
	if to == "" {
		failed(l.ID, errors.New("it names no queue: name one to import to"))
		return nil
	}
	if _, ok := known[to]; !ok {
		_, err := onChannel(ctx, c, func(ch *amqp.Channel) (amqp.Queue, error) {
			return ch.QueueDeclarePassive(to, true, false, false, false, nil)
		})
		var e *amqp.Error
		if err != nil && !errors.As(err, &e) {
			return err
		}
		known[to] = err
	}
	if err := known[to]; err != nil {
		failed(l.ID, fmt.Errorf("the queue %q: %w", to, err))
		return nil
	}
	if i.DryRun {
		r.Imported++
		r.Queues[to]++
		return nil
	}
	exchange, key := "", to
	if l.Exchange == i.Prefix+".error" && to == l.Queue {
		exchange, key = l.Exchange, l.RoutingKey // the way that it came
	}
	return pub.send(ctx, exchange, key, moved(&p), func(err error) {
		if err != nil {
			failed(l.ID, err)
			return
		}
		r.Imported++
		r.Queues[to]++
	})
}

// moved is a message as it is published into another queue to rest there: the
// same, but for what would act on the way.
func moved(p *amqp.Publishing) amqp.Publishing {
	m := *p
	h := attempt.Clone(p.Headers) // also without NaN
	set := func(key string, v any) {
		if h == nil {
			h = amqp.Table{}
		}
		if _, there := h[key]; !there {
			h[key] = v
		}
	}
	for from, to := range map[string]string{"CC": attempt.HeaderCC, "BCC": attempt.HeaderBCC} {
		v, ok := h[from]
		if !ok {
			continue
		}
		delete(h, from)
		if keys, ok := v.([]any); ok && len(keys) > 0 {
			set(to, jsonKeys(keys))
		}
	}
	for _, k := range passing {
		delete(h, k)
	}
	if m.Expiration != "" {
		set(attempt.HeaderExpiration, m.Expiration)
		m.Expiration = ""
	}
	if m.UserId != "" {
		set(attempt.HeaderUserID, m.UserId)
		m.UserId = ""
	}
	m.Headers = h
	return m
}

// jsonKeys writes routing keys as the contract has them.
func jsonKeys(keys []any) any {
	var texts []string
	for _, k := range keys {
		s, ok := k.(string)
		if !ok {
			return keys
		}
		texts = append(texts, s)
	}
	b, err := json.Marshal(texts)
	if err != nil {
		return keys
	}
	return string(b)
}

// Move says which messages to move, and where to.
type Move struct {
	Filter Filter
	Limit  int    // the oldest of them; 0 means all
	To     string // a queue
	// Progress, where set, is called now and then.
	Progress func(MoveReport)
}

// MoveReport counts what Move, Discard or Replace did.
type MoveReport struct {
	Total, Seen int // that were there, and were looked at
	Moved       int // or discarded: that left the queue
	NotPicked   int
	Failed      int // stayed, since the broker did not take or confirm them
	// Why is why the first of those that Failed did: ErrReturned, ErrRefused,
	// ErrUnconfirmed or ErrUnsendable.
	Why error
}

// Move moves messages to another queue, where they rest as they are: their
// record, with reason, error and history, stays. Each leaves this queue when it
// is confirmed in the other. See Import.Run for what of a message is left out.
func (q *Queue) Move(ctx context.Context, o Move) (MoveReport, error) {
	if o.To == "" || o.To == q.name {
		return MoveReport{}, fmt.Errorf("move messages of %q: Move.To: %q cannot work: name another queue", q.name, o.To)
	}
	if _, err := onChannel(ctx, q.conn, func(ch *amqp.Channel) (amqp.Queue, error) {
		return ch.QueueDeclarePassive(o.To, true, false, false, false, nil)
	}); err != nil {
		return MoveReport{}, fmt.Errorf("move messages of %q: look for the queue %q: %w", q.name, o.To, err)
	}
	r, err := q.take(ctx, o.Filter, o.Limit, o.Progress, nil, func(m *Message) (string, amqp.Publishing, bool) {
		p := attempt.FromDelivery(m.Delivery)
		return o.To, moved(&p), true
	})
	if err != nil {
		return r, fmt.Errorf("move messages of %q: %w", q.name, err)
	}
	return r, nil
}

// Discard says which messages to throw away.
type Discard struct {
	Filter Filter
	Limit  int // the oldest of them; 0 means all
	// Keep is given messages before they are thrown away, some at a time, and
	// returns when they are safe, written and synced. After an error they stay, and
	// the discarding ends. Nil keeps nothing.
	Keep func([]*Message) error
	// Progress, where set, is called now and then.
	Progress func(MoveReport)
}

// Discard throws messages away. Those that stay keep their order.
func (q *Queue) Discard(ctx context.Context, o Discard) (MoveReport, error) {
	r, err := q.take(ctx, o.Filter, o.Limit, o.Progress, o.Keep, func(*Message) (string, amqp.Publishing, bool) {
		return "", amqp.Publishing{}, false
	})
	if err != nil {
		return r, fmt.Errorf("discard messages of %q: %w", q.name, err)
	}
	return r, nil
}

// ErrChanged says that a message is not any more what it was when it was read.
var ErrChanged = errors.New("the message is gone, or is not what it was")

// Replace puts another message in the place of one that was read before, by its
// ID: the new one goes to the end of the queue, and the old one leaves it when
// that is confirmed. It keeps the ID: where that was a digest, it becomes the
// x-retry-id. A message that was replayed or replaced meanwhile is not touched:
// ErrChanged.
func (q *Queue) Replace(ctx context.Context, old *Message, with amqp.Publishing) error {
	if with.Headers[attempt.HeaderID] == nil {
		headers := amqp.Table{attempt.HeaderID: old.ID}
		maps.Copy(headers, with.Headers)
		with.Headers = headers
	}
	done := false
	was := digest(old.Delivery)
	r, err := q.take(ctx, Filter{IDs: []string{old.ID}}, 1, nil, nil, func(m *Message) (string, amqp.Publishing, bool) {
		if digest(m.Delivery) != was {
			return "", amqp.Publishing{}, true
		}
		done = true
		return q.name, moved(&with), true
	})
	switch {
	case err != nil:
		return fmt.Errorf("replace message %s of %q: %w", old.ID, q.name, err)
	case r.Failed > 0:
		return fmt.Errorf("replace message %s of %q: %w", old.ID, q.name, r.Why)
	case !done || r.Moved == 0:
		return fmt.Errorf("replace message %s of %q: %w", old.ID, q.name, ErrChanged)
	}
	return nil
}

// take goes through a queue and takes out what is picked: to another queue, or
// for good where to says so. An empty queue's name with true lets a message stay.
func (q *Queue) take(ctx context.Context, f Filter, limit int, progress func(MoveReport), keep func([]*Message) error,
	to func(*Message) (queue string, p amqp.Publishing, send bool),
) (r MoveReport, err error) {
	if err := f.Validate(); err != nil {
		return r, err
	}
	m, err := q.mover(ctx, reading.Options{})
	if err != nil {
		return r, err
	}
	var batch []*Message
	if keep != nil {
		m.before = func() error {
			err := keep(batch)
			batch = nil
			return err
		}
	}
	r.Total = m.from.Total()
	err = q.takeAll(ctx, m, f, limit, progress, &r, func(msg *Message) {
		if keep != nil {
			batch = append(batch, msg)
		}
	}, to)
	err = errors.Join(err, m.close(ctx))
	if progress != nil {
		progress(r)
	}
	return r, err
}

func (q *Queue) takeAll(ctx context.Context, m *mover, f Filter, limit int, progress func(MoveReport), r *MoveReport,
	picked func(*Message), to func(*Message) (string, amqp.Publishing, bool),
) error {
	told, n := time.Now(), 0
	for limit == 0 || n < limit {
		it, msg, err := m.next(ctx)
		if err != nil || msg == nil {
			return err
		}
		r.Seen++
		if progress != nil && time.Since(told) > 100*time.Millisecond {
			told = time.Now()
			progress(*r)
		}
		if !f.Match(msg) {
			r.NotPicked++
			continue
		}
		queue, p, send := to(msg)
		switch {
		case !send:
			n++
			picked(msg)
			err = m.drop(it, func() { r.Moved++ })
		case queue == "":
			r.NotPicked++
		default:
			n++
			err = m.send(ctx, it, "", queue, p, func() { r.Moved++ }, func(err error) {
				r.Failed++
				r.Why = cmp.Or(r.Why, err)
			})
		}
		if err != nil {
			return err
		}
	}
	return nil
}
