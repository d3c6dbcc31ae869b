package backoff

import "math/rand/v2"

// Random returns 64 uniformly random bits for [Schedule.Delay], from the runtime's generator, which is seeded by
// the operating system, safe for concurrent use and free of locks.
func Random() uint64 { return rand.Uint64() }

// Seed returns 64 well mixed bits for [Schedule.Delay] that depend on the message id and the number of the retry
// alone: the same in every process, version and language. With them a schedule can be reproduced from the id in
// a log line.
//
// The bits are predictable to anyone who knows the id, and equal for equal ids: a crowd of messages without an
// id, or with one id, would come back together. Such messages want [Random].
//
// The algorithm, with all arithmetic modulo 2^64:
//
//	h = 0xcbf29ce484222325                                 FNV-1a, 64 bits
//	for each byte c of the id (UTF-8, as in the message):  h = (h xor c) × 0x100000001b3
//	for each of the 8 bytes c of n, most significant first, in two's complement: the same
//	h = (h xor (h >> 30)) × 0xbf58476d1ce4e5b9             the finaliser of SplitMix64
//	h = (h xor (h >> 27)) × 0x94d049bb133111eb
//	seed = h xor (h >> 31)
//
// FNV-1a alone leaves its upper bits, the ones that Delay draws by, nearly equal for ids that differ in their
// last characters; the finaliser spreads each bit over all 64. testdata/seed.json has golden vectors. This
// algorithm will not change.
func Seed(messageID string, n int64) uint64 {
	const prime = 0x100000001b3
	h := uint64(0xcbf29ce484222325)
	for i := range len(messageID) {
		h = (h ^ uint64(messageID[i])) * prime
	}
	for shift := 56; shift >= 0; shift -= 8 {
		h = (h ^ uint64(n)>>shift&0xff) * prime
	}
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}
