package criu

import (
	"bytes"
	"errors"
	"fmt"
)

// ErrPassing is what the error of a Dump wraps when what kept the container
// from being dumped is over as soon as its programs run again for a moment.
var ErrPassing = errors.New("it passes")

// inFlight is what CRIU says of a connection that a listener has not taken yet.
const inFlight = "In-flight connection"

// explained is a sentence about a log as an error that says whether to try again.
func explained(log []byte, sentence string) error {
	if bytes.Contains(log, []byte(inFlight)) {
		return fmt.Errorf("%s: %w", sentence, ErrPassing)
	}
	return errors.New(sentence)
}
