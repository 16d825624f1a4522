package agent

import (
	"testing"
	"testing/synctest"
	"time"

	"pagurus/fleet"
)

// An order that hangs is called off when its guest is not wanted here any more: it might be
// carried out long after the guest was started elsewhere.
func TestHangingStartOfAGuestThatIsNotWanted(t *testing.T) {
	for _, verb := range []fleet.Verb{fleet.Start, fleet.Receive} {
		in(t, func(t *testing.T, r *rig) {
			release := r.block(string(verb) + " j1g0")
			r.send(task(verb, 1))
			synctest.Wait()
			r.want("c1", 11, "j1g1")
			time.Sleep(5 * time.Second)
			release(nil)
			r.silence()
			if r.d.guest("j1g0") != nil {
				t.Errorf("%s brought a guest that is not wanted", verb)
			}
		})
	}
}
