package cli

import (
	"flag"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// nobody is a command line whose controller is not there: an answer that does not name it was
// given without asking.
func nobody(t *testing.T, args ...string) outcome {
	t.Helper()
	w := &world{t: t, socket: "/nonexistent/controller.sock"}
	got := w.pagurus("", args...)
	if got.code == 0 || !strings.HasPrefix(got.err, "pagurus: ") {
		t.Errorf("%q: %+v", args, got)
	}
	if strings.Contains(got.err, "controller.sock") || strings.Contains(got.err, "lab up") {
		t.Errorf("%q: the controller was asked: %s", args, got.err)
	}
	return got
}

// everyFlag calls each with every flag of every command, and the words that lead to it.
func everyFlag(cmd *cobra.Command, each func(*cobra.Command, []string, *pflag.Flag)) {
	path := strings.Fields(cmd.CommandPath())[1:]
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { each(cmd, path, f) })
	for _, sub := range cmd.Commands() {
		everyFlag(sub, each)
	}
}

// The rule: a value that cannot be meant is refused by the flag's name before the
// controller is asked.
func TestEveryFlagIsJudgedHere(t *testing.T) {
	root := Root(Options{Args: []string{}})
	Finish(root)
	tried := 0
	everyFlag(root, func(cmd *cobra.Command, path []string, f *pflag.Flag) {
		if f.Value.Type() == "bool" {
			return
		}
		bad := []string{""}
		switch f.Value.Type() {
		case "int", "size", "rate", "share":
			bad = append(bad, "-1", "many", "NaN")
		case "duration":
			bad = append(bad, "-1s", "soon", "5")
		}
		if f.Name == timeoutFlag {
			bad = append(bad, "0s")
		}
		if complete, ok := cmd.GetFlagCompletionFunc(f.Name); ok && !completesFromCluster(f.Name) {
			words, _ := complete(cmd, nil, "")
			for _, word := range words {
				if err := f.Value.Set(word); err != nil {
					t.Errorf("%s --%s completes %q and refuses it: %v", cmd.CommandPath(), f.Name, word, err)
				}
			}
			bad = append(bad, "nosuchword")
		}
		for _, value := range bad {
			tried++
			if got := nobody(t, append(slices.Clone(path), "--"+f.Name+"="+value)...); !strings.Contains(got.err, "--"+f.Name+": ") {
				t.Errorf("%s --%s=%q: %s", strings.Join(path, " "), f.Name, value, got.err)
			}
		}
	})
	if tried < 150 {
		t.Errorf("only %d values were tried", tried)
	}
}

// completesFromCluster reports whether a flag completes to what there is, and any name may be
// right.
func completesFromCluster(name string) bool {
	return slices.Contains([]string{onFlag, toFlag, toSiteFlag, jobFlag, fromFlag, "host", "site", "user", "owns", imageFlag}, name)
}

// What needs more than one flag, or is an argument.
func TestJudgedWithoutTheController(t *testing.T) {
	t.Chdir(t.TempDir())
	for args, says := range map[string]string{
		"run --guests 0 true":                              "--guests: 0 is too few",
		"run --checkpoint every=5 true":                    "--checkpoint: ",
		"run --checkpoint every=1s true":                   "every=1s is too often",
		"run --checkpoint keep=1000 true":                  "between 1 and 100 are kept",
		"run --checkpoint often true":                      "write auto, off, or every=30m,keep=2",
		"restart j1 --from j1":                             "not the name of a checkpoint",
		"restart j1 --from j1c1 --from-beginning":          "from",
		"checkpoint j1 j2":                                 "name one job",
		"checkpoint ls j1 j2":                              "name one job",
		"run --cpus 0 true":                                "--cpus: 0 is too few",
		"run --cpus 256 true":                              "256 CPUs",
		"run --mem 5 true":                                 "5 bytes of memory cannot hold a guest",
		"run --mem 100M true":                              "128 MiB or more",
		"run --mem 5M --kind container true":               "32 MiB or more",
		"run -n 70000 true":                                "ask for fewer with -n",
		"run -n 2 --guests 3 true":                         "--guests",
		"run --kind container --tune hpc true":             "only for virtual machines",
		"run --on host1, true":                             "--on: ",
		"run -H host1,,host2 true":                         "-H: ",
		"run -H host1:2 true":                              "write host1;",
		"run --on a/b true":                                "cannot be the name of a host",
		"run -np 3 true":                                   "write -n 3 where mpirun has -np 3;",
		"run -np7 true":                                    "write -n 7 where mpirun has -np 7;",
		"run --np=7 true":                                  "write -n 7 where mpirun has -np 7;",
		"run --np 7 true":                                  "write -n 7 where mpirun has -np 7;",
		"run -np":                                          "write -n 4 where mpirun has -np 4;",
		"run --host a,b true":                              "write --on a,b where mpirun has --host a,b;",
		"run -host a,b true":                               "write --on a,b where mpirun has --host a,b;",
		"run -N 2 -n 4 true":                               "--guests RANKS/2 where mpirun has -N 2;",
		"run --memory 1G true":                             "did you mean --mem?",
		"run --guests 8 -n 2 true":                         "or for more ranks with -n",
		"run --mem 1 true":                                 "1 byte of memory cannot hold a guest; give it 128 MiB",
		"signal USR1 j1":                                   "the job comes first: `pagurus signal j1 USR1`",
		"login head:7461 --token-file /nonexistent":        "there is no file /nonexistent: write the line",
		"man /nonexistent/man":                             "there is no folder /nonexistent to make man in",
		"drain h --bandwidth 200":                          "give --bandwidth something like 200M",
		"host policy h --vacate no":                        "write evacuate, suspend, stay or cluster; and",
		"cancel j1 --grace 5h":                             "cannot have 5h to end; give it from 0s to 1h;",
		"run -x =y true":                                   `-x: "=y" has no name`,
		"run --env NO_SUCH_THING true":                     "--env: NO_SUCH_THING is not set here",
		"run -nmany true":                                  `-n: "many" is not a number`,
		"run --ranks=many true":                            `--ranks: "many" is not a number`,
		"run --export /nowhere/at/all true":                "--export",
		"migrate g --to h --to-site s":                     "leave one of them out",
		"migrate g --mode foo":                             "pre-copy, post-copy or stop-and-copy",
		"migrate g --mode stop-and-copy --max-downtime 1s": "leave --max-downtime out",
		"migrate g --mode post-copy --compress on":         "compression does not work with post-copy",
		"migrate g --timeout 5m":                           "add --wait",
		"drain h --timeout 5m":                             "add --wait",
		"drain h --wait --dry-run":                         "--dry-run",
		"predict --host h --to x":                          "--to goes with",
		"predict --score --to x":                           "leave --to out",
		"token create --role king":                         "--role: ",
		"token create --role user":                         "--user NAME",
		"token create --user ada":                          "--role user",
		"token create --role user --user a --site x":       "--site",
		"token create --uses 10001":                        "--uses from 1",
		"token create --ttl 2000d":                         "to 365d",
		"token create --ttl 0s":                            "--ttl from 1m",
		"user role ada king":                               "give user or admin",
		"user add -- a/b --uid 1":                          "one user",
		"user add a/b --uid 1 --gid 1":                     "cannot be the name of a user",
		"user add a --uid 4294967296 --gid 1":              "--uid: ",
		"user add a --uid 4294967295 --gid 1":              "from 0 to 4294967294",
		"user add a --uid 18446744073709551616 --gid 1":    "--uid: ",
		"user add a --uid -1 --gid 1":                      "--uid: ",
		"user add a --uid 1 --gid 4294967296":              "--gid: ",
		"user add a --uid 1 --gid x":                       "--gid: ",
		"user add root":                                    "--uid 0 if that is wanted",
		"user add root --gid 7":                            "--uid 0 if that is wanted",
		"user add root --uid 7":                            "--gid 0 if that is wanted",
		"user add nobodyhere --uid 7":                      "no account nobodyhere",
		"join head:7461 --token t --address 0.0.0.0":       "--address: ",
		"join h:1 --token t --address ::ffff:1.2.3.4":      "as 1.2.3.4",
		"cancel j1 --grace 2h":                             "from 0s to 1h",
		"signal j1 NOSUCH":                                 "there is no signal",
		"policy set foo":                                   `there is no policy "foo"`,
		"policy show foo":                                  `there is no policy "foo"`,
		"host policy h --owner maybe":                      "yes or no",
		"host policy h --exclusive a/b":                    "cannot be the name of a running program",
		"host policy h --idle-after 31d":                   "--idle-after",
		"host policy h --hours 7":                          "--hours",
		"join head:7461 --token t --address here":          "--address: ",
		"join head:7461 --token t --host a/b":              "cannot be the name of a host",
		"join 2001:db8::1 --token t":                       "in brackets, like [2001:db8::1]:7461",
		"join head --token t":                              "write it like head:7461",
		"login head --token t":                             "write it like head:7461",
		"login head:7461":                                  "--token-file",
		"login head:7461 --token t --token-file f":         "leave one of them out",
	} {
		if got := nobody(t, strings.Fields(args)...); !strings.Contains(got.err, says) {
			t.Errorf("%s: %s\twant %q", args, got.err, says)
		}
	}
}

// An empty argument is a script's unset variable. No command takes one.
func TestEmptyArguments(t *testing.T) {
	root := Root(Options{Args: []string{}})
	Finish(root)
	var try func(*cobra.Command)
	try = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			try(sub)
		}
		if _, what, ok := strings.Cut(cmd.Use, " "); !ok || cmd.Hidden || !strings.ContainsAny(what, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") || cmd.Name() == "run" || cmd.Name() == "help" {
			return
		}
		args := strings.Fields(cmd.CommandPath())[1:]
		for range 3 {
			args = append(args, "")
			if got := nobody(t, args...); !strings.Contains(got.err, "is empty") && !strings.Contains(got.err, "name ") {
				t.Errorf("%q: %s", args, got.err)
			}
		}
	}
	try(root)
}

// mpirun's colon is answered with what to type instead; a program's own colon is left alone.
func TestSeveralPrograms(t *testing.T) {
	for args, want := range map[string]string{
		"./a : -n 1 ./b x": "`pagurus run -n 3 -- sh -c 'if [ ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} -lt 2 ]; then exec ./a; else exec ./b x; fi'`",
		"./a : -np 1 ./b : -n 4 ./c": "`pagurus run -n 7 -- sh -c 'if [ ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} -lt 2 ]; then exec ./a; " +
			"elif [ ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} -lt 3 ]; then exec ./b; else exec ./c; fi'`",
		"./a $x : -n 1 ./b":       "exec ./a; else exec ./b",
		"./a : --host h -n 1 ./b": "exec ./a; else exec ./b",
		"expr abc : a.*":          "",
		"./a : ":                  "",
		": -n 1 b":                "",
		"sh -c true":              "",
	} {
		if got := severalPrograms(2, strings.Fields(args)); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %s", args, got)
		}
	}
	t.Chdir(t.TempDir())
	if got := nobody(t, "run", "-n", "2", "a", ":", "-n", "1", "b"); got.code != exitOwn || !strings.Contains(got.err, "pagurus run -n 3 -- sh -c") {
		t.Errorf("%+v", got)
	}
}

// help and completion refuse what is not there, and suggest.
func TestHelpOfNothing(t *testing.T) {
	for args, says := range map[string]string{
		"help hots":      `did you mean "host"?`,
		"help job shw":   `did you mean "show"?`,
		"help run foo":   `there is no command "run foo"`,
		"completion foo": `there is no command "completion foo"`,
		"completion bsh": `did you mean "bash"?`,
		"nodes":          `did you mean "host ls"?`,
		"squeue":         `did you mean "job ls"?`,
		"mpirun":         `did you mean "run"?`,
		"kill":           `did you mean "cancel"?`,
		"status":         `did you mean "host ls"?`,
		"job list":       `did you mean "ls"?`,
		"token delete":   `did you mean "rm"?`,
		"guest mv":       `did you mean "migrate"?`,
		"user create":    `did you mean "add"?`,
		"jbo":            `did you mean "job"?`,
		"migrat":         `did you mean "migrate"?`,
	} {
		if got := nobody(t, strings.Fields(args)...); !strings.Contains(got.err, says) {
			t.Errorf("%s: %+v", args, got)
		}
	}
	for _, args := range []string{"help foo", "foo", "frob", "completion tcsh", "job foo", "lab up --loss"} {
		if got := nobody(t, strings.Fields(args)...); strings.Contains(got.err, "did you mean") {
			t.Errorf("%s: %s", args, got.err)
		}
	}
	w := newWorld(t)
	for _, args := range []string{"help", "help run", "help job ls", "completion bash", "completion"} {
		if got := w.pagurus("", strings.Fields(args)...); got.code != 0 || got.out == "" {
			t.Errorf("%s: %+v", args, got)
		}
	}
}

// A program whose flags are package flag's prints its help without a panic.
func TestSpanOfPackageFlag(t *testing.T) {
	var out strings.Builder
	var limit time.Duration
	flags := flag.NewFlagSet("x", flag.ContinueOnError)
	flags.SetOutput(&out)
	flags.Var(Span(&limit), "duration", "no more after this `time`")
	flags.PrintDefaults()
	if said := out.String(); strings.Contains(said, "panic") || !strings.Contains(said, "-duration time") {
		t.Errorf("the help says %q", said)
	}
}
