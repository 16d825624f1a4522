package fleet

// Flags that messages of other packages name. Who makes the flag takes its name from
// here, so that no message can name one that does not exist.
const (
	HostFlag = "host" // of an agent: what its host is called
	RunFlag  = "run"  // of an agent and a controller: the folder for what outlives it
)
