//! What Quell changes on the host. One place writes: the executor.
