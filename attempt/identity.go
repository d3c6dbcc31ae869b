package attempt

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"io"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Identify gives the record of a message that is about to fail for the first
// time its ID, made of the message p itself. Call it before Retry, Snooze or
// Park; a record that has an ID keeps it.
//
// A message whose first failure was handed off, but not settled when the
// connection or the process died, is delivered again as it was first published,
// without a trace of the hand-off. Made of the message, the ID of that second
// failure is that of the first, and the two copies can be told for what they
// are.
//
// Only a message-id says that two messages with the same content are one, so
// without it the ID is random, and such copies differ. The ID takes in the work
// queue, the origin, the properties that an application sets and the body: two
// messages that share no more than their message-id have different ones.
func (r Record) Identify(p *amqp.Publishing) Record {
	if r.ID != "" || p.MessageId == "" {
		return r // Retry, Snooze and Park draw one where there is none
	}
	h := sha256.New()
	put := func(s string) {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(s)))
		h.Write(n[:])
		io.WriteString(h, s) //nolint:errcheck // a hash takes everything
	}
	for _, s := range [...]string{
		p.MessageId, r.Queue, r.Exchange, r.RoutingKey,
		p.AppId, p.CorrelationId, p.ReplyTo, p.Type, p.ContentType, p.ContentEncoding,
	} {
		put(s)
	}
	var sent [8]byte
	if !p.Timestamp.IsZero() {
		binary.BigEndian.PutUint64(sent[:], uint64(p.Timestamp.Unix()))
	}
	h.Write(sent[:])
	h.Write(p.Body)
	r.ID = hex.EncodeToString(h.Sum(nil)[:16])
	return r
}
