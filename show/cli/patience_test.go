package cli

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"pagurus/serve/wire"
)

// Whoever waits for a job goes on when told that they ask for too much, and sees why nothing comes. A refusal ends the wait.
func TestTooMuchIsNoRefusal(t *testing.T) {
	for _, cause := range []error{&wire.Error{Status: http.StatusTooManyRequests, Reason: "you hold too many connections"}, wire.AskAgain(1, "ask again in a while"), wire.ErrNoController} {
		var said strings.Builder
		o := newOutage(&said)
		if err := o.Wait(t.Context(), cause); err != nil {
			t.Errorf("%v ends the wait: %v", cause, err)
		}
		o.since = o.since.Add(-2 * outageGrace)
		if err := o.Wait(t.Context(), cause); err != nil {
			t.Errorf("%v ends the wait: %v", cause, err)
		}
		want := "the controller does not answer"
		if e := (*wire.Error)(nil); errors.As(cause, &e) {
			want = e.Reason
		}
		if !strings.HasPrefix(said.String(), "pagurus: "+want+";") {
			t.Errorf("%v: it says %q", cause, said.String())
		}
	}
	refusal := &wire.Error{Status: http.StatusUnprocessableEntity, Reason: "no such job"}
	if err := newOutage(nil).Wait(t.Context(), refusal); !errors.Is(err, refusal) {
		t.Errorf("a refusal: %v", err)
	}
}
