// This file finds out whether a QEMU that may do little can run a guest
// before its memory has arrived, which takes the kernel's userfaultfd, and lends
// it what it needs for that.
//
// It must not know what a driver does with it. Its tests run against this
// machine's kernel and QEMU.

package qemu

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The ways to userfaultfd: the device file, which QEMU opens from 8.0 on, and a
// system call, which the setting gives to everybody.
const (
	device  = "/dev/userfaultfd"
	setting = "/proc/sys/vm/unprivileged_userfaultfd"
)

// The modes of the device: as the kernel makes it, and lent.
const (
	closed      = 0o600
	grantedMode = 0o660
)

// GrantUserfault gives a group the device, if nobody but root has it: an administrator's
// ownDevice choice stays. It lasts until Return or the next boot. There being no such
// device is not an error.
func GrantUserfault(gid uint32) error { return change(0, closed, gid, grantedMode) }

// RevokeUserfault takes back what GrantUserfault gave the group, and nothing else.
func RevokeUserfault(gid uint32) error { return change(gid, grantedMode, 0, closed) }

func change(fromGroup uint32, from uint32, toGroup uint32, to uint32) error {
	var st unix.Stat_t
	err := unix.Stat(device, &st)
	if errors.Is(err, fs.ErrNotExist) || err == nil && (st.Uid != 0 || st.Gid != fromGroup || st.Mode&0o777 != from) {
		return nil
	}
	if err == nil {
		err = unix.Chown(device, 0, int(toGroup))
	}
	if err == nil {
		err = unix.Chmod(device, to)
	}
	if err != nil {
		return fmt.Errorf("change who may use %s: %w", device, err)
	}
	return nil
}

// UserfaultAccess names who may use userfaultfd now: as long as it is the same, so is
// what Try says.
func UserfaultAccess() string {
	var st unix.Stat_t
	if err := unix.Stat(device, &st); err != nil {
		st.Mode = 0
	}
	all, _ := os.ReadFile(setting) // where there is none only the device counts
	return fmt.Sprintf("%d:%d %o %s", st.Uid, st.Gid, st.Mode, bytes.TrimSpace(all))
}

// tryLimit: QEMU starts an empty machine in some 50 ms.
const tryLimit = 10 * time.Second

// tryUserfault starts a QEMU that takes in a guest by post-copy, as attributes say, and
// gives what it says against it; nil: it can.
func tryUserfault(ctx context.Context, binary string, attributes *syscall.SysProcAttr, more ...string) error {
	ctx, cancel := context.WithTimeout(ctx, tryLimit)
	defer cancel()
	args := append([]string{"-machine", "none", "-no-user-config", "-nodefaults", "-display", "none", "-S", "-incoming", "defer", "-qmp", "stdio"}, more...)
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.SysProcAttr, cmd.Dir = attributes, "/"
	cmd.Stdin = strings.NewReader(`{"execute":"qmp_capabilities"}
{"execute":"migrate-set-capabilities","id":"it","arguments":{"capabilities":[{"capability":"postcopy-ram","state":true}]}}
{"execute":"quit"}
`)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if refused, answered := answer(out); answered {
		return refused
	}
	line, _, _ := strings.Cut(strings.TrimSpace(said.String()), "\n")
	return fmt.Errorf("QEMU did not say whether it can: %w: %s", err, line)
}

// answer finds what QEMU said of the capability.
func answer(out []byte) (refused error, answered bool) {
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		var line struct {
			ID    string `json:"id"`
			Error *struct {
				Desc string `json:"desc"`
			} `json:"error"`
		}
		if json.Unmarshal(lines.Bytes(), &line) != nil || line.ID != "it" {
			continue
		}
		if line.Error != nil {
			return errors.New(strings.TrimSuffix(line.Error.Desc, ".")), true
		}
		return nil, true
	}
	return nil, false
}

// firstOpening is the first QEMU that opens the device.
const firstOpening = 8

// UserfaultRemedy says how this machine can be made to let a user's QEMU of that version
// use userfaultfd: a shell command. What only an agent lends ends with the next
// boot, and so does this; the setting is for good.
func UserfaultRemedy(user, version string) string {
	first, _, _ := strings.Cut(version, ".")
	major, _ := strconv.Atoi(first)
	if _, err := os.Stat(device); err == nil && major >= firstOpening {
		return fmt.Sprintf("chgrp %s %s && chmod %o %s", user, device, grantedMode, device)
	}
	return "echo vm.unprivileged_userfaultfd=1 >/etc/sysctl.d/60-pagurus.conf && sysctl -q -p /etc/sysctl.d/60-pagurus.conf"
}
