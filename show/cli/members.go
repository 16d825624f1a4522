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
	"pagurus/show/api"
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
	ttl, role, access := 24*time.Hour, string(fleet.HostRole), false
	cmd := &cobra.Command{
		Use:   "create",
		Short: api.Summary("createToken"),
		Long: `Create prints a token. It is shown only now: the controller keeps no copy. Whoever has it
may join, as often as --uses says and until --ttl is over: machines with ` + "`pagurus join`" + `,
a user with ` + "`pagurus login`" + `.

With --access nobody joins by it: a program that asks the controller by HTTP sends it, in the
header Authorization: Bearer TOKEN, and may do what its user may, until --ttl is over or
` + "`pagurus token rm`" + `. Users make such tokens for themselves. One of an administrator acts as a
user, unless --role admin is given.`,
		Example: "  pagurus token create --role host --uses 20 --site room2\n  pagurus token create --role user --user ada\n  pagurus token create --access --ttl 30d > ~/.pagurus-token",
		Args:    NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			now := time.Now()
			t.Role, t.Expires = fleet.Role(role), now.Add(ttl)
			if access {
				if err := a.forPrograms(cmd, &t); err != nil {
					return err
				}
			}
			if reason := t.Refused(now); reason != "" {
				return usage(cmd, reason)
			}
			return a.createToken(cmd.Context(), t)
		},
	}
	f := cmd.Flags()
	f.StringVar(&role, "role", role, "host, user, admin or controller")
	f.StringVar((*string)(&t.User), "user", "", "whose login it is; for the roles user and admin")
	f.IntVar(&t.Uses, "uses", 1, "how many times it may be used")
	NoLess(f, "uses", 1)
	Duration(f, &ttl, "ttl", "how long it is valid")
	f.BoolVar(&access, "access", false, "it is for programs that ask the controller by HTTP as a user: --user, or you")
	f.StringVar(&t.Site, fleet.SiteFlag, "", "site of the hosts that join by it")
	f.BoolVar(&t.SameID, "same-machine", false, "let several hosts of one machine join by it; for labs")
	OneOf(cmd, "role", string(fleet.HostRole), string(fleet.UserRole), string(fleet.AdminRole), string(fleet.ControllerRole))
	_ = cmd.RegisterFlagCompletionFunc("user", a.completeUsers)
	_ = cmd.RegisterFlagCompletionFunc(fleet.SiteFlag, a.completeSites)
	return cmd
}

// forPrograms completes a token for programs: it is the caller's, and a user's, unless told otherwise.
func (a *app) forPrograms(cmd *cobra.Command, t *fleet.JoinToken) error {
	t.Access = true
	if !cmd.Flags().Changed("role") {
		t.Role = fleet.UserRole
	}
	if !cmd.Flags().Changed("uses") {
		t.Uses = 0
	}
	if t.User != "" {
		return nil
	}
	c, err := a.dial()
	if err != nil {
		return err
	}
	me, err := c.WhoAmI(cmd.Context())
	if err == nil && me.User == "" {
		err = a.notAUser(cmd, me.Caller)
	}
	t.User = me.User
	return err
}

func (a *app) createToken(ctx context.Context, t fleet.JoinToken) error {
	answer, err := a.ask(ctx, fleet.Request{Verb: fleet.AddToken, Token: &t})
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(api.Token{Token: answer.Token, Expires: t.Expires})
	}
	_, err = fmt.Fprintln(a.Out, answer.Token)
	return err
}

func (a *app) removeTokenCommand() *cobra.Command {
	return &cobra.Command{
		Use: "rm TOKEN", Aliases: []string{"remove"}, Short: api.Summary("removeToken"),
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
	var uid, gid numbered
	admin := false
	var owns []string
	cmd := &cobra.Command{
		Use:   "add NAME",
		Short: api.Summary("setUser"),
		Long: `Add makes a user known to the cluster. The user's jobs run as one uid and gid on all
hosts: those that NAME has on this machine, or those given. They are never root's, 0, unless
--uid 0 or --gid 0 says so. A token for the user's login: ` + "`pagurus token create --role user --user NAME`" + `.`,
		Example: "  pagurus user add ada\n  pagurus user add grace --uid 1007 --gid 100 --owns office3",
		Args:    Exactly(1, "one user, as in `pagurus user add ada`"),
		RunE: func(cmd *cobra.Command, args []string) error {
			u, dropped, err := account(args[0], uid.is, gid.is)
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
			answer, err := a.ask(cmd.Context(), fleet.Request{Verb: fleet.SetUser, User: &u})
			if err != nil {
				return err
			}
			if dropped {
				answer.Notes = append(answer.Notes, fmt.Sprintf("%s is in root's group on this machine; jobs of %s are not", u.ID, u.ID))
			}
			a.notes(answer)
			return nil
		},
	}
	f := cmd.Flags()
	f.Var(&uid, "uid", "uid of the user's jobs on all hosts (default: that of NAME on this machine)")
	f.Var(&gid, "gid", "gid of the user's jobs on all hosts (default: that of NAME on this machine)")
	f.BoolVar(&admin, "admin", false, "the user may act on everything")
	f.StringSliceVar(&owns, "owns", nil, "hosts that belong to the user, who may claim them and set their policy")
	_ = cmd.RegisterFlagCompletionFunc("owns", a.completeHosts)
	return cmd
}

// account is what this machine and the flags say of a user; nil is what was not given. dropped
// reports that the account is in root's group and the user is not.
func account(name string, uid, gid *uint32) (u fleet.User, dropped bool, err error) {
	if uid != nil && gid != nil {
		return fleet.User{ID: fleet.UserID(name), UID: *uid, GID: *gid}, false, nil
	}
	here, err := user.Lookup(name)
	if err != nil {
		return u, false, fmt.Errorf("this machine has no account %s: give --uid and --gid", name)
	}
	groups, _ := here.GroupIds()
	if u, err = mapped(*here, uid, gid); err == nil {
		u.ID = fleet.UserID(name)
		u.Groups, dropped = others(groups, u.GID)
	}
	return u, dropped, err
}

// mapped is the one uid and gid of an account's user. Root's are those of nobody to whom they were
// not given.
func mapped(here user.User, uid, gid *uint32) (u fleet.User, err error) {
	id, err1 := strconv.ParseUint(here.Uid, 10, 32)
	group, err2 := strconv.ParseUint(here.Gid, 10, 32)
	switch {
	case err1 != nil || err2 != nil:
		return u, fmt.Errorf("this machine's account %s has uid %q and gid %q, which are not numbers: give --uid and --gid", here.Username, here.Uid, here.Gid)
	case uid == nil && id == 0:
		return u, fmt.Errorf("the jobs of %s would run as root: give --uid and --gid, and --uid 0 if that is wanted", here.Username)
	case gid == nil && group == 0:
		return u, fmt.Errorf("the jobs of %s would run in root's group, which is that of this machine's account: give --gid, and --gid 0 if that is wanted", here.Username)
	}
	u.UID, u.GID = uint32(id), uint32(group)
	if uid != nil {
		u.UID = *uid
	}
	if gid != nil {
		u.GID = *gid
	}
	return u, nil
}

// others are an account's groups beside its own, without root's.
func others(groups []string, own uint32) (out []uint32, dropped bool) {
	for _, g := range groups {
		switch n, err := strconv.ParseUint(g, 10, 32); {
		case err != nil || uint32(n) == own:
		case n == 0:
			dropped = true
		default:
			out = append(out, uint32(n))
		}
	}
	return out, dropped
}

// numbered is an account's or a group's number that a flag may give.
type numbered struct{ is *uint32 }

func (n *numbered) Type() string { return "number" }

func (n *numbered) String() string {
	if n.is == nil {
		return ""
	}
	return strconv.FormatUint(uint64(*n.is), 10)
}

func (n *numbered) Set(s string) error {
	number, err := strconv.ParseUint(s, 10, 32)
	if err != nil || number == uint64(fleet.NoID) {
		return fmt.Errorf("%q is not the number of an account or a group: write one from 0 to %d", s, fleet.NoID-1)
	}
	is := uint32(number)
	n.is = &is
	return nil
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
		Use: "rm NAME", Aliases: []string{"remove"}, Short: api.Summary("removeUser"),
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
