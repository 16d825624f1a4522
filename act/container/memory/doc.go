// Package memory moves the private memory of a container's processes.
//
// A page's journey, in order:
//
//  1. Source, while the processes run: a Tracker (tracker.go) makes each process open a
//     userfaultfd (takeuffd.go, steal.go) and write-protects its memory. A pass (pass.go) finds the pages
//     that were written since the last pass, by PAGEMAP_SCAN (Linux 6.7), and sends them as
//     Pieces. Tracking costs one fault per page per pass, and leaves nothing in the process.
//  2. Wire: package transfer carries the pieces.
//  3. Target: a Store (store.go) keeps the newest content of each page.
//  4. Source, while the processes are suspended: the last pass is made. In post-copy mode the
//     pages that were written last stay at the source; a page server (pageserver.go) serves them.
//  5. Target: CRIU restores the processes. It finds the pages either in the images
//     (images.go), or asks a page proxy (pageproxy.go, serve.go) through `criu lazy-pages` while the
//     processes already run (feed.go). A holder (uffdholder.go) keeps the userfaultfds open, so that
//     the kernel does not fill missing pages with zeros if CRIU is killed.
//
// The dump is always made with --lazy-pages: the images name all pages (pagemap.go) and hold
// those that this package does not copy: stacks in use, changed pages of private file
// mappings, shared memory. CRIU itself would copy memory only while the processes are
// suspended, or by soft-dirty tracking, which distribution kernels often lack.
//
// Tracking does not see writes by devices into pinned memory, for example a direct read from
// a disk. Such reads end before a process is frozen.
// CRIU refuses to dump a process with other device writes.
//
// The package must not know what a container is, how pieces travel, or who runs CRIU. Its
// tests run against the kernel, processes of their own, and the real CRIU.
package memory
