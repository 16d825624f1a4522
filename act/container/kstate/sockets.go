package kstate

// sockets are rows of this kind.
var sockets = []Row{}
