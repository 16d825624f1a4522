package wire

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"pagurus/fleet"
)

func (w *world) Predict(_ context.Context, q fleet.Request) (fleet.Forecast, error) {
	if q.Guest == "none" {
		return fleet.Forecast{}, &Error{http.StatusUnprocessableEntity, "there is no guest none"}
	}
	notes := []string{string(q.Verb) + " " + string(q.Guest)}
	if q.By.Admin {
		notes = append(notes, "admin")
	}
	return fleet.Forecast{Converges: true, Notes: notes}, nil
}

func (w *world) Score(context.Context) (fleet.Calibration, error) {
	return fleet.Calibration{Moves: 3}, nil
}

func TestPredictOverTheWire(t *testing.T) {
	s := serve(t, &world{})
	defer s.stop()
	c, err := Dial(Config{Address: "unix:" + s.socket})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// The caller in the request does not count.
	f, err := c.Predict(t.Context(), fleet.Request{Verb: fleet.Migrate, Guest: "j1g0", By: fleet.Caller{UID: 5}})
	if err != nil || !f.Converges || f.Notes[0] != "migrate j1g0" {
		t.Errorf("%+v, %v", f, err)
	}
	refused := (*Error)(nil)
	if _, err := c.Predict(t.Context(), fleet.Request{Verb: fleet.Migrate, Guest: "none"}); !errors.As(err, &refused) || refused.Status != http.StatusUnprocessableEntity {
		t.Errorf("%v", err)
	}
	if k, err := c.Score(t.Context()); err != nil || k.Moves != 3 {
		t.Errorf("%+v, %v", k, err)
	}
	r, err := c.http.Post(c.base+"/v1/predict", "application/json", strings.NewReader("{"))
	if err != nil || r.StatusCode != http.StatusBadRequest {
		t.Errorf("half a request: %v, %v", r, err)
	}
	if err == nil {
		r.Body.Close()
	}
}
