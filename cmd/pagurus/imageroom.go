package main

import (
	"context"
	"errors"
	"fmt"
	"os/user"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pagurus/act/image"
	"pagurus/cmd/roles"
	"pagurus/decide/quota"
	"pagurus/fleet"
	"pagurus/serve/wire"
	"pagurus/show/cli"
)

// This file keeps the images that are built here within what the controller's administrator allows.

// imageUser is the number of a user whom an image is built for; empty: who calls, or called sudo.
func imageUser(name string) (uint32, error) {
	if name == "" {
		return session().UID, nil
	}
	number := name
	if known, err := user.Lookup(name); err == nil {
		number = known.Uid
	}
	uid, err := strconv.ParseUint(number, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("--user %q: this machine has no such user: give a user's name or number", name)
	}
	return uint32(uid), nil
}

// imageRoom is what has room for an image by the limits of the controller here.
func imageRoom(cmd *cobra.Command) image.Room {
	return func(there []fleet.Image, more fleet.Image) error {
		limits, err := imageLimits(cmd)
		if err != nil {
			return err
		}
		if reason := quota.RefusedImage(limits, there, more); reason != "" {
			return errors.New(reason)
		}
		return nil
	}
}

// imageLimits are those that the controller says; without one those of its configuration on this machine.
func imageLimits(cmd *cobra.Command) (fleet.ImageLimits, error) {
	at, err := cli.Controller(cmd.Flags(), wire.UserCredentials())
	if err != nil {
		return fleet.ImageLimits{}, err
	}
	client, err := wire.Dial(at)
	if err != nil {
		return fleet.ImageLimits{}, err
	}
	defer client.Close()
	ctx, stop := context.WithTimeout(cmd.Context(), 5*time.Second)
	defer stop()
	kept, err := client.Output(ctx)
	if err == nil {
		return kept.Images.Limits, nil
	}
	if !errors.Is(err, wire.ErrNoController) {
		return fleet.ImageLimits{}, fmt.Errorf("asking the controller how much images may take: %w", err)
	}
	var c roles.Controller
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	c.Add(flags, "")
	if err := roles.ReadConfig(flags).Apply(roles.ControllerTable, flags); err != nil {
		return fleet.ImageLimits{}, err
	}
	return c.Images, nil
}
