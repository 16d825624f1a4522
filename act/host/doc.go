// Package host has what drivers of every kind need on a host: it finds, watches and ends
// processes (proc.go, session.go), and lets one call at a time make or destroy a guest
// (locks.go).
//
// It knows no driver. Its tests run processes and goroutines of their own.
package host
