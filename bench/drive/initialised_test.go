package drive

import (
	"testing"
	"time"
)

func TestTheLastRankCounts(t *testing.T) {
	at, err := lastInitialised("a line\ninitialised 1700000000000000005\n initialised 1700000000000000003\n")
	if err != nil || !at.Equal(time.Unix(0, 1700000000000000005)) {
		t.Errorf("%v, %v", at, err)
	}
	for _, said := range []string{"", "initialised 5\n", "initialised 5\ninitialised soon\n"} {
		if _, err := lastInitialised(said); err == nil {
			t.Errorf("%q are two ranks", said)
		}
	}
}
