package share

import "testing"

// FuzzAnswer: whatever a file server answers is data or an error, and the data is of the answer.
func FuzzAnswer(f *testing.F) {
	f.Add(make([]byte, 64))
	f.Add([]byte{0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 25, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 'h', 'i', 0, 0})
	f.Fuzz(func(t *testing.T, reply []byte) {
		if data, err := answer(reply, []string{"home", "ada", "x"}); err == nil && len(data) > len(reply) {
			t.Errorf("%d bytes came of %d", len(data), len(reply))
		}
	})
}
