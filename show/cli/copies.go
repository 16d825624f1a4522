package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pagurus/fleet"
	"pagurus/internal/pause"
	"pagurus/serve/wire"
	"pagurus/show/view"
)

// This file has the copies of checkpoints that a user keeps in a folder. What is in the folder it does not know.

// PartCaller passes a call to a vault of the cluster.
type PartCaller func(ctx context.Context, q fleet.PartCall, put []byte) ([]byte, error)

// Copies are folders with copies of checkpoints. All is done with the rights of the process.
type Copies interface {
	// Check says why a folder cannot take a copy; of a checkpoint that is yet to be made if none is named.
	Check(dir string, id fleet.CheckpointID) error
	// Write copies a checkpoint into a folder. After an error it is not there, and Write goes on with it.
	Write(ctx context.Context, dir string, of fleet.SealedCopy, from PartCaller) error
	// Read says of which checkpoint a folder has a copy.
	Read(dir string) (fleet.SealedCopy, fleet.CheckpointCopy, error)
	// GiveBack puts the parts of a copy into vaults, for a checkpoint that is being taken back.
	GiveBack(ctx context.Context, dir string, as fleet.CheckpointID, to PartCaller) error
}

const (
	partTries = 8 // of one piece, while the controller or a host is away for a moment
	partPause = 250 * time.Millisecond
)

// caller passes calls by a client, and again where that may help.
func caller(c *wire.Client) PartCaller {
	return func(ctx context.Context, q fleet.PartCall, put []byte) (out []byte, err error) {
		for try := range partTries {
			out, err = c.CallPart(ctx, q, put)
			away := (*wire.Error)(nil)
			if err == nil || ctx.Err() != nil || errors.As(err, &away) && away.Status != wire.NotLeading && away.Status != http.StatusGatewayTimeout && !gone(away) {
				return out, err
			}
			_ = pause.For(ctx, partPause<<try)
		}
		return nil, err
	}
}

// gone: the agent of a vault's host has gone for a moment, or is being upgraded.
func gone(e *wire.Error) bool {
	return e.Status == http.StatusBadGateway && strings.HasSuffix(e.Reason, "is not connected")
}

// isFolder reports whether what --from names is a folder, and not a checkpoint.
func isFolder(from string) bool {
	if from == "" || fleet.CheckpointID(from).Check() == nil {
		return false
	}
	about, err := os.Stat(from)
	return strings.ContainsRune(from, '/') || err == nil && about.IsDir()
}

// refusedFrom says what is wrong with what --from names.
func refusedFrom(from string) error {
	if isFolder(from) {
		return nil
	}
	if err := fleet.CheckpointID(from).Check(); err != nil {
		return fmt.Errorf("%w, nor a directory that is here", err)
	}
	return nil
}

func (a *app) copies() (Copies, error) {
	if a.Copies == nil {
		return nil, errors.New("this program makes no copies of checkpoints")
	}
	return a.Copies, nil
}

// copyTo copies a kept checkpoint into a folder.
func (a *app) copyTo(ctx context.Context, id fleet.CheckpointID, dir string) error {
	all, err := a.copies()
	if err != nil {
		return err
	}
	c, err := a.dial()
	if err != nil {
		return err
	}
	of, err := c.Copy(ctx, id)
	if err == nil {
		err = all.Write(ctx, dir, of, caller(c))
	}
	if err != nil {
		return fmt.Errorf("%w; %s has no copy of %s: `pagurus checkpoint copy %s --to %s` makes it, or goes on with it", err, dir, id, id, dir)
	}
	return nil
}

// copied says that a copy is there.
func (a *app) copied(id fleet.CheckpointID, dir string) error {
	if a.json {
		return a.printJSON(map[string]string{"checkpoint": string(id), "to": dir})
	}
	job, _ := id.Job()
	_, err := fmt.Fprintf(a.Out, "%s: copied to %s; `pagurus restart %s --from %s` goes on from there\n", id, dir, job, dir)
	return err
}

func (a *app) copyCheckpointCommand() *cobra.Command {
	dir := ""
	cmd := &cobra.Command{
		Use:   "copy CHECKPOINT",
		Short: "Copy a kept checkpoint to a directory",
		Long: `Copy writes a checkpoint that is kept into a directory of this machine, with your rights. The
directory has to be empty, or to have an unfinished copy of the same checkpoint, which is
finished. The copy stays when the checkpoint is removed or its vaults are lost:
` + "`pagurus restart JOB --from DIR`" + ` takes it back, in the cluster that made it.`,
		Example:           "  pagurus copy j3c1 --to ~/kept/j3c1\n  pagurus restart j3 --from ~/kept/j3c1",
		Args:              Exactly(1, oneCheckpoint),
		ValidArgsFunction: a.completeCheckpoints,
		RunE: func(cmd *cobra.Command, args []string) error {
			to, err := a.folderFor(dir, fleet.CheckpointID(args[0]))
			if err == nil {
				err = a.copyTo(cmd.Context(), fleet.CheckpointID(args[0]), to)
			}
			if err != nil {
				return err
			}
			return a.copied(fleet.CheckpointID(args[0]), to)
		},
	}
	cmd.Flags().StringVar(&dir, toFlag, "", "directory for the copy; it is made if its parent is there")
	_ = cmd.MarkFlagRequired(toFlag)
	_ = cmd.MarkFlagDirname(toFlag)
	return cmd
}

// folderFor is the folder for a copy, which can take it.
func (a *app) folderFor(dir string, id fleet.CheckpointID) (string, error) {
	all, err := a.copies()
	if err != nil {
		return "", err
	}
	if dir == "" {
		return "", errors.New("--to needs the name of a directory")
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return "", err
	}
	return dir, all.Check(dir, id)
}

// takeBack gives a copy back to the cluster, and says which checkpoint it has become.
func (a *app) takeBack(ctx context.Context, job fleet.JobID, dir string) (fleet.CheckpointID, error) {
	all, err := a.copies()
	if err != nil {
		return "", err
	}
	of, is, err := all.Read(dir)
	if err != nil {
		return "", err
	}
	if is.Checkpoint.Job != job {
		return "", fmt.Errorf("the copy in %s is of job %s, and not of %s: `pagurus restart %s --from %s`", dir, is.Checkpoint.Job, job, is.Checkpoint.Job, dir)
	}
	answer, err := a.ask(ctx, fleet.Request{Verb: fleet.TakeCheckpoint, Job: job, Copy: &of})
	if err != nil {
		return "", err
	}
	c, err := a.dial()
	if err == nil {
		err = all.GiveBack(ctx, dir, answer.Checkpoint, caller(c))
	}
	if err != nil {
		undo, stop := context.WithTimeout(context.WithoutCancel(ctx), partPause<<partTries)
		defer stop()
		_, _ = a.ask(undo, fleet.Request{Verb: fleet.RemoveCheckpoint, Checkpoint: answer.Checkpoint}) // else its time runs out
		return "", fmt.Errorf("%w; job %s is as it was", err, job)
	}
	return answer.Checkpoint, a.awaitKept(ctx, answer.Checkpoint)
}

// awaitKept waits until the controller has noted that the last part has come.
func (a *app) awaitKept(ctx context.Context, id fleet.CheckpointID) error {
	c, err := a.dial()
	if err != nil {
		return err
	}
	return followClient(ctx, c, newOutage(a.Err), func(c view.Cluster) (bool, error) {
		p, there := c.Checkpoint(id)
		if !there || p.Phase != fleet.Taking && p.Phase != fleet.Kept {
			return true, fmt.Errorf("%s, the copy that was given back, is not kept: %s", id, p.Told())
		}
		return p.Phase == fleet.Kept, nil
	})
}
