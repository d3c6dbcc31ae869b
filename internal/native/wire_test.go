package native

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"testing"
)

// settles is a frame as go-amqp writes it for one delivery.
func settles(channel uint16, id uint32, state ...byte) []byte {
	list := []byte{0x41} // role
	switch {
	case id == 0:
		list = append(list, 0x43)
	case id < 256:
		list = append(list, 0x52, byte(id))
	default:
		list = binary.BigEndian.AppendUint32(append(list, 0x70), id)
	}
	list = append(append(list, 0x40, 0x41), state...)
	b := []byte{0, 0, 0, 0, 2, 0}
	b = binary.BigEndian.AppendUint16(b, channel)
	b = append(b, 0, 0x53, descDisposition, 0xd0)
	b = binary.BigEndian.AppendUint32(b, uint32(len(list)+4))
	b = binary.BigEndian.AppendUint32(b, 5)
	b = append(b, list...)
	binary.BigEndian.PutUint32(b, uint32(len(b)))
	return b
}

var (
	stateAccepted = []byte{0, 0x53, 0x24, 0x45}
	stateReleased = []byte{0, 0x53, 0x26, 0x45}
)

// ranges reads the dispositions off a stream of frames.
func ranges(t *testing.T, b []byte) (all [][4]uint32) {
	t.Helper()
	for len(b) > 0 {
		size := binary.BigEndian.Uint32(b)
		frame := b[:size]
		b = b[size:]
		f, ok := composite(frame[8:], descDisposition)
		if !ok {
			all = append(all, [4]uint32{0xffffffff})
			continue
		}
		var v [5][]byte
		for i := range v {
			if v[i], ok = f.next(); !ok {
				t.Fatalf("field %d of %x", i, frame)
			}
		}
		if len(f.b) != 0 || len(f.rest) != 0 {
			t.Fatalf("left over in %x: %x %x", frame, f.b, f.rest)
		}
		first, _ := number(v[1])
		last := first
		if v[2][0] != 0x40 {
			last, _ = number(v[2])
		}
		all = append(all, [4]uint32{uint32(binary.BigEndian.Uint16(frame[6:])), first, last, uint32(v[4][2])})
	}
	return all
}

// Neighbours with one outcome go out as a range; all else keeps its place.
func TestDispositionsBecomeRanges(t *testing.T) {
	here, there := net.Pipe()
	w := newWire(here)
	read := make(chan []byte)
	go func() {
		b, _ := io.ReadAll(there)
		read <- b
	}()
	begin := []byte{0, 0, 0, 12, 2, 0, 0, 1, 0, 0x53, 0x11, 0x45}
	w.cork()
	for _, frame := range [][]byte{
		settles(1, 0, stateAccepted...), settles(1, 1, stateAccepted...), settles(1, 2, stateAccepted...),
		settles(1, 4, stateAccepted...), // a gap
		settles(1, 5, stateReleased...), settles(1, 6, stateReleased...),
		settles(2, 7, stateReleased...), // another session
		begin,
		settles(2, 8, stateReleased...),
		settles(1, 0xfffffffe, stateAccepted...), settles(1, 0xffffffff, stateAccepted...), settles(1, 0, stateAccepted...),
	} {
		if n, err := w.Write(frame); err != nil || n != len(frame) {
			t.Fatal(n, err)
		}
	}
	w.uncork()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	want := [][4]uint32{
		{1, 0, 2, 0x24},
		{1, 4, 4, 0x24},
		{1, 5, 6, 0x26},
		{2, 7, 7, 0x26},
		{0xffffffff},
		{2, 8, 8, 0x26},
		{1, 0xfffffffe, 0, 0x24}, // ids wrap around
	}
	got := ranges(t, <-read)
	if len(got) != len(want) {
		t.Fatalf("got  %v\nwant %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("frame %d: got %v, want %v", i, got[i], want[i])
		}
	}
	if _, err := w.Write(begin); err == nil {
		t.Error("a write after the close succeeds")
	}
}

// What is no settlement of a single delivery is passed on as it is.
func TestOtherFramesPass(t *testing.T) {
	for name, change := range map[string]func([]byte) []byte{
		"whole":        func(b []byte) []byte { return b },
		"SASL":         func(b []byte) []byte { b[5] = 1; return b },
		"a sender's":   func(b []byte) []byte { b[20] = 0x42; return b },
		"cut":          func(b []byte) []byte { return b[:len(b)-6] },
		"another list": func(b []byte) []byte { b[10] = 0x14; return b },
	} {
		_, ok := readDisposition(change(settles(3, 9, stateAccepted...)))
		if want := name == "whole"; ok != want {
			t.Errorf("%s: taken for a settlement: %t", name, ok)
		}
	}
}

// transfer is a frame with the start of a message.
func transfer(channel uint16, more byte, payload ...byte) []byte {
	list := []byte{
		0x43,    // handle
		0x52, 7, // delivery-id
		0xa0, 1, 9, // delivery-tag
		0x43, // message-format
		0x42, // settled
		more,
	}
	b := []byte{0, 0, 0, 0, 2, 0}
	b = binary.BigEndian.AppendUint16(b, channel)
	b = append(b, 0, 0x53, descTransfer, 0xc0, byte(len(list)+1), 6)
	b = append(append(b, list...), payload...)
	binary.BigEndian.PutUint32(b, uint32(len(b)))
	return b
}

func headerSection(priority ...byte) []byte {
	fields := append([]byte{0x41}, priority...)
	fields = append(fields, 0x40, 0x42, 0x43)
	return append([]byte{0, 0x53, descHeader, 0xc0, byte(len(fields) + 1), 5}, fields...)
}

// A priority of 4 that is there is told from one that is not, in the first frame
// of a message and nowhere else, however the bytes come in.
func TestPriorityIsMarked(t *testing.T) {
	four := headerSection(0x50, 4)
	stream := slicesConcat(
		[]byte("AMQP\x00\x01\x00\x00"),
		transfer(0, 0x42, four...),
		transfer(0, 0x42, headerSection(0x40)...),    // none
		transfer(0, 0x42, headerSection(0x50, 5)...), // another
		transfer(0, 0x41, four...),                   // to be continued
		transfer(0, 0x41, four...),                   // with bytes that look like a header
		transfer(1, 0x42, four...),                   // another session meanwhile
		transfer(0, 0x42, four...),                   // the end of the message
		transfer(0, 0x42, four...),                   // and the next one
		[]byte{0, 0, 0, 8, 2, 0, 0, 0},               // heartbeat
		transfer(0, 0x42, slicesConcat(four, bytes.Repeat([]byte{0x70}, 3000))...),
	)
	marked := []bool{true, false, false, true, false, true, false, true, true}
	for _, chunk := range []int{1, 7, 64, 1 << 20} {
		in := inbound{r: bufio.NewReaderSize(&chunks{b: stream, n: chunk}, 64<<10), partial: map[uint16]bool{}}
		var got []byte
		p := make([]byte, 100)
		for {
			n, err := in.read(p)
			got = append(got, p[:n]...)
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if len(got) != len(stream) {
			t.Fatalf("in chunks of %d: %d bytes of %d", chunk, len(got), len(stream))
		}
		var is []bool
		for rest := got[8:]; len(rest) > 0; {
			size := binary.BigEndian.Uint32(rest)
			if size > 8 {
				is = append(is, bytes.Contains(rest[:size], []byte{0x50, markedPriority}))
			}
			rest = rest[size:]
		}
		if len(is) != len(marked) {
			t.Fatalf("in chunks of %d: %d transfers", chunk, len(is))
		}
		for i := range marked {
			if is[i] != marked[i] {
				t.Errorf("in chunks of %d: transfer %d marked: %t", chunk, i, is[i])
			}
		}
		changed := 0
		for i := range stream {
			if stream[i] != got[i] {
				changed++
			}
		}
		if changed != 5 {
			t.Errorf("in chunks of %d: %d bytes changed", chunk, changed)
		}
	}
}

func slicesConcat(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

type chunks struct {
	b []byte
	n int
}

func (c *chunks) Read(p []byte) (int, error) {
	if len(c.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), c.n)], c.b)
	c.b = c.b[n:]
	return n, nil
}

// Whatever comes in is passed on with its length, without a panic.
func FuzzInbound(f *testing.F) {
	f.Add(transfer(0, 0x42, headerSection(0x50, 4)...))
	f.Add([]byte("AMQP\x03\x01\x00\x00"))
	f.Add(settles(0, 1, stateAccepted...))
	f.Fuzz(func(t *testing.T, b []byte) {
		in := inbound{r: bufio.NewReaderSize(bytes.NewReader(b), 64<<10), partial: map[uint16]bool{}}
		p := make([]byte, 64)
		total := 0
		for range 2*len(b) + 2 {
			n, err := in.read(p)
			total += n
			if err != nil {
				break
			}
		}
		if total > len(b) {
			t.Errorf("%d bytes of %d", total, len(b))
		}
		if d, ok := readDisposition(b); ok && len(d.state) == 0 {
			t.Error("a settlement without an outcome")
		}
	})
}
