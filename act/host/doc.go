// Package host has what drivers of every kind need on a host: it finds, watches and ends
// processes (process.go, family.go, session.go), lets one call at a time make or destroy a
// guest (locks.go), reads what a console said last (console.go) and computes a profile of
// memory (profile.go).
//
// It knows no driver. Its tests run processes and goroutines of their own.
package host
