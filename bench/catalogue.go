package bench

// Who carries a measurement out.
const (
	ByCommand = "pagurus bench" // of programs and guests of one's own; its name follows
	ByMake    = "make bench"    // of what Pagurus promises, on a lab of this machine
)

// Measurable is something that can be measured.
type Measurable struct {
	Name string `json:"name"`
	By   string `json:"by"`
	Says string `json:"says"`
}

// Catalogue is all that can be measured. `pagurus bench` and the program of `make bench` have
// their commands from it.
var Catalogue = []Measurable{
	{"overhead", ByCommand, "what real programs lose in guests"},
	{"migration", ByCommand, "what moves cost a job, also beside moves of QEMU by hand"},
	{"network", ByCommand, "latency and bandwidth between guests, also over links that lose or wait"},
	{"noise", ByCommand, "what interrupts programs on this machine's cores"},
	{"size", ByMake, "memory and processor time of an idle cluster's controller and agents"},
	{"idle", ByMake, "memory and processor time of an idle agent, without guests and with one"},
	{"crowd", ByMake, "the controller with 2,000 TLS connections of agents that report"},
	{"crowd-hostile", ByMake, "what hosts and users wait for while one user floods the controller"},
	{"page", ByMake, "the controller with 1,000 watchers of 10,000 hosts, and how soon the page can be used"},
	{"start", ByMake, "a warm run to MPI_Init, beside a boot by hand"},
	{"migration", ByMake, "a move's total time, beside QEMU's migrate typed by hand"},
	{"page-cache", ByMake, "what is not sent of a guest that moves"},
	{"stall", ByMake, "stall of a coupled job, beside moves by hand"},
	{"stall-container", ByMake, "the same where guests are containers"},
	{"disturbed", ByMake, "what ten moves cost LAMMPS"},
	{"checkpoints", ByMake, "what a checkpoint every minute costs LAMMPS in containers"},
	{"checkpoint-stop", ByMake, "how long a checkpoint stops a job of four ranks, of both kinds, and what it writes"},
	{"predict", ByMake, "what was predicted of moves, beside what was so"},
	{"owner", ByMake, "an owner's job and a parallel one, with the system and without"},
	{"container-start", ByMake, "a warm run of containers to MPI_Init"},
	{"container-native", ByMake, "HPL, STREAM, a solver and NetPIPE in containers, beside natively in the same networks"},
	{"container-small", ByMake, "a move of a process of 352.8 KB, from the command to running"},
	{"container-mappings", ByMake, "moves of processes with thousands of memory mappings"},
	{"container-processes", ByMake, "moves of 20 to 120 processes, and of a chain of them, beside what was predicted"},
	{"container-sizes", ByMake, "moves of 50 MiB, 500 MiB and 1.5 GiB, beside runc checkpoint, copy and runc restore"},
	{"encryption", ByMake, "messages, moves and stalls with WireGuard between hosts, beside without"},
	{"jail", ByMake, "start and moves of a virtual machine whose QEMU is in its jail, beside one without"},
	{"marks", ByMake, "moves that a program asks for itself, at a moment that it marks as cheap, beside at any moment"},
	{"simulate", ByMake, "a simulated day of 2,000 hosts, which is time of the planner"},
	{"join", ByMake, "from join on a fresh machine of a lab of machines to MPI_Init in its first guest"},
}

// Says is what a measurement that somebody carries out is about.
func Says(by, name string) string {
	for _, m := range Catalogue {
		if m.By == by && m.Name == name {
			return m.Says
		}
	}
	panic("the catalogue has no " + name + " by " + by)
}
