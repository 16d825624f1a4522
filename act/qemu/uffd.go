// This file checks whether an unprivileged QEMU can run a guest before its memory has
// arrived, or write it while it runs, which needs the kernel's userfaultfd, and grants access to it.
//
// It must not know a driver's use of it. Its tests use this machine's kernel and QEMU.

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

// The ways to userfaultfd: the device file, which QEMU opens from 8.0 on, and a system
// call, which the setting allows to everybody.
const (
	device  = "/dev/userfaultfd"
	setting = "/proc/sys/vm/unprivileged_userfaultfd"
)

// The device's permissions: the kernel's, and granted.
const (
	closed      = 0o600
	grantedMode = 0o660
)

// GrantUserfault gives a group access to the device if only root has it, so that an
// administrator's choice stays. It lasts until RevokeUserfault or the next boot. It is not an
// error if there is no such device.
func GrantUserfault(gid uint32) error { return change(0, closed, gid, grantedMode) }

// RevokeUserfault undoes what GrantUserfault did, and nothing else.
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

// UserfaultAccess describes who may use userfaultfd now. As long as it is the same,
// tryUserfault gives the same result.
func UserfaultAccess() string {
	var st unix.Stat_t
	if err := unix.Stat(device, &st); err != nil {
		st.Mode = 0
	}
	all, _ := os.ReadFile(setting) // if missing, only the device counts
	return fmt.Sprintf("%d:%d %o %s", st.Uid, st.Gid, st.Mode, bytes.TrimSpace(all))
}

// tryLimit: QEMU starts an empty machine in about 50 ms.
const tryLimit = 10 * time.Second

// postCopyCapability is the capability to run a guest before its memory has arrived.
const postCopyCapability = "postcopy-ram"

// tryUserfault starts a QEMU with these attributes that is told to use a capability for which it needs userfaultfd,
// and returns its error; nil: it works.
func tryUserfault(ctx context.Context, binary, capability string, attributes *syscall.SysProcAttr, more ...string) error {
	ctx, cancel := context.WithTimeout(ctx, tryLimit)
	defer cancel()
	args := append([]string{"-machine", "none", "-no-user-config", "-nodefaults", "-display", "none", "-S", "-incoming", "defer", "-qmp", "stdio"}, more...)
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.SysProcAttr, cmd.Dir = attributes, "/"
	cmd.Stdin = strings.NewReader(`{"execute":"qmp_capabilities"}
{"execute":"migrate-set-capabilities","id":"it","arguments":{"capabilities":[{"capability":"` + capability + `","state":true}]}}
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

// answer finds QEMU's answer about the capability.
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

// UserfaultRemedy returns a shell command that lets a user's QEMU of that version use
// userfaultfd on this machine. A command that grants the device lasts until the next boot. A
// command that changes the kernel's setting is permanent.
func UserfaultRemedy(user, version string) string {
	first, _, _ := strings.Cut(version, ".")
	major, _ := strconv.Atoi(first)
	if _, err := os.Stat(device); err == nil && major >= firstOpening {
		return fmt.Sprintf("chgrp %s %s && chmod %o %s", user, device, grantedMode, device)
	}
	return "echo vm.unprivileged_userfaultfd=1 >/etc/sysctl.d/60-pagurus.conf && sysctl -q -p /etc/sysctl.d/60-pagurus.conf"
}
