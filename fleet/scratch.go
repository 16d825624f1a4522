package fleet

// ScratchLimits bound what guests write on a host beside their jobs' directories, in bytes; 0 is no limit.
type ScratchLimits struct {
	Each int64 // of one user's guests
	All  int64
}

// Scratch is what a guest's own files take of its host, outside its memory.
type Scratch struct {
	Guest GuestID
	UID   uint32
	Used  int64 // bytes
	Bound int64 // that they may take now
	Most  int64 // that they may take without limits of the host
}
