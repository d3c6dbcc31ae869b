package parking

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Cost is what it costs to look into a queue.
type Cost struct {
	// Type is "quorum", "classic" or "stream"; empty where nobody could say.
	Type string

	// Limit is the number of deliveries that a message of the queue bears before
	// the broker drops or dead-letters it, as far as looking counts towards it; 0
	// where it does not, or where there is no limit.
	Limit int

	// DeadLetters is the exchange that a message would go to at the limit. Empty
	// means that it would be dropped, or that nobody could say.
	DeadLetters string

	// Consumers are attached to the queue, which take messages out or, if they are
	// another look, make two looks give back in disorder.
	Consumers int

	// Reasons say in a sentence each what looking would cost. None means nothing.
	Reasons []string

	nack bool // give back by a nack
}

// Free reports whether looking costs nothing.
func (c Cost) Free() bool { return len(c.Reasons) == 0 }

// CostError says that a look was not taken since it would cost something, and
// Options.Force is not set.
type CostError struct {
	Queue string
	Cost  Cost
}

func (e *CostError) Error() string {
	return fmt.Sprintf("looking into %q costs something: %s", e.Queue, strings.Join(e.Cost.Reasons, "; "))
}

// harmless is a delivery limit that no number of looks by people reaches.
const harmless = 10_000

// findCost asks for what the queue is.
func (q *Queue) findCost(ctx context.Context) (Cost, error) {
	d, err := onChannel(ctx, q.conn, func(ch *amqp.Channel) (amqp.Queue, error) {
		return ch.QueueDeclarePassive(q.name, true, false, false, false, nil)
	})
	var e *amqp.Error
	switch {
	case errors.As(err, &e) && e.Code == amqp.NotFound && strings.Contains(e.Reason, "no queue"):
		return Cost{}, fmt.Errorf("%w: %w", ErrNoQueue, err)
	case err != nil:
		return Cost{}, err
	}
	s, err := q.settings(ctx)
	if err != nil {
		return Cost{}, err
	}
	return judge(s, version(q.conn), d.Consumers), nil
}

// settings is what a queue is like.
type settings struct {
	known  bool   // at least the arguments
	kind   string // its type
	limit  *int64 // delivery limit, nil where none is set
	single bool   // single active consumer
	most   string // a limit on its length that drops what is oldest
	dlx    string
}

// settings asks the management API, or else finds the arguments out.
func (q *Queue) settings(ctx context.Context) (settings, error) {
	if m := q.o.Management; m != nil {
		info, found, err := m.Queue(ctx, q.name)
		if err != nil {
			return settings{}, fmt.Errorf("ask what %q is like: %w", q.name, err)
		}
		if found {
			return conclude(info.Type, info.Args, info.Policy), nil
		}
	}
	args, ok := q.probe(ctx)
	if !ok {
		return settings{}, nil
	}
	kind, _ := args["x-queue-type"].(string)
	return conclude(kind, args, nil), nil
}

func conclude(kind string, args, policy map[string]any) settings {
	s := settings{known: true, kind: kind}
	get := func(name string) any {
		if v, ok := args["x-"+name]; ok {
			return v
		}
		return policy[name]
	}
	// Of two delivery limits the smaller one holds.
	for _, v := range []any{args["x-delivery-limit"], policy["delivery-limit"]} {
		if n, ok := number(v); ok && (s.limit == nil || n < *s.limit) {
			s.limit = &n
		}
	}
	s.single, _ = args["x-single-active-consumer"].(bool)
	s.dlx, _ = get("dead-letter-exchange").(string)
	overflow, _ := get("overflow").(string)
	for _, name := range []string{"max-length", "max-length-bytes"} {
		if n, ok := number(get(name)); ok && (overflow == "" || overflow == "drop-head") {
			s.most = fmt.Sprintf("%s %d", name, n)
		}
	}
	return s
}

func number(v any) (int64, bool) {
	switch v := v.(type) {
	case int64:
		return v, true
	case float64:
		return int64(v), v == float64(int64(v))
	case json.Number:
		n, err := v.Int64()
		return n, err == nil
	case string:
		n, err := strconv.ParseInt(v, 10, 64)
		return n, err == nil
	}
	return 0, false
}

// probe finds a queue's arguments over AMQP alone. It declares the queue as
// Hopback declares its own; what exists is not changed by that, and where it
// differs the broker says in what, until all is known. (Should the queue be
// deleted just now, an empty one of ours is there instead.)
func (q *Queue) probe(ctx context.Context) (amqp.Table, bool) {
	args := amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1_000_000)}
	for range 12 {
		_, err := onChannel(ctx, q.conn, func(ch *amqp.Channel) (amqp.Queue, error) {
			return ch.QueueDeclare(q.name, true, false, false, false, args)
		})
		if err == nil {
			return args, true
		}
		var e *amqp.Error
		if !errors.As(err, &e) || e.Code != amqp.PreconditionFailed {
			return nil, false
		}
		key, value, ok := inequivalent(e.Reason)
		if !ok || args[key] == value && value != nil {
			return nil, false
		}
		if value == nil {
			if _, there := args[key]; !there {
				return nil, false
			}
			delete(args, key)
			continue
		}
		args[key] = value
	}
	return nil, false
}

// inequivalent reads "inequivalent arg 'x-queue-type' for queue 'a' in vhost '/':
// received 'quorum' but current is 'classic'": the broker's value, nil for none.
func inequivalent(reason string) (key string, value any, ok bool) {
	_, rest, ok := strings.Cut(reason, "inequivalent arg '")
	if !ok {
		return "", nil, false
	}
	key, rest, _ = strings.Cut(rest, "'")
	i := strings.LastIndex(rest, " but current is ")
	if i < 0 || !strings.HasPrefix(key, "x-") {
		return "", nil, false
	}
	have := rest[i+len(" but current is "):]
	if have == "none" {
		return key, nil, true
	}
	kind := ""
	if v, typed := strings.CutPrefix(have, "the value "); typed {
		have, kind, _ = strings.Cut(v, " of type ")
	}
	have, ok = strings.CutPrefix(have, "'")
	have, closed := strings.CutSuffix(have, "'")
	if !ok || !closed {
		return "", nil, false // cut off: a reply has 255 bytes
	}
	if n, err := strconv.ParseInt(have, 10, 64); err == nil && kind != "'longstr'" {
		return key, n, true
	}
	if have == "true" || have == "false" {
		return key, have == "true", true
	}
	return key, have, true
}

// judge says what looking costs.
func judge(s settings, v [2]int, consumers int) Cost {
	c := Cost{Type: s.kind, DeadLetters: s.dlx, Consumers: consumers}
	say := func(format string, args ...any) { c.Reasons = append(c.Reasons, fmt.Sprintf(format, args...)) }
	if consumers > 0 {
		say("it has %s, which take what this look gives back, or look at the same time", count(consumers, "consumer"))
	}
	fate := "is dropped"
	if s.dlx != "" {
		fate = fmt.Sprintf("goes to the exchange %q", s.dlx)
	}
	old, counts := v[0] > 0 && v[0] < 4, v[0] == 4 && v[1] < 3
	switch {
	case s.kind == "stream":
		say("it is a stream, from which nothing can be taken out")
	case s.kind == "classic":
		// It counts no deliveries.
	case !s.known:
		if !old {
			say("nobody could say what kind of queue it is (no management URL, and no permission to configure it): if it is a quorum queue without a delivery limit of its own, RabbitMQ 4.0 to 4.2 take a message away at the 22nd look")
		}
	case s.limit == nil && old:
		// No limit before 4.0.
	case s.limit == nil && counts:
		c.Limit = 20
		say("it is a quorum queue without a delivery limit of its own, and RabbitMQ 4.0 to 4.2 then have one of 20: at its 22nd look a message %s", fate)
	case s.limit == nil:
		c.nack = true // not counted from 4.3
	case *s.limit < 0 && old:
		say("its delivery limit is %d, which RabbitMQ before 4.0 takes for one of 0: a message %s at the first look", *s.limit, fate)
	case *s.limit < 0, *s.limit >= harmless:
	case !old && !counts:
		c.nack = true
	default:
		c.Limit = int(*s.limit)
		say("its delivery limit is %d: at look %d a message %s", *s.limit, *s.limit+2, fate)
	}
	if s.single {
		say("it has a single active consumer, so that a look sees what one consumer may hold, and nothing while another is attached")
	}
	if s.most != "" {
		say("it holds %s at most: what arrives during the look pushes the oldest out when that comes back", s.most)
	}
	return c
}

// version is the broker's, as far as it says so: major and minor.
func version(c Connection) (v [2]int) {
	conn, ok := c.(*amqp.Connection)
	if !ok {
		return v
	}
	text, _ := conn.Properties["version"].(string)
	parts := strings.SplitN(text, ".", 3)
	for i := range min(len(parts), 2) {
		v[i], _ = strconv.Atoi(parts[i])
	}
	return v
}

func count(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}
