package drive

import (
	"cmp"
	"slices"
)

// Own has what is typed use images and labs other than the usual ones, as those whose virtual
// machines have a kernel of one's own.
type Own struct {
	Images map[string]string // that jobs run, by those in whose place
	Lab    []string          // flags that a lab is brought up with, besides its own
}

// Image is the image that jobs run in the place of one.
func (o Own) Image(name string) string { return cmp.Or(o.Images[name], name) }

// words are what is typed in place of some words.
func (o Own) words(args []string) []string {
	if len(args) > 1 && args[0] == "lab" && args[1] == "up" {
		return slices.Concat(args, o.Lab)
	}
	end := len(args)
	if i := slices.Index(args, "--"); i >= 0 {
		end = i // behind it is the job's program
	}
	if i := slices.Index(args[:end], "--image"); i >= 0 && i+1 < end {
		args = slices.Clone(args)
		args[i+1] = o.Image(args[i+1])
	}
	return args
}
