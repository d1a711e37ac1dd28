//! Requests that any thread takes, and requests that belong to one.

use quell_sim::file::Simulation;

/// Mean latency of two threads on two cores at 70 % of what they can serve, in service times.
#[expect(clippy::unwrap_used, reason = "part of the test")]
fn mean_latency(keys: &str) -> f64 {
    let text = format!(
        "version = 1\nlength_ms = 4000\nwarm_up_ms = 100\n[machine]\nphysical = 2\nmanaged = \"0-1\"\n\
         [host]\npolicy = \"static\"\ncores = \"shared\"\ntick_us = 1000\nmemory_counters = false\n\
         costs = {{ switch_ns = 0, migrate_ns = 0, wake_ns = 0 }}\n\
         [[task]]\nname = \"service\"\nmodel = \"service\"\nguaranteed = 2\nthreads = 2\nrate = 14000\n\
         service = {{ distribution = \"exponential\", mean_ns = 100000 }}\n{keys}\n"
    );
    let other = |_: &str| unreachable!("it names no file");
    let simulation = Simulation::parse(&text, "x.toml", "x", &other).unwrap();
    let mut policy = simulation.driver().unwrap();
    let report = quell_sim::run(&simulation.scenario, policy.as_mut());
    assert_eq!(report.broken, []);
    report.tasks[0].latency.mean().0 as f64 / 100_000.0
}

#[test]
fn requests_on_connections_wait_for_their_thread_alone() {
    // M/M/2 and two M/M/1 at a load of 0.7: 1 / (1 - 0.49) and 1 / (1 - 0.7).
    let (any, own) = (mean_latency(""), mean_latency("own_connections = true"));
    assert!((any - 1.96).abs() < 0.1, "{any}");
    assert!((own - 3.33).abs() < 0.25, "{own}");
}

#[test]
fn a_runtime_has_no_connections_of_threads() {
    let text = "version = 1\nlength_ms = 10\n[machine]\nphysical = 2\n[host]\npolicy = \"caladan\"\n\
                [[task]]\nname = \"a\"\nmodel = \"memcached\"\nrate = 1000\nown_connections = true\n";
    let other = |_: &str| unreachable!("it names no file");
    let error = Simulation::parse(text, "x.toml", "x", &other).unwrap_err();
    assert!(error.to_string().contains("own_connections"), "{error}");
}
