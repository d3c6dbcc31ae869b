package demo

import (
	"fmt"
	"math/rand/v2"

	amqp "github.com/rabbitmq/amqp091-go"
)

// order is the payload of a message.
type order struct {
	ID     string `json:"id"`
	Amount int64  `json:"amount"` // cents
	Bank   string `json:"bank"`   // what the payment service meets on the other side
}

// What the banks do to an order, besides the payment service's own outage.
const (
	bankFine    = "fine"
	bankGone    = "gone"    // fails every time, for ever
	bankBusy    = "busy"    // answers 429 with Retry-After the first time
	bankNotDue  = "not-due" // the payment is for later, the first time
	bankCrashes = "crashes" // its answer makes the handler panic, the first time
)

// How many of each kind are sent to each route, besides the ordinary ones.
const (
	poison    = 5 // bodies that are no JSON
	invalid   = 5 // amounts that no payment can have
	hopeless  = 3 // orders of a bank that never answers
	onceEach  = 3 // one bankBusy, one bankNotDue, one bankCrashes
	oddOrders = poison + invalid + hopeless + onceEach
)

// message is one to publish.
type message struct {
	id   string
	body []byte
}

func (m message) publishing() amqp.Publishing {
	return amqp.Publishing{
		MessageId: m.id, ContentType: "application/json", DeliveryMode: amqp.Persistent, Body: m.body,
	}
}

// load is everything that one route gets, in the order it is sent.
type load struct {
	before []message // while all is well
	herd   []message // in flight when the payment service goes down
	odd    []message // just after: what is wrong with these is not the outage
}

// size is the number of messages in all.
func (l load) size() int { return len(l.before) + len(l.herd) + len(l.odd) }

// newLoad makes the messages of one route. All routes of a seed get the same.
func newLoad(herd int, seed uint64) load {
	rng := rand.New(rand.NewPCG(seed, 0x686f70))
	n := 0
	make1 := func(bank string, amount int64) message {
		n++
		id := fmt.Sprintf("order-%04d", n)
		return message{id, fmt.Appendf(nil, `{"id":%q,"amount":%d,"bank":%q}`, id, amount, bank)}
	}
	amount := func() int64 { return 100 + rng.Int64N(100_000) }
	fine := func(count int) (ms []message) {
		for range count {
			ms = append(ms, make1(bankFine, amount()))
		}
		return ms
	}
	l := load{before: fine(herd / 2), herd: fine(herd)}
	for range poison {
		m := make1(bankFine, amount())
		m.body = m.body[:len(m.body)/2] // cut off on the way
		l.odd = append(l.odd, m)
	}
	for range invalid {
		l.odd = append(l.odd, make1(bankFine, -amount()))
	}
	for range hopeless {
		l.odd = append(l.odd, make1(bankGone, amount()))
	}
	for _, bank := range []string{bankBusy, bankNotDue, bankCrashes} {
		l.odd = append(l.odd, make1(bank, amount()))
	}
	rng.Shuffle(len(l.odd), func(i, j int) { l.odd[i], l.odd[j] = l.odd[j], l.odd[i] })
	return l
}
