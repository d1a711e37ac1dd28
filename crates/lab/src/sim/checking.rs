//! Whether the checker hears a simulation.

/// It does unless told otherwise.
#[derive(clap::Args)]
pub struct Checking {
    /// Do not check meanwhile, as `quell check` does a trace, whether threads wait while cores idle that they could use. Up to
    /// twice as fast
    #[arg(long)]
    no_check: bool,
    // What older command lines say.
    #[arg(long, hide = true, conflicts_with = "no_check")]
    check: bool,
}

impl Checking {
    pub fn is_on(&self) -> bool {
        self.check || !self.no_check
    }
}
