package fleet

import "errors"

// ErrAbsent: the guest is not on this host. Drivers wrap it.
var ErrAbsent = errors.New("guest is not on this host")

// ErrUnsure: the target may have the whole guest. A driver's Switch wraps it.
var ErrUnsure = errors.New("the target may have it")

// ErrNotWhole: part of the incoming guest has not arrived. A driver's Resume wraps it.
var ErrNotWhole = errors.New("it has not arrived whole")

// ErrNoFunction: a host has no virtual function of a card left for a guest. What gives guests devices wraps it.
var ErrNoFunction = errors.New("no virtual function of the host's card was free")

// ErrConflict: the store changed after the given revision. Commit returns it and changes
// nothing; load again.
var ErrConflict = errors.New("the store has moved on")
