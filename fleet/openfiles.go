package fleet

// OpenFile is a file of a job that a guest has open for writing.
type OpenFile struct {
	At    string `json:"at"`   // the job's directory
	Name  string `json:"name"` // from there
	Inode uint64 `json:"inode"`
	Bytes int64  `json:"bytes"` // as long as the guest sees it
}

// OpenFiles are all of those of a guest.
type OpenFiles struct {
	Files []OpenFile `json:"files,omitempty"`
	Amiss []string   `json:"amiss,omitempty"` // what would not be as it was at a checkpoint now, for people
}
