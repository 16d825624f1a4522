package criu

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	criucore "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/seccomp"
	"google.golang.org/protobuf/proto"
)

// headBytes is the length of the head of an image with one entry: two magic numbers and the entry's length.
const headBytes = 12

// Filters returns for each thread in a dump's images the filters of system calls that it has, those of equal threads once. A call is
// made if all of them let it, so those that a program has added only refuse more. Their order says nothing: each restore by CRIU
// turns it round. It fails if a process that lives has none: what CRIU restores from these images would make every
// call. A thread without one of its own gets that of its process when CRIU restores it; whether it did, only its status says then.
func Filters(images string) ([][][]byte, error) {
	var all seccomp.SeccompEntry
	if err := readImage(filepath.Join(images, "seccomp.img"), &all); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	names, err := filepath.Glob(filepath.Join(images, "core-*.img"))
	if err != nil {
		return nil, err
	}
	found := map[uint32][][]byte{} // by the number of a thread's last one
	for _, name := range names {
		var core criucore.CoreEntry
		if err := readImage(name, &core); err != nil {
			return nil, err
		}
		if ended(&core) || core.GetTc() == nil && core.ThreadCore != nil && core.ThreadCore.SeccompMode == nil {
			continue
		}
		its, err := filtersOf(&all, &core)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Base(name), err)
		}
		found[core.GetThreadCore().GetSeccompFilter()] = its
	}
	if len(found) == 0 {
		return nil, errors.New("there is no process in the images")
	}
	return slices.Collect(maps.Values(found)), nil
}

// ended reports whether a process has ended and its parent has not asked for it: CRIU makes one that ends at once.
func ended(core *criucore.CoreEntry) bool {
	const dead, zombie = 2, 6 // states of CRIU (TASK_DEAD, TASK_ZOMBIE)
	state := core.GetTc().GetTaskState()
	return core.GetTc() != nil && (state == dead || state == zombie)
}

// filtersOf are the filters of a thread.
func filtersOf(all *seccomp.SeccompEntry, core *criucore.CoreEntry) (its [][]byte, err error) {
	t := core.GetThreadCore()
	if t.GetSeccompMode() != criucore.SeccompMode_filter || t.SeccompFilter == nil || core.GetTc().GetOldSeccompMode() != 0 {
		return nil, errors.New("the thread may make every system call")
	}
	at := t.GetSeccompFilter()
	for range all.SeccompFilters {
		if int(at) >= len(all.SeccompFilters) {
			break
		}
		f := all.SeccompFilters[at]
		if its = append(its, f.GetFilter()); f.Prev == nil {
			return its, nil
		}
		at = f.GetPrev()
	}
	return nil, errors.New("the thread's filter of system calls is not there")
}

func readImage(path string, into proto.Message) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if len(text) < headBytes {
		return fmt.Errorf("%s is too short", path)
	}
	if err := proto.Unmarshal(text[headBytes:], into); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}
