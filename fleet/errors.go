package fleet

import "errors"

// ErrAbsent is what a driver's error wraps when the guest named is not on this
// host at all.
var ErrAbsent = errors.New("guest is not on this host")

// ErrUnsure is what the error of a driver's Switch wraps when the target may
// have the guest whole.
var ErrUnsure = errors.New("the target may have it")

// ErrNotWhole is what the error of a driver's Resume wraps when the guest is on its
// way to this host and has not all come.
var ErrNotWhole = errors.New("it has not arrived whole")

// ErrConflict is what a store's Commit returns when somebody else has changed
// the store since the revision given. Nothing was changed; load again.
var ErrConflict = errors.New("the store has moved on")
