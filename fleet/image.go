package fleet

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Image is a built root file system with its kernel.
type Image struct {
	Name        string    `json:"name"`
	Digest      Digest    `json:"digest"` // of the files
	Recipe      Digest    `json:"recipe"` // of its inputs
	Suite       string    `json:"suite"`
	Packages    []string  `json:"packages"`
	MPI         string    `json:"mpi,omitempty"`          // "openmpi", "mpich" or ""
	Version     string    `json:"mpi_version,omitempty"`  // of the MPI library's package
	Kernel      string    `json:"kernel"`                 // release, as uname -r says
	OwnKernel   bool      `json:"own_kernel,omitempty"`   // of whoever built it; with modules only where an image there had the same kernel
	KernelWords string    `json:"kernel_words,omitempty"` // that its kernel gets on its command line, besides Pagurus's
	Bytes       int64     `json:"bytes"`
	Built       time.Time `json:"built"`
	UID         uint32    `json:"uid,omitempty"` // the user whom it counts for; 0: the cluster, as all that root builds
}

// mostKernelWords is the most that an image's words for its kernel's command line may be, in bytes: Linux reads 2048, of which Pagurus's own
// take 500.
const mostKernelWords = 1024

// ownKernelWords are the names of what Pagurus itself says on a guest's kernel's command line, or says by being there.
var ownKernelWords = []string{
	"console", "quiet", "panic", "mitigations", "init_on_alloc", "no_timer_check", "tsc", "random.trust_cpu", "cryptomgr.notests", "noreplace-smp",
	"initcall_blacklist", "init", "rdinit", "root", "initrd",
}

// RefusedKernelWords says what is wrong with an image's words for its kernel's command line; empty: nothing, as for none.
func RefusedKernelWords(words string) string {
	if len(words) > mostKernelWords {
		return fmt.Sprintf("the words for the kernel have %d bytes, and may have %d", len(words), mostKernelWords)
	}
	if i := strings.IndexFunc(words, func(r rune) bool { return r < ' ' || r > '~' || r == '"' }); i >= 0 {
		return fmt.Sprintf("the words for the kernel have the character %q: they are of printable ASCII, without quotation marks", []rune(words[i:])[0])
	}
	for word := range strings.FieldsSeq(words) {
		name, _, _ := strings.Cut(word, "=")
		if name == "--" || slices.Contains(ownKernelWords, name) || strings.HasPrefix(name, "pagurus.") {
			return fmt.Sprintf("the kernel's word %q is Pagurus's own: leave it out", word)
		}
	}
	return ""
}
