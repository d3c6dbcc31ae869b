package simulate

import "math/bits"

// message is all that is kept of one message. 32 bytes without pointers, so that
// ten million of them are 320 MB which the garbage collector need not look into.
type message struct {
	next     uint32 // in the list that it is in
	due      uint32 // ms: when its state ends
	sent     uint32 // ms
	failed   uint32 // ms: its first failure
	previous uint32 // ms: the last delay, as the mechanism rounded it
	failures uint32
	version  uint32 // seen when its call began, where calls are contended; hops, while it is handed off
	consumer uint16
	state    state
	ends     outcome
}

// state is what the clock holds a message for.
type state uint8

const (
	calling    state = iota // a handler's call runs
	handingOff              // its successor is being confirmed
	parking                 // likewise, in the parking queue
	held                    // in a slot
	leaving                 // in a slot, behind others whose time has come too
	sleeping                // in a handler that waits
	requeued                // on its way back to the head of the queue

	poisonous state = 1 << 7 // beside the state
)

const (
	chunkBits = 16
	chunkSize = 1 << chunkBits
	none      = ^uint32(0)
)

// store keeps the messages that are under way, by number, in chunks that never
// move: growing by copying would need twice the memory for a moment.
type store struct {
	chunks []*[chunkSize]message
	free   uint32 // list of numbers to use again
	used   uint32 // numbers that were ever used
}

func newStore() *store { return &store{free: none} }

func (s *store) at(n uint32) *message { return &s.chunks[n>>chunkBits][n&(chunkSize-1)] }

func (s *store) take() uint32 {
	if n := s.free; n != none {
		s.free = s.at(n).next
		return n
	}
	if s.used&(chunkSize-1) == 0 {
		s.chunks = append(s.chunks, new([chunkSize]message))
	}
	s.used++
	return s.used - 1
}

func (s *store) give(n uint32) {
	s.at(n).next = s.free
	s.free = n
}

// list is a queue of messages, linked through them.
type list struct{ head, tail uint32 }

func (l *list) empty() bool { return l.head == none }

func (s *store) push(l *list, n uint32) {
	s.at(n).next = none
	if l.head == none {
		l.head = n
	} else {
		s.at(l.tail).next = n
	}
	l.tail = n
}

func (s *store) pushFront(l *list, n uint32) {
	s.at(n).next = l.head
	if l.head == none {
		l.tail = n
	}
	l.head = n
}

func (s *store) pop(l *list) uint32 {
	n := l.head
	l.head = s.at(n).next
	return n
}

// clock is a hierarchical timing wheel: four rings of 256 lists, of 1, 256, 256²
// and 256³ ms. A message is put where its time differs from the present and moves
// at most three times, one ring down each, so that the cost of an event does not
// depend on how many there are. What is due in the same millisecond comes out in
// the order in which it went in.
type clock struct {
	store *store
	now   uint32
	rings [4][256]list
	full  [4][4]uint64 // which lists are not empty
}

func newClock(s *store) *clock {
	c := &clock{store: s}
	for r := range c.rings {
		for i := range c.rings[r] {
			c.rings[r][i].head = none
		}
	}
	return c
}

// put holds a message until its due, which must be after the present.
func (c *clock) put(n uint32) {
	due := c.store.at(n).due
	ring := (31 - bits.LeadingZeros32((due^c.now)|1)) / 8
	i := due >> (8 * ring) & 255
	c.store.push(&c.rings[ring][i], n)
	c.full[ring][i>>6] |= 1 << (i & 63)
}

// find is the first list of a ring that is not empty, from i on; 256 for none.
func (c *clock) find(ring int, i uint32) uint32 {
	if i > 255 {
		return 256
	}
	word := c.full[ring][i>>6] >> (i & 63) << (i & 63)
	for w := i >> 6; ; {
		if word != 0 {
			return w<<6 | uint32(bits.TrailingZeros64(word))
		}
		if w++; w == 4 {
			return 256
		}
		word = c.full[ring][w]
	}
}

// advance moves on to the next millisecond with something due, but not beyond
// limit, and takes out what is due then. An empty list means that there is
// nothing until limit, which is the present now.
func (c *clock) advance(limit uint32) list {
next:
	for {
		if i := c.find(0, c.now&255); i < 256 {
			if due := c.now&^255 | i; due <= limit {
				c.now = due
				return c.cut(0, i)
			}
			c.now = limit
			return list{head: none}
		}
		for ring := 1; ring < 4; ring++ {
			shift := 8 * ring
			i := c.find(ring, c.now>>shift&255+1)
			if i == 256 {
				continue
			}
			start := c.now>>(shift+8)<<(shift+8) | i<<shift
			if start > limit {
				break
			}
			c.now = start
			for l := c.cut(ring, i); !l.empty(); {
				c.put(c.store.pop(&l))
			}
			continue next
		}
		c.now = limit
		return list{head: none}
	}
}

func (c *clock) cut(ring int, i uint32) list {
	l := c.rings[ring][i]
	c.rings[ring][i].head = none
	c.full[ring][i>>6] &^= 1 << (i & 63)
	return l
}

// idle reports whether nothing is held.
func (c *clock) idle() bool { return c.full == [4][4]uint64{} }
