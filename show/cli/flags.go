package cli

// Flags that messages name, besides those in fleet.
const (
	jobFlag     = "job"
	toFlag      = "to"
	toSiteFlag  = "to-site"
	timeoutFlag = "timeout"
	waitFlag    = "wait"
	dryRunFlag  = "dry-run"
	kindFlag    = "kind"
	classFlag   = "class"
	ranksFlag   = "ranks"
	tuneFlag    = "tune"
	envFlag     = "env"
	cpusFlag    = "cpus"
	ownerFlag   = "owner"
	scoreFlag   = "score"
	onFlag      = "on"
	imageFlag   = "image"
)
