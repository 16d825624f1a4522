package noise

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"pagurus/bench/stats"
)

// FoundName is the name of the file of what was found, beside its record.
const FoundName = "noise.json"

// Found is what was found on all cores.
type Found struct {
	Quantum time.Duration `json:"quantum_ns"`
	Cores   []Core        `json:"cores"` // every quantum, and what happened meanwhile
	// Predicted is how many times longer a step takes in which all ranks wait for
	// the last, by their number.
	Predicted map[int]stats.Interval `json:"predicted"`
}

// Load reads what was found. Where nothing ever was the error is fs.ErrNotExist.
func Load(file string) (*Found, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read what noise was found: %w", err)
	}
	var f Found
	if err := json.Unmarshal(text, &f); err != nil {
		return nil, fmt.Errorf("%s is not what `pagurus bench noise` finds: %w", file, err)
	}
	return &f, nil
}
