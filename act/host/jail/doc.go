// Package jail starts a program that has only what a Jail names: a user of its own, namespaces of its
// own, a root with a few files, no capabilities and a few limits. jail.go has what a jail is, which
// is data, and starts one from outside; enter.go is what its first process does inside, as a
// part of pagurus-shim, before it becomes the program; needs.go finds what a program needs to run.
//
// The package does not know what the program is. Its tests run real ones.
package jail
