package container

import (
	"errors"
	"io/fs"
	"time"

	"pagurus/act/container/criu"
	"pagurus/act/container/memory"
	"pagurus/act/host"
	"pagurus/act/host/port"
	"pagurus/fleet"
)

// record is what the driver remembers of a guest beyond the agent's life, as a file in
// the guest's folder. It is written before anything else of the guest exists.
type record struct {
	host.Record
	Hostname  string          `json:"hostname"`
	Need      fleet.Resources `json:"need"`
	UID       uint32          `json:"uid,omitempty"`   // the job's user
	Image     string          `json:"image"`           // where it is mounted
	Agent     string          `json:"agent,omitempty"` // digest of the guest agent that it runs; empty: an earlier Pagurus put the agent into the guest's memory, or the source has not named it yet
	Port      port.Port       `json:"port"`
	Export    string          `json:"export,omitempty"`    // of an earlier Pagurus: the only one of Folders, its path in the guest
	Files     string          `json:"files,omitempty"`     // and its path on this host
	Kept      []criu.KeptName `json:"kept,omitempty"`      // names of removed files that a target removes when it has the guest
	Folders   []folder        `json:"folders,omitempty"`   // the job's directories, its own first
	Place     host.Process    `json:"place,omitzero"`      // after the guest has arrived: the process that held its place, until it is ended
	Suspended bool            `json:"suspended,omitempty"` // frozen for the host's owner
	Arrived   bool            `json:"arrived,omitempty"`   // the target has the whole guest
	Calls     []memory.Call   `json:"calls,omitempty"`     // system calls that its threads must make when it is resumed, before they continue
	RanAt     time.Time       `json:"ran_at,omitzero"`     // when the target resumed it
	LazyPager host.Process    `json:"lazy_pager,omitzero"` // the lazy pager, which puts an arrived guest's memory in place
	PageProxy host.Process    `json:"page_proxy,omitzero"` // the page proxy, which holds that memory or fetches it
	PostCopy  bool            `json:"post_copy,omitempty"` // some pages were lazy when it arrived
	Failure   string          `json:"failure,omitempty"`   // why the target will never have it
	Copy      *copying        `json:"copy,omitempty"`      // the last copy with this host as the source
}

// copying is the record of one copy of a guest: to another host, or as a checkpoint to a folder.
type copying struct {
	Folder     string            `json:"folder,omitempty"`    // of the checkpoint; empty: it goes to another host
	Continued  bool              `json:"continued,omitempty"` // the guest was cut for the checkpoint and runs again
	Saved      *fleet.Saved      `json:"saved,omitempty"`     // the folder has all of the checkpoint
	Void       string            `json:"void,omitempty"`      // why it never will have
	Migration  fleet.MigrationID `json:"migration"`
	Listen     string            `json:"listen"`
	Limits     fleet.Limits      `json:"limits"`
	Good       bool              `json:"good"`                 // it may switch
	Cancelled  bool              `json:"cancelled"`            // cancelled or failed: the copy will not go on
	Suspended  bool              `json:"suspended"`            // the guest is suspended here
	Asked      bool              `json:"asked"`                // the target was told to resume the guest, and so may have it
	Left       bool              `json:"left"`                 // the target has it
	Kept       []criu.KeptName   `json:"kept,omitempty"`       // names of removed files that were made for the target
	Hides      bool              `json:"hides,omitempty"`      // the target hides its kernel's files itself
	Crosses    []string          `json:"crosses,omitempty"`    // directories of the job that the target reaches in another way
	PageServer host.Process      `json:"page_server,omitzero"` // sends lazy pages to the target
	Cost       fleet.Progress    `json:"cost"`                 // of the whole migration; set when Left is
}

// saves reports whether a checkpoint is being made.
func (c *copying) saves() bool { return c != nil && c.Folder != "" && !c.Cancelled }

// end ends the page server, whose pages must not, or need no longer, be sent.
func (c *copying) end() error {
	if c == nil {
		return nil
	}
	return c.PageServer.End()
}

// readRecord reads the record in a guest's folder. Without one the error is
// fs.ErrNotExist, with one of an agent that is too new host.ErrNewer.
func readRecord(dir string) (r record, err error) {
	r, err = host.ReadRecord[record](dir)
	if r.Export != "" && len(r.Folders) == 0 {
		r.Folders = []folder{{At: r.Export, From: r.Files}}
	}
	return r, err
}

// Ours returns the record as this agent writes it. It can be changed without changing this one.
func (r record) Ours() record {
	r.Recorded = host.ByUs()
	if r.Copy != nil {
		c := *r.Copy
		r.Copy = &c
	}
	return r
}

func ignoreAbsent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
