package endnotice

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"

	"pagurus/fleet"
)

const logindProgram = "/lib/systemd/systemd-logind"

// insideLogind is TestLogind's part as the first process of its namespaces. Nobody is there who could carry out what logind orders: the systemd on this bus
// is played, and starts nothing.
func insideLogind() error {
	if err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("tmpfs", "/run", "tmpfs", 0, "")); err != nil {
		return err
	}
	for _, d := range []string{"dbus", "systemd/seats", "systemd/sessions", "systemd/users", "systemd/inhibit", "systemd/system", "systemd/shutdown", "systemd/logind.conf.d", "user", "udev/data"} {
		if err := os.MkdirAll("/run/"+d, 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile("/run/systemd/logind.conf.d/delay.conf", []byte("[Login]\nInhibitDelayMaxSec=20\n"), 0o644); err != nil {
		return err
	}
	os.Unsetenv("DBUS_SYSTEM_BUS_ADDRESS")
	// Before there is a bus it says so.
	var blind heard
	ctx, stop := context.WithTimeout(context.Background(), time.Second)
	(&logind{shutdown: true, sleep: true}).Watch(ctx, blind.tell, func() bool { return true })
	stop()
	if blind.err == nil {
		return errors.New("it sees a logind that is not there")
	}
	if text, err := exec.Command("dbus-daemon", "--system", "--fork", "--nopidfile").CombinedOutput(); err != nil {
		return fmt.Errorf("the bus: %w: %s", err, text)
	}
	if err := playSystemd(); err != nil {
		return err
	}
	daemon := exec.Command(logindProgram)
	daemon.Stderr = os.Stderr
	if err := daemon.Start(); err != nil {
		return err
	}
	return useNotices()
}

// units has all units of systemd loaded, and starts none.
type units struct{}

// Get answers what logind asks of a unit before it switches off.
func (units) Get(string, string) (dbus.Variant, *dbus.Error) { return dbus.MakeVariant("loaded"), nil }

// StartUnit starts nothing.
func (units) StartUnit(string, string) (dbus.ObjectPath, *dbus.Error) {
	return "", dbus.MakeFailedError(errors.New("nothing can be switched off here"))
}

// playSystemd has logind find a systemd that refuses to switch off.
func playSystemd() error {
	bus, err := dialBus(context.Background())
	if err != nil {
		return err
	}
	const systemd = "org.freedesktop.systemd1"
	err = errors.Join(bus.Export(units{}, "/org/freedesktop/systemd1", systemd+".Manager"),
		bus.Export(units{}, "/org/freedesktop/systemd1/unit/poweroff_2etarget", properties))
	if _, ask := bus.RequestName(systemd, dbus.NameFlagDoNotQueue); ask != nil {
		err = errors.Join(err, ask)
	}
	return err
}

// call calls logind as root.
func call(method string, args ...any) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	bus, err := dialBus(ctx)
	if err != nil {
		return err
	}
	defer bus.Close()
	return bus.Object(login, loginPath).CallWithContext(ctx, loginAll+"."+method, 0, args...).Err
}

// useNotices schedules a shutdown, calls it off, and switches off, as `shutdown` and `systemctl` do.
func useNotices() error {
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if err := call("ListSessions"); err == nil {
			break
		} else if time.Now().After(end) {
			return err
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var h heard
	var empty atomic.Bool
	source := &logind{shutdown: true, sleep: true}
	done := make(chan struct{})
	go func() { defer close(done); source.Watch(ctx, h.tell, empty.Load) }()
	if err := h.until("nothing stands", none); err != nil {
		return err
	}
	at := time.Now().Add(5 * time.Minute).Truncate(time.Second)
	if err := call("ScheduleShutdown", "poweroff", uint64(at.UnixMicro())); err != nil {
		return fmt.Errorf("shutdown +5: %w", err)
	}
	if err := h.until("shutdown +5", func(all []fleet.EndNotice, err error) bool {
		return err == nil && len(all) == 1 && all[0].At.Equal(at) && all[0].Kind == fleet.ShutdownNotice && all[0].Says == "it is switched off" && !all[0].Guess
	}); err != nil {
		return err
	}
	if err := call("CancelScheduledShutdown"); err != nil {
		return fmt.Errorf("shutdown -c: %w", err)
	}
	if err := h.until("shutdown -c", none); err != nil {
		return err
	}
	held, err := os.ReadDir("/run/systemd/inhibit")
	if err != nil || len(held) == 0 {
		return fmt.Errorf("nobody holds logind up: %w", err)
	}
	err = usePowerOff(&h, &empty)
	stop()
	<-done
	return err
}

// usePowerOff has logind switch off: it waits until the host is empty.
func usePowerOff(h *heard, empty *atomic.Bool) error {
	begun := time.Now()
	if err := call("PowerOff", false); err != nil {
		return fmt.Errorf("systemctl poweroff: %w", err)
	}
	if err := h.until("poweroff is prepared", func(all []fleet.EndNotice, err error) bool {
		return len(all) == 1 && all[0].Kind == fleet.ShutdownNotice && all[0].At.Sub(begun) > 15*time.Second && all[0].At.Sub(begun) < 40*time.Second
	}); err != nil {
		return err
	}
	time.Sleep(2 * time.Second) // logind would go on by now
	if err := h.until("logind waits", func(all []fleet.EndNotice, err error) bool { return err == nil && len(all) == 1 }); err != nil {
		return err
	}
	empty.Store(true)
	// It goes on, finds no systemd, and gives up: the same signal as after a sleep.
	if err := h.until("logind has gone on", none); err != nil {
		return err
	}
	if took := time.Since(begun); took > 18*time.Second {
		return fmt.Errorf("logind went on after %s, when it would have had to anyway", took)
	}
	empty.Store(false)
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		out, err := exec.Command("busctl", "call", login, string(loginPath), loginAll, "ListInhibitors").CombinedOutput()
		if err == nil && strings.Contains(string(out), "Pagurus") {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("logind is not asked to wait the next time: %w: %s", err, out)
		}
	}
}
