package owner

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

// logind asks systemd-logind, or elogind, for sessions. It asks again only after a change
// is signalled, and at intervals.
type logind struct {
	conn    *dbus.Conn
	changed chan *dbus.Signal
	people  []session
	asked   time.Time
	retry   time.Time // after a failure, not before this
	failed  error
}

// session is one person's login.
type session struct {
	tty       string    // its terminal, whose time is more precise; empty: none
	idleSince time.Time // this process's clock; zero: in use
}

const (
	askAgain   = 30 * time.Second // signals may be lost
	retryAfter = time.Minute
	busLimit   = 200 * time.Millisecond // it usually answers in one
	login      = "org.freedesktop.login1"
	loginPath  = dbus.ObjectPath("/org/freedesktop/login1")
	properties = "org.freedesktop.DBus.Properties"
)

// sessions returns the present sessions of persons.
func (l *logind) sessions(ctx context.Context, now time.Time) ([]session, error) {
	if l.failed != nil && now.Before(l.retry) {
		return nil, l.failed
	}
	if l.conn != nil && !l.news() && now.Sub(l.asked) < askAgain {
		return l.people, nil
	}
	ctx, cancel := context.WithTimeout(ctx, busLimit)
	defer cancel()
	people, err := l.ask(ctx, now)
	if err != nil {
		l.failed, l.retry = fmt.Errorf("%w: %w", errNoLogind, err), now.Add(retryAfter)
		_ = l.close() // the next call dials again
		return nil, l.failed
	}
	l.people, l.asked, l.failed = people, now, nil
	return people, nil
}

// news reads signals from logind and reports whether there were any.
func (l *logind) news() (any bool) {
	for {
		select {
		case _, open := <-l.changed:
			if !open {
				return true
			}
			any = true
		default:
			return any
		}
	}
}

func (l *logind) ask(ctx context.Context, now time.Time) ([]session, error) {
	if err := l.dial(ctx); err != nil {
		return nil, err
	}
	var listed []struct {
		ID   string
		UID  uint32
		User string
		Seat string
		Path dbus.ObjectPath
	}
	manager := l.conn.Object(login, loginPath)
	if err := manager.CallWithContext(ctx, login+".Manager.ListSessions", 0).Store(&listed); err != nil {
		return nil, err
	}
	var out []session
	for _, s := range listed {
		all := map[string]dbus.Variant{}
		if err := l.conn.Object(login, s.Path).CallWithContext(ctx, properties+".GetAll", 0, login+".Session").Store(&all); err != nil {
			if ctx.Err() != nil {
				return nil, err
			}
			continue // it ended meanwhile
		}
		if person, is := read(all, now); is {
			out = append(out, person)
		}
	}
	return out, nil
}

// read makes a session from logind's properties; false: not a person's, or ended.
func read(all map[string]dbus.Variant, now time.Time) (s session, is bool) {
	text := func(name string) string { v, _ := all[name].Value().(string); return v }
	if !isPerson(text("Class")) || text("State") == "closing" {
		return s, false
	}
	idle, _ := all["IdleHint"].Value().(bool)
	locked, _ := all["LockedHint"].Value().(bool)
	switch kind := text("Type"); {
	case kind == "x11" || kind == "wayland" || kind == "mir":
		// A graphical session's terminal is only its display: keys are not read from it.
	case text("TTY") != "":
		s.tty = text("TTY")
		return s, true
	case kind == "tty" || kind == "unspecified":
		// A login without a terminal, such as a copy over ssh: no typing.
		return s, false
	}
	if idle || locked {
		s.idleSince = now.Add(-never)
		if at, _ := all["IdleSinceHintMonotonic"].Value().(uint64); at > 0 {
			if up, err := uptime(); err == nil {
				s.idleSince = now.Add(-max(0, up-time.Duration(at)*time.Microsecond))
			}
		}
	}
	return s, true
}

// isPerson reports whether a class of sessions is for logged-in persons. Since version
// 256 there are "user-early", for root, and more. "user-incomplete" is not authenticated
// yet.
func isPerson(class string) bool {
	return class == "user" || strings.HasPrefix(class, "user-") && class != "user-incomplete"
}

// uptime is the base of logind's times.
func uptime() (time.Duration, error) {
	var t unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return time.Duration(t.Nano()), err
}

// defaultBus is the system bus's address unless the environment sets another.
const defaultBus = "unix:path=/run/dbus/system_bus_socket"

func (l *logind) dial(ctx context.Context) error {
	if l.conn != nil && l.conn.Connected() {
		return nil
	}
	at := os.Getenv("DBUS_SYSTEM_BUS_ADDRESS")
	if at == "" {
		at = defaultBus
	}
	conn, err := dbus.Dial(at, dbus.WithContext(context.WithoutCancel(ctx)))
	if err != nil {
		return err
	}
	hung := context.AfterFunc(ctx, func() { _ = conn.Close() }) // makes pending calls fail
	defer hung()
	if err = conn.Auth(nil); err == nil {
		err = conn.Hello()
	}
	for _, of := range []string{"org.freedesktop.login1.Manager", properties} {
		if err == nil {
			err = conn.AddMatchSignalContext(ctx, dbus.WithMatchSender(login), dbus.WithMatchInterface(of))
		}
	}
	if err != nil {
		_ = conn.Close() // the first error matters
		return err
	}
	l.conn, l.changed = conn, make(chan *dbus.Signal, 64)
	conn.Signal(l.changed)
	return nil
}

func (l *logind) close() error {
	if l.conn == nil {
		return nil
	}
	err := l.conn.Close()
	l.conn = nil
	return err
}
