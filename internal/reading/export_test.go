package reading

import "time"

// Wait sets for how long readers wait for what does not come, and returns what sets
// it back.
func Wait(d time.Duration) (back func()) {
	was := patience
	patience = d
	return func() { patience = was }
}
