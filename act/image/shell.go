package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A Session is what to run inside an image's root on this machine.
type Session struct {
	Dir    string // absolute; the same path inside
	UID    uint32
	GID    uint32
	Groups []uint32
	Args   []string // empty: an interactive shell
	Over   string   // a folder of this machine with files of /usr that are there in addition; empty: none
}

// enter runs in a mount namespace of its own, so its mounts disappear when its last
// program ends. Arguments: root.img, an empty folder, the directory, user:group, groups,
// lines for passwd and group, a folder with more files, then the program.
const enter = `set -eu
image=$1 at=$2 dir=$3 owner=$4 groups=$5 passwd=$6 group=$7 over=$8
shift 8
mount -t tmpfs -o mode=0755 pagurus "$at"
mkdir "$at/lower" "$at/upper" "$at/work" "$at/root"
mount -t squashfs -o loop,ro "$image" "$at/lower"
mount -t overlay -o "lowerdir=$at/lower,upperdir=$at/upper,workdir=$at/work" pagurus "$at/root"
root=$at/root
mount --rbind /proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
for file in resolv.conf hosts; do
	rm -f "$root/etc/$file" # a link of the image may lead to this machine's own file
	cat "/etc/$file" >"$root/etc/$file" 2>/dev/null || :
done
[ -z "$over" ] || cp -R "$over/usr" "$root/"
[ -z "$passwd" ] || [ -L "$root/etc/passwd" ] || printf '%s\n' "$passwd" >>"$root/etc/passwd"
[ -z "$group" ] || [ -L "$root/etc/group" ] || printf '%s\n' "$group" >>"$root/etc/group"
mkdir -p "$root$dir"
mount --rbind "$dir" "$root$dir"
exec chroot --userspec="$owner" --groups="$groups" "$root" /bin/sh -c 'cd "$1" && shift && exec "$@"' sh "$dir" "$@"
`

// ShellCommand prepares a program inside the image's root with the session's directory,
// to compile programs for guests. Changes elsewhere are discarded. The caller sets the
// three streams and runs it. It needs root, to mount the image.
func (s *Store) ShellCommand(ctx context.Context, name string, in Session) (*exec.Cmd, error) {
	img, err := s.Find(name)
	if err != nil {
		return nil, err
	}
	if !s.Has(img.Digest) {
		return nil, fmt.Errorf("image %q: its files are gone: build it again with `pagurus image build %s`", name, name)
	}
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("a shell in image %q needs root, to mount it: run `sudo pagurus image shell %s`; inside you are yourself", name, name)
	}
	dir, err := sessionDir(in.Dir)
	if err != nil {
		return nil, err
	}
	args := in.Args
	if len(args) == 0 {
		args = []string{"/bin/bash"}
	}
	passwd, group, home := accounts(in.UID, in.GID)
	owner := fmt.Sprintf("+%d:+%d", in.UID, in.GID)
	groups := []string{"+" + strconv.FormatUint(uint64(in.GID), 10)}
	for _, g := range in.Groups {
		groups = append(groups, "+"+strconv.FormatUint(uint64(g), 10))
	}
	cmd := exec.CommandContext(ctx, "unshare", append([]string{
		"--mount", "--", "/bin/sh", "-c", enter, "pagurus-shell",
		filepath.Join(s.Folder(img.Digest), RootFile), filepath.Join(s.dir, "shell"), dir,
		owner, strings.Join(groups, ","), passwd, group, in.Over,
	}, args...)...)
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin", "HOME=" + home, "LANG=C.UTF-8", "PAGURUS_IMAGE=" + name}
	if t := os.Getenv("TERM"); t != "" {
		cmd.Env = append(cmd.Env, "TERM="+t)
	}
	return cmd, nil
}

// sessionDir refuses a directory that would hide part of the image.
func sessionDir(dir string) (string, error) {
	if !filepath.IsAbs(dir) {
		return "", fmt.Errorf("directory %q is not absolute", dir)
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", fmt.Errorf("working directory: %w", err)
	}
	first := strings.Split(real, "/")[1]
	own := []string{"", "bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "proc", "run", "sbin", "sys", "usr"}
	if slices.Contains(own, first) && !strings.HasPrefix(real, "/usr/local/src/") && !strings.HasPrefix(real, "/usr/src/") {
		return "", fmt.Errorf("%s is part of the system and would hide the image's own: go to a directory with your program first", real)
	}
	return real, nil
}

// accounts returns the lines for passwd and group that name the user inside; empty for
// root and for users unknown on this machine.
func accounts(uid, gid uint32) (passwd, group, home string) {
	if uid == 0 {
		return "", "", "/root"
	}
	u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
	if err != nil {
		return "", "", "/tmp"
	}
	home = u.HomeDir
	passwd = fmt.Sprintf("%s:x:%d:%d::%s:/bin/bash", u.Username, uid, gid, home)
	if g, err := user.LookupGroupId(strconv.FormatUint(uint64(gid), 10)); err == nil {
		group = fmt.Sprintf("%s:x:%d:", g.Name, gid)
	}
	return passwd, group, home
}

// Shell runs the session with this process's streams and returns the program's exit code.
func (s *Store) Shell(ctx context.Context, name string, in Session) (int, error) {
	cmd, err := s.ShellCommand(ctx, name, in)
	if err != nil {
		return 0, err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		if code := exit.ExitCode(); code >= 0 {
			return code, nil
		}
	}
	if err != nil {
		return 0, fmt.Errorf("shell in image %q: %w", name, err)
	}
	return 0, nil
}
