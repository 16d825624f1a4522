package kernelstate

// sockets has the rows of waiting data in sockets, and of their options.
var sockets = append(queues, options()...)

const (
	rights = "programs of a container cannot create one (CAP_NET_RAW)"
	empty  = "CRIU carries nothing that waits behind an empty message: let the program read it"
)

var queues = []Row{
	{"UDP socket", "messages that wait to be read, each with its sender", Carried, "", "datagrams"},
	{"UDP socket", "messages that wait, sent to many at once or by a peer it is no longer connected to, or merged (UDP_GRO), or whose port other sockets have, too", Waits, "until the program has read them", "ambiguous"},
	{"IP socket", "memberships of groups, with their sources", Carried, "", "groups"},
	{"IP socket", "the link for multicast, set by its number alone", Differs, "it cannot be read from a socket: let the program give the address with it", "groups"},
	{"IP socket", "errors that wait to be read (IP_RECVERR, MSG_ERRQUEUE, time stamps of what was sent, ends of MSG_ZEROCOPY)", Waits, "until the program has read them", "errors"},
	{"IP socket", "numbers of time stamps and of MSG_ZEROCOPY (SOF_TIMESTAMPING_OPT_ID, SO_ZEROCOPY)", Differs, "they begin again at 0: set the option again", "errors"},
	{"IP socket", "time stamps of messages that wait to be read", Differs, "they are of the move", "datagrams"},
	{"raw and packet socket", "raw sockets, packet sockets (AF_PACKET) and sockets for echoes, with all their options", Nothing, rights, "rights"},
	{"TCP socket", "data that waits to be read or sent", Carried, "", "streams"},
	{"TCP socket", "how much a segment carries", Carried, "", "streams"},
	{"TCP socket", "half of a connection that is closed", Carried, "", "half"},
	{"TCP socket", "half of a connection by IPv6 that is closed", Waits, "until the other half is closed, too; use 127.0.0.1 in place of ::1", "half6"},
	{"IP socket", "connections by IPv6", Carried, "", "six"},
	{"TCP socket", "urgent data that waits to be read, and what waits behind it", Waits, "until the program has read it", "urgent"},
	{"TCP socket", "connections that wait to be accepted", Waits, "until the program has accepted them", "pending"},
	{"Unix socket", "data and messages that wait to be read", Carried, "", "unix"},
	{"Unix socket", "the sender's address of messages that wait to be read", Carried, "", "letters"},
	{"Unix socket", "messages that wait to be read from a socket with an address that is closed, or to one without", Waits, "until the program has read them", "named"},
	{"Unix socket", "open files in messages that wait to be read", Carried, "", "files"},
	{"Unix socket", "credentials in messages that wait to be read (SO_PASSCRED), and sockets that only such a message has", Waits, "until the program has read them", "control"},
	{"Unix socket", "empty messages that wait to be read", Waits, "until the program has read them; " + empty, "empty"},
	{"Unix socket", "connections without data that wait to be accepted", Carried, "", "accepts"},
	{"Unix socket", "connections with data that wait to be accepted", Waits, "until the program has accepted them", "unaccepted"},
	{"netlink socket", "messages that wait to be read", Waits, "until the program has read them", "netlink"},
}

// options has the rows of socket options.
func options() []Row {
	var all []Row
	for _, o := range Options {
		state := "options" // reads all numbers of all levels
		if o.Fate == Refused || o.Fate == Waits {
			state = map[string]string{"SO_ERROR": "errors", "UDP_CORK": "corked", "TCP_SAVED_SYN": "savedsyn", "TCP_ULP": "options"}[o.Name]
		}
		if o.Name == "SO_PEERCRED" {
			state = "peers"
		}
		all = append(all, Row{objects[o.Level], o.Name, o.Fate, o.Note, state})
	}
	return all
}
