// Package sandbox makes a container's view of the system, and accesses the container from the
// host.
//
// rootfs.go mounts its file systems: the image, mounted once per host, and an overlay in memory
// that moves with the container. jail.go starts its first process in namespaces of its own; the
// first process sets up its own view. cpu.go describes the processor features that programs can
// see. binarycache.go stores guest agents by their digests, because a container keeps its first agent
// on every host. inside.go opens the guest agent's socket and the console. The container's root
// may have replaced both, so it follows no link.
//
// The package does not know what runs in a container. Its tests run real processes, mounts and
// sockets.
package sandbox
