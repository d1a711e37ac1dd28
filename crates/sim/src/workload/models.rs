//! The workloads of the papers, as tables of parameters.
//!
//! Figures marked *published* are from the papers or their scripts; *derived* ones follow from published ones by the
//! arithmetic in the comment; *assumed* ones are ours. None was fitted to a result of a policy.

use quell_model::{Bytes, Class, Nanos};

use super::{Phase, Service};
use crate::machine::{Kind, Profile, Reuse};

/// A workload by name.
#[derive(Clone, Debug)]
pub struct Model {
    /// The name in scenario files.
    pub name: &'static str,
    /// What it stands for.
    pub about: &'static str,
    /// LC or BE.
    pub class: Class,
    /// LC: its service time.
    pub service: Option<Service>,
    /// How it uses the machine.
    pub phases: &'static [Phase],
}

const MB: u64 = 1 << 20;

/// memcached on a runtime with kernel bypass.
const MEMCACHED: Profile = Profile {
    kind: Kind::Service,
    // Derived: six accesses of 85 ns, two at a time, are 255 ns of 1.25 us.
    memory: 203,
    // Derived: six lines of 64 bytes in 1.25 us.
    traffic_mb: 307,
    // Published: random accesses reach 55 to 60 % of sequential bandwidth.
    weight: 1_700,
    streams: false,
    // Assumed: code, connections and the hot part of the index.
    working_set: Bytes(6 * MB),
    reuse: Reuse::Root,
};

/// Silo, an in-memory database (TPC-C).
const SILO: Profile = Profile {
    // Assumed: index lookups of several dependent misses.
    memory: 350,
    traffic_mb: 500,
    working_set: Bytes(10 * MB),
    ..MEMCACHED
};

/// The storage server of the paper: read, compress (snappy), encrypt (AES).
const STORAGE: Profile = Profile {
    // Assumed: mostly arithmetic over 4 KB blocks.
    memory: 100,
    traffic_mb: 400,
    weight: 1_200,
    working_set: Bytes(4 * MB),
    ..MEMCACHED
};

const STREAM_DRAM: Profile = Profile {
    kind: Kind::Memory,
    // Assumed: a stream is bound by its core's share of bandwidth.
    memory: 900,
    // Estimated: 10 to 12 GB/s a core.
    traffic_mb: 11_000,
    weight: 1_000,
    streams: true,
    // Published: 4.49 MB a thread, 30 MB for seven of them.
    working_set: Bytes(100 * MB),
    reuse: Reuse::None,
};

const STREAM_L2: Profile = Profile {
    kind: Kind::CoreCache,
    memory: 0,
    // Published: 75 KB a thread stay in its core's 256 KB.
    traffic_mb: 20,
    working_set: Bytes(2 * MB),
    ..STREAM_DRAM
};

/// Swaptions on a collected heap, between collections: 1 to 2 GB/s a core (estimated).
const SWAPTIONS: Profile = Profile {
    kind: Kind::Compute,
    memory: 100,
    traffic_mb: 1_500,
    weight: 1_000,
    streams: false,
    working_set: Bytes(8 * MB),
    reuse: Reuse::Root,
};

/// Its collections mark and sweep with all threads: 25 GB/s and more in all (estimated), so the memory is full.
const COLLECTION: Profile = Profile {
    kind: Kind::Memory,
    memory: 800,
    traffic_mb: 6_000,
    streams: true,
    working_set: Bytes(100 * MB),
    reuse: Reuse::None,
    ..SWAPTIONS
};

/// x264, 1 to 2 GB/s a core with phases of 0.1 to 1 s (estimated).
const X264_STILL: Profile = Profile {
    kind: Kind::Compute,
    memory: 80,
    traffic_mb: 800,
    weight: 1_000,
    streams: false,
    working_set: Bytes(12 * MB),
    reuse: Reuse::Root,
};
const X264_MOTION: Profile = Profile { memory: 200, traffic_mb: 2_400, ..X264_STILL };

/// streamcluster, 6 to 8 GB/s a core (estimated), with a sequential part between barriers (assumed).
const STREAMCLUSTER: Profile =
    Profile { memory: 700, traffic_mb: 7_000, working_set: Bytes(60 * MB), ..STREAM_DRAM };
const STREAMCLUSTER_BETWEEN: Profile = Profile { memory: 150, traffic_mb: 800, ..STREAMCLUSTER };

const fn always(profile: Profile) -> [Phase; 1] {
    [Phase { profile, work: Nanos::ZERO }]
}

const fn ms(profile: Profile, core_ms: u64) -> Phase {
    Phase { profile, work: Nanos::from_millis(core_ms) }
}

/// The name of the model that has the steps of its task.
pub const PROGRAM: &str = "program";

/// The name of the model that replays a trace.
pub const TRACE: &str = "trace";

impl Model {
    /// Its threads go through steps, and only compute.
    pub fn has_steps(&self) -> bool {
        matches!(self.name, PROGRAM | TRACE | "make" | "tpch" | "tpch-all")
            || self.name.starts_with("nas-")
    }
}

/// Recorded times have in them what siblings, caches and memory did, so that here these cost nothing more.
const RECORDED: &[Phase] = &always(Profile { kind: Kind::Poll, ..Profile::COMPUTE });

const COMPUTES: &[Phase] = &always(Profile::COMPUTE);

/// A program of steps.
const fn steps(name: &'static str, about: &'static str) -> Model {
    Model { name, about, class: Class::BestEffort, service: None, phases: COMPUTES }
}

/// The workloads that there are.
pub const MODELS: [Model; 24] = [
    Model {
        name: "memcached",
        about: "USR requests; 12 M/s on 22 threads with busy siblings are 1.25 us each alone",
        class: Class::LatencyCritical,
        // Assumed spread: requests differ little.
        service: Some(Service::Lognormal { mean: Nanos(1_250), sigma: 250 }),
        phases: &always(MEMCACHED),
    },
    Model {
        name: "silo",
        about: "TPC-C transactions: 20 us on average, of high variance",
        class: Class::LatencyCritical,
        service: Some(Service::Lognormal { mean: Nanos(20_000), sigma: 900 }),
        phases: &always(SILO),
    },
    Model {
        name: "storage",
        about: "blocks read, compressed, encrypted; 0.52 M/s on 22 threads are 28 us each alone",
        class: Class::LatencyCritical,
        service: Some(Service::Lognormal { mean: Nanos(28_000), sigma: 400 }),
        phases: &always(STORAGE),
    },
    Model {
        name: "service",
        about: "synthetic requests that only compute; the service time is to be given",
        class: Class::LatencyCritical,
        service: None,
        phases: &always(Profile { kind: Kind::Service, ..Profile::COMPUTE }),
    },
    Model {
        name: "hog",
        about: "arithmetic without end",
        class: Class::BestEffort,
        service: None,
        phases: &always(Profile::COMPUTE),
    },
    Model {
        name: "stream-dram",
        about: "reads arrays larger than the cache",
        class: Class::BestEffort,
        service: None,
        phases: &always(STREAM_DRAM),
    },
    Model {
        name: "stream-l2",
        about: "reads arrays that fit its core's cache",
        class: Class::BestEffort,
        service: None,
        phases: &always(STREAM_L2),
    },
    Model {
        name: "swaptions-gc",
        about: "computes, and collects its garbage every 40 core seconds for 1.5 core seconds: 100 to 200 ms on 22 threads",
        class: Class::BestEffort,
        service: None,
        phases: &[ms(SWAPTIONS, 40_000), ms(COLLECTION, 1_500)],
    },
    Model {
        name: "x264",
        about: "encodes video: calm and moving scenes",
        class: Class::BestEffort,
        service: None,
        phases: &[ms(X264_STILL, 6_000), ms(X264_MOTION, 3_000)],
    },
    Model {
        name: "streamcluster",
        about: "streams, with short calmer parts between barriers",
        class: Class::BestEffort,
        service: None,
        phases: &[ms(STREAMCLUSTER, 2_000), ms(STREAMCLUSTER_BETWEEN, 200)],
    },
    Model {
        name: TRACE,
        about: "what the threads of a recorded host did",
        class: Class::BestEffort,
        service: None,
        phases: RECORDED,
    },
    steps(PROGRAM, "threads that go through the steps of [[task.thread]]"),
    steps(
        "make",
        "compilations that a coordinator forks, `threads` at once, and links alone between stages",
    ),
    steps("nas-bt", "NAS block tridiagonal: barriers after each loop"),
    steps("nas-cg", "NAS conjugate gradient: short loops with barriers"),
    steps("nas-ep", "NAS embarrassingly parallel: one barrier at the end"),
    steps("nas-ft", "NAS Fourier transform: few long loops with barriers"),
    steps("nas-is", "NAS integer sort: few long loops with barriers"),
    steps("nas-lu", "NAS lower-upper: threads poll their neighbours in a pipeline"),
    steps("nas-mg", "NAS multigrid: short and long loops with barriers"),
    steps("nas-sp", "NAS scalar pentadiagonal: barriers after each loop"),
    steps(
        "tpch",
        "TPC-H's query 18: workers of a database that wait for latches, and meet after each part",
    ),
    steps("tpch-all", "all of TPC-H: every second part has work for half of the workers"),
    steps("nas-ua", "NAS unstructured adaptive: many short loops with barriers"),
];

/// The workload of this name.
pub fn model(name: &str) -> Option<&'static Model> {
    MODELS.iter().find(|model| model.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_phases_end_unless_there_is_one() {
        for (at, model) in MODELS.iter().enumerate() {
            assert!(MODELS[..at].iter().all(|other| other.name != model.name));
            let endless = model.phases.iter().filter(|phase| phase.work == Nanos::ZERO).count();
            assert_eq!(endless, usize::from(model.phases.len() == 1), "{}", model.name);
        }
    }

    #[test]
    fn only_lc_has_a_service_time() {
        assert!(
            MODELS
                .iter()
                .all(|model| { model.service.is_none() || model.class == Class::LatencyCritical })
        );
    }
}
