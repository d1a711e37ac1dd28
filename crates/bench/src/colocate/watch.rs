//! What the kernel sees of the managed cores, the same way for every system.

use anyhow::{Context as _, Result};
use quell_load::Stall;
use quell_model::{Children, CoreId, CoreSet, Nanos, TaskId};
use quell_observe::bpf::{BpfConfig, BpfObserver, Histogram};
use quell_observe::{Observer, procs};

use crate::host::{Canary, PerfRing, Program, Record, Subject};
use crate::stall::{Evidence, GAP_MIN, Gap, Holder};

const LC: TaskId = TaskId { index: 0, generation: 0 };

/// A passive observer of the service's threads and of the managed cores, besides any that a daemon
/// has. It costs every system alike.
pub struct CoreWatch {
    observer: BpfObserver,
    idle_before: Nanos,
    waits_before: Option<Histogram>,
}

/// What was seen in one measurement.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    /// Hypervisor stalls of the managed cores.
    pub gaps: Vec<Gap>,
    /// Time during which a thread of the service waited although a managed core was idle.
    pub idle_while_lc_waits: Nanos,
    /// From a wake-up of a thread of the service until it ran: 99 and 99.9 % of them take no longer.
    pub wake_to_run: [Option<Nanos>; 2],
}

/// What the kernel's perf events see: who had the client's core, and when a core stood still.
pub struct StallWatch {
    switches: PerfRing,
    /// The client's first.
    canaries: Vec<Canary>,
    softirq: Vec<i32>,
}

impl StallWatch {
    /// Watches the client's core and the managed ones.
    ///
    /// # Errors
    /// Where perf events are not allowed.
    pub fn start(client: CoreId, managed: &CoreSet) -> Result<StallWatch> {
        let switches = PerfRing::start(client, Subject::Switches).context("record switches")?;
        let cores = std::iter::once(client).chain(managed.iter());
        let canaries: Result<_, _> = cores.map(|core| Canary::start(core, Canary::OFTEN)).collect();
        let name = format!("ksoftirqd/{client}");
        let pids = procs::all()?.into_iter();
        let softirq = pids.filter(|pid| {
            let comm = std::fs::read_to_string(format!("/proc/{pid}/comm"));
            comm.is_ok_and(|comm| comm.trim() == name)
        });
        let canaries = canaries.context("start timers")?;
        Ok(StallWatch { switches, canaries, softirq: softirq.collect() })
    }

    /// A measurement begins.
    ///
    /// # Errors
    /// When the kernel takes a perf event away.
    pub fn begin(&mut self) -> Result<()> {
        self.switches.drain();
        self.canaries.iter_mut().try_for_each(Canary::begin).context("start timers")
    }

    /// It is over: the gaps of the client's loop with who was behind them, and the standstills of the
    /// client's core and, unless they idled, of the managed ones: a halted core takes its time to
    /// wake for an interrupt, which delays nobody.
    ///
    /// # Errors
    /// When the kernel takes a perf event away.
    pub fn end(
        &mut self,
        stalls: &[Stall],
        quell: &[i32],
        managed_idled: bool,
    ) -> Result<Vec<Gap>> {
        let switches = self.switches.drain();
        let mut gaps: Vec<Gap> =
            stalls.iter().map(|stall| self.blame(stall, &switches, quell)).collect();
        let watched = if managed_idled { 1 } else { self.canaries.len() };
        for (at, canary) in self.canaries.iter_mut().enumerate() {
            let stills = canary.end(GAP_MIN).context("stop timers")?;
            gaps.extend(stills.into_iter().filter(|_| at < watched).map(|still| Gap {
                start: still.from,
                end: still.to,
                evidence: Evidence::LateInterrupt { late: still.late },
                quell_ran: quell.contains(&still.pid),
            }));
        }
        Ok(gaps)
    }

    /// Whose a gap is: Quell's if its threads had the core for more than a tenth of it (its
    /// scheduler ticks within every longer gap), the softirq thread's if that had so much, else that
    /// of who had it.
    fn blame(&self, stall: &Stall, switches: &[Record], quell: &[i32]) -> Gap {
        let first = switches.partition_point(|switch| switch.at < stall.start_ns);
        let within = switches[first..].iter().take_while(|switch| switch.at <= stall.end_ns);
        let ends = switches.iter().skip(first + 1).map(|switch| switch.at.min(stall.end_ns));
        let ends = ends.chain(std::iter::once(stall.end_ns));
        let (mut by, mut quells, mut softirqs) = (Holder::Nobody, Nanos::ZERO, Nanos::ZERO);
        for (switch, end) in within.zip(ends) {
            if quell.contains(&switch.pid) {
                quells += end - switch.at;
            } else if self.softirq.contains(&switch.pid) {
                softirqs += end - switch.at;
            } else {
                by = Holder::Foreign;
            }
        }
        let length = stall.end_ns - stall.start_ns;
        if softirqs.0 * 10 > length.0 {
            by = Holder::Involved;
        }
        Gap {
            start: stall.start_ns,
            end: stall.end_ns,
            evidence: Evidence::SpinnerGap { by },
            quell_ran: quells.0 * 10 > length.0,
        }
    }
}

impl CoreWatch {
    /// Watches the threads that the service has now.
    ///
    /// # Errors
    /// Without the right to load BPF programs, or where the kernel lacks what they need.
    pub fn start(managed: &CoreSet, lc: &Program) -> Result<CoreWatch> {
        let config = BpfConfig { stall_min: GAP_MIN, max_threads: 4_096, ..BpfConfig::default() };
        let mut observer = BpfObserver::new(&config).context("load the BPF observer")?;
        observer.manage(managed);
        for thread in procs::threads(lc.pid())? {
            observer.watch(thread, LC, true, Children::Leave)?;
        }
        observer.allow(LC, managed);
        Ok(CoreWatch { observer, idle_before: Nanos::ZERO, waits_before: None })
    }

    /// A measurement begins.
    pub fn begin(&mut self) {
        self.observer.drain_stalls();
        self.idle_before = self.observer.idle_while_lc_waits();
        self.waits_before = Some(self.observer.wake_to_run(LC));
    }

    /// It is over. A gap while a thread of `quell` ran is Quell's.
    pub fn end(&mut self, quell: &[i32]) -> Watched {
        let gaps = self.observer.drain_stalls().into_iter().map(|stall| Gap {
            start: stall.from,
            end: stall.to,
            evidence: Evidence::StealClock { stolen: stall.stolen },
            quell_ran: quell.contains(&stall.process.0),
        });
        let gaps = gaps.collect();
        let waits = self.observer.wake_to_run(LC);
        let waits = self.waits_before.take().map_or(waits.clone(), |before| waits.since(&before));
        Watched {
            gaps,
            wake_to_run: [990, 999].map(|permille| waits.quantile(permille)),
            idle_while_lc_waits: self.observer.idle_while_lc_waits() - self.idle_before,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_load::Activity;

    #[test]
    fn a_gap_is_blamed_on_who_had_the_core() {
        let switches = PerfRing::start(CoreId(0), Subject::Switches).unwrap();
        let watch = StallWatch { switches, canaries: Vec::new(), softirq: vec![15] };
        let stall = |start, end| Stall {
            start_ns: Nanos(start),
            end_ns: Nanos(end),
            switched: true,
            during: Activity::Spin,
        };
        let switches = [(10, 7), (20, 15), (30, 99), (40, 7), (90, 99), (92, 7)]
            .map(|(at, pid)| Record { at: Nanos(at), pid });
        let by = |start, end| watch.blame(&stall(start, end), &switches, &[99]);
        assert_eq!(by(1, 5).evidence, Evidence::SpinnerGap { by: Holder::Nobody });
        assert_eq!(by(5, 15).evidence, Evidence::SpinnerGap { by: Holder::Foreign });
        assert_eq!(by(5, 25).evidence, Evidence::SpinnerGap { by: Holder::Involved });
        assert_eq!(by(19, 91).evidence, Evidence::SpinnerGap { by: Holder::Involved }, "10 of 72");
        assert_eq!(by(28, 150).evidence, Evidence::SpinnerGap { by: Holder::Foreign });
        assert!(by(25, 35).quell_ran && !by(35, 45).quell_ran);
        assert!(!by(35, 150).quell_ran, "2 of 115 are a tick within somebody else's gap");
    }
}
