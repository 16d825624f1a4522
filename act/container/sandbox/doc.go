// Package sandbox makes what a container sees, and reaches into it from the host.
//
// rootfs.go mounts its file systems: the image, mounted once per host, and an overlay in
// memory that moves with the container. jail.go starts its first process in namespaces of its
// own; package shim does what must be done inside. cpu.go tells what programs can see of the
// host's processors. binarycache.go keeps guest agents by their digest, because a container keeps
// the agent it started with on every host. inside.go reaches the guest agent's socket and the
// console; the container's root may have replaced both, so no link is followed.
//
// The package does not know what runs in a container. Its tests run real processes, mounts
// and sockets.
package sandbox
