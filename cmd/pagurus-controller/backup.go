package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"sync"
	"time"

	"pagurus/act/backup"
	"pagurus/act/etcd"
	"pagurus/act/image"
	"pagurus/cmd/roles"
	"pagurus/fleet"
	"pagurus/serve/identity"
	"pagurus/serve/wire"
)

// saving makes backups of a controller that runs.
type saving struct {
	flags     roles.Controller
	store     *etcd.Store
	images    *image.Store
	authority *identity.Authority
	state     func(context.Context) (fleet.Snapshot, error)
	log       *slog.Logger
	one       sync.Mutex // a copy of the store takes room on its disk
}

// write writes a backup. What can fail is read before begin is called.
func (s *saving) write(ctx context.Context, begin func() io.Writer) error {
	if !s.one.TryLock() {
		return &wire.Error{Status: http.StatusConflict, Reason: "another backup is being made: try again when it is done"}
	}
	defer s.one.Unlock()
	now, err := s.state(ctx)
	if err != nil {
		return err
	}
	m := backup.Manifest{Version: version, Cluster: now.Cluster.ID, Name: s.authority.Name(), State: s.flags.StateDir, At: time.Now().UTC().Truncate(time.Second)}
	copied, err := s.store.SnapshotFile(ctx, s.flags.StateDir)
	if err != nil {
		return err
	}
	defer copied.Close()
	sources := []backup.Source{{Name: backup.StorePart, From: copied}}
	add := func(name string, content []byte) {
		sources = append(sources, backup.Source{Name: name, From: bytes.NewReader(content)})
	}
	for _, file := range []string{identity.AuthorityFile, identity.AuthorityKeyFile} { // the parts have the files' names
		content, err := os.ReadFile(filepath.Join(s.flags.StateDir, file))
		if err != nil {
			return fmt.Errorf("reading the cluster's authority: %w", err)
		}
		add(file, content)
	}
	if err := s.addConfig(add); err != nil {
		return err
	}
	if err := s.addImages(add); err != nil {
		return err
	}
	return backup.Write(begin(), m, sources)
}

// addConfig adds the head's configuration.
func (s *saving) addConfig(add func(string, []byte)) error {
	if s.flags.Config == "" {
		return nil
	}
	files, err := roles.ConfigFiles(s.flags.Config, false)
	if err != nil {
		return err
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("reading the configuration: %w", err)
		}
		part := configPart(s.flags.Config, file)
		if !backup.MayBe(part) {
			s.log.Warn("a backup leaves out a file of the configuration: rename it to letters, digits, dots and hyphens", "file", file)
			continue
		}
		add(part, content)
	}
	return nil
}

// configPart is what a file of the configuration is called in a backup, and configFile is where
// a part goes.
func configPart(config, file string) string {
	if file == config {
		return path.Join(backup.ConfigFolder, "config.toml")
	}
	return path.Join(backup.ConfigFolder, "conf.d", filepath.Base(file))
}

func configFile(config, part string) string {
	if part == path.Join(backup.ConfigFolder, "config.toml") {
		return config
	}
	return filepath.Join(filepath.Dir(config), "conf.d", path.Base(part))
}

// addImages adds the labels of the images, not their files.
func (s *saving) addImages(add func(string, []byte)) error {
	images, err := s.images.List()
	if err != nil {
		return err
	}
	for _, img := range images {
		label, err := json.Marshal(img)
		if err != nil {
			return fmt.Errorf("writing the label of image %s: %w", img.Name, err)
		}
		add(path.Join(backup.ImagesFolder, img.Name+".json"), label)
	}
	return nil
}
