// Package handle stands between a job's file server and the kernel's file handles. A handle
// names any file of a file system, wherever it is, so a server that opens what its clients name
// opens files of other directories, too. guard.go is the first process of a server's jail. It starts
// the server, whose calls for handles the kernel brings to it (seccomp's notifications), makes them
// itself, and signs each handle that it gives out; a handle without its signature opens nothing. server.go
// is the step before the server: it takes the filter on itself. sign.go is the signature, which is pure.
//
// The package knows nothing of NFS. Its tests run a program that makes the calls.
package handle
