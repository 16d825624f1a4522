// Package passage makes the connections by which a guest's memory goes from one host to another. QEMU has no network,
// so the agents make them and give them to it. greet.go is how the two ends prove to each other that they
// know the secret of one move, which the target has made and the controller has brought to the source alone. listen.go waits at the
// target for the source, whoever else connects. relay.go joins sockets of QEMU's own to connections, for moves that take several:
// QEMU can be given only one. writer.go writes what QEMU sends to a file.
//
// The package does not know what is sent. Its tests run over real connections.
package passage
