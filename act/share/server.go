package share

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"pagurus/act/host"
	"pagurus/fleet"
	"pagurus/internal/note"
)

const (
	// startLimit is the time until a server listens: a fraction of a second on an idle
	// machine.
	startLimit = 30 * time.Second
	// logLimit is the size at which the log is emptied. Guests can cause log output, and
	// the folder is in memory.
	logLimit = 1 << 20
	// logInterval is the interval of checks of its size.
	logInterval = time.Second
	// logName is the log's, in the room; an earlier version's is in the folder.
	logName = "ganesha.log"
)

// server is one job's file server. Its user must hold the lock of Shares; only its
// history may be read, and its log emptied, at any time.
type server struct {
	job     fleet.JobID
	folder  string
	program string
	shim    string
	secret  []byte
	marks   string        // the folder of what must be known of jobs after a reboot
	network fleet.Network // last wanted; zero before the first ensure
	process *process      // nil: not running
	plot    *plot         // its network namespace; nil: none yet

	followed *process // restarted when this one dies
	history  history
}

func (s *Shares) newServer(job fleet.JobID, folder string) *server {
	return &server{job: job, folder: folder, program: s.config.Program, shim: s.config.Shim, secret: s.secret, marks: s.marks()}
}

// SecretFile is the file of the secret of file handles, in the folder of state.
const SecretFile = "file-handles.key"

func (v *server) configPath() string { return filepath.Join(v.folder, "ganesha.conf") }
func (v *server) logPath() string    { return filepath.Join(roomPath(v.folder), logName) }
func (v *server) recordPath() string { return filepath.Join(v.folder, "server.json") }

// networkPath is the note of the network that the server is on.
func (v *server) networkPath() string { return filepath.Join(v.folder, "network.json") }

// adopt finds a running server's process by its record; one of an earlier version by its command line,
// which is unique among root's programs.
func (v *server) adopt() (err error) {
	var known host.Process
	if note.Load(v.recordPath(), &known) == nil {
		v.process, err = holdProcess(known)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			v.process = nil // it has ended
			return nil
		case err != nil:
			return fmt.Errorf("looking for the file server of job %s: %w", v.job, err)
		}
		v.enterPlot()
		return nil
	}
	found, err := findServers(v.program, v.configPath())
	if err != nil {
		return fmt.Errorf("looking for the file server of job %s: %w", v.job, err)
	}
	for i, p := range found {
		if i < len(found)-1 { // unused: the job's link is with a later one
			if err := p.kill(); err != nil {
				return fmt.Errorf("ending an earlier file server of job %s: %w", v.job, err)
			}
			continue
		}
		v.process = p
		v.enterPlot()
	}
	return nil
}

// enterPlot finds the network of a running server.
func (v *server) enterPlot() {
	var err error
	if v.plot, err = openPlot(fmt.Sprintf("/proc/%d/ns/net", v.process.pid)); err != nil {
		v.plot = nil // it is ending
	}
}

// ensure makes the server run as n wants it and returns whether it was started.
func (v *server) ensure(ctx context.Context, n fleet.Network) (started bool, err error) {
	text, err := configText(n, v.folder)
	if err != nil {
		return false, lasting{err}
	}
	if err := v.followNetwork(n.Subnet); err != nil {
		return false, err
	}
	v.network = n
	old, err := os.ReadFile(v.configPath())
	plain := strings.TrimSuffix(text, jailedText(n))
	earlier := err == nil && string(old) == plain
	if earlier || v.markedBefore() {
		if err := v.mark(); err != nil {
			return false, err
		}
	}
	if earlier {
		// Guests have handles of a server of an earlier version. While that runs, it may.
		if v.process != nil && v.process.lives() {
			text = plain
		}
	}
	if same := err == nil && string(old) == text; !same {
		if err := v.kill(); err != nil {
			return false, err
		}
		if err := v.write(text); err != nil {
			return false, err
		}
	}
	if v.process != nil && v.process.lives() && v.plot != nil {
		return false, v.plot.join(serverEnd(n))
	}
	return true, v.start(ctx)
}

// followNetwork removes all of a server that was on another network: the job has begun again since. Guests that go on from a
// checkpoint have connections to their server, and a session, as they were then. The server to which their
// predecessors talked on after that takes what comes in them for something that it has had, and the guests' kernels then wait for its answer
// without end. One that does not know them lets them begin again. The note is missing beside a server of an earlier
// version, which counts as on the right network.
func (v *server) followNetwork(on fleet.Subnet) error {
	var was fleet.Subnet
	err := note.Load(v.networkPath(), &was)
	if err == nil && was == on {
		return nil
	}
	if err == nil {
		if err := v.clear(); err != nil {
			return fmt.Errorf("ending the server that the job had before it began again: %w", err)
		}
	}
	if err := os.MkdirAll(v.folder, 0o700); err != nil {
		return fmt.Errorf("making its folder: %w", err)
	}
	if err := note.Replace(v.networkPath(), on); err != nil {
		return fmt.Errorf("noting its network: %w", err)
	}
	return nil
}

func (v *server) write(text string) error {
	folders := []string{recoveryPath(v.folder)}
	for i := range v.network.Share.Directories() {
		folders = append(folders, filesPath(v.folder, i))
	}
	for _, folder := range folders {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return fmt.Errorf("making its folder: %w", err)
		}
	}
	if err := note.Write(v.configPath(), []byte(text), 0o644); err != nil { // its user reads it
		return fmt.Errorf("writing its configuration: %w", err)
	}
	return nil
}

// start starts the server in its namespace and returns when it listens. After an error it
// does not run.
func (v *server) start(ctx context.Context) (err error) {
	if err := v.kill(); err != nil {
		return err
	}
	// The directory is opened again at every start: the user may have recreated it, or
	// lost access.
	trees, err := v.files(ctx)
	defer closeAll(trees)
	if err != nil {
		return lasting{err}
	}
	if v.plot == nil {
		if v.plot, err = newPlot(); err != nil {
			return err
		}
	}
	if err := v.plot.join(serverEnd(v.network)); err != nil {
		return err
	}
	if err := v.makeRoom(); err != nil {
		return err
	}
	// A log of this run only: errors quote it, and it stays small.
	log, err := os.OpenFile(v.logPath(), os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("opening its log: %w", err)
	}
	defer log.Close()
	if err := v.plot.do(func() error { return v.launch(ctx, trees, log) }); err != nil {
		return fmt.Errorf("starting %s: %w", v.program, errors.Join(err, v.kill()))
	}
	if err := v.serves(ctx); err != nil {
		said := v.lastWords()
		return lasting{errors.Join(fmt.Errorf("%w%s", err, said), v.kill())}
	}
	v.history.tried(nil)
	return nil
}

// lasting is an error of the server or its directory, not of an unfinished environment.
type lasting struct{ error }

func (l lasting) Unwrap() error { return l.error }

// serves returns when the server answers for the job's directory. A server with a refused
// export keeps running without any, and guests would wait.
func (v *server) serves(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if err := v.listens(ctx); err != nil {
		return err
	}
	for _, d := range v.network.Share.Directories() {
		n := v.network
		n.Share = &fleet.Share{Export: d.Path, UID: v.network.Share.UID, GID: v.network.Share.GID}
		if err := v.plot.do(func() error { return ask(ctx, n, "", nil) }); err != nil {
			return fmt.Errorf("%s runs but does not serve %s: %w", v.program, d.Path, err)
		}
	}
	return nil
}

// files returns the job's directories as mounts for the server, also those before an error.
func (v *server) files(ctx context.Context) (trees []*os.File, err error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for _, d := range v.network.Share.Directories() {
		dir, err := Enter(ctx, fleet.Share{Export: d.Path, UID: v.network.Share.UID, GID: v.network.Share.GID})
		if err != nil {
			return trees, err
		}
		tree, err := copyOf(dir)
		dir.Close()
		if err != nil {
			return trees, err
		}
		trees = append(trees, tree)
	}
	return trees, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// boundLog empties a log that is too long. The server appends, so it continues at the
// start. After an error it is retried later.
func (v *server) boundLog() {
	for _, log := range []string{v.logPath(), filepath.Join(v.folder, logName)} {
		if found, err := os.Stat(log); err == nil && found.Size() > logLimit {
			_ = os.Truncate(log, 0)
		}
	}
}

// again restarts a server that has died.
func (v *server) again() error {
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	if v.network.Share == nil {
		// It is not wanted yet since this process started. If it is, ensure starts it.
		return fmt.Errorf("it ended before it was asked for")
	}
	text, err := configText(v.network, v.folder)
	if err == nil {
		err = v.write(text) // what ended may have been an earlier version's
	}
	if err != nil {
		return err
	}
	return v.start(ctx)
}

func (v *server) listens(ctx context.Context) error {
	const between = 5 * time.Millisecond
	for !listening(v.process.pid) {
		select {
		case <-v.process.ended():
			return fmt.Errorf("%s ended right after its start", v.program)
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s listens: %w", v.program, ctx.Err())
		case <-time.After(between):
		}
	}
	return nil
}

// listening reports whether a TCP socket in a process's network listens on the NFS port.
func listening(pid int) bool {
	for _, table := range []string{"tcp", "tcp6"} {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line) // number, local address:port, remote, state
			if len(f) > 3 && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", nfsPort)) && f[3] == "0A" {
				return true
			}
		}
	}
	return false
}

// lastWords returns the end of the log, for an error.
func (v *server) lastWords() string {
	text, _ := os.ReadFile(v.logPath())
	said := reasons(string(text))
	if len(said) == 0 {
		return ""
	}
	return "; it said: " + strings.Join(said, " | ")
}

// reasons are the last errors in a log: ganesha's severe messages without time and place,
// and the output of the programs that start it.
func reasons(log string) (said []string) {
	const most = 5
	for line := range strings.Lines(log) {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || strings.Contains(line, " gsh_backtrace :"): // useless for users
		case !strings.Contains(line, " : "):
			said = append(said, line)
		default:
			for _, grave := range []string{" :CRIT :", " :FATAL :", " :MAJ :"} {
				if _, what, ok := strings.Cut(line, grave); ok && !slices.Contains(said, what) {
					said = append(said, what)
				}
			}
		}
	}
	return said[max(0, len(said)-most):]
}

// kill ends the process, if any, and waits. Nothing needs flushing: written data is in
// the host's page cache. A regular end would also unregister at the host's portmapper.
func (v *server) kill() error {
	if v.process == nil {
		return nil
	}
	if err := v.process.kill(); err != nil {
		return err
	}
	v.process = nil
	return nil
}

// remove ends the server and removes all of it.
func (v *server) remove() error {
	if err := v.clear(); err != nil {
		return err
	}
	return unmark(v.marks, v.job)
}

// clear ends the server and removes all of it that a reboot would. Its end of the link pair disappears with
// its namespace.
func (v *server) clear() error {
	if err := v.kill(); err != nil {
		return err
	}
	v.forget()
	// They are empty, because only the server sees the mounts there. Otherwise this would
	// delete the user's files.
	for i := range 1 + fleet.MostDirectories {
		if err := os.Remove(filesPath(v.folder, i)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing its view of the files: %w", err)
		}
	}
	if err := v.removeRoom(); err != nil {
		return err
	}
	if err := os.RemoveAll(v.folder); err != nil {
		return fmt.Errorf("removing its folder: %w", err)
	}
	return nil
}

// forget releases the server, which keeps running.
func (v *server) forget() {
	if v.process != nil {
		v.process.close()
		v.process = nil
	}
	if v.plot != nil {
		v.plot.close()
		v.plot = nil
	}
}
