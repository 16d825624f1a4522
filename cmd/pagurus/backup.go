package main

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"pagurus/act/backup"
	"pagurus/cmd/roles"
	"pagurus/show/api"
	"pagurus/show/cli"
)

func backupCommand(std streams) *cobra.Command {
	force := false
	cmd := &cobra.Command{
		Use:   "backup FILE",
		Short: api.Summary("backUp"),
		Long: `Backup saves what a cluster's controller knows: hosts, users, jobs and moves; the
cluster's authority; the head's configuration; and the names of its images. The images'
files and the jobs' output are not in it. It runs on the controller's machine, for an
administrator, and takes a consistent copy while the cluster works on. FILE is new unless
--force is given, and only its owner may read it; - is the standard output.

Whoever can read the file can be any host and any user of the cluster: keep it as you
keep a private key.`,
		Example: "  sudo pagurus backup /root/cluster.backup\n  sudo pagurus backup - | ssh vault 'umask 077; cat > cluster.backup'",
		Args:    cli.Exactly(1, "a file, or - for the standard output"),
		RunE: func(cmd *cobra.Command, args []string) error {
			asJSON, _ := cmd.Flags().GetBool("json")
			return saveBackup(cmd, std, saveTo{path: args[0], force: force, asJSON: asJSON})
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "replace FILE if it is there")
	return cmd
}

// saveTo is where a backup goes.
type saveTo struct {
	path          string
	force, asJSON bool
}

// saved is what was saved, for --json.
type saved struct {
	File  string `json:"file"`
	Bytes int64  `json:"bytes"`
	backup.Manifest
}

func saveBackup(cmd *cobra.Command, std streams, to saveTo) error {
	if to.path == "-" {
		if out, is := std.out.(*os.File); is && term.IsTerminal(int(out.Fd())) {
			return errors.New("a backup is no text: name a file, or direct the output into one")
		}
		if to.asJSON {
			return errors.New("--json and the backup cannot both be the standard output: name a file")
		}
		m, _, err := receiveBackup(cmd, std, std.out)
		if err == nil {
			std.say("saved " + clusterOf(m) + "; " + keepSecret)
		}
		return err
	}
	switch is, err := os.Lstat(to.path); {
	case err == nil && !is.Mode().IsRegular(): // replacing a device would break it for others
		return fmt.Errorf("%s is not a file: choose another name, or - for the standard output", to.path)
	case err == nil && !to.force:
		return fmt.Errorf("%s is there already: choose another name, or replace it with --force", to.path)
	}
	f, err := os.CreateTemp(filepath.Dir(to.path), ".pagurus-backup-") // its owner alone may open it
	if err != nil {
		return fmt.Errorf("saving the backup: %w", err)
	}
	defer os.Remove(f.Name()) // fails once it has its name
	m, n, err := receiveBackup(cmd, std, f)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = nameFile(f.Name(), to)
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("the disk that holds %s is full: nothing was kept, free some space and try again", to.path)
	}
	if err != nil {
		return err
	}
	if to.asJSON {
		return json.NewEncoder(std.out).Encode(saved{to.path, n, m})
	}
	_, err = fmt.Fprintf(std.out, "saved %s to %s, %d bytes; %s\n", clusterOf(m), to.path, n, keepSecret)
	return err
}

const keepSecret = "it holds the cluster's keys: keep it as you keep a private key"

func clusterOf(m backup.Manifest) string {
	return "cluster " + strings.TrimSpace(m.Name+" ("+m.Cluster+")")
}

// receiveBackup verifies a backup while it comes, and writes it compressed. It returns how many
// bytes it wrote.
func receiveBackup(cmd *cobra.Command, std streams, w io.Writer) (m backup.Manifest, n int64, err error) {
	client, err := dial(cmd)
	if err != nil {
		return m, 0, err
	}
	defer client.Close()
	ctx, stop := roles.Until(cmd.Context())
	defer stop()
	from, err := client.Backup(ctx)
	if err != nil {
		return m, 0, err
	}
	defer from.Close()
	counted := &counter{to: w}
	z := gzip.NewWriter(counted)
	told := time.Now()
	m, err = backup.Read(io.TeeReader(from, z), "", func(done, all int64) {
		if time.Since(told) > 2*time.Second {
			told = time.Now()
			std.say(fmt.Sprintf("%d of %d MiB", done>>20, all>>20))
		}
	})
	if counted.failed != nil { // the cause, while the archive seems to be cut off
		return m, 0, fmt.Errorf("saving the backup: %w", counted.failed)
	}
	if ctx.Err() != nil {
		return m, 0, context.Cause(ctx)
	}
	if err != nil {
		return m, 0, fmt.Errorf("what the controller sent %w", err)
	}
	if err := z.Close(); err != nil {
		return m, 0, fmt.Errorf("saving the backup: %w", err)
	}
	return m, counted.n, nil
}

// counter counts what is written, and keeps the error.
type counter struct {
	to     io.Writer
	n      int64
	failed error
}

// Write writes.
func (c *counter) Write(b []byte) (int, error) {
	n, err := c.to.Write(b)
	c.n += int64(n)
	c.failed = errors.Join(c.failed, err)
	return n, err
}

// nameFile gives a whole backup its name. Without force it takes nobody else's.
func nameFile(temporary string, to saveTo) error {
	var err error
	if to.force {
		err = os.Rename(temporary, to.path)
	} else if err = unix.Renameat2(unix.AT_FDCWD, temporary, unix.AT_FDCWD, to.path, unix.RENAME_NOREPLACE); errors.Is(err, unix.EINVAL) { // a file system that cannot
		err = os.Link(temporary, to.path)
	}
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s has come meanwhile: choose another name, or replace it with --force", to.path)
	}
	if err != nil {
		return fmt.Errorf("saving the backup: %w", err)
	}
	dir, err := os.Open(filepath.Dir(to.path))
	if err != nil {
		return fmt.Errorf("saving the backup: %w", err)
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func restoreCommand(std streams) *cobra.Command {
	var f roles.Controller
	var r roles.Restore
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Put a backup in the place of the controller's state",
		Long: `Restore makes this machine the head of the cluster that a backup is of. The controller
must not run. The file is verified wholly, and its state opened once, before anything is
put in place. With --force the state that is here is kept in a folder beside.

On a new machine restore takes the place of ` + "`pagurus cluster init`" + `. Hosts and users keep
their certificates; if the head's address is another now, tell each agent by --controller.
Guests run on meanwhile, and each is found on the host that says that it runs it. What has
ended since the backup is not started again, and what began since then is ended, in words.`,
		Example: "  pagurus restore --check cluster.backup\n  sudo pagurus restore cluster.backup\n  sudo pagurus restore --force cluster.backup && sudo systemctl start pagurus-controller",
		Args:    cli.Exactly(1, "the file of a backup"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if os.Geteuid() != 0 && !r.Check {
				return errors.New("the head's state and keys are root's: try `sudo pagurus restore`")
			}
			return runRestore(cmd, std, args[0])
		},
	}
	f.AddFolders(cmd.Flags())
	r.Add(cmd.Flags())
	roles.AddConfig(cmd.Flags())
	return cmd
}

// runRestore has the controller's program restore a file: the store is its own.
func runRestore(cmd *cobra.Command, std streams, file string) error {
	path, err := roles.Beside(roles.ControllerProgram)
	if err != nil {
		return err
	}
	var f roles.Controller
	var r roles.Restore
	chosen := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.AddFolders(chosen)
	r.Add(chosen)
	roles.AddConfig(chosen)
	args := append([]string{roles.RestoreVerb}, roles.Given(cmd.Flags(), chosen)...)
	if asJSON, _ := cmd.Flags().GetBool("json"); asJSON {
		args = append(args, "--json")
	}
	program := exec.CommandContext(cmd.Context(), path, append(args, "--", file)...)
	program.Stdout, program.Stderr = std.out, std.err
	err = program.Run()
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) && failed.ExitCode() > 0 {
		return cli.Exit{Code: failed.ExitCode()} // it has said why
	}
	return err
}
