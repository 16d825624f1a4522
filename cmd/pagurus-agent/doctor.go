package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pagurus/act/cgroup"
	"pagurus/act/container/criu"
	"pagurus/act/container/shim"
	"pagurus/act/gateway"
	"pagurus/act/host/jail"
	"pagurus/act/image"
	"pagurus/act/machine"
	"pagurus/act/numa"
	"pagurus/act/owner"
	"pagurus/act/qemu"
	"pagurus/cmd/roles"
	"pagurus/fleet"
	"pagurus/show/cli"
	"pagurus/show/view"
)

// whatWidth is the width of the column with the findings' names.
const whatWidth = 17

// commands are what the client, which has no drivers, leaves to this program.
func commands() []*cobra.Command {
	doctor := roles.DoctorCommand(runDoctor, bringCRIU)
	doctor.PersistentFlags().Bool("json", false, "print JSON")
	accelerator := &cobra.Command{
		Use:    roles.AcceleratorVerb,
		Short:  "Print what guests on this machine run with: kvm or tcg",
		Hidden: true, // for the lab
		Args:   cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := roles.Until(cmd.Context())
			defer stop()
			can, _, err := tryGuest(ctx, roles.Agent{})
			if err == nil {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), can.Accelerator)
			}
			return err
		},
	}
	return []*cobra.Command{doctor, accelerator, byHandCommand()}
}

// runDoctor examines this machine, fixes what a command can if it shall, and tells.
func runDoctor(cmd *cobra.Command, fix bool) error {
	ctx, stop := roles.Until(cmd.Context())
	defer stop()
	asJSON, err := cmd.Flags().GetBool("json")
	if err != nil {
		return err
	}
	progress := cmd.ErrOrStderr()
	if asJSON { // for a program, which may take both streams for one
		progress = io.Discard
	}
	if quick, _ := cmd.Flags().GetBool(roles.QuickFlag); quick && !fix {
		return writeFindings(cmd.OutOrStdout(), lookAround(ctx), asJSON)
	}
	shown := roles.NewSteps(progress)
	found := examine(ctx, shown)
	if fix {
		// What could not be mended is seen when it is looked at again.
		if err := machine.Mend(ctx, found, cmd.ErrOrStderr()); err != nil {
			_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "pagurus: %s\n", err)
		}
		found = examine(ctx, shown)
	}
	return writeFindings(cmd.OutOrStdout(), found, asJSON)
}

// bringCRIU is what the doctor mends containers with. The script is in the
// binary, which may be all there is on a machine.
func bringCRIU(cmd *cobra.Command) error {
	ctx, stop := roles.Until(cmd.Context())
	defer stop()
	script := exec.CommandContext(ctx, "bash", "-c", criu.Installer())
	script.Stdout, script.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
	// It tidies up, and so does what it calls, which is of its group.
	script.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	script.Cancel = func() error { return syscall.Kill(-script.Process.Pid, syscall.SIGTERM) }
	script.WaitDelay = time.Minute
	var exit *exec.ExitError
	if err := script.Run(); errors.As(err, &exit) {
		return cli.Exit{Code: 1, Err: errors.New("there is no CRIU yet that can move containers")} // the script has said why
	} else if err != nil {
		return fmt.Errorf("bring CRIU: %w", err)
	}
	return nil
}

// writeFindings prints the findings. It fails if something is missing, so that the doctor's
// exit code says so.
func writeFindings(out io.Writer, found []machine.Finding, asJSON bool) error {
	missing := 0
	var text strings.Builder
	for _, f := range found {
		mark, mend := "✓", ""
		if !f.OK {
			mark = "!"
			if f.Needed {
				mark = "✗"
				missing++
			}
			if f.Fix != "" {
				mend = fmt.Sprintf("  %-*s  fix it with: %s\n", whatWidth, "", f.Fix)
			}
		}
		fmt.Fprintf(&text, "%s %-*s  %s\n%s", mark, whatWidth, f.Name, view.Clean(f.Detail), mend)
	}
	var err error
	if asJSON {
		err = json.NewEncoder(out).Encode(found)
	} else {
		_, err = io.WriteString(out, text.String())
	}
	if err == nil && missing > 0 {
		return cli.Exit{Code: 1, Err: fmt.Errorf("%s needed and missing: `sudo pagurus doctor --fix` fixes what a command can", view.Count(missing, "thing"))}
	}
	return err
}

// lookAround says what is there, which takes no time.
func lookAround(ctx context.Context) []machine.Finding {
	return append(machine.Check(ctx, roles.State), findBeside("guest agent", roles.GuestProgram), findBeside("agent", roles.AgentProgram), findBeside("controller", roles.ControllerProgram), findLimit(), findProcessor(), findInternet())
}

// findLimit says whether guests' memory can be limited.
func findLimit() machine.Finding {
	f := machine.Finding{Name: "memory limits", Detail: cgroup.Unlimited()}
	if f.OK = f.Detail == ""; f.OK {
		f.Detail = "a guest that takes more memory than its own ends, and nothing else does"
	}
	return f
}

// findProcessor says which CPUs virtual machines could have here.
func findProcessor() machine.Finding {
	f := machine.Finding{Name: "processor", Detail: "its level is not known"}
	if t, err := numa.Read("/"); err == nil && t.Level != "" {
		f.OK, f.Detail = true, "its level is "+t.Level+", the highest that virtual machines here could have (`pagurus policy set --cpu-level`)"
	}
	return f
}

// findInternet says whether this machine could lead jobs to the Internet. Whether it may is its owner's choice.
func findInternet() machine.Finding {
	f := machine.Finding{Name: "the Internet", OK: true, Detail: "this host could lead jobs there, if its owner lets it: " + fleet.InternetFlag + " = true in [agent]"}
	if why := gateway.Trouble(); why != "" {
		f.Detail = "no job is led there: " + why
	}
	return f
}

// examine looks at everything, and tries what a look does not prove.
func examine(ctx context.Context, shown *roles.Steps) []machine.Finding {
	defer shown.Clear()
	shown.Show("checking requirements", 0)
	found := lookAround(ctx)
	trials := []struct {
		step string
		try  func(context.Context) []machine.Finding
	}{
		{"trying a network of two hosts", tryNetwork},
		{"trying encryption", tryEncryption},
		{"trying a file server", tryFiles},
		{"trying a jail", tryJail},
		{"booting a guest", tryGuests},
		{"moving a container", tryContainers},
	}
	for i, t := range trials {
		if runtime.GOARCH != "amd64" || ctx.Err() != nil {
			break
		}
		shown.Show(t.step, float64(1+i)/float64(2+len(trials)))
		found = append(found, t.try(ctx)...)
	}
	shown.Show("asking the owner's sensors", float64(1+len(trials))/float64(2+len(trials)))
	return slices.Concat(found, []machine.Finding{trySensors(ctx), tryImages()}, tryVault(ctx, roles.ReadConfig(pflag.NewFlagSet("", pflag.ContinueOnError))))
}

// bucketLimit is how long the server of a bucket is asked.
const bucketLimit = 20 * time.Second

// tryVault asks the server of the bucket in which this machine's agent is configured to have its vault; nothing: it is not in one.
func tryVault(ctx context.Context, c roles.Config) []machine.Finding {
	of := configured(c)
	b := of.Bucket(of.Name)
	if b == nil {
		return nil
	}
	f := machine.Finding{Name: "vault", OK: true, Detail: of.VaultDir + " answers"}
	if os.Geteuid() != 0 { // the keys are root's
		f.Detail = "not tried without root"
		return []machine.Finding{f}
	}
	ctx, cancel := context.WithTimeout(ctx, bucketLimit)
	defer cancel()
	if err := b.Reach(ctx); err != nil {
		f.OK, f.Detail = false, "no checkpoints are kept here until this is well: "+err.Error()
	}
	return []machine.Finding{f}
}

// configured is how this machine's agent is configured. What is wrong with that `config check` says.
func configured(c roles.Config) (of roles.Agent) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	of.Add(flags)
	if c.Apply("agent", flags) != nil {
		return roles.Agent{}
	}
	return of
}

// tried gives the finding of a trial.
func tried(name, detail, fix string, err error) []machine.Finding {
	f := machine.Finding{Name: name, Needed: true, OK: err == nil, Detail: detail}
	if err != nil {
		f.Detail, f.Fix = err.Error(), fix
	}
	return []machine.Finding{f}
}

// untried is the finding of a trial that needs root.
func untried(name string) []machine.Finding {
	return []machine.Finding{{Name: name, Needed: true, OK: true, Detail: "not tried without root"}}
}

// tryNetwork makes a job's network on two hosts that are namespaces.
func tryNetwork(ctx context.Context) []machine.Finding {
	const name = "job's network"
	if os.Geteuid() != 0 {
		return untried(name)
	}
	return tried(name, "guests of two hosts reach each other (bridge, VXLAN, veth)",
		"modprobe -a bridge vxlan veth tun cls_bpf sch_ingress", Network(ctx))
}

// tryFiles starts a file server and reads a file from it, over a job's network.
func tryFiles(ctx context.Context) []machine.Finding {
	const name = "job's files"
	if os.Geteuid() != 0 {
		return untried(name)
	}
	return tried(name, "a guest reads a file from the file server of another host",
		machine.ReinstallServer(), inFolder(func(dir string) error { return Files(ctx, dir) }))
}

// trySensors samples the owner's sensors once.
func trySensors(ctx context.Context) machine.Finding {
	f := machine.Finding{Name: "owner's sensors", Detail: "all of them work"}
	s, err := owner.Open(owner.Config{})
	if err != nil {
		f.Detail = err.Error()
		return f
	}
	deaf := s.Sample(ctx, nil).Deaf
	if err := s.Close(); err != nil {
		deaf = append(deaf, err.Error())
	}
	if f.OK = len(deaf) == 0; !f.OK {
		f.Detail = "sensors that do not work are ignored: " + strings.Join(deaf, "; ")
	}
	return f
}

// findBeside searches for a program that belongs beside this one.
func findBeside(what, program string) machine.Finding {
	f := machine.Finding{Name: what, Needed: true}
	path, err := roles.Beside(program)
	if f.OK = err == nil; f.OK {
		f.Detail = path
	} else {
		f.Detail = err.Error()
	}
	return f
}

// tryJail runs a program in a jail that is as a guest's QEMU has it, but empty.
func tryJail(ctx context.Context) []machine.Finding {
	const name = "jail"
	if os.Geteuid() != 0 {
		return untried(name)
	}
	err := inFolder(func(dir string) error { return jail.Try(ctx, shim.Program(), dir, trialUID) })
	return tried(name, "a program runs with its own files and nothing else of this machine", "", err)
}

// trialUID is a user that nobody is and no guest gets.
const trialUID = 2_099_999_999

// tryGuests boots a tiny guest, because a /dev/kvm that opens proves nothing. Nor does a
// device file prove that post-copy works, so a QEMU with the guests' rights is asked.
func tryGuests(ctx context.Context) []machine.Finding {
	f := machine.Finding{Name: "guests", Needed: true}
	if os.Geteuid() != 0 {
		return untried(f.Name)
	}
	can, slow, err := tryGuest(ctx, configured(roles.ReadConfig(pflag.NewFlagSet("", pflag.ContinueOnError))))
	switch {
	case err != nil:
		f.Detail = err.Error()
		return []machine.Finding{f}
	case slow != "":
		f.Detail = "KVM does not run guests here; software emulation will be used (slower): " + slow
		f.Needed = false
	default:
		f.OK, f.Detail = true, fmt.Sprintf("QEMU %s runs guests with %s%s", can.Version, can.Accelerator, ofCPU(can))
	}
	late := machine.Finding{Name: "post-copy", OK: can.PostCopy, Detail: "guests can run here before their memory has come"}
	if !can.PostCopy {
		late.Detail, late.Fix = "guests cannot move here by post-copy, only otherwise: "+can.NoPostCopy, qemu.UserfaultRemedy(machine.GuestUser, can.Version)
	}
	saves := machine.Finding{Name: "checkpoints", OK: can.Checkpoint, Detail: "virtual machines can be written here while they run"}
	if !can.Checkpoint {
		saves.Detail, saves.Fix = "virtual machines are without checkpoints here: "+can.NoCheckpoint, late.Fix
	}
	return []machine.Finding{f, late, saves}
}

// ofCPU says which CPU guests see.
func ofCPU(can fleet.Abilities) string {
	switch {
	case can.Model == "":
		return ""
	case can.Lacks != "":
		return fmt.Sprintf(", as %s, of which the processor lacks something: %s", can.Model, can.Lacks)
	}
	return ", as " + can.Model
}

// tryGuest asks the driver what it can do here now, as an agent would be told.
func tryGuest(ctx context.Context, f roles.Agent) (can fleet.Abilities, slow string, err error) {
	agent, err := roles.Beside(roles.GuestProgram)
	if err != nil {
		return can, "", err
	}
	err = inFolder(func(dir string) error {
		d, err := qemu.Open(ctx, qemu.Config{Run: dir, Shim: shim.Program(), GuestAgent: agent, Accelerator: fleet.AcceleratorOf(f.Accelerator), CPU: f.CPU, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			return err
		}
		can, slow = d.Abilities(), d.Slow()
		return d.Close()
	})
	return can, slow, err
}

// inFolder calls a function with a temporary folder.
func inFolder(try func(dir string) error) (err error) {
	if err := os.MkdirAll(roles.Run, 0o755); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(roles.Run, fmt.Sprintf("%s%d-", roles.ProbePrefix, os.Getpid()))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o755); err != nil { // QEMU is not root and reads its kernel there
		return err
	}
	return try(dir)
}

// tryContainers moves a tiny container from this machine to itself.
func tryContainers(ctx context.Context) []machine.Finding {
	f := machine.Finding{Name: "containers"}
	if os.Geteuid() != 0 {
		return untried(f.Name)
	}
	c, err := criu.Find(ctx)
	if err != nil {
		f.Detail, f.Fix = "containers cannot move: "+err.Error(), "pagurus doctor criu"
		if self, err := roles.Beside(roles.ClientProgram); err == nil {
			f.Fix = self + " doctor criu"
		}
		return []machine.Finding{f}
	}
	can, err := tryContainer(ctx, c)
	if err != nil {
		f.Detail = "containers cannot move: " + err.Error()
		return []machine.Finding{f}
	}
	f.OK, f.Detail = true, "CRIU "+can.Version+" moves containers"
	if !can.Written {
		f.Detail += ", which are suspended for the whole copy: Linux 6.7 and later can tell which pages were written meanwhile"
	}
	return []machine.Finding{f}
}

// tryContainer asks CRIU again for its abilities here.
func tryContainer(ctx context.Context, c criu.Criu) (can criu.Ability, err error) {
	err = inFolder(func(dir string) error { can, err = c.Probe(ctx, dir); return err })
	return can, err
}

func tryImages() machine.Finding {
	f := machine.Finding{Name: "images", Fix: "pagurus image build openmpi"}
	if self, err := roles.Beside(roles.ClientProgram); err == nil {
		f.Fix = self + " image build openmpi"
	}
	if _, err := os.Stat(roles.Images); err != nil {
		f.Detail = "none is built yet"
		return f
	}
	store, err := image.Open(roles.Images)
	if err != nil {
		f.OK, f.Detail = errors.Is(err, os.ErrPermission), "cannot be checked: "+err.Error()
		return f
	}
	list, err := store.List()
	if err != nil {
		f.Detail, f.Fix = err.Error(), ""
		return f
	}
	var names, missing []string
	for _, i := range list {
		if names = append(names, i.Name); !store.Has(i.Digest) {
			missing = append(missing, i.Name)
		}
	}
	f.OK, f.Detail = len(missing) == 0 && len(list) > 0, strings.Join(names, ", ")
	switch {
	case len(list) == 0:
		f.Detail = "none is built yet"
	case len(missing) > 0: // as after a restore
		f.Detail += "; the files are missing of " + strings.Join(missing, ", ")
		f.Fix = strings.TrimSuffix(f.Fix, "openmpi") + missing[0]
	}
	return f
}
