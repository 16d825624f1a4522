package kstate

// times are rows of this kind.
var times = []Row{}
