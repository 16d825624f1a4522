package criu

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	criucore "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/seccomp"
	"google.golang.org/protobuf/proto"
)

// TestFilters: all filters of each thread are found; and a thread without one, or with one that is not there.
func TestFilters(t *testing.T) {
	chain := &seccomp.SeccompEntry{SeccompFilters: []*seccomp.SeccompFilter{
		{Filter: []byte("given")}, {Filter: []byte("added"), Prev: proto.Uint32(0)}, {Filter: []byte("round"), Prev: proto.Uint32(2)}, {Filter: []byte("weak")},
	}}
	thread := func(mode criucore.SeccompMode, filter uint32) *criucore.CoreEntry {
		return &criucore.CoreEntry{Mtype: criucore.CoreEntry_X86_64.Enum(), ThreadCore: &criucore.ThreadCoreEntry{
			FutexRla: proto.Uint64(0), FutexRlaLen: proto.Uint32(0), SeccompMode: mode.Enum(), SeccompFilter: proto.Uint32(filter),
		}}
	}
	process := func(state uint32, c *criucore.CoreEntry) *criucore.CoreEntry {
		c.Tc = &criucore.TaskCoreEntry{
			TaskState: proto.Uint32(state), ExitCode: proto.Uint32(0), Personality: proto.Uint32(0), Flags: proto.Uint32(0), BlkSigset: proto.Uint64(0), Comm: proto.String("x"),
		}
		return c
	}
	old := process(1, thread(criucore.SeccompMode_filter, 0))
	old.Tc.OldSeccompMode = criucore.SeccompMode_filter.Enum()
	all := thread(criucore.SeccompMode_filter, 0)
	all.ThreadCore.SeccompMode, all.ThreadCore.SeccompFilter = nil, nil
	bare := thread(criucore.SeccompMode_filter, 0)
	bare.ThreadCore.SeccompFilter = nil
	const filter = criucore.SeccompMode_filter
	for name, c := range map[string]struct {
		cores []*criucore.CoreEntry
		want  string // the threads' filters, or the error
	}{
		"as given":         {[]*criucore.CoreEntry{process(1, thread(filter, 0)), thread(filter, 0)}, "given"},
		"with one added":   {[]*criucore.CoreEntry{process(1, thread(filter, 1))}, "added,given"},
		"one other thread": {[]*criucore.CoreEntry{process(1, thread(filter, 3))}, "weak"},
		"a zombie beside":  {[]*criucore.CoreEntry{process(1, thread(filter, 0)), process(2, thread(criucore.SeccompMode_disabled, 0))}, "given"},
		"no filter":        {[]*criucore.CoreEntry{process(1, thread(filter, 0)), thread(criucore.SeccompMode_disabled, 0)}, "may make every system call"},
		"no number":        {[]*criucore.CoreEntry{process(1, bare)}, "may make every system call"},
		"an old field":     {[]*criucore.CoreEntry{old}, "may make every system call"},
		"beyond the list":  {[]*criucore.CoreEntry{process(1, thread(filter, 9))}, "is not there"},
		"in circles":       {[]*criucore.CoreEntry{process(1, thread(filter, 2))}, "is not there"},
		"a thread as all":  {[]*criucore.CoreEntry{process(1, thread(filter, 0)), all}, "given"},
		"threads alone":    {[]*criucore.CoreEntry{all}, "no process"},
		"nobody":           {nil, "no process"},
	} {
		dir := t.TempDir()
		write := func(name string, m proto.Message) {
			entry, err := proto.Marshal(m)
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, name), append(binary.LittleEndian.AppendUint32(make([]byte, headBytes-4), uint32(len(entry))), entry...), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		write("seccomp.img", chain)
		for i, core := range c.cores {
			write("core-"+string(rune('1'+i))+".img", core)
		}
		found, err := Filters(dir)
		if err != nil {
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		var threads []string
		for _, its := range found {
			threads = append(threads, string(bytes.Join(its, []byte(","))))
		}
		if got := strings.Join(threads, " "); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}
