package fleet

import "testing"

// FuzzReadCopy: a description of a checkpoint's copy may come from anywhere. What is taken names a checkpoint, and parts that a vault
// would take.
func FuzzReadCopy(f *testing.F) {
	f.Add([]byte(`{"version":1,"cluster":"c","uid":1000,"checkpoint":{"id":"c1.j1","guests":[{"guest":"j1g0","manifest":"sha256-00","bytes":-1}]},"output":{"sizes":{"stdout":1}}}`))
	f.Add([]byte(`{"version":2}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := ReadCopy(text)
		if err != nil {
			return
		}
		if c.Version != CopyVersion || c.Checkpoint.ID.Check() != nil || len(c.Checkpoint.Guests) == 0 {
			t.Errorf("%+v is taken", c)
		}
		for _, p := range c.Checkpoint.Guests {
			if p.Bytes < 0 || p.NewBytes < 0 {
				t.Errorf("a part of %d bytes, %d of them new, is taken", p.Bytes, p.NewBytes)
			}
		}
	})
}
