package native

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"net"
	"sync"
	"time"
)

// wire is the socket under go-amqp. It does on the wire what go-amqp 1.7.0
// offers no call for:
//
//   - Frames that were written while the last ones are on their way go out
//     together. go-amqp hands over one frame after the other, and a system call
//     for each settlement is what limits it.
//   - Dispositions of consecutive deliveries with one outcome become one
//     disposition of a range. A quorum queue writes a log entry for each
//     disposition, however many deliveries it names.
//   - A priority of 4 that a message carries can be told from none: go-amqp
//     shows 4, the default of AMQP 1.0, for both.
//
// go-amqp writes whole frames, from one goroutine.
type wire struct {
	net.Conn
	in inbound

	mu     sync.Mutex
	out    []byte // to be written
	run    run    // dispositions to be written, behind out
	corked int
	err    error
	closed bool
	wake   chan struct{}
	idle   chan struct{} // closed when the writer has ended
}

func newWire(raw net.Conn) *wire {
	w := &wire{Conn: raw, wake: make(chan struct{}, 1), idle: make(chan struct{})}
	w.in = inbound{r: bufio.NewReaderSize(raw, 64<<10), partial: map[uint16]bool{}}
	go w.flush()
	return w
}

// Read gives go-amqp at most the rest of one frame.
func (w *wire) Read(p []byte) (int, error) { return w.in.read(p) }

// Write takes one frame, or one protocol header, and returns at once. An error
// is that of an earlier write.
func (w *wire) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return 0, w.err
	}
	if w.closed {
		return 0, net.ErrClosed
	}
	if d, ok := readDisposition(p); ok {
		if !w.run.add(d) {
			w.out = w.run.appendTo(w.out)
			w.run.start(d)
		}
	} else {
		w.out = append(w.run.appendTo(w.out), p...)
	}
	if w.corked == 0 {
		w.poke()
	}
	return len(p), nil
}

// cork keeps back what is written until uncork, so that it goes out together.
func (w *wire) cork() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.corked++
}

func (w *wire) uncork() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.corked--; w.corked == 0 {
		w.poke()
	}
}

func (w *wire) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// writeTimeout is how long the broker may leave its end of the socket unread.
// A broker under a memory alarm still reads from AMQP 1.0 connections.
const writeTimeout = 30 * time.Second

func (w *wire) flush() {
	defer close(w.idle)
	var batch []byte
	for range w.wake {
		w.mu.Lock()
		batch, w.out = w.run.appendTo(w.out), batch[:0]
		closed := w.closed
		w.mu.Unlock()
		if len(batch) > 0 {
			if !closed { // Close has set a deadline of its own
				w.Conn.SetWriteDeadline(time.Now().Add(writeTimeout)) //nolint:errcheck // the write fails as well
			}
			if _, err := w.Conn.Write(batch); err != nil {
				w.mu.Lock()
				w.err = err
				w.mu.Unlock()
				w.Conn.Close() // ends the reader too
				return
			}
		}
		if closed {
			return
		}
	}
}

// flushTimeout bounds what is written on closing.
const flushTimeout = time.Second

// Close writes what is left and closes the socket.
func (w *wire) Close() error {
	w.mu.Lock()
	first := !w.closed
	w.closed = true
	w.mu.Unlock()
	if !first {
		<-w.idle
		return net.ErrClosed
	}
	w.Conn.SetWriteDeadline(time.Now().Add(flushTimeout)) //nolint:errcheck // the write fails as well
	w.poke()
	<-w.idle
	return w.Conn.Close()
}

// SetDeadline sets that of reading alone, and SetWriteDeadline nothing: writes
// are bounded where they happen.
func (w *wire) SetDeadline(t time.Time) error { return w.Conn.SetReadDeadline(t) }

// SetWriteDeadline does nothing, see SetDeadline.
func (w *wire) SetWriteDeadline(time.Time) error { return nil }

// disposition is one that settles a single delivery as a receiver.
type disposition struct {
	channel uint16
	id      uint32
	state   []byte // encoded
}

// run is a range of consecutive deliveries with one outcome.
type run struct {
	channel     uint16
	first, last uint32
	state       []byte // nil: no run
}

func (r *run) start(d disposition) {
	r.channel, r.first, r.last, r.state = d.channel, d.id, d.id, append(r.state[:0], d.state...)
}

// add extends the run by a delivery, if that is the next one.
func (r *run) add(d disposition) bool {
	if len(r.state) == 0 || r.channel != d.channel || d.id != r.last+1 || !bytes.Equal(r.state, d.state) {
		return false
	}
	r.last = d.id
	return true
}

// appendTo writes the run out as one frame and ends it.
func (r *run) appendTo(b []byte) []byte {
	if len(r.state) == 0 {
		return b
	}
	start := len(b)
	b = append(b, 0, 0, 0, 0, 2, 0)
	b = binary.BigEndian.AppendUint16(b, r.channel)
	b = append(b, 0x00, 0x53, descDisposition, 0xd0, 0, 0, 0, 0, 0, 0, 0, 5, 0x41) // role: receiver
	b = append(b, 0x70)
	b = binary.BigEndian.AppendUint32(b, r.first)
	b = append(b, 0x70)
	b = binary.BigEndian.AppendUint32(b, r.last)
	b = append(b, 0x41) // settled
	b = append(b, r.state...)
	binary.BigEndian.PutUint32(b[start:], uint32(len(b)-start))
	binary.BigEndian.PutUint32(b[start+12:], uint32(len(b)-start-16))
	r.state = r.state[:0]
	return b
}

const (
	descTransfer    = 0x14
	descDisposition = 0x15
	descHeader      = 0x70
)

// readDisposition reads a frame of go-amqp that settles one delivery.
func readDisposition(frame []byte) (d disposition, ok bool) {
	if len(frame) < 12 || frame[4] != 2 || frame[5] != 0 {
		return d, false
	}
	f, ok := composite(frame[8:], descDisposition)
	if !ok {
		return d, false
	}
	role, ok1 := f.next()
	first, ok2 := f.next()
	last, ok3 := f.next()
	settled, ok4 := f.next()
	state, ok5 := f.next()
	if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 || len(f.b) != 0 || role[0] != 0x41 || last[0] != 0x40 || settled[0] != 0x41 {
		return d, false
	}
	id, ok := number(first)
	return disposition{channel: binary.BigEndian.Uint16(frame[6:]), id: id, state: state}, ok
}

// inbound reads the frames of the broker.
type inbound struct {
	r       *bufio.Reader
	left    int             // bytes of the current frame that were not given out
	partial map[uint16]bool // by channel: the last transfer is to be continued
}

// peek is how much of a frame is looked at: performative and header section of
// a transfer take less than 100 bytes.
const peek = 256

func (in *inbound) read(p []byte) (int, error) {
	if in.left == 0 {
		head, err := in.r.Peek(8)
		if err != nil {
			if len(head) > 0 { // the end, in the midst of a frame header
				return in.r.Read(p)
			}
			return 0, err
		}
		in.left = 8
		if string(head[:4]) != "AMQP" {
			in.left = max(8, int(binary.BigEndian.Uint32(head)))
			frame, err := in.r.Peek(min(in.left, peek))
			if err != nil {
				return 0, err
			}
			in.mark(frame)
		}
	}
	n, err := in.r.Read(p[:min(len(p), in.left)])
	in.left -= n
	return n, err
}

// mark gives a priority of 4 the number markedPriority, in place.
func (in *inbound) mark(frame []byte) {
	if len(frame) < 12 || frame[5] != 0 || frame[4] < 2 || int(frame[4])*4 > len(frame) {
		return
	}
	channel := binary.BigEndian.Uint16(frame[6:])
	f, ok := composite(frame[int(frame[4])*4:], descTransfer)
	if !ok {
		return
	}
	var more []byte
	for range 6 { // handle, delivery-id, delivery-tag, message-format, settled, more
		if more, ok = f.next(); !ok {
			more = nil
			break
		}
	}
	continued := in.partial[channel]
	in.partial[channel] = len(more) > 0 && (more[0] == 0x41 || more[0] == 0x56 && more[1] == 1)
	if continued {
		return // its payload is the middle of a message
	}
	h, ok := composite(f.rest, descHeader)
	if !ok {
		return
	}
	h.next() // durable
	if priority, ok := h.next(); ok && priority[0] == 0x50 && priority[1] == defaultPriority {
		priority[1] = markedPriority
	}
}

const (
	defaultPriority = 4
	// markedPriority stands for an explicit 4. No queue has 254 priorities.
	markedPriority = 254
)

// fields are those of a composite type.
type fields struct {
	b    []byte // the fields
	rest []byte // what follows the composite
}

// composite reads the head of a described list.
func composite(b []byte, descriptor byte) (f fields, ok bool) {
	if len(b) < 4 || b[0] != 0 || b[1] != 0x53 || b[2] != descriptor {
		return f, false
	}
	list := b[3:]
	head := 0
	switch list[0] {
	case 0x45:
		return fields{rest: list[1:]}, true
	case 0xc0:
		head = 3
	case 0xd0:
		head = 9
	default:
		return f, false
	}
	n, ok := length(list)
	if !ok || len(list) < head {
		return f, false
	}
	end := min(n, len(list)) // the frame was looked at in part
	return fields{b: list[head:max(end, head)], rest: list[end:]}, true
}

// next takes the next field, with its constructor.
func (f *fields) next() (value []byte, ok bool) {
	n, ok := length(f.b)
	if !ok || n > len(f.b) {
		return nil, false
	}
	value, f.b = f.b[:n], f.b[n:]
	return value, true
}

// length is how many bytes an encoded value takes, by its constructor (AMQP 1.0
// part 1, 1.2).
func length(b []byte) (int, bool) {
	if len(b) == 0 {
		return 0, false
	}
	switch b[0] >> 4 {
	case 0x0: // a described value: descriptor, then value
		d, ok := length(b[1:])
		if !ok || 1+d > len(b) {
			return 0, false
		}
		v, ok := length(b[1+d:])
		return 1 + d + v, ok
	case 0x4:
		return 1, true
	case 0x5:
		return 2, true
	case 0x6:
		return 3, true
	case 0x7:
		return 5, true
	case 0x8:
		return 9, true
	case 0x9:
		return 17, true
	case 0xa, 0xc, 0xe:
		if len(b) < 2 {
			return 0, false
		}
		return 2 + int(b[1]), true
	case 0xb, 0xd, 0xf:
		if len(b) < 5 {
			return 0, false
		}
		n := binary.BigEndian.Uint32(b[1:])
		return 5 + int(n), n < 1<<31
	}
	return 0, false
}

// number reads a uint.
func number(b []byte) (uint32, bool) {
	switch b[0] {
	case 0x43:
		return 0, true
	case 0x52:
		return uint32(b[1]), true
	case 0x70:
		return binary.BigEndian.Uint32(b[1:]), true
	}
	return 0, false
}
