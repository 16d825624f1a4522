package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"pagurus/fleet"
)

// memoryFiles are files of a job that are as long as they say. What is done with them is noted in order, as are the calls
// of the driver.
type memoryFiles struct {
	d *memoryDriver

	mu    sync.Mutex
	open  int
	bytes int64
	wrong error         // of Open
	slow  time.Duration // how long Measure takes
	over  bool          // what was written has come to whoever serves it
}

func (f *memoryFiles) Open(context.Context, fleet.Task, AskFiles) (OpenedFiles, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.wrong == nil {
		f.open++
	}
	return f, f.wrong
}

func (f *memoryFiles) Measure(open fleet.OpenFiles) (CutFiles, error) {
	time.Sleep(f.slow)
	f.mu.Lock()
	defer f.mu.Unlock()
	if is := f.d.guests["j1g0"]; is.run != fleet.Suspended {
		return CutFiles{}, errors.New("the guest runs")
	}
	if !f.over {
		return CutFiles{}, errors.New("what the guest has written did not come")
	}
	return CutFiles{Files: json.RawMessage(fmt.Sprint(f.bytes)), Amiss: open.Amiss}, nil
}

func (f *memoryFiles) HandOver(open fleet.OpenFiles) fleet.OpenFiles {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.over = f.d.guests["j1g0"].run == fleet.Suspended
	open.Amiss = append(open.Amiss, "it was asked for")
	return open
}

func (f *memoryFiles) Ready(fleet.OpenFiles, time.Duration) error { return nil }

func (f *memoryFiles) Answer(_ context.Context, q FileQuestion) ([]byte, error) {
	return fmt.Appendf(nil, "%s of %s: %s", q.What, q.Share.Export, q.Body), nil
}

func (f *memoryFiles) Sync(json.RawMessage) error { return nil }

func (f *memoryFiles) KeepClones(context.Context, fleet.JobClones) error { return nil }

func (f *memoryFiles) PutBack(noted json.RawMessage) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.d.guests["j1g0"] != nil {
		return nil, errors.New("the guest is here already")
	}
	return nil, json.Unmarshal(noted, &f.bytes)
}

func (f *memoryFiles) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open--
	return nil
}

func (in memoryGuestAgent) OpenFiles(ctx context.Context) (out fleet.OpenFiles, err error) {
	err = in.on(ctx, func(*memoryGuest) bool {
		out = fleet.OpenFiles{Files: []fleet.OpenFile{{At: "/home/x", Name: "/log"}}, Amiss: []string{"middle is written before its end"}}
		return true
	})
	return out, err
}

// What a guest that mounts its files has open is measured when it is cut, and is so long again before it is restored. A
// host that does not reach the files, or not in time, makes the checkpoint without, and says so.
func TestFilesBelongToTheCut(t *testing.T) {
	for name, c := range map[string]struct {
		wrong error
		slow  time.Duration
		bytes int64 // at the end
		says  string
	}{
		"reached":     {bytes: 10, says: "it was asked for"},
		"not reached": {wrong: errors.New("no NFS client"), bytes: 99, says: "no NFS client"},
		"too slow":    {slow: 2 * measureLimit, bytes: 99, says: "nothing came within"},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, r *rig) {
				files := &memoryFiles{d: r.d, bytes: 10, wrong: c.wrong, slow: c.slow}
				r.a.Vaults.Files = files
				r.do(task(fleet.Start, 1))
				for _, verb := range []fleet.Verb{fleet.Arm, fleet.Cut, fleet.Continue, fleet.Save} {
					r.do(task(verb, 1))
				}
				files.mu.Lock()
				files.bytes, files.wrong = 99, nil // it writes on
				files.mu.Unlock()
				r.do(task(fleet.Stop, 1))
				r.do(task(fleet.Restore, 2))
				time.Sleep(c.slow)
				for part, noted := range r.vault.files {
					if !strings.Contains(noted, c.says) {
						t.Errorf("%v says %s", part, noted)
					}
				}
				if files.bytes != c.bytes || files.open != 0 || len(r.vault.files) != 1 {
					t.Errorf("%d bytes, %d times open, noted %v", files.bytes, files.open, r.vault.files)
				}
			})
		})
	}
}

// slowToTell is a guest agent that takes its time to tell which files are open, as that of a guest whose processors are busy.
type slowToTell struct {
	memoryGuestAgent
	takes time.Duration
}

func (in slowToTell) OpenFiles(ctx context.Context) (fleet.OpenFiles, error) {
	time.Sleep(in.takes)
	return in.memoryGuestAgent.OpenFiles(ctx)
}

// Others of the job are suspended while a guest is cut: so it has told before which files are open, and is not asked then.
func TestTheCutDoesNotWaitForWhatIsOpen(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		const takes = 300 * time.Millisecond
		r.a.Vaults.Files = &memoryFiles{d: r.d, bytes: 10}
		r.a.GuestAgent = func(g fleet.GuestID, _ Linker) GuestAgent { return slowToTell{memoryGuestAgent{r.d, g}, takes} }
		r.do(task(fleet.Start, 1))
		r.do(task(fleet.Arm, 1))
		time.Sleep(10 * takes) // other guests of the job are prepared
		begun := time.Now()
		r.do(task(fleet.Cut, 1))
		if took := time.Since(begun); took >= takes {
			t.Errorf("the cut took %s", took)
		}
		for _, verb := range []fleet.Verb{fleet.Continue, fleet.Save} {
			r.do(task(verb, 1))
		}
		for part, noted := range r.vault.files {
			if !strings.Contains(noted, "middle is written") {
				t.Errorf("%v says %s", part, noted)
			}
		}
	})
}
