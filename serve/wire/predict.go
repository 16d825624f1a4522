package wire

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"pagurus/fleet"
)

// Forecasts predict the effect of requests.
type Forecasts interface {
	// Predict gives the effect and cost of a request to move guests, if it were made now. It
	// changes nothing and takes at most some seconds.
	Predict(context.Context, fleet.Request) (fleet.Forecast, error)
	// Score compares past predictions with the results.
	Score(context.Context) (fleet.Calibration, error)
}

var errNoForecasts = &Error{http.StatusNotImplemented, "this controller cannot predict: is its version older than yours?"}

func (s *server) predict(id Peer, w http.ResponseWriter, r *http.Request) error {
	if s.Forecasts == nil {
		return errNoForecasts
	}
	b, err := s.bodyOf(id, w, r, askBytes)
	if err != nil {
		return err
	}
	var q fleet.Request
	if err := s.understand(r, b, &q); err != nil {
		return err
	}
	q.By, q.Image, q.Spec = id.Caller, nil, nil
	f, err := s.Forecasts.Predict(r.Context(), q)
	if err != nil {
		return err
	}
	return reply(w, f)
}

func (s *server) score(_ Peer, w http.ResponseWriter, r *http.Request) error {
	if s.Forecasts == nil {
		return errNoForecasts
	}
	c, err := s.Forecasts.Score(r.Context())
	if err != nil {
		return err
	}
	return reply(w, c)
}

// Predict gives the effect and cost of a request to move guests. An *Error with status 422
// is a refusal; its reason is for people.
func (c *Client) Predict(ctx context.Context, q fleet.Request) (fleet.Forecast, error) {
	var f fleet.Forecast
	b, err := json.Marshal(q)
	if err != nil {
		return f, fmt.Errorf("encoding the request: %w", err)
	}
	err = c.call(ctx, http.MethodPost, "/v1/predict", b, &f)
	return f, err
}

// Score compares past predictions with the results.
func (c *Client) Score(ctx context.Context) (fleet.Calibration, error) {
	var k fleet.Calibration
	err := c.call(ctx, http.MethodGet, "/v1/score", nil, &k)
	return k, err
}
