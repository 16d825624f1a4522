package container

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"pagurus/act/container/transfer"
	"pagurus/act/host/written"
	"pagurus/fleet"
	"pagurus/internal/note"
)

// The files of a checkpoint.
const (
	stateFile = "state" // what a Sender sent
	aboutFile = "about" // an about; written last
)

// about says what a checkpoint is of, and what a host needs to restore it.
type about struct {
	Protocol  int               `json:"protocol"` // what the agent spoke that made it
	Guest     fleet.GuestID     `json:"guest"`
	Index     int               `json:"index"`
	Subnet    fleet.Subnet      `json:"subnet"`
	Need      fleet.Resources   `json:"need"`
	Image     string            `json:"image"` // its name on hosts
	Agent     string            `json:"agent,omitempty"`
	Processor []string          `json:"processor"` // what programs have found
	Folders   []transfer.Folder `json:"folders,omitempty"`
	Bytes     int64             `json:"bytes"` // of its state
	Sum       uint32            `json:"sum"`
	Stop      time.Duration     `json:"stop_ns"`
	written.Cut
}

// describe says what can be said before a guest is cut.
func (d *Driver) describe(r record) about {
	return about{
		Protocol: fleet.Protocol(), Guest: r.Guest, Index: r.Port.Index, Subnet: r.Port.Subnet, Need: r.Need, Image: filepath.Base(r.Image), Agent: r.Agent,
		Processor: d.visible.Flags, Folders: r.identities(),
	}
}

// write writes it to the checkpoint's folder, on its disk. The first line is the checksum of the rest.
func (a about) write(folder string) error {
	text, err := json.MarshalIndent(a, "", "\t")
	if err != nil {
		return err
	}
	if err := note.WriteDurably(filepath.Join(folder, aboutFile), fmt.Appendf(nil, "%x\n%s", sha256.Sum256(text), text), 0o600); err != nil {
		return err
	}
	dir, err := os.Open(folder)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// readAbout is the other end of write.
func readAbout(folder string) (a about, err error) {
	text, err := os.ReadFile(filepath.Join(folder, aboutFile))
	if errors.Is(err, fs.ErrNotExist) {
		return a, fmt.Errorf("%s has no complete checkpoint of a container", folder)
	}
	if err != nil {
		return a, err
	}
	sum, text, _ := bytes.Cut(text, []byte{'\n'})
	if string(sum) != fmt.Sprintf("%x", sha256.Sum256(text)) {
		return a, fmt.Errorf("the checkpoint is damaged: %s is not as it was written", aboutFile)
	}
	if err := json.Unmarshal(text, &a); err != nil {
		return a, fmt.Errorf("the checkpoint is not one that this agent understands: %w", err)
	}
	return a, nil
}

// openCheckpoint reads what a checkpoint is of, and opens its state.
func openCheckpoint(folder string) (a about, state *os.File, err error) {
	if a, err = readAbout(folder); err != nil {
		return a, nil, err
	}
	state, err = os.Open(filepath.Join(folder, stateFile))
	if err != nil {
		return a, nil, fmt.Errorf("the checkpoint is damaged: %w", err)
	}
	if info, err := state.Stat(); err != nil || info.Size() != a.Bytes {
		return a, nil, errors.Join(fmt.Errorf("the checkpoint is damaged: %s was written with %d bytes, and has another length", stateFile, a.Bytes), err, state.Close())
	}
	return a, state, nil
}

// suits returns why a checkpoint cannot become this guest on this host, or nil.
func (a about) suits(r record, processor []string) error {
	apart := fleet.Apart(fleet.Speaker{Name: "the agent that made the checkpoint", Protocol: a.Protocol}, fleet.Speaker{Name: "this host's agent", Protocol: fleet.Protocol()})
	lacks := slices.DeleteFunc(slices.Clone(a.Processor), func(flag string) bool { return slices.Contains(processor, flag) })
	switch {
	case apart != "":
		return errors.New(apart)
	case a.Subnet.GuestAddr(a.Index) != r.Port.Subnet.GuestAddr(r.Port.Index): // the network itself may be another one, see Subnet.Again
		return fmt.Errorf("the checkpoint is of guest %d of network %d, whose addresses its connections have, and not of guest %d of network %d", a.Index, a.Subnet, r.Port.Index, r.Port.Subnet)
	case a.Image != filepath.Base(r.Image):
		return fmt.Errorf("the checkpoint is of a guest of image %s, and not of %s", a.Image, filepath.Base(r.Image))
	case a.Need.MemoryBytes > r.Need.MemoryBytes:
		return fmt.Errorf("the checkpoint is of a guest with %d MiB of memory, and this one has %d", a.Need.MemoryBytes>>20, r.Need.MemoryBytes>>20)
	case len(lacks) > 0:
		return fmt.Errorf("this host's processor lacks what programs in the checkpoint have found (%s): restore it on another host", strings.Join(lacks, ", "))
	}
	for _, f := range a.Folders {
		if !slices.ContainsFunc(r.Folders, func(mine folder) bool { return mine.At == f.At }) {
			return fmt.Errorf("programs in the checkpoint have %s, which the job does not have here", f.At)
		}
	}
	return nil
}

// clearFolder removes what a checkpoint has written. Its folder must exist and have nothing
// else.
func clearFolder(folder string) error {
	if !filepath.IsAbs(folder) {
		return fmt.Errorf("%q is not the path of a folder", folder)
	}
	left, err := os.ReadDir(folder)
	for _, e := range left {
		// The last one is what a dead agent left of it.
		if name := e.Name(); name != stateFile && name != aboutFile && !strings.HasPrefix(name, "."+aboutFile+".") {
			return fmt.Errorf("%s is not empty: it has %s", folder, name)
		}
	}
	for _, e := range left {
		err = errors.Join(err, ignoreAbsent(os.Remove(filepath.Join(folder, e.Name()))))
	}
	return err
}
