package targets

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pagurus/bench"
	"pagurus/fleet"
)

// natively runs a program as native processes. They run in the networks of a job's containers,
// as many in each as the container has ranks, with the root of their image. The image's mpirun
// starts them like the containers' own. They have nothing else of a container.
func (l *Lab) natively(ctx context.Context, job string, p bench.Program) (err error) {
	spec := l.Job()
	at := make([]*outside, spec.Guests)
	defer func() {
		for _, o := range at {
			if o != nil {
				o.end()
			}
		}
	}()
	var env []string
	for i := range at {
		c, err := Find(fmt.Sprintf("%sg%d", job, i))
		if err != nil {
			return err
		}
		if at[i], err = l.goOutside(ctx, c, fleet.GuestName(i)); err != nil {
			return err
		}
		if env == nil {
			env, err = settings(c)
		}
		if err != nil {
			return err
		}
	}
	s, err := l.Snapshot(ctx)
	if err != nil {
		return err
	}
	subnet := s.Jobs[fleet.JobID(job)].Subnet
	for name, text := range map[string]string{"native-hosts": hostFile(spec, subnet), "native-rsh": remoteStart(at, subnet)} {
		if err := os.WriteFile(filepath.Join(l.Dir, name), []byte(text), 0o755); err != nil {
			return err
		}
	}
	env = append(env,
		"PRTE_MCA_plm_ssh_agent="+filepath.Join(l.Dir, "native-rsh"), "PRTE_MCA_prte_default_hostfile="+filepath.Join(l.Dir, "native-hosts"))
	args := append(at[0].enter(), "env", "-i", "-C", l.Dir)
	args = append(append(args, env...), "mpirun", "-n", strconv.Itoa(spec.Ranks), "sh", "-c", "exec "+p.Command+" >output.$OMPI_COMM_WORLD_RANK 2>&1")
	var said bytes.Buffer
	c := exec.CommandContext(ctx, args[0], args[1:]...)
	// It is told to end, and ends its ranks: if it were killed they would live on. A Ctrl-C must
	// not reach it twice, because then it leaves them behind.
	c.Cancel = func() error { return c.Process.Signal(unix.SIGTERM) }
	c.WaitDelay = leaveTime
	c.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	c.Stdout, c.Stderr = &said, &said
	if err := l.rest(ctx); err != nil {
		return err
	}
	bench.UnderwayOf(ctx).Begins() // what holds the places is asleep, and mpirun is the program's
	if err := c.Run(); err != nil {
		return fmt.Errorf("mpirun: %w: %s", err, said.String())
	}
	return nil
}

// leaveTime is how long mpirun may take to end its ranks.
const leaveTime = 10 * time.Second

// hostFile is the host file for mpirun: how many ranks each network has, in the guests' order,
// as in the guests' own file. So ranks that share a guest share a network here.
func hostFile(spec fleet.JobSpec, subnet fleet.Subnet) (text string) {
	for i := range spec.Guests {
		text += fmt.Sprintf("%s slots=%d\n", subnet.GuestAddr(i), spec.Slots(i))
	}
	return text
}

// remoteStart is the program with which mpirun starts a process in another network.
func remoteStart(at []*outside, subnet fleet.Subnet) string {
	text := "#!/bin/sh\nto=$1; shift\ncase $to in\n"
	for i, o := range at {
		text += fmt.Sprintf("%s) exec %s sh -c \"$*\" ;;\n", subnet.GuestAddr(i), strings.Join(o.enter(), " "))
	}
	return text + "esac\necho \"no host is called $to\" >&2; exit 1\n"
}

// outside is a place beside a container. It has the container's network, its image's root, this
// machine's processes, and a name by which mpirun distinguishes it from others.
type outside struct{ holder *exec.Cmd }

// rootScript makes the root of such a place, which nothing else sees. If the read-only image
// lacks the exported folder, memory is mounted over the deepest parent folder that the image
// has. Files elsewhere are the image's own.
const rootScript = `image=$1 name=$2 dir=$3 export=$4 root=$3/native-root over=$3/native-over
hostname "$name"
mkdir -p "$root" "$over"
mount --bind "$image" "$root"
at=$export
until [ -d "$root$at" ]; do at=$(dirname "$at"); done
if [ "$at" != "$export" ]; then
	mount -t tmpfs tmpfs "$over"
	cd "$over"
	mkdir -m 755 upper work
	mount -t overlay -o "lowerdir=$image$at,upperdir=upper,workdir=work" overlay "$root$at"
fi
for at in proc sys dev; do mount --rbind /$at "$root/$at"; done
for at in tmp run var/tmp; do mount -t tmpfs tmpfs "$root/$at"; done
mkdir -p "$root$export"
mount --bind "$export" "$root$export"
`

// outsideScript makes such a place and stays in it. It is ready when its own root is the
// image's, because processes that enter take over that root.
const outsideScript = rootScript + `exec chroot "$root" sh -c 'echo ready; exec sleep infinity'`

// goOutside makes a place beside a container.
func (l *Lab) goOutside(ctx context.Context, c Container, name string) (*outside, error) {
	holder := exec.CommandContext(ctx, "nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", c.Process.PID),
		"unshare", "--mount", "--uts", "sh", "-ec", outsideScript, "sh", c.Image, name, l.Dir, l.exported())
	var why bytes.Buffer
	holder.Stderr = &why
	out, err := holder.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := holder.Start(); err != nil {
		return nil, err
	}
	o := &outside{holder}
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		o.end()
		return nil, fmt.Errorf("making a place beside container %d: %s", c.Process.PID, why.String())
	}
	return o, nil
}

// enter returns the beginning of a command line that runs there.
func (o *outside) enter() []string {
	return []string{"nsenter", "--target", strconv.Itoa(o.holder.Process.Pid), "--mount", "--uts", "--net", "--root", "--wd"}
}

func (o *outside) end() {
	_ = o.holder.Process.Kill()
	_ = o.holder.Wait()
}

// settings returns the variables of the container's own mpirun, so that both sides use MPI
// alike.
func settings(c Container) ([]string, error) {
	network, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", c.Process.PID))
	if err != nil {
		return nil, err
	}
	all, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		return nil, err
	}
	for _, at := range all {
		if n, err := os.Readlink(at); err != nil || n != network {
			continue
		}
		process := filepath.Dir(filepath.Dir(at))
		name, err := os.ReadFile(filepath.Join(process, "comm"))
		if err != nil || !slices.Contains([]string{"mpirun", "prterun", "mpirun.openmpi"}, strings.TrimSpace(string(name))) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(process, "environ"))
		if err != nil {
			return nil, err
		}
		return slices.DeleteFunc(strings.Split(string(text), "\x00"), func(v string) bool {
			return v == "" || strings.HasPrefix(v, "PRTE_MCA_plm_ssh_agent=") || strings.HasPrefix(v, "PRTE_MCA_prte_default_hostfile=")
		}), nil
	}
	return nil, errors.New("no mpirun is in the first container")
}
