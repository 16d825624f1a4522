package endnotice

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

const (
	login      = "org.freedesktop.login1"
	loginPath  = dbus.ObjectPath("/org/freedesktop/login1")
	loginAll   = login + ".Manager"
	properties = "org.freedesktop.DBus.Properties"

	busLimit     = 2 * time.Second
	busRetry     = 30 * time.Second
	scheduleLook = 10 * time.Second       // logind does not signal that its schedule has changed
	emptyLook    = 100 * time.Millisecond // while logind waits
	defaultDelay = 5 * time.Second        // logind's own default
)

// logind is systemd-logind, or elogind. It is asked to delay a shutdown and sleep until the host has no guests, as long as it allows.
type logind struct {
	shutdown, sleep bool

	bus  *dbus.Conn
	lock int // the inhibitor's descriptor; 0: none

	going     map[string]fleet.EndNotice // by what logind prepares
	scheduled []fleet.EndNotice
}

func (l *logind) Name() string { return "logind" }

func (l *logind) Watch(ctx context.Context, tell Tell, empty func() bool) {
	for ctx.Err() == nil {
		l.going, l.scheduled = map[string]fleet.EndNotice{}, nil
		if err := l.serve(ctx, tell, empty); err != nil && ctx.Err() == nil {
			tell(nil, err)
		}
		l.close()
		if !wait(ctx, busRetry) {
			return
		}
	}
}

func (l *logind) close() {
	l.release()
	if l.bus != nil {
		_ = l.bus.Close()
		l.bus = nil
	}
}

// release lets logind go on.
func (l *logind) release() {
	if l.lock != 0 {
		_ = unix.Close(l.lock)
		l.lock = 0
	}
}

// serve watches over one connection until it ends.
func (l *logind) serve(ctx context.Context, tell Tell, empty func() bool) error {
	if err := l.dial(ctx); err != nil {
		return err
	}
	signals := make(chan *dbus.Signal, 64)
	l.bus.Signal(signals)
	if err := l.inhibit(ctx); err != nil {
		return err
	}
	if err := l.present(ctx); err != nil {
		return err
	}
	look := time.NewTicker(scheduleLook)
	defer look.Stop()
	for {
		tell(l.pending(), nil)
		var emptied <-chan time.Time // never
		if len(l.going) > 0 {
			emptied = time.After(emptyLook)
		}
		select {
		case <-ctx.Done():
			return nil
		case s, open := <-signals:
			if !open {
				return errors.New("logind's bus has ended the connection")
			}
			if err := l.signalled(ctx, s); err != nil {
				return err
			}
		case <-look.C:
			if err := l.schedule(ctx); err != nil {
				return err
			}
		case <-emptied:
		}
		if len(l.going) > 0 && empty() {
			l.release()
		}
	}
}

// systemBus is the bus's address unless the environment sets another.
const systemBus = "unix:path=/run/dbus/system_bus_socket"

// dialBus connects to the system's bus.
func dialBus(ctx context.Context) (*dbus.Conn, error) {
	at := os.Getenv("DBUS_SYSTEM_BUS_ADDRESS")
	if at == "" {
		at = systemBus
	}
	ctx, cancel := context.WithTimeout(ctx, busLimit)
	defer cancel()
	bus, err := dbus.Dial(at, dbus.WithContext(context.WithoutCancel(ctx)))
	if err != nil {
		return nil, err
	}
	hung := context.AfterFunc(ctx, func() { _ = bus.Close() }) // makes pending calls fail
	defer hung()
	if err = bus.Auth(nil); err == nil {
		err = bus.Hello()
	}
	if err != nil {
		_ = bus.Close() // the first error matters
		return nil, err
	}
	return bus, nil
}

func (l *logind) dial(ctx context.Context) (err error) {
	if l.bus, err = dialBus(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, busLimit)
	defer cancel()
	return l.bus.AddMatchSignalContext(ctx, dbus.WithMatchSender(login), dbus.WithMatchInterface(loginAll))
}

// inhibit has logind wait for this host before it shuts down or sleeps.
func (l *logind) inhibit(ctx context.Context) error {
	if l.lock != 0 {
		return nil
	}
	what := ""
	for _, w := range []struct {
		wanted bool
		what   string
	}{{l.shutdown, "shutdown"}, {l.sleep, "sleep"}} {
		if w.wanted && what != "" {
			what += ":"
		}
		if w.wanted {
			what += w.what
		}
	}
	ctx, cancel := context.WithTimeout(ctx, busLimit)
	defer cancel()
	var fd dbus.UnixFD
	err := l.bus.Object(login, loginPath).CallWithContext(ctx, loginAll+".Inhibit", 0, what, "Pagurus", "guests move to other hosts", "delay").Store(&fd)
	if err != nil {
		return fmt.Errorf("asking logind to wait for guests: %w", err)
	}
	unix.CloseOnExec(int(fd))
	l.lock = int(fd)
	return nil
}

// property reads one of logind's properties.
func (l *logind) property(ctx context.Context, name string, to any) error {
	ctx, cancel := context.WithTimeout(ctx, busLimit)
	defer cancel()
	var v dbus.Variant
	if err := l.bus.Object(login, loginPath).CallWithContext(ctx, properties+".Get", 0, loginAll, name).Store(&v); err != nil {
		return fmt.Errorf("logind's %s: %w", name, err)
	}
	return v.Store(to)
}

// present learns what is under way already.
func (l *logind) present(ctx context.Context) error {
	for name, of := range map[string]string{"PreparingForShutdown": prepareShutdown, "PreparingForSleep": prepareSleep} {
		is := false
		if err := l.property(ctx, name, &is); err != nil {
			return err
		}
		l.prepares(ctx, of, is)
	}
	return l.schedule(ctx)
}

// The signals.
const (
	prepareShutdown = loginAll + ".PrepareForShutdown"
	prepareSleep    = loginAll + ".PrepareForSleep"
)

// signalled takes a signal. After a sleep, and a shutdown that was called off, the lock is taken again.
func (l *logind) signalled(ctx context.Context, s *dbus.Signal) error {
	is, ok := false, false
	if len(s.Body) > 0 {
		is, ok = s.Body[0].(bool)
	}
	if !ok || s.Name != prepareShutdown && s.Name != prepareSleep {
		return nil
	}
	l.prepares(ctx, s.Name, is)
	if !is {
		return l.inhibit(ctx)
	}
	return nil
}

// prepares notes that logind begins or ends to prepare something.
func (l *logind) prepares(ctx context.Context, what string, is bool) {
	if !is {
		delete(l.going, what)
		return
	}
	if what == prepareShutdown && !l.shutdown || what == prepareSleep && !l.sleep {
		return
	}
	delay, most := defaultDelay, uint64(0)
	if err := l.property(ctx, "InhibitDelayMaxUSec", &most); err == nil {
		delay = time.Duration(min(most, uint64(time.Hour/time.Microsecond))) * time.Microsecond
	}
	now := time.Now()
	n := fleet.EndNotice{Kind: fleet.ShutdownNotice, Says: "it is switched off or rebooted", ID: now.UTC().Format(time.RFC3339), Since: now, At: now.Add(delay)}
	if what == prepareSleep {
		n.Kind, n.Says = fleet.SleepNotice, "it goes to sleep"
	}
	l.going[what] = n
}

// scheduleWords say what logind does at the time that `shutdown` was given.
var scheduleWords = map[string]string{
	"poweroff": "it is switched off", "halt": "it is halted", "reboot": "it is rebooted", "kexec": "it is rebooted", "soft-reboot": "all its programs end",
}

// schedule asks for what `shutdown +5` has set. A dry run is none.
func (l *logind) schedule(ctx context.Context) error {
	if !l.shutdown {
		return nil
	}
	var plan struct {
		Type string
		At   uint64
	}
	if err := l.property(ctx, "ScheduledShutdown", &plan); err != nil {
		return err
	}
	says, counts := scheduleWords[plan.Type]
	if !counts || plan.At == 0 || plan.At >= 1<<62 {
		l.scheduled = nil
		return nil
	}
	n := fleet.EndNotice{Kind: fleet.ShutdownNotice, ID: fmt.Sprint(plan.Type, plan.At), Says: says, At: time.UnixMicro(int64(plan.At)), Since: time.Now()}
	if len(l.scheduled) == 0 || l.scheduled[0].ID != n.ID {
		l.scheduled = []fleet.EndNotice{n}
	}
	return nil
}

// pending is all that stands.
func (l *logind) pending() (out []fleet.EndNotice) {
	for _, n := range l.going {
		out = append(out, n)
	}
	return append(out, l.scheduled...)
}
