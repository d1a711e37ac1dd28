//! Best-effort antagonists.
fn main() {}
