package attempt

import amqp "github.com/rabbitmq/amqp091-go"

// Annotations gives the record for a broker that lays it over the message, as
// RabbitMQ does from 4.3 on when an AMQP 1.0 consumer modifies one: headers that
// the message has and this table has not stay as they are. So what an earlier
// record may have and this one has not is written as empty, which every reader
// takes for absent.
//
// What was taken off a republished message stays on this one; only values that
// an annotation can hold are given: texts and integers. headerLimit is as for
// Successor: our own diagnostics shrink to stay under it.
func (r Record) Annotations(p *amqp.Publishing, headerLimit int) amqp.Table {
	if headerLimit > 0 {
		r = r.fit(headerLimit - HeaderSize(p))
	}
	h := r.Headers()
	for _, key := range [...]string{HeaderError, HeaderErrorType, HeaderHistory, HeaderReason, HeaderPolicy, HeaderThen} {
		if _, ok := h[key]; !ok && p.Headers[key] != nil {
			h[key] = ""
		}
	}
	for _, key := range [...]string{HeaderDelay, HeaderDueAt} {
		if _, ok := h[key]; !ok && p.Headers[key] != nil {
			h[key] = int64(0)
		}
	}
	for _, key := range [...]string{HeaderCC, HeaderBCC} {
		if _, ok := h[key].(string); !ok { // a list: the message's own header says it
			delete(h, key)
		}
	}
	return h
}

// HideTakenOff removes from the headers of a message that has a record what a
// republish would have taken off, but for the record and the counts and deaths
// that the broker writes. A message that stayed on its queue while it waited then
// shows a handler what one shows that was published again.
func HideTakenOff(h amqp.Table) {
	for k := range h {
		switch k {
		case headerCC, headerBCC, "x-opt-delivery-time", "x-delay", "x-received-from", "x-stream-offset":
			delete(h, k)
		}
	}
}
