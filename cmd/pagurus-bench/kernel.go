package main

import (
	"context"
	"path/filepath"
	"slices"

	"pagurus/fleet"
)

// ownMachines are the parts that make virtual machines without an image's help.
var ownMachines = []string{"jail", "join"}

// withOwnKernel are the images whose virtual machines get a kernel of one's own.
var withOwnKernel = []string{"openmpi", "lammps"}

// ownKernel has virtual machines run on KVM with the kernel that is asked for, if one is.
func (b *experiments) ownKernel(ctx context.Context, a asked) error {
	if a.kernel == "" {
		return nil
	}
	file, err := filepath.Abs(a.kernel) // commands are typed in another folder
	if err != nil {
		return err
	}
	b.Own.Images, b.Own.Lab = map[string]string{}, []string{"--accelerator", fleet.KVM}
	if a.cpu != "" {
		b.Own.Lab = append(b.Own.Lab, "--cpu", a.cpu)
	}
	for _, like := range withOwnKernel {
		if like != "openmpi" && a.only != "" && a.only != "disturbed" {
			continue // a suite's image takes long to build, and only one part has it
		}
		name := like + "-kernel"
		words := []string{"image", "build", name, "--like", like, "--kernel", file}
		if a.words != "" {
			words = append(words, "--kernel-words", a.words)
		}
		if _, err := b.Type(ctx, words...); err != nil {
			return err
		}
		b.Own.Images[like] = name
	}
	b.Record.Notes = append(slices.Clip(b.Record.Notes), "virtual machines have the kernel "+filepath.Base(file))
	return nil
}
