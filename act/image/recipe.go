package image

import (
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"pagurus/fleet"
)

// Recipe is an image's inputs. Recipes with equal contents are the same, whatever their
// names.
type Recipe struct {
	Name     string     `json:"-"`
	Suite    string     `json:"suite"`                // of Debian
	Packages []string   `json:"packages"`             // with dependencies, without recommendations
	Exclude  []string   `json:"exclude,omitempty"`    // dpkg path patterns that are not unpacked
	Kernel   string     `json:"kernel,omitempty"`     // one of Kernels; empty: DefaultKernel
	Own      *OwnKernel `json:"own_kernel,omitempty"` // instead of one of Kernels; nil: none
	Fresh    bool       `json:"-"`                    // build even if an image of this recipe exists

	UID     uint32 `json:"-"` // the user whom the image counts for; 0: the cluster
	Room    Room   `json:"-"` // nil: whatever fits on the disk
	Reserve int64  `json:"-"` // bytes that the build leaves free on the disk, for others
}

// Room says why a store that has some named images has no room for one more; nil: it has. The one more replaces the image of its name. One of 0
// bytes is not built yet.
type Room func(there []fleet.Image, more fleet.Image) error

// DefaultSuite is the default suite.
const DefaultSuite = "trixie"

// kernels are Debian's packages of kernels by the words for them. The cloud one is small and starts soonest; the generic one has the drivers of
// all devices, of which guests with a device of their host may need one.
var kernels = map[string]string{DefaultKernel: "linux-image-cloud-amd64", "generic": "linux-image-amd64"}

// DefaultKernel is the kernel of images for which none was chosen.
const DefaultKernel = "cloud"

// Kernels are the words for the kernels that an image may have.
func Kernels() []string { return slices.Sorted(maps.Keys(kernels)) }

// format is raised when a change of this package makes a different image from the same
// recipe.
const format = 2

// epoch is every time stamp inside an image. It is earlier than all packages of the
// suites, so that nothing is older.
const epoch = 1672531200 // 2023-01-01

// notForGuests is not unpacked: manuals are useless in guests, and every guest has the
// image's pages in memory.
var notForGuests = []string{
	"/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*",
	"/usr/share/lintian/*", "/usr/share/bug/*", "/usr/share/gtk-doc/*", "/usr/share/doc-base/*",
	"/usr/share/icons/*", "/usr/share/pixmaps/*", "/usr/share/applications/*", "/usr/share/fonts/*",
}

// noGPU is what the predefined images omit of Debian's MPI packages: GPU drivers, which
// guests cannot use, with their compilers (over 400 MB with LAMMPS), and plugins that
// search for GPUs at each start.
var noGPU = []string{
	"/usr/lib/*/libLLVM*", "/usr/lib/llvm-*", "/usr/lib/*/libamd_comgr*", "/usr/lib/*/libamdhip64*",
	"/usr/lib/*/libhsa-runtime64*", "/usr/lib/*/libhsakmt*", "/usr/lib/*/libgallium*", "/usr/lib/*/dri/*",
	"/usr/lib/*/libz3.so*", "/usr/lib/*/libze_*", "/usr/lib/*/ucx/*_rocm.so*", "/usr/lib/*/ucx/*_ze.so*",
	"/usr/lib/*/hwloc/hwloc_opencl*", "/usr/lib/*/hwloc/hwloc_gl*", "/usr/lib/*/hwloc/hwloc_levelzero*",
	"/usr/bin/*-lto-dump-*",
}

// noPictures is LAMMPS's graphics.
var noPictures = []string{
	"/usr/lib/*/libvtkRendering*", "/usr/lib/*/libvtkInteraction*", "/usr/lib/*/libvtkViews*",
	"/usr/lib/*/libvtkFilters*", "/usr/lib/*/libvtkImaging*", "/usr/lib/*/libvtkioss*",
	"/usr/share/proj/*", "/usr/share/X11/*", "/usr/share/lammps/examples/*", "/usr/share/javascript/*",
}

// predefined are the recipes of Pagurus. Images for compiling have compilers for the
// three languages of MPI programs.
var predefined = []Recipe{
	{
		Name: "openmpi", Suite: "trixie", Exclude: noGPU,
		Packages: []string{"openmpi-bin", "libopenmpi-dev", "gcc", "g++", "gfortran", "libc6-dev", "make"},
	},
	{
		Name: "mpich", Suite: "trixie", Exclude: noGPU,
		Packages: []string{"mpich", "libmpich-dev", "gcc", "g++", "gfortran", "libc6-dev", "make"},
	},
	{
		Name: "openmpi4", Suite: "bookworm", Exclude: noGPU,
		Packages: []string{"openmpi-bin", "libopenmpi-dev", "gcc", "g++", "gfortran", "libc6-dev", "make"},
	},
	{
		Name: "lammps", Suite: "trixie", Exclude: append(slices.Clone(noGPU), noPictures...),
		Packages: []string{"lammps", "openmpi-bin", "libopenmpi-dev", "gcc", "libc6-dev"},
	},
	{ // for cluster benchmarks: HPL and STREAM (hpcc), and NetPIPE
		Name: "hpc", Suite: "trixie", Exclude: noGPU,
		Packages: []string{"hpcc", "netpipe-openmpi", "libopenblas0-serial", "openmpi-bin", "libopenmpi-dev", "gcc", "libc6-dev", "make"},
	},
}

// Predefined returns the names of Pagurus's recipes.
func Predefined() []string {
	var names []string
	for _, r := range predefined {
		names = append(names, r.Name)
	}
	return names
}

// RecipeFor returns the predefined recipe of that name with the given suite, kernel and packages.
// Other names require packages. A kernel that is a file is for ReadKernel, whose result goes into Own.
func RecipeFor(name, suite, kernel string, packages []string) (Recipe, error) {
	r := Recipe{Name: name, Suite: DefaultSuite}
	i := slices.IndexFunc(predefined, func(p Recipe) bool { return p.Name == name })
	if i >= 0 {
		r = predefined[i]
	} else if len(packages) == 0 {
		return Recipe{}, fmt.Errorf("there is no recipe %q: take one of %s, or name the image's packages with --packages or --like",
			name, strings.Join(Predefined(), ", "))
	}
	if suite != "" {
		r.Suite = suite
	}
	if !IsKernelFile(kernel) {
		r.Kernel = kernel
	}
	if len(packages) > 0 {
		r.Packages, r.Exclude = packages, nil
	}
	return r, r.check()
}

var (
	suiteForm   = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)
	packageForm = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]*$`)
)

// check refuses invalid suites and packages before they become arguments of a program
// that runs as root.
func (r Recipe) check() error {
	if err := checkName(r.Name); err != nil {
		return err
	}
	if !suiteForm.MatchString(r.Suite) {
		return fmt.Errorf("%q is not a Debian suite: use trixie or bookworm", r.Suite)
	}
	if kernels[r.kernel()] == "" {
		return fmt.Errorf("%q is not a kernel that images may have: use %s, or a file", r.Kernel, strings.Join(Kernels(), ", "))
	}
	for _, p := range r.Packages {
		if !packageForm.MatchString(p) {
			return fmt.Errorf("%q is not a name of a Debian package", p)
		}
	}
	for _, e := range r.Exclude {
		if !strings.HasPrefix(e, "/") {
			return fmt.Errorf("path pattern %q does not start with /", e)
		}
	}
	return nil
}

func (r Recipe) kernel() string { return cmp.Or(r.Kernel, DefaultKernel) }

// normal is the recipe without irrelevant differences.
func (r Recipe) normal() Recipe {
	if r.Kernel == DefaultKernel {
		r.Kernel = "" // as recipes were before there was a choice
	}
	r.Packages = slices.Compact(slices.Sorted(slices.Values(r.Packages)))
	r.Exclude = slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(notForGuests), r.Exclude...))))
	return r
}

// Digest identifies recipes. It includes Pagurus's own additions to an image.
func (r Recipe) Digest() fleet.Digest {
	b, err := json.Marshal(struct {
		Format int
		Recipe Recipe
		Own    []byte
		Module []string
	}{format, r.normal(), sources(), append(slices.Clone(required), optional...)})
	if err != nil {
		panic(err) // plain strings always marshal
	}
	return digestOf(b)
}

func digestOf(b []byte) fleet.Digest {
	sum := sha256.Sum256(b)
	return fleet.Digest("sha256-" + hex.EncodeToString(sum[:]))
}

// trace is the source of Pagurus's own programs in images.
//
//go:embed trace/*.c trace/*.h
var trace embed.FS

// sourceNames are its files.
var sourceNames = []string{"trace.c", "wait.h", "hello.c"}

func sourceOf(name string) []byte {
	text, err := trace.ReadFile("trace/" + name)
	if err != nil {
		panic(err) // embedded files always exist
	}
	return text
}

// sources is all source text together.
func sources() (all []byte) {
	for _, name := range sourceNames {
		all = append(all, sourceOf(name)...)
	}
	return all
}
