package main

// Flags that messages name, besides those in fleet.
const (
	hostsFlag          = "hosts"
	cpusPerHostFlag    = "cpus-per-host"
	cpusAltogetherFlag = "cpus-altogether"
	cpuListFlag        = "cpu-list"
	sitesFlag          = "sites"
	ipv6Flag           = "ipv6"
	tuneFlag           = "tune"
	imageFlag          = "image"
	packagesFlag       = "packages"
	acceleratorFlag    = "accelerator"
	cpuFlag            = "cpu"
	kernelFlag         = "kernel"
	kernelWordsFlag    = "kernel-words"
	likeFlag           = "like"
	cpusFlag           = "cpus"
	memPerHostFlag     = "mem-per-host"
	machinesFlag       = "machines"
	suiteFlag          = "suite"
	xenFlag            = "xen"
	machineCPUsFlag    = "machine-cpus"
	machineMemFlag     = "machine-mem"
	machinePassingFlag = "machine-passthrough"
	machineWordsFlag   = "machine-words"
	controlFlag        = "control"
)
