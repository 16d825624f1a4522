package cli

import (
	"context"
	"fmt"
	"os/user"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"pagurus/fleet"
	"pagurus/show/view"
)

// memberNouns are those who belong to the cluster, and how they come to.
func (a *app) memberNouns() []Noun {
	return []Noun{
		{
			Title: "Members:",
			Command: &cobra.Command{
				Use: "token", Aliases: []string{"tokens"}, Short: "Create, list and remove join tokens",
				Example: "  pagurus token create --role host --uses 20 --ttl 24h\n  pagurus token ls\n  pagurus token rm 3f9c0a61d2",
			},
			Verbs: verbs(a.ls("join tokens", listing{view.Cluster.TokenTable, func(c view.Cluster) any { return c.Tokens }}, ""), a.createTokenCommand, a.removeTokenCommand),
			Short: verbs(a.joinCommand, a.loginCommand, a.logoutCommand, a.whoamiCommand),
		},
		{
			Title: "Members:",
			Command: &cobra.Command{
				Use: "user", Aliases: []string{"users"}, Short: "Add, list, change and remove users",
				Example: "  pagurus user add ada\n  pagurus user role ada admin\n  pagurus user add grace --uid 1007 --owns office3\n  pagurus user rm grace",
			},
			Verbs: verbs(a.ls("users", listing{view.Cluster.UserTable, func(c view.Cluster) any { return c.Users }}, ""), a.addUserCommand, a.userRoleCommand, a.removeUserCommand),
		},
	}
}

func (a *app) createTokenCommand() *cobra.Command {
	t := fleet.JoinToken{}
	ttl, role := 24*time.Hour, string(fleet.HostRole)
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Create a join token and print it",
		Long: `Create prints a token. It is shown only now: the controller keeps no copy. Whoever has it
may join, as often as --uses says and until --ttl is over: machines with ` + "`pagurus join`" + `,
a user with ` + "`pagurus login`" + `.`,
		Example: "  pagurus token create --role host --uses 20 --site room2\n  pagurus token create --role user --user ada",
		Args:    NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			now := time.Now()
			t.Role, t.Expires = fleet.Role(role), now.Add(ttl)
			if reason := t.Refused(now); reason != "" {
				return usage(cmd, reason)
			}
			return a.createToken(cmd.Context(), t)
		},
	}
	f := cmd.Flags()
	f.StringVar(&role, "role", role, "host, user or admin")
	f.StringVar((*string)(&t.User), "user", "", "whose login it is; for the roles user and admin")
	f.IntVar(&t.Uses, "uses", 1, "how many times it may be used")
	Duration(f, &ttl, "ttl", "how long it is valid")
	f.StringVar(&t.Site, fleet.SiteFlag, "", "site of the hosts that join by it")
	f.BoolVar(&t.SameID, "same-machine", false, "let several hosts of one machine join by it; for labs")
	OneOf(cmd, "role", string(fleet.HostRole), string(fleet.UserRole), string(fleet.AdminRole))
	_ = cmd.RegisterFlagCompletionFunc("user", a.completeUsers)
	_ = cmd.RegisterFlagCompletionFunc(fleet.SiteFlag, a.completeSites)
	return cmd
}

func (a *app) createToken(ctx context.Context, t fleet.JoinToken) error {
	answer, err := a.ask(ctx, fleet.Request{Verb: fleet.AddToken, Token: &t})
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(struct {
			Token   string    `json:"token"`
			Expires time.Time `json:"expires"`
		}{answer.Token, t.Expires})
	}
	_, err = fmt.Fprintln(a.Out, answer.Token)
	return err
}

func (a *app) removeTokenCommand() *cobra.Command {
	return &cobra.Command{
		Use: "rm TOKEN", Aliases: []string{"remove"}, Short: "Remove a join token; members that joined by it stay",
		Example:           "  pagurus token rm 3f9c0a61d2",
		Args:              Exactly(1, "one token by its ID: `pagurus token ls` lists them"),
		ValidArgsFunction: a.completeTokens,
		RunE: func(cmd *cobra.Command, args []string) error {
			_, err := a.ask(cmd.Context(), fleet.Request{Verb: fleet.DropToken, Token: &fleet.JoinToken{ID: fleet.TokenID(args[0])}})
			return err
		},
	}
}

func (a *app) addUserCommand() *cobra.Command {
	uid, gid := -1, -1
	admin := false
	var owns []string
	cmd := &cobra.Command{
		Use:   "add NAME",
		Short: "Add a user, or change one",
		Long: `Add makes a user known to the cluster. The user's jobs run as one uid and gid on all
hosts: those that NAME has on this machine, or those given. A user whose uid is root's needs
--uid. A token for the user's login: ` + "`pagurus token create --role user --user NAME`" + `.`,
		Example: "  pagurus user add ada\n  pagurus user add grace --uid 1007 --gid 100 --owns office3",
		Args:    Exactly(1, "one user, as in `pagurus user add ada`"),
		RunE: func(cmd *cobra.Command, args []string) error {
			u, err := account(args[0], uid, gid)
			if err != nil {
				return err
			}
			u.Role = fleet.UserRole
			if admin {
				u.Role = fleet.AdminRole
			}
			for _, host := range owns {
				u.Owns = append(u.Owns, fleet.HostID(host))
			}
			if reason := u.Refused(); reason != "" {
				return usage(cmd, reason)
			}
			_, err = a.ask(cmd.Context(), fleet.Request{Verb: fleet.SetUser, User: &u})
			return err
		},
	}
	f := cmd.Flags()
	f.IntVar(&uid, "uid", -1, "uid of the user's jobs on all hosts (default: that of NAME on this machine)")
	f.IntVar(&gid, "gid", -1, "gid of the user's jobs on all hosts (default: that of NAME on this machine)")
	f.BoolVar(&admin, "admin", false, "the user may act on everything")
	f.StringSliceVar(&owns, "owns", nil, "hosts that belong to the user, who may claim them and set their policy")
	_ = cmd.RegisterFlagCompletionFunc("owns", a.completeHosts)
	return cmd
}

// account is what this machine and the flags say of a user. -1 is what was not given.
func account(name string, uid, gid int) (fleet.User, error) {
	u := fleet.User{ID: fleet.UserID(name)}
	if uid < 0 || gid < 0 {
		here, err := user.Lookup(name)
		if err != nil {
			return u, fmt.Errorf("this machine has no account %s: give --uid and --gid", name)
		}
		id, err1 := strconv.ParseUint(here.Uid, 10, 32)
		group, err2 := strconv.ParseUint(here.Gid, 10, 32)
		if err1 != nil || err2 != nil || id == 0 && uid < 0 {
			return u, fmt.Errorf("the jobs of %s would run as root: give --uid and --gid if that is wanted", name)
		}
		u.UID, u.GID = uint32(id), uint32(group)
		groups, _ := here.GroupIds()
		for _, g := range groups {
			if n, err := strconv.ParseUint(g, 10, 32); err == nil && uint32(n) != u.GID {
				u.Groups = append(u.Groups, uint32(n))
			}
		}
	}
	if uid >= 0 {
		u.UID = uint32(uid)
	}
	if gid >= 0 {
		u.GID = uint32(gid)
	}
	return u, nil
}

// known gives a user as the cluster has them.
func (a *app) known(ctx context.Context, name string) (fleet.User, error) {
	c, err := a.read(ctx)
	if err != nil {
		return fleet.User{}, err
	}
	i := slices.IndexFunc(c.Users, func(u fleet.User) bool { return u.ID == fleet.UserID(name) })
	if i < 0 {
		return fleet.User{}, fmt.Errorf("there is no user %s; `pagurus user ls` lists them", view.Clean(name))
	}
	return c.Users[i], nil
}

func (a *app) userRoleCommand() *cobra.Command {
	return &cobra.Command{
		Use: "role NAME user|admin", Short: "Change what a user may do",
		Example: "  pagurus user role ada admin",
		Args: func(cmd *cobra.Command, args []string) error {
			if err := Exactly(2, "a user and a role, as in `pagurus user role ada admin`")(cmd, args); err != nil {
				return err
			}
			if reason := (fleet.User{ID: fleet.UserID(args[0]), Role: fleet.Role(args[1])}).Refused(); reason != "" {
				return usage(cmd, reason)
			}
			return nil
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return []string{string(fleet.UserRole), string(fleet.AdminRole)}, cobra.ShellCompDirectiveNoFileComp
			}
			return a.completeUsers(cmd, args, typed)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			u, err := a.known(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			u.Role = fleet.Role(args[1])
			_, err = a.ask(cmd.Context(), fleet.Request{Verb: fleet.SetUser, User: &u})
			return err
		},
	}
}

func (a *app) removeUserCommand() *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME", Aliases: []string{"remove"}, Short: "Remove a user with all logins; the user's jobs go on",
		Example:           "  pagurus user rm grace",
		Args:              Exactly(1, "one user: `pagurus user ls` lists them"),
		ValidArgsFunction: a.completeUsers,
		RunE: func(cmd *cobra.Command, args []string) error {
			answer, err := a.ask(cmd.Context(), fleet.Request{Verb: fleet.DropUser, User: &fleet.User{ID: fleet.UserID(args[0])}})
			if err == nil {
				a.notes(answer)
			}
			return err
		},
	}
}
