// Package host holds what drivers of every kind need on a host. It finds, watches and
// ends processes (process.go, family.go, session.go). It keeps the guests by their IDs
// (guests.go), and allows one call at a time to make or destroy one (locks.go). It reads the last lines of a console (console.go),
// scans pages (pagemap.go), and samples memory for a profile (sample.go, profile.go).
//
// The package does not know any driver. Its tests run processes and goroutines of their
// own.
package host
