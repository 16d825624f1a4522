// Package state keeps the cluster's snapshot with an index: which guests are on which host,
// which orders have no answer, which hosts have room. Everything in the index follows from the
// snapshot and is updated with each change, so a decision costs only what it touches.
//
// An Overlay is a map with changes on top of it, for plans that are not committed yet.
//
// The package decides nothing, and must not know requests or owners' policies. Its tests
// compare the index with one built from scratch after every change.
package state
