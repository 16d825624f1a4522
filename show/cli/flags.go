package cli

// Flags that messages name, besides those in fleet.
const (
	jobFlag    = "job"
	toFlag     = "to"
	waitFlag   = "wait"
	dryRunFlag = "dry-run"
	kindFlag   = "kind"
	classFlag  = "class"
	tuneFlag   = "tune"
	envFlag    = "env"
	cpusFlag   = "cpus"
	ownerFlag  = "owner"
	scoreFlag  = "score"
	onFlag     = "on"
	imageFlag  = "image"
)
