package kstate

// files are rows of this kind.
var files = []Row{}
