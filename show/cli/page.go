package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pagurus/fleet"
	"pagurus/serve/wire"
	"pagurus/show/view"
)

// pageToken is how long a token for the page counts, if nobody says otherwise: for a day's work.
const pageToken = 12 * time.Hour

// pageCommand says where the controller's page is, and makes a token to log in there.
func (a *app) pageCommand() *cobra.Command {
	t := fleet.JoinToken{Access: true}
	ttl, role, show, bare := pageToken, string(fleet.UserRole), false, false
	cmd := &cobra.Command{
		Use:   "page",
		Short: "Say where the controller's page is, and make a token to log in there",
		Long: `Page prints the addresses at which a browser finds the controller's page, and a token, which the page
asks for. It acts as you, as a user; an administrator who drains hosts there adds --role admin.
It counts until --ttl is over, or ` + "`pagurus token rm`" + ` ends it. Keep it to yourself.`,
		Example: "  pagurus page\n  pagurus page --role admin --open\n  sudo pagurus page --user ada --role admin     # root is no user of the cluster",
		Args:    NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			now := time.Now()
			t.Role, t.Expires = fleet.Role(role), now.Add(ttl)
			c, err := a.dial()
			if err != nil {
				return err
			}
			me, err := c.WhoAmI(cmd.Context())
			if err != nil {
				return err
			}
			p, err := a.findPage(me)
			if err != nil {
				return err
			}
			if !bare {
				if t.User = cmp.Or(t.User, me.User); t.User == "" {
					return a.notAUser(cmd, me.Caller)
				}
				if reason := t.Refused(now); reason != "" {
					return usage(cmd, reason)
				}
				answer, err := a.ask(cmd.Context(), fleet.Request{Verb: fleet.AddToken, Token: &t})
				if err != nil {
					return err
				}
				p.Token, p.Expires = answer.Token, t.Expires
			}
			if err := a.sayPage(p, t, me); err != nil || !show {
				return err
			}
			return openBrowser(cmd.Context(), p.Addresses[0])
		},
	}
	f := cmd.Flags()
	f.StringVar((*string)(&t.User), "user", "", "as whom the page acts (default: you)")
	f.StringVar(&role, "role", role, "what it may do: as a user, or as an administrator: user or admin")
	Duration(f, &ttl, "ttl", "how long the token is valid")
	f.BoolVar(&bare, "no-token", false, "only say where the page is")
	f.BoolVar(&show, "open", false, "open it in your browser, by xdg-open")
	OneOf(cmd, "role", string(fleet.UserRole), string(fleet.AdminRole))
	_ = cmd.RegisterFlagCompletionFunc("user", a.completeUsers)
	return cmd
}

// found is where the page is, and by what one logs in.
type found struct {
	Addresses []string  `json:"addresses"`
	Token     string    `json:"token,omitempty"`
	Expires   time.Time `json:"expires,omitzero"`
}

// findPage asks the controller, and names its machine as this account does.
func (a *app) findPage(me wire.Who) (found, error) {
	if len(me.Pages) == 0 {
		return found{}, errors.New("the controller has no page: it listens for nobody but this machine's programs, or it is older than this program; `[controller] http = \"127.0.0.1:7480\"` in its /etc/pagurus/config.toml, and a restart, give it one")
	}
	at, err := Controller(a.flags, wire.UserCredentials())
	if err != nil {
		return found{}, err
	}
	machine, _, err := net.SplitHostPort(at.Address)
	if err != nil || strings.HasPrefix(at.Address, "unix:") {
		machine = ""
	}
	var p found
	for _, address := range me.Pages {
		u, err := url.Parse(address)
		if err != nil {
			return found{}, fmt.Errorf("the controller says that its page is at %q: %w", address, err)
		}
		if u.Hostname() == "localhost" && machine != "" {
			u.Host = net.JoinHostPort(machine, u.Port())
		}
		p.Addresses = append(p.Addresses, u.String())
	}
	return p, nil
}

// sayPage prints it, with what a browser will say.
func (a *app) sayPage(p found, t fleet.JoinToken, me wire.Who) error {
	if a.json {
		return a.printJSON(p)
	}
	var out strings.Builder
	for _, address := range p.Addresses {
		fmt.Fprintf(&out, "%s%s\n", view.Clean(address), aboutAddress(address))
	}
	if p.Token != "" {
		id, _, _ := strings.Cut(p.Token, ".")
		as := string(t.User)
		if t.Role == fleet.AdminRole {
			as += ", an administrator,"
		}
		fmt.Fprintf(&out, "Log in with this token, which acts as %s until %s; `pagurus token rm %s` ends it:\n%s\n", as, p.Expires.Local().Format("15:04 on 2 January"), id, p.Token)
		if me.Admin && t.Role != fleet.AdminRole {
			out.WriteString("With --role admin the page may also drain hosts, and act on everybody's jobs.\n")
		}
	}
	_, err := fmt.Fprint(a.Out, out.String())
	return err
}

// aboutAddress says what a person needs to know before they open an address.
func aboutAddress(address string) string {
	u, err := url.Parse(address)
	switch {
	case err != nil:
		return ""
	case u.Scheme == "https":
		return "    (the browser does not know the cluster's certificate, and asks whether you trust it)"
	}
	return fmt.Sprintf("    (on the controller's machine; elsewhere after `ssh -L %s:%s HEAD`)", u.Port(), u.Host)
}

// notAUser says to whom the cluster knows no user what to type, so that somebody can act in a browser or a program.
func (a *app) notAUser(cmd *cobra.Command, me fleet.Caller) error {
	if !me.Admin {
		return usage(cmd, fmt.Sprintf("the cluster has no user for uid %d, as whom programs and the page could act: an administrator adds one with `pagurus user add NAME --uid %d`", me.UID, me.UID))
	}
	users := a.usersNames(cmd.Context())
	if len(users) > 0 {
		return usage(cmd, fmt.Sprintf("root is no user of the cluster, as whom programs and the page could act: name one, as in `%s --user %s --role admin`; users are %s", cmd.CommandPath(), users[0], view.List(users)))
	}
	name, account := os.Getenv("SUDO_USER"), ""
	if name == "" || name == "root" {
		name, account = "ada", " --uid 1000 --gid 1000"
	}
	return usage(cmd, fmt.Sprintf("root is no user of the cluster, as whom programs and the page could act, and it has no user yet: `pagurus user add %s --admin%s` adds one, then `%s --user %s --role admin` acts as that", name, account, cmd.CommandPath(), name))
}

// usersNames are the cluster's users, administrators first; none if that cannot be found out.
func (a *app) usersNames(ctx context.Context) (names []fleet.UserID) {
	c, err := a.read(ctx)
	if err != nil {
		return nil
	}
	for _, admins := range []bool{true, false} {
		for _, u := range c.Users {
			if (u.Role == fleet.AdminRole) == admins {
				names = append(names, u.ID)
			}
		}
	}
	return names
}
