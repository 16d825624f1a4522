package main

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"pagurus/act/libpagurus"
	"pagurus/fleet"
)

const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// carried is the variable that lists the variables which the remote-start command takes to
// other guests. Open MPI does not pass the user's variables to remote ranks, MPICH does;
// this way both do.
const carried = "PAGURUS_ENV"

// plan gives the arguments for a program, the program to check first, and the environment.
func plan(s fleet.Setup, home account, p fleet.Program) (args []string, check string, env []string) {
	env = ownEnv(home)
	var load []string // not in the environment: mpirun and the daemons must not load an MPI library of their own
	if library := preloaded(); (p.Trace || p.MPI && emulated()) && exists(library) {
		load = []string{"LD_PRELOAD=" + preload(library, p.Env)}
		if emulated() {
			load = append(load, "PAGURUS_WAIT="+strconv.Itoa(longestWait(s)))
		}
	}
	if !p.MPI {
		if len(load) == 0 {
			return p.Args, "", merge(env, p.Env)
		}
		return asTyped(load, p.Args), p.Args[0], merge(env, p.Env)
	}
	if spawns := libpagurus.Spawner; p.Grow {
		if len(load) > 0 {
			load[0] = strings.Replace(load[0], "LD_PRELOAD=", "LD_PRELOAD="+spawns+":", 1)
		}
		// In the environment, too: ranks that others spawn have it from the daemons of their MPI library, which it does no harm.
		p.Env = append(slices.Clone(p.Env), "LD_PRELOAD="+preload(spawns, p.Env)) // the last one counts
	}
	// mpirun gives ranks the last path of the directory instead.
	for _, v := range p.Env {
		if isDirectory(v) {
			load = append(load, v)
		}
	}
	args = append([]string{mpirun(s.MPI), "-n", strconv.Itoa(p.Ranks)}, asTyped(load, p.Args)...)
	env = merge(merge(env, mpiEnv(s)), p.Env)
	var names []string
	for _, v := range p.Env {
		if name, _, ok := strings.Cut(v, "="); ok && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if s.MPI == "openmpi" && exists(libpagurus.Launcher) {
		env = merge(env, []string{"LD_PRELOAD=" + preload(libpagurus.Launcher, env)})
	}
	return args, p.Args[0], merge(env, []string{carried + "=" + strings.Join(names, " ")})
}

// isDirectory reports whether a variable is the name that the job's user has for the working directory.
func isDirectory(v string) bool { return strings.HasPrefix(v, "PWD=") }

// asTyped gives the words by which a launcher starts a program that is to have variables. To mpirun a word ":" begins another
// program, wherever it is, and to env(1) a program with "=" in its name is a variable: then a shell has all of it in one word.
func asTyped(variables, args []string) []string {
	if !slices.Contains(args, ":") && (len(variables) == 0 || !strings.Contains(args[0], "=")) {
		if len(variables) > 0 {
			variables = append([]string{"env"}, variables...)
		}
		return append(variables, args...)
	}
	var line strings.Builder
	for _, v := range variables {
		name, value, _ := strings.Cut(v, "=")
		line.WriteString(name + "=" + quoted(value) + " ")
	}
	line.WriteString("exec")
	for _, arg := range args {
		line.WriteString(" " + quoted(arg))
	}
	return []string{"sh", "-c", line.String()}
}

// quoted is a word of a shell's command line.
func quoted(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

// longestWait is how many milliseconds a waiting rank may sleep. Network data wakes it, but
// not a write of a rank in the same guest to shared memory.
func longestWait(s fleet.Setup) int {
	if slices.ContainsFunc(s.Peers, func(p fleet.Peer) bool { return p.Slots > 1 }) {
		return 1
	}
	return 20
}

// preloaded is the tracing library for this guest. Older images have one for all kinds.
func preloaded() string {
	if emulated() && exists(waitPath) {
		return waitPath
	}
	return tracePath
}

// preload puts a library before the user's preloaded ones.
func preload(library string, env []string) string {
	libraries := library
	for _, v := range env {
		if own, ok := strings.CutPrefix(v, "LD_PRELOAD="); ok && own != "" {
			libraries = library + ":" + own
		}
	}
	return libraries
}

// mpirun gives the image's command to start ranks: Debian's specific name if two MPI
// libraries are installed.
func mpirun(mpi string) string {
	for _, name := range []string{"mpirun." + mpi, "mpiexec." + mpi} {
		for _, dir := range filepath.SplitList(searchPath) {
			if mpi != "" && exists(filepath.Join(dir, name)) {
				return name
			}
		}
	}
	return "mpirun"
}

// emulated reports whether this guest's CPUs are emulated. Such guests share real cores,
// where a spinning rank takes the time of the rank it waits for: with four guests on two
// cores LAMMPS made 5 steps a second. So a waiting rank sleeps there (wait.h).
var emulated = sync.OnceValue(func() bool {
	text, err := os.ReadFile("/proc/cpuinfo")
	return err == nil && strings.Contains(string(text), "QEMU TCG CPU")
})

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// ownEnv is every program's basic environment, here and on peers.
func ownEnv(home account) []string {
	return []string{
		"PATH=" + searchPath, "HOME=" + home.dir, "USER=" + home.name, "LOGNAME=" + home.name,
		"SHELL=" + home.shell, "LANG=C.UTF-8", "TMPDIR=/tmp",
	}
}

// mpiEnv makes mpirun start ranks on all guests of the job without a flag: it names the
// guests and the way to them. Variables of absent libraries do no harm, so all are always
// set.
func mpiEnv(s fleet.Setup) []string {
	subnet := ""
	if p, err := s.Addr.Prefix(s.Prefix); err == nil {
		subnet = p.String()
	}
	env := []string{
		// Open MPI 4 (ORTE).
		"OMPI_MCA_plm_rsh_agent=" + rshPath,
		"OMPI_MCA_plm_rsh_no_tree_spawn=1",
		"OMPI_MCA_orte_default_hostfile=" + hostsOMPI,
		"OMPI_MCA_oob_tcp_if_include=" + subnet,
		"OMPI_MCA_rmaps_base_mapping_policy=slot:oversubscribe",
		"OMPI_MCA_hwloc_base_binding_policy=none",
		// Open MPI 5 (PRRTE).
		"PRTE_MCA_plm_ssh_agent=" + rshPath,
		"PRTE_MCA_plm_ssh_no_tree_spawn=1",
		"PRTE_MCA_prte_default_hostfile=" + hostsOMPI,
		"PRTE_MCA_prte_if_include=" + subnet,
		"PRTE_MCA_rmaps_default_mapping_policy=slot:oversubscribe",
		"PRTE_MCA_hwloc_default_binding_policy=none",
		// Both: plain TCP between guests. Probing for fast networks, which a guest never
		// has, takes seconds under emulation.
		"OMPI_MCA_pml=ob1",
		"OMPI_MCA_btl=self,vader,tcp",
		"OMPI_MCA_btl_tcp_if_include=" + subnet,
		"OMPI_MCA_osc=^ucx",
		"OMPI_MCA_coll=^ucc,hcoll",
		// MPICH (hydra).
		"HYDRA_LAUNCHER=rsh",
		"HYDRA_LAUNCHER_EXEC=" + rshPath,
		"HYDRA_HOST_FILE=" + hostsPICH,
		"HYDRA_BINDING=none",
		"FI_PROVIDER=tcp",
		"UCX_TLS=tcp,self,sm",
	}
	for _, p := range s.Peers {
		if p.Addr == s.Addr && (p.Slots > runtime.NumCPU() || emulated()) {
			env = append(env, fleet.YieldWhenIdle)
		}
	}
	if s.UID == 0 {
		env = append(env, "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
			"PRTE_ALLOW_RUN_AS_ROOT=1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1")
	}
	return env
}

// merge gives env with more added; a variable in more replaces one of the same name.
func merge(env, more []string) []string {
	all := slices.Clone(env)
	for _, v := range more {
		name, _, ok := strings.Cut(v, "=")
		if !ok || name == "" {
			continue
		}
		i := slices.IndexFunc(all, func(e string) bool { return strings.HasPrefix(e, name+"=") })
		if i < 0 {
			all = append(all, v)
		} else {
			all[i] = v
		}
	}
	return all
}
