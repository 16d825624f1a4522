// This file tells the owner of a machine on their desktop when guests came and went. It runs as the owner, in their session:
// the agent needs no way to anybody's desktop.

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"html"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/spf13/cobra"

	"pagurus/fleet"
	"pagurus/serve/wire"
	"pagurus/show/view"
)

// notifyEvery is how often the agent is asked, which costs it next to nothing.
const notifyEvery = 2 * time.Second

// The names on the owner's bus.
const (
	notifications = "org.freedesktop.Notifications"
	notifyPath    = dbus.ObjectPath("/org/freedesktop/Notifications")
	notifyName    = "org.pagurus.OwnerNotify" // owned by the one that notifies
)

// ownerNotifyCommand has desktop notifications begin and end.
func (a *app) ownerNotifyCommand(socket *string) *cobra.Command {
	cmd := &cobra.Command{
		Use: "notify on|off|run", Short: "Have your desktop tell when guests come and go",
		Long: `Notify has your desktop tell when guests come to this machine and when they leave. It is off unless you switch
it on, and for you alone: on makes an entry in ~/.config/autostart, which begins it with your session.`,
		Example: "  pagurus owner notify on\n  pagurus owner notify run &     # at once, until you log out\n  pagurus owner notify off",
		Args:    OnlyVerbs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		&cobra.Command{Use: "on", Short: "Tell from the next login on", Example: "  pagurus owner notify on", Args: NoArguments,
			RunE: func(cmd *cobra.Command, _ []string) error { return a.notifyOn(cmd.Context(), *socket) }},
		&cobra.Command{Use: "off", Short: "Tell no more", Example: "  pagurus owner notify off", Args: NoArguments,
			RunE: func(*cobra.Command, []string) error { return a.notifyOff() }},
		&cobra.Command{Use: "run", Short: "Tell now, until the session ends", Example: "  pagurus owner notify run &", Args: NoArguments,
			RunE: func(cmd *cobra.Command, _ []string) error { return a.notifyRun(cmd.Context(), *socket) }},
	)
	return cmd
}

// autostart is the entry that begins notifications with the user's session.
func autostart() (string, error) {
	folder, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("looking for your settings: %w", err)
	}
	return filepath.Join(folder, "autostart", "pagurus-owner-notify.desktop"), nil
}

// entryQuote writes a word of a desktop entry's command line.
var entryQuote = strings.NewReplacer(`\`, `\\\\`, `"`, `\\"`, "`", "\\\\`", `$`, `\\$`, `%`, `%%`)

// notifyOn makes the entry. Who may not ask the agent is told so now, and not by silence later.
func (a *app) notifyOn(ctx context.Context, socket string) error {
	if _, err := wire.AskAgent(ctx, socket, fleet.OwnerAsk{Verb: fleet.OwnerStatus}); err != nil {
		return err
	}
	path, err := autostart()
	if err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("looking for this program: %w", err)
	}
	if strings.ContainsAny(program+socket, "\n\r") {
		return errors.New("a path with a line break cannot be in an entry of ~/.config/autostart")
	}
	text := fmt.Sprintf("[Desktop Entry]\nType=Application\nName=Pagurus: guests on this machine\nNoDisplay=true\nExec=\"%s\" owner notify run --owner-socket \"%s\"\n",
		entryQuote.Replace(program), entryQuote.Replace(socket))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("switching notifications on: %w", err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		return fmt.Errorf("switching notifications on: %w", err)
	}
	_, err = fmt.Fprintln(a.Out, "Your desktop tells when guests come and go, from your next login on; `pagurus owner notify run &` begins at once.")
	return err
}

// notifyOff removes the entry. A notifier that has seen it sees that, and ends.
func (a *app) notifyOff() error {
	path, err := autostart()
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("switching notifications off: %w", err)
	}
	_, err = fmt.Fprintln(a.Out, "Your desktop tells no more of guests. A `pagurus owner notify run` that was begun without `on` goes on until you end it.")
	return err
}

// notifyRun tells until the session, or the entry that began it, is gone. What began with the session waits for an agent that is
// away, and for a desktop that does not answer; what a person began says so.
func (a *app) notifyRun(ctx context.Context, socket string) error {
	entry, err := autostart()
	if err != nil {
		return err
	}
	_, none := os.Stat(entry)
	entered := none == nil
	last, err := wire.AskAgent(ctx, socket, fleet.OwnerAsk{Verb: fleet.OwnerStatus})
	if err != nil && !entered {
		return err
	}
	bus, err := ownersBus(ctx)
	if err != nil {
		return err
	}
	defer bus.Close()
	shown := uint32(0)
	tick := time.NewTicker(notifyEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-bus.Context().Done():
			return nil // logged out
		case <-tick.C:
		}
		if _, err := os.Stat(entry); err == nil {
			entered = true
		} else if entered && errors.Is(err, fs.ErrNotExist) {
			return nil // switched off
		}
		now, err := wire.AskAgent(ctx, socket, fleet.OwnerAsk{Verb: fleet.OwnerStatus})
		if err != nil || now.Owner == nil { // it is away, or has only just begun to look
			continue
		}
		says := view.OwnerNews(last, now)
		last = now
		if says == "" {
			continue
		}
		if shown, err = notify(ctx, bus, shown, says); err != nil && !entered {
			return err
		}
	}
}

// ownersBus connects with the bus of the user's session. Of two notifiers the second is refused.
func ownersBus(ctx context.Context) (*dbus.Conn, error) {
	address := cmp.Or(os.Getenv("DBUS_SESSION_BUS_ADDRESS"), fmt.Sprintf("unix:path=/run/user/%d/bus", os.Getuid()))
	bus, err := dbus.Connect(address, dbus.WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("your session has no bus at %s, so no desktop that could tell: run it in a terminal of your desktop: %w", address, err)
	}
	switch got, err := bus.RequestName(notifyName, dbus.NameFlagDoNotQueue); {
	case err != nil:
		bus.Close()
		return nil, fmt.Errorf("asking the session's bus: %w", err)
	case got != dbus.RequestNameReplyPrimaryOwner:
		bus.Close()
		return nil, errors.New("your session has a notifier already; `pagurus owner notify off` ends one that began with the session")
	}
	return bus, nil
}

// notify shows a text in place of the one before, and gives its number.
func notify(ctx context.Context, bus *dbus.Conn, replaces uint32, says string) (shown uint32, err error) {
	ctx, stop := context.WithTimeout(ctx, 5*time.Second)
	defer stop()
	const usualTime = int32(-1) // how long it stays is the desktop's choice
	call := bus.Object(notifications, notifyPath).CallWithContext(ctx, notifications+".Notify", 0,
		"Pagurus", replaces, "", "Pagurus", html.EscapeString(view.Clean(says)), []string{}, map[string]dbus.Variant{}, usualTime)
	if err := call.Store(&shown); err != nil {
		return 0, fmt.Errorf("showing a notification: %w", err)
	}
	return shown, nil
}
