package roles

// Flags that messages name, besides those in fleet.
const (
	cpusFlag      = "cpus"
	firstCoreFlag = "first-core"
	snapshotsFlag = "snapshots"
	ownerCPUFlag  = "owner-cpu"
	addressFlag   = "address"
)
