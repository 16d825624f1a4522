package endnotice

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"

	"pagurus/fleet"
)

const (
	batteryEvery = 10 * time.Second
	// batteryLow is how long a battery should last at least; what lasts shorter is a notice.
	batteryLow = 10 * time.Minute
	// batteryPart is the same in percent, where the time is not known, and batteryGuess the time that is taken for it then.
	batteryPart  = 10
	batteryGuess = 5 * time.Minute
	// batterySpare is how long before it is empty the system switches off or sleeps.
	batterySpare = time.Minute
	// batteryNews is by how much the time may differ before it is told: it is a guess and varies all the time.
	batteryNews = 30 * time.Second

	upower     = "org.freedesktop.UPower"
	upowerAll  = dbus.ObjectPath("/org/freedesktop/UPower/devices/DisplayDevice")
	upowerEach = upower + ".Device"
)

// battery is the charge of what the machine runs on while there is no mains: asked of UPower, which also knows UPSes, or read from the kernel.
type battery struct {
	folder string // the kernel's power supplies
	told   fleet.EndNotice
}

// charge is what is known of a battery.
type charge struct {
	falling bool
	left    time.Duration // 0: not known
	percent float64       // below 0: not known
	low     bool          // it says so itself
	ups     bool
}

func (b *battery) Name() string { return "the battery" }

func (b *battery) Watch(ctx context.Context, tell Tell, _ func() bool) {
	for {
		c, err := b.charge(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			tell(nil, err)
		} else {
			tell(b.judge(c, time.Now()), nil)
		}
		if !wait(ctx, batteryEvery) {
			return
		}
	}
}

// judge says whether the battery is nearly empty.
func (b *battery) judge(c charge, now time.Time) []fleet.EndNotice {
	low := c.low || c.left > 0 && c.left <= batteryLow || c.left == 0 && c.percent >= 0 && c.percent <= batteryPart
	if !c.falling || !low && b.told.ID == "" { // what was low stays a notice until it is charged
		b.told = fleet.EndNotice{}
		return nil
	}
	left := c.left
	if left == 0 {
		left = batteryGuess
	}
	at := now.Add(max(left-batterySpare, 0))
	if b.told.ID == "" {
		b.told = fleet.EndNotice{Kind: fleet.BatteryNotice, ID: now.UTC().Format(time.RFC3339), Says: "its battery is empty", Since: now, At: at, Guess: true}
		if c.ups {
			b.told.Says = "its UPS is empty"
		}
	}
	if at.Sub(b.told.At).Abs() >= batteryNews && (c.left > 0 || at.Before(b.told.At)) {
		b.told.At = at
	}
	return []fleet.EndNotice{b.told}
}

// charge asks UPower, and the kernel where there is none.
func (b *battery) charge(ctx context.Context) (charge, error) {
	c, err := upowerCharge(ctx)
	if err == nil {
		return c, nil
	}
	c, kernelErr := kernelCharge(b.folder)
	if kernelErr != nil {
		return c, fmt.Errorf("%w; UPower: %w", kernelErr, err)
	}
	return c, nil
}

// upowerCharge asks UPower for its sum of all batteries and UPSes that power the machine.
func upowerCharge(ctx context.Context) (c charge, err error) {
	bus, err := dialBus(ctx)
	if err != nil {
		return c, err
	}
	defer bus.Close()
	ctx, cancel := context.WithTimeout(ctx, busLimit)
	defer cancel()
	all := map[string]dbus.Variant{}
	if err := bus.Object(upower, upowerAll).CallWithContext(ctx, properties+".GetAll", 0, upowerEach).Store(&all); err != nil {
		return c, err
	}
	number := func(name string) uint32 { v, _ := all[name].Value().(uint32); return v }
	const (
		isUPS       = 3
		discharging = 2
		lowWarning  = 3 // 4: critical, 5: it acts
	)
	if present, _ := all["IsPresent"].Value().(bool); !present {
		return charge{percent: -1}, nil
	}
	seconds, _ := all["TimeToEmpty"].Value().(int64)
	c.percent, _ = all["Percentage"].Value().(float64)
	c.falling, c.ups, c.low = number("State") == discharging, number("Type") == isUPS, number("WarningLevel") >= lowWarning
	c.left = time.Duration(min(max(seconds, 0), int64(24*time.Hour/time.Second))) * time.Second
	return c, nil
}

// kernelCharge reads the kernel's power supplies: the one that lasts longest counts. A machine without any has mains.
func kernelCharge(folder string) (longest charge, err error) {
	longest.percent = -1
	all, err := os.ReadDir(folder)
	if errors.Is(err, os.ErrNotExist) {
		return longest, nil
	}
	if err != nil {
		return longest, err
	}
	found := false
	for _, d := range all {
		text := func(file string) string {
			b, err := os.ReadFile(filepath.Join(folder, d.Name(), file))
			if err != nil {
				return ""
			}
			return strings.TrimSpace(string(b))
		}
		kind := text("type")
		if kind != "Battery" && kind != "UPS" || text("scope") == "Device" || text("present") == "0" { // a mouse has one, too
			continue
		}
		c := supply(text)
		c.ups = kind == "UPS"
		if !found || !c.falling || longest.falling && (c.left > longest.left || c.left == longest.left && c.percent > longest.percent) {
			longest = c
		}
		if found = true; !c.falling {
			return c, nil
		}
	}
	return longest, nil
}

// supply reads one power supply.
func supply(text func(string) string) charge {
	number := func(file string) float64 {
		n, err := strconv.ParseFloat(text(file), 64)
		if err != nil {
			return -1
		}
		return n
	}
	level := text("capacity_level")
	c := charge{falling: text("status") == "Discharging", percent: number("capacity"), low: level == "Critical" || level == "Low"}
	hours := 0.0
	for _, q := range [][2]string{{"energy_now", "power_now"}, {"charge_now", "current_now"}} {
		if has, takes := number(q[0]), number(q[1]); has >= 0 && takes > 0 && hours == 0 {
			hours = has / takes
		}
	}
	if s := number("time_to_empty_now"); s > 0 {
		hours = s / 3600
	}
	c.left = time.Duration(min(hours, 24) * float64(time.Hour))
	return c
}
