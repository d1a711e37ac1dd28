//! Cases of two services at once, whose load moves or of which one runs away: settings given once are the rivals of a
//! loop there. The second service is the synthetic server; every service of a case is judged.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use quell_model::{CoreSet, Nanos};
use quell_terminal::Stop;

use super::definition::Definition;
use super::measure::{Offer, load};
use super::second::Script;
use super::service::Service;

/// Parts of half the core that each of two services is offered, one after the other.
const STEPS: [f64; 3] = [0.2, 0.8, 0.2];
/// Work of one request to the second service, as its definition says.
const WORK: Nanos = Nanos::from_micros(500);
/// A case has three phases, each at least so long.
const PHASE_MIN: Duration = Duration::from_secs(2);
/// The synthetic server, started as any service is.
const SECOND: &str = r#"
name = "second"
about = "the synthetic server: one worker, 500 us a request"
command = ["quell", "load", "serve", "{address}", "--allow-runaway"]
[client]
protocol = "synthetic"
service = "fixed"
work_ns = 500000
"#;

/// A case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LoopCase {
    /// Load steps for the service and the synthetic server.
    TwoLcSteps,
    /// A worker of the synthetic server spins for most of the time.
    Runaway,
}

impl LoopCase {
    /// Both.
    pub const ALL: [LoopCase; 2] = [LoopCase::TwoLcSteps, LoopCase::Runaway];

    /// Its name, which stands for that of the batch work in a cell.
    pub fn name(self) -> &'static str {
        match self {
            LoopCase::TwoLcSteps => "two-lc-steps",
            LoopCase::Runaway => "runaway",
        }
    }

    /// The service's load in percent of its peak, in the mean.
    pub fn load_percent(self) -> u32 {
        20
    }

    /// The service's load in each phase, as multiples of the mean.
    pub fn shape(self) -> [f64; 3] {
        match self {
            // 0.2, 0.8, 0.2 of half the core, whose mean is 0.2 of all.
            LoopCase::TwoLcSteps => STEPS.map(|part| part / 0.4),
            LoopCase::Runaway => [1.0; 3],
        }
    }

    /// How long a measurement is that needs to be `least`.
    pub fn duration(self, least: Duration) -> Duration {
        least.max(PHASE_MIN * 3)
    }

    /// What the second service is to do while the first is offered this.
    ///
    /// # Errors
    /// When it has no protocol.
    pub fn script(self, second: &Service, offer: &Offer) -> Result<Script> {
        match self {
            LoopCase::TwoLcSteps => {
                let mean = STEPS.iter().sum::<f64>() / STEPS.len() as f64;
                let rate_rps = mean * 0.5 * 1e9 / WORK.0 as f64;
                let offer = Offer { rate_rps, seed: offer.seed ^ 1, ..*offer };
                let load = load(second, &offer).context("the second service has no protocol")?;
                Ok(Script::load(load))
            }
            LoopCase::Runaway => {
                let (after, spin) = (offer.duration / 6, offer.duration / 3 * 2);
                Ok(Script::Runaway { addr: second.addr, after: offer.warmup + after, spin })
            }
        }
    }
}

/// Starts the second service anew by the program `quell`: a worker that ran away may still spin.
///
/// # Errors
/// As [`Service::start`].
pub(super) fn start_second(quell: &Path, managed: &CoreSet, stop: &Stop) -> Result<Service> {
    let mut definition = Definition::parse(SECOND, "the second service")?;
    definition.command[0] = quell.to_str().context("the path of quell is no text")?.to_owned();
    Service::start(&definition, managed, stop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_of_a_shape_is_the_stated_load() {
        for case in LoopCase::ALL {
            let mean = case.shape().iter().sum::<f64>() / 3.0;
            assert!((mean - 1.0).abs() < 1e-9, "{case:?}: {mean}");
        }
    }

    #[test]
    fn the_second_service_is_defined() {
        let definition = Definition::parse(SECOND, "second").unwrap();
        assert_eq!(definition.name, "second");
    }
}
