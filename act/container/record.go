package container

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"pagurus/act/container/memory"
	"pagurus/act/container/port"
	"pagurus/act/host"
	"pagurus/fleet"
	"pagurus/internal/note"
)

// recordFile is the record's name in a guest's folder.
const recordFile = "guest.json"

// record is what is remembered of a guest beyond the agent's own life, in the
// guest's folder. It is there before anything of the guest is.
type record struct {
	Guest     fleet.GuestID     `json:"guest"`
	Gen       uint64            `json:"gen"`
	Hostname  string            `json:"hostname"`
	Need      fleet.Resources   `json:"need"`
	Image     string            `json:"image"`           // where it is mounted
	Agent     string            `json:"agent,omitempty"` // digest of the guest agent that it runs; empty: an earlier Pagurus has put that into its memory, or its source has not said it yet
	Port      port.Port         `json:"port"`
	Export    string            `json:"export,omitempty"` // the job's files: by their path inside
	Files     string            `json:"files,omitempty"`  // and at this host
	Process   host.Process      `json:"process"`          // the first one; of a target that has not arrived, one that holds its place
	Place     host.Process      `json:"place,omitzero"`   // of one that arrived: what held its place, until it is ended
	StartedAt time.Time         `json:"started_at"`
	Complete  bool              `json:"complete"`            // Start or Receive went to its end; what is not complete is destroyed
	Suspended bool              `json:"suspended,omitempty"` // frozen for the host's owner
	Incoming  fleet.MigrationID `json:"incoming,omitempty"`
	Target    bool              `json:"target,omitempty"`    // made by Receive and not yet resumed
	Arrived   bool              `json:"arrived,omitempty"`   // the target has it whole
	Calls     []memory.Call     `json:"calls,omitempty"`     // what its threads have to do then, before they go on
	RanAt     time.Time         `json:"ran_at,omitzero"`     // when the target let it run
	LazyPager host.Process      `json:"lazy_pager,omitzero"` // puts the memory of one that arrived in its place
	PageProxy host.Process      `json:"page_proxy,omitzero"` // has that memory, or fetches it
	PostCopy  bool              `json:"post_copy,omitempty"` // some of it was owed when it arrived
	Failure   string            `json:"failure,omitempty"`   // why the target will never have it
	Listen    string            `json:"listen,omitempty"`
	Copy      *copying          `json:"copy,omitempty"` // the last copy this host was the source of
}

// copying is one order to copy a guest away.
type copying struct {
	Migration  fleet.MigrationID `json:"migration"`
	Listen     string            `json:"listen"`
	Limits     fleet.Limits      `json:"limits"`
	Good       bool              `json:"good"`                 // it may switch
	Cancelled  bool              `json:"cancelled"`            // it was called off, or failed: nothing more comes of it
	Suspended  bool              `json:"suspended"`            // the guest stands still here
	Asked      bool              `json:"asked"`                // the target was told to make it run there: it may have it
	Left       bool              `json:"left"`                 // the target has it
	PageServer host.Process      `json:"page_server,omitzero"` // hands out what the target is owed
	Cost       fleet.Progress    `json:"cost"`                 // of the whole, once Left
}

// end ends what hands out the guest's memory to where it has not, or no longer, to go.
func (c *copying) end() error {
	if c == nil {
		return nil
	}
	return c.PageServer.End()
}

// readRecord reads a guest's folder. There being none is an fs.ErrNotExist.
func readRecord(dir string) (r record, err error) {
	err = note.Load(filepath.Join(dir, recordFile), &r)
	return r, err
}

func writeRecord(dir string, r record) error {
	if err := note.Replace(filepath.Join(dir, recordFile), r); err != nil {
		return fmt.Errorf("remember guest %s: %w", r.Guest, err)
	}
	return nil
}

func ignoreAbsent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
