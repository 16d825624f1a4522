package main

import (
	"context"
	"os"

	"pagurus/act/host/written"
	"pagurus/fleet"
)

// OpenFiles tells which of the job's files programs have open for writing. Of a container its host
// finds that out itself.
func (m *member) OpenFiles(context.Context) (all fleet.OpenFiles, err error) {
	if contained {
		return all, nil
	}
	m.mu.Lock()
	var folders []written.Folder
	if m.setting != nil {
		for _, d := range directories(m.setting.setup) {
			folders = append(folders, written.Folder{At: d.Path, From: d.Path, ReadOnly: d.ReadOnly})
		}
	}
	m.mu.Unlock()
	var now written.Cut
	now.NoteFiles(os.Getpid(), folders)
	return now.Open(), nil
}
