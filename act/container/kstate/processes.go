package kstate

// processes are rows of this kind.
var processes = []Row{}
