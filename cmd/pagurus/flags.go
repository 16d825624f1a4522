package main

// Flags that messages name, besides those in fleet.
const (
	hostsFlag          = "hosts"
	cpusPerHostFlag    = "cpus-per-host"
	cpusAltogetherFlag = "cpus-altogether"
	cpuListFlag        = "cpu-list"
	sitesFlag          = "sites"
	tuneFlag           = "tune"
	packagesFlag       = "packages"
	cpusFlag           = "cpus"
)
