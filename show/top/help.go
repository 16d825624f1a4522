package top

// helpLines say what the keys do.
var helpLines = []string{
	"1 to 5, Tab      hosts, sites, guests, jobs, moves",
	"↑ ↓ PgUp PgDn    move, also j k, Space; Home and End, also g and G",
	"Enter            a site's hosts, a host's or a job's guests, a guest's moves, all of a move",
	"Esc              back; it also ends the filter",
	"/                show only rows with a text",
	"s S              sort by the next column, by the one before",
	"r                sort the other way round",
	"e                explain the host, guest, job or move",
	"",
	"What changes something asks first, and says what it will cost:",
	"d                drain the host: all guests leave, and none comes until u",
	"u                take guests on the host again",
	"m                move the guest, or all guests of the job",
	"c                cancel the job or the move",
	"",
	"q, Ctrl-C        quit; Ctrl-Z returns to the shell until `fg`",
}
