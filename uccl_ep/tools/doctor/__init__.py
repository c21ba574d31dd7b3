"""`uccl-ep doctor`: what of this machine each path of uccl-ep can use, what it lacks, and the command that fixes it."""
