// This file has what is special to machines of a lab that are Xen hosts.

package main

import (
	"context"
	"fmt"
	"os/exec"
	"strings"

	"pagurus/act/labmachine"
)

// image is what host n begins as.
func (l lab) image(n int) labmachine.Image {
	if n > l.Hosts-l.Machines.Xen {
		return labmachine.Image{Folder: l.Machines.XenImage, Xen: true}
	}
	return labmachine.Image{Folder: l.Machines.Images[l.suite(n)]}
}

// prepareXen builds the image of Xen hosts, if there are any.
func (l *lab) prepareXen(ctx context.Context, std streams, debs []string) error {
	if l.Machines.Xen == 0 {
		return nil
	}
	if err := emulatesXen(ctx); err != nil {
		return err
	}
	image, err := buildMachine(ctx, std, labmachine.Recipe{Suite: xenSuite, Xen: true}, debs)
	l.Machines.XenImage = image.Folder
	return err
}

// xenSuite is the release of Debian of Xen hosts, and xenQEMU the first QEMU that emulates a processor on which their guests live.
const (
	xenSuite = "trixie"
	xenQEMU  = 10
)

// emulatesXen says what is wrong with this machine's QEMU for a Xen host.
func emulatesXen(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "qemu-system-x86_64", "--version").Output()
	if err != nil {
		return fmt.Errorf("asking QEMU for its version: %w", err)
	}
	version := 0
	if _, after, found := strings.Cut(string(out), "version "); found {
		_, _ = fmt.Sscanf(after, "%d", &version)
	}
	if version < xenQEMU {
		return fmt.Errorf("--"+xenFlag+" needs QEMU %d, which Debian 12 has in its backports: QEMU %d emulates no processor on which guests of Xen live", xenQEMU, version)
	}
	return nil
}
