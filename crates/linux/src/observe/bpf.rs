//! The BPF observer.
