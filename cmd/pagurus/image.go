package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pagurus/act/image"
	"pagurus/act/libpagurus"
	"pagurus/cmd/roles"
	"pagurus/fleet"
	"pagurus/serve/wire"
	"pagurus/show/cli"
	"pagurus/show/view"
)

// imageNoun is the command for the images on this machine.
func imageNoun(std streams) cli.Noun {
	folder := roles.Images
	cmd := &cobra.Command{
		Use:     "image",
		Aliases: []string{"images"},
		Short:   "Build, list and remove the images that guests run",
		Example: `  sudo pagurus image build openmpi
  pagurus image ls`,
	}
	cmd.PersistentFlags().StringVar(&folder, "images", folder, "folder of the images")
	return cli.Noun{Title: "Images:", Command: cmd, Verbs: []func() *cobra.Command{
		func() *cobra.Command { return imageBuildCommand(std, &folder) },
		func() *cobra.Command { return imageListCommand(std, &folder) },
		func() *cobra.Command { return imageShowCommand(std, &folder) },
		func() *cobra.Command { return imageRemoveCommand(std, &folder) },
		func() *cobra.Command { return imageShellCommand(&folder) },
	}}
}

func imageBuildCommand(std streams, folder *string) *cobra.Command {
	var suite, user string
	var packages []string
	fresh := false
	cmd := &cobra.Command{
		Use:   "build NAME",
		Short: "Build an image, unless it exists",
		Long: "Build makes an image out of Debian packages. Predefined are: " + strings.Join(image.Predefined(), ", ") +
			".\nAny other name needs --packages or --like. The same packages give the same image." + `

An image counts for the user who called sudo, or for --user, within --images-per-user of
` + "`pagurus controller`" + `; what root builds is the cluster's, and counts within --images-in-all alone.`,
		Example: `  sudo pagurus image build openmpi
  sudo pagurus image build mine --packages openmpi-bin,libopenmpi-dev,gcc,libc6-dev,python3-mpi4py
  sudo pagurus image build openmpi-net --packages openmpi-bin,libopenmpi-dev,gcc,libc6-dev --kernel generic   # for run --device
  sudo pagurus image build openmpi-own --like openmpi --kernel ./vmlinux --kernel-words "nosmt=force"
  pagurus image build mine --packages mpich,gcc,libc6-dev --user ada   # as root`,
		Args:      cli.Exactly(1, "an image: one of "+strings.Join(image.Predefined(), ", ")+", or your own with --"+packagesFlag),
		ValidArgs: image.Predefined(),
		RunE: func(cmd *cobra.Command, args []string) error {
			recipe, err := imageRecipe(cmd, args[0], suite, packages)
			if err != nil {
				return err
			}
			recipe.Fresh, recipe.Reserve = fresh, roles.DiskReserve
			if recipe.UID, err = imageUser(user); err != nil {
				return err
			}
			recipe.Room = imageRoom(cmd)
			store, err := openImages(*folder)
			if err != nil {
				return err
			}
			ctx, stop := roles.Until(cmd.Context())
			defer stop()
			begun := time.Now()
			steps := roles.NewSteps(std.err)
			built, err := store.Build(ctx, recipe, steps.Show)
			steps.Clear()
			if ctx.Err() != nil && err != nil {
				return cli.Exit{Code: 130, Err: errors.New("the build was cancelled; nothing of it is left")}
			}
			if err != nil {
				return err
			}
			if err := prune(cmd, store); err != nil {
				std.say("the image is built, but the one it replaces could not be removed: " + err.Error())
			}
			return printed(cmd, std, built, fmt.Sprintf("image %s: %s, kernel %s, %s, in %s",
				built.Name, orNone(built.MPI+" "+built.Version), kernelOf(built), view.Bytes(built.Bytes), view.Took(time.Since(begun))))
		},
	}
	cmd.Flags().StringVar(&suite, "suite", "", "Debian suite (default: the recipe's, otherwise "+image.DefaultSuite+")")
	cmd.Flags().String(kernelFlag, image.DefaultKernel, "Debian's kernel: cloud, which starts soonest, or generic, which has drivers of more devices for run --device; or a file with a kernel of your own, which has built in what guests need (ELF with a PVH entry, or bzImage; also packed)")
	cmd.Flags().String(kernelWordsFlag, "", "words for the command line of a kernel of your own, besides Pagurus's")
	cmd.Flags().String(likeFlag, "", "a predefined image whose packages it has: "+strings.Join(image.Predefined(), ", "))
	cmd.Flags().StringSliceVar(&packages, packagesFlag, nil, "packages, instead of the recipe's")
	cmd.Flags().BoolVar(&fresh, "fresh", false, "build again even if an image of the same recipe exists")
	cmd.Flags().StringVar(&user, "user", "", "whom the image counts for: a user of this machine, or a uid (default: who called sudo; root: the cluster)")
	return cmd
}

// imageRecipe is what to build.
func imageRecipe(cmd *cobra.Command, name, suite string, packages []string) (image.Recipe, error) {
	kernel, _ := cmd.Flags().GetString(kernelFlag)
	words, _ := cmd.Flags().GetString(kernelWordsFlag)
	like, _ := cmd.Flags().GetString(likeFlag)
	recipe, err := image.RecipeFor(cmp.Or(like, name), suite, kernel, packages)
	if err != nil {
		return recipe, err
	}
	recipe.Name = name
	if image.IsKernelFile(kernel) {
		recipe.Own, err = image.ReadKernel(cmd.Context(), kernel, words)
	} else if words != "" {
		err = fmt.Errorf("--%s is for a kernel of your own: name its file with --%s", kernelWordsFlag, kernelFlag)
	}
	return recipe, err
}

// kernelOf names an image's kernel.
func kernelOf(i fleet.Image) string {
	if i.OwnKernel {
		return i.Kernel + " (own)"
	}
	return i.Kernel
}

func imageListCommand(std streams, folder *string) *cobra.Command {
	return &cobra.Command{
		Use:   "ls",
		Short: "List the images",
		Example: `  pagurus image ls
  pagurus image ls --json | jq -r '.[].name'`,
		Args: cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			store, err := openImages(*folder)
			if err != nil {
				return err
			}
			images, err := store.List()
			if err != nil {
				return err
			}
			t := view.Table{
				Columns: []string{"IMAGE", "SUITE", "MPI", "KERNEL", "SIZE", "BUILT", "DIGEST"},
				Empty:   "no images: build one with `pagurus image build openmpi`",
			}
			for _, i := range images {
				t.Rows = append(t.Rows, []string{i.Name, i.Suite, orNone(i.MPI + " " + i.Version), kernelOf(i), view.Bytes(i.Bytes),
					view.Ago(time.Now(), i.Built), short(i.Digest)})
			}
			if images == nil {
				images = []fleet.Image{}
			}
			return printed(cmd, std, images, strings.TrimSuffix(t.Text(), "\n"))
		},
	}
}

func imageShowCommand(std streams, folder *string) *cobra.Command {
	return &cobra.Command{
		Use:               "show NAME",
		Short:             "Show an image: what is in it, its digest and where it is",
		Example:           "  pagurus image show openmpi\n  pagurus image show openmpi --json | jq -r .digest",
		Args:              cli.Exactly(1, "one image: `pagurus image ls` lists them"),
		ValidArgsFunction: completeImages(folder, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := openImages(*folder)
			if err != nil {
				return err
			}
			i, err := store.Find(args[0])
			if err != nil {
				return err
			}
			of := "the cluster"
			if i.UID != 0 {
				of = fmt.Sprintf("uid %d", i.UID)
			}
			kernel := kernelOf(i)
			if i.KernelWords != "" {
				kernel += "\nwords:  " + i.KernelWords
			}
			return printed(cmd, std, i, fmt.Sprintf("image:  %s\nsuite:  %s\nMPI:    %s\nkernel: %s\nsize:   %s\nof:     %s\nbuilt:  %s\ndigest: %s\nfolder: %s",
				i.Name, i.Suite, orNone(i.MPI+" "+i.Version), kernel, view.Bytes(i.Bytes), of, i.Built.Local().Format(time.RFC1123), i.Digest, store.Folder(i.Digest)))
		},
	}
}

func imageRemoveCommand(std streams, folder *string) *cobra.Command {
	return &cobra.Command{
		Use:               "rm NAME…",
		Aliases:           []string{"remove"},
		Short:             "Remove images that no guest runs",
		Example:           "  sudo pagurus image rm lammps",
		Args:              cli.AtLeast(1, "an image: `pagurus image ls` lists them"),
		ValidArgsFunction: completeImages(folder, math.MaxInt),
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := openImages(*folder)
			if err != nil {
				return err
			}
			used, err := imagesInUse(cmd, store)
			if err != nil {
				return err
			}
			for _, name := range args {
				if err := store.Remove(name, used); err != nil {
					return err
				}
				std.say("removed image " + name)
			}
			return nil
		},
	}
}

// prune removes builds that newer ones have replaced and that are not used.
func prune(cmd *cobra.Command, store *image.Store) error {
	used, err := imagesInUse(cmd, store)
	if err != nil {
		return err
	}
	return store.Prune(used)
}

// imagesInUse asks this machine's controller which images its jobs need, and checks which
// ones guests have open: those run on without a controller.
func imagesInUse(cmd *cobra.Command, store *image.Store) (func(fleet.Digest) bool, error) {
	needed := map[fleet.Digest]bool{}
	used := func(d fleet.Digest) bool { return needed[d] || store.Opened(d) }
	at, err := cli.Controller(cmd.Flags(), wire.UserCredentials())
	if err != nil {
		return nil, err
	}
	client, err := wire.Dial(at)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ctx, stop := context.WithTimeout(cmd.Context(), 5*time.Second)
	defer stop()
	s, err := client.Snapshot(ctx)
	if errors.Is(err, wire.ErrNoController) {
		return used, nil
	}
	if err != nil {
		return nil, fmt.Errorf("asking the controller which images are in use: %w", err)
	}
	for _, j := range s.Jobs {
		if j.State != fleet.JobEnded {
			needed[j.Digest] = true
		}
	}
	for _, g := range s.Guests {
		if g.State != fleet.GuestEnded {
			needed[g.Image] = true
		}
	}
	return used, nil
}

func imageShellCommand(folder *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "shell NAME [-- COMMAND [ARGUMENT…]]",
		Short: "Run a shell or a command inside an image, to compile programs for guests",
		Long: `Shell runs a shell inside the image on this machine. The current directory is there
at the same path, and libpagurus, as in guests. What you write elsewhere is deleted afterwards. With sudo you are
the user who called sudo.`,
		Example: `  sudo pagurus image shell openmpi
  sudo pagurus image shell openmpi -- mpicc -O2 -o a.out main.c`,
		Args:              cli.AtLeast(1, "an image: `pagurus image ls` lists them"),
		ValidArgsFunction: completeImages(folder, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := openImages(*folder)
			if err != nil {
				return err
			}
			dir, err := os.Getwd()
			if err != nil {
				return fmt.Errorf("finding the current directory: %w", err)
			}
			who := session()
			who.Dir, who.Args = dir, afterDash(args[1:])
			if who.Over, err = os.MkdirTemp("", "pagurus-shell."); err != nil {
				return err
			}
			defer os.RemoveAll(who.Over)
			if err := libpagurus.Place(who.Over); err != nil {
				return fmt.Errorf("having libpagurus in the image: %w", err)
			}
			code, err := store.Shell(cmd.Context(), args[0], who)
			if err == nil && code != 0 {
				return cli.Exit{Code: code}
			}
			return err
		},
	}
	cmd.Flags().SetInterspersed(false)
	return cmd
}

// completeImages completes at most so many images of this machine.
func completeImages(folder *string, most int) func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return func(_ *cobra.Command, args []string, _ string) (words []string, _ cobra.ShellCompDirective) {
		if len(args) >= most {
			return nil, cobra.ShellCompDirectiveDefault
		}
		store, err := openImages(*folder)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		images, _ := store.List()
		for _, i := range images {
			if !slices.Contains(args, i.Name) {
				words = append(words, i.Name+"\t"+orNone(i.MPI+" "+i.Version))
			}
		}
		return words, cobra.ShellCompDirectiveNoFileComp
	}
}

// session is the calling user; with sudo, the user who called it.
func session() image.Session {
	who := image.Session{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
	if groups, err := os.Getgroups(); err == nil {
		for _, g := range groups {
			who.Groups = append(who.Groups, uint32(g))
		}
	}
	uid, err1 := strconv.ParseUint(os.Getenv("SUDO_UID"), 10, 32)
	gid, err2 := strconv.ParseUint(os.Getenv("SUDO_GID"), 10, 32)
	if os.Getuid() == 0 && err1 == nil && err2 == nil {
		who = image.Session{UID: uint32(uid), GID: uint32(gid)}
	}
	return who
}

func openImages(folder string) (*image.Store, error) {
	store, err := image.Open(folder)
	if errors.Is(err, os.ErrPermission) {
		return nil, fmt.Errorf("%w: images belong to root: try again with sudo", err)
	}
	return store, err
}

// printed writes a value as JSON if requested, otherwise as text.
func printed(cmd *cobra.Command, std streams, v any, text string) error {
	if asJSON, _ := cmd.Flags().GetBool("json"); asJSON {
		return json.NewEncoder(std.out).Encode(v)
	}
	_, err := fmt.Fprintln(std.out, text)
	return err
}

func orNone(s string) string {
	if s = strings.TrimSpace(s); s == "" {
		return "no MPI"
	}
	return s
}

func short(d fleet.Digest) string { return string(d[:min(len(d), len("sha256-")+12)]) }
