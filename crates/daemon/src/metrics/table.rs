//! The one table of metrics: what is served, what `/schema` says, and what docs/reference/metrics.md lists.

use quell_control::protocol::{CongestionCause, Counters, LaneStatus, RuntimeStatus, TaskStatus};
use quell_model::CoreSet;
use serde::Serialize;

use super::Scrape;
use super::text::Samples;

/// One metric.
#[derive(Serialize)]
pub struct Metric {
    /// As in queries. In base units, the unit last; a counter ends in `_total`.
    pub name: &'static str,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: Kind,
    /// Its unit; empty for a plain number.
    pub unit: &'static str,
    /// Its labels.
    pub labels: &'static [&'static str],
    /// What it tells, in a sentence without quotes and backslashes.
    pub help: &'static str,
    /// Finds its values.
    #[serde(skip)]
    pub read: fn(&Scrape, &mut Samples),
}

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Only grows while the daemon runs.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Always 1; its labels are what it tells.
    Info,
}

impl Kind {
    /// The word of OpenMetrics.
    pub fn in_openmetrics(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Info => "info",
        }
    }

    /// The word of Prometheus, which has no info.
    pub fn in_prometheus(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge | Kind::Info => "gauge",
        }
    }
}

impl Metric {
    /// The name in OpenMetrics' descriptions: without what the type adds to it.
    pub fn family(&self) -> &'static str {
        let suffix = match self.kind {
            Kind::Counter => "_total",
            Kind::Gauge => "",
            Kind::Info => "_info",
        };
        self.name.strip_suffix(suffix).unwrap_or(self.name)
    }
}

/// The table as JSON.
pub fn schema() -> serde_json::Value {
    serde_json::json!({ "metrics": METRICS })
}

const fn counter(
    name: &'static str,
    unit: &'static str,
    help: &'static str,
    read: fn(&Scrape, &mut Samples),
) -> Metric {
    Metric { name, kind: Kind::Counter, unit, labels: &[], help, read }
}

const fn gauge(
    name: &'static str,
    unit: &'static str,
    help: &'static str,
    read: fn(&Scrape, &mut Samples),
) -> Metric {
    Metric { name, kind: Kind::Gauge, unit, labels: &[], help, read }
}

const fn labelled(labels: &'static [&'static str], metric: Metric) -> Metric {
    Metric { labels, ..metric }
}

/// The labels of every metric of a task.
const TASK: &[&str] = &["task", "class"];

/// Every metric, in the order in which they are served.
pub const METRICS: &[Metric] = &[
    Metric {
        name: "quell_build_info",
        kind: Kind::Info,
        unit: "",
        labels: &["version", "policy", "back_end", "pattern", "observer"],
        help: "The version of the daemon, and how it runs.",
        read: |scrape, out| {
            let status = &scrape.status;
            let how = [&status.policy, &status.back_end, &status.pattern, &status.observer];
            let [policy, back_end, pattern, observer] = how.map(String::as_str);
            out.add(&[&status.version, policy, back_end, pattern, observer], 1.0);
        },
    },
    gauge("quell_uptime_seconds", "seconds", "Time since the daemon started.", |scrape, out| {
        out.add(&[], scrape.status.uptime_s as f64);
    }),
    gauge(
        "quell_guardians",
        "",
        "Guardians alive, of two; while one is missing nothing is changed on the host.",
        |scrape, out| out.add(&[], f64::from(scrape.status.guardians)),
    ),
    gauge(
        "quell_degraded_reasons",
        "",
        "Things that this host lacks; quell status names them and their consequences.",
        |scrape, out| out.add(&[], scrape.status.degraded.len() as f64),
    ),
    labelled(
        &["cause"],
        counter(
            "quell_ticks_total",
            "",
            "Ticks of the scheduler thread, each a decision, by what called them: time or event.",
            |scrape, out| {
                let Counters { ticks, ticks_by_event, .. } = scrape.status.counters;
                out.add(&["time"], ticks.saturating_sub(ticks_by_event) as f64);
                out.add(&["event"], ticks_by_event as f64);
            },
        ),
    ),
    counter("quell_tick_seconds_total", "seconds", "Time of all ticks.", |scrape, out| {
        out.add(&[], scrape.status.counters.tick_total_us / 1e6);
    }),
    gauge("quell_tick_max_seconds", "seconds", "Maximum duration of a tick.", |scrape, out| {
        out.add(&[], scrape.status.counters.tick_max_us / 1e6);
    }),
    gauge("quell_tick_last_seconds", "seconds", "Time of the last tick.", |scrape, out| {
        out.add(&[], scrape.status.counters.tick_last_us / 1e6);
    }),
    counter("quell_plans_total", "", "Plans that differed from the one before.", |scrape, out| {
        out.add(&[], scrape.status.counters.plans as f64);
    }),
    counter(
        "quell_host_writes_total",
        "",
        "Writes to the host: priorities, affinities and other settings.",
        |scrape, out| {
            out.add(&[], scrape.status.counters.host_writes as f64);
        },
    ),
    counter(
        "quell_host_writes_refused_total",
        "",
        "Writes to the host that the kernel refused.",
        |scrape, out| out.add(&[], scrape.status.counters.host_writes_refused as f64),
    ),
    counter(
        "quell_stale_decisions_total",
        "",
        "Decisions taken on a state that had moved when they took effect.",
        |scrape, out| out.add(&[], scrape.status.counters.stale_decisions as f64),
    ),
    counter("quell_role_changes_total", "", "Changes of the role of a thread.", |scrape, out| {
        out.add(&[], scrape.status.counters.role_changes as f64)
    }),
    labelled(
        &["invariant"],
        counter(
            "quell_invariant_violations_total",
            "",
            "Times that a plan broke an invariant (guarantee, lc_first, work_conservation, advice) or contradicted itself (malformed); always 0 unless Quell has a fault.",
            |scrape, out| {
                let counters = &scrape.status.counters;
                out.add(&["guarantee"], counters.violations_guarantee as f64);
                out.add(&["lc_first"], counters.violations_lc_first as f64);
                out.add(&["work_conservation"], counters.violations_work_conservation as f64);
                out.add(&["advice"], counters.violations_advice as f64);
                out.add(&["malformed"], counters.violations_malformed as f64);
            },
        ),
    ),
    counter(
        "quell_events_lost_total",
        "",
        "Events of the kernel that were lost; a sweep of /proc followed each time.",
        |scrape, out| out.add(&[], scrape.status.counters.events_lost as f64),
    ),
    counter(
        "quell_idle_while_lc_waits_us_total",
        "us",
        "Microseconds during which an LC thread waited while a managed core that it may use was idle, exact from BPF; absent without BPF.",
        |scrape, out| {
            let idle = scrape.status.counters.idle_while_lc_waits_us;
            idle.into_iter().for_each(|us| out.add(&[], us));
        },
    ),
    counter(
        "quell_idle_while_lc_waits_seconds_total",
        "seconds",
        "The same in seconds.",
        |scrape, out| {
            let idle = scrape.status.counters.idle_while_lc_waits_us;
            idle.into_iter().for_each(|us| out.add(&[], us / 1e6));
        },
    ),
    counter(
        "quell_process_cpu_seconds_total",
        "seconds",
        "CPU time of the daemon, all its threads together, without the guardians.",
        |scrape, out| out.add(&[], scrape.status.counters.daemon_cpu_ms / 1e3),
    ),
    counter(
        "quell_scheduler_cpu_seconds_total",
        "seconds",
        "CPU time of the scheduler thread.",
        |scrape, out| out.add(&[], scrape.status.counters.scheduler_cpu_ms / 1e3),
    ),
    gauge(
        "quell_process_resident_bytes",
        "bytes",
        "Resident memory of the daemon.",
        |scrape, out| scrape.resident.into_iter().for_each(|bytes| out.add(&[], bytes as f64)),
    ),
    labelled(
        TASK,
        gauge("quell_task_threads", "", "Threads watched.", |scrape, out| {
            each_task(scrape, out, |task| Some(f64::from(task.threads)));
        }),
    ),
    labelled(
        TASK,
        gauge("quell_task_threads_running", "", "Threads that run now.", |scrape, out| {
            each_task(scrape, out, |task| Some(f64::from(task.running)));
        }),
    ),
    labelled(
        TASK,
        gauge(
            "quell_task_threads_waiting",
            "",
            "Threads that wait for a core now.",
            |scrape, out| each_task(scrape, out, |task| Some(f64::from(task.waiting))),
        ),
    ),
    labelled(
        TASK,
        gauge(
            "quell_task_threads_demoted",
            "",
            "LC: threads below the rung of their task, because their bursts held up other LC threads.",
            |scrape, out| each_task(scrape, out, |task| Some(task.roles.len() as f64)),
        ),
    ),
    labelled(
        &["task", "class", "cause"],
        counter(
            "quell_task_reliefs_total",
            "",
            "Times that a thread went first for a moment: lock, starved (inside the kernel).",
            |scrape, out| {
                for task in &scrape.status.tasks {
                    let class = &task.class.to_ascii_lowercase();
                    out.add(&[&task.name, class, "lock"], task.reliefs.lock as f64);
                    out.add(&[&task.name, class, "starved"], task.reliefs.starved as f64);
                }
            },
        ),
    ),
    labelled(
        TASK,
        gauge("quell_task_cores_owned", "", "Cores that the task owns.", |scrape, out| {
            each_task(scrape, out, |task| {
                task.owned.parse().ok().map(|owned: CoreSet| owned.len() as f64)
            });
        }),
    ),
    labelled(
        TASK,
        gauge(
            "quell_task_queueing_delay_seconds",
            "seconds",
            "Age of the oldest wait among its threads, 0 while none waits; absent where it is not known.",
            |scrape, out| {
                each_task(scrape, out, |task| match (task.queueing_delay_us, task.waiting) {
                    (Some(us), _) => Some(us / 1e6),
                    (None, 0) => Some(0.0),
                    (None, _) => None,
                });
            },
        ),
    ),
    labelled(
        TASK,
        counter(
            "quell_task_cpu_seconds_total",
            "seconds",
            "Time that its threads were on cores; without BPF, of threads alive.",
            |scrape, out| each_task(scrape, out, |task| Some(task.cpu_ms / 1e3)),
        ),
    ),
    labelled(
        TASK,
        counter(
            "quell_task_run_delay_seconds_total",
            "seconds",
            "Time that its threads waited for cores; without BPF, of threads alive.",
            |scrape, out| each_task(scrape, out, |task| Some(task.run_delay_ms / 1e3)),
        ),
    ),
    labelled(
        TASK,
        gauge("quell_task_frozen", "", "1 while the task is frozen, else 0.", |scrape, out| {
            each_task(scrape, out, |task| Some(f64::from(u8::from(task.frozen))));
        }),
    ),
    labelled(
        TASK,
        gauge(
            "quell_task_problems",
            "",
            "Things that went wrong with it; quell status names the newest.",
            |scrape, out| each_task(scrape, out, |task| Some(task.problems.len() as f64)),
        ),
    ),
    labelled(
        TASK,
        gauge(
            "quell_runtime_kthreads_running",
            "",
            "Kernel threads of the runtime that run uthreads or look for some.",
            |scrape, out| each_runtime(scrape, out, |runtime| f64::from(runtime.running)),
        ),
    ),
    labelled(
        TASK,
        gauge(
            "quell_runtime_kthreads_requesting_core",
            "",
            "Kthreads of the runtime that request a core.",
            |scrape, out| each_runtime(scrape, out, |runtime| f64::from(runtime.requesting_core)),
        ),
    ),
    labelled(
        TASK,
        gauge(
            "quell_runtime_queueing_delay_seconds",
            "seconds",
            "The greatest queueing delay of the kernel threads of the runtime, as it publishes it.",
            |scrape, out| each_runtime(scrape, out, |runtime| runtime.queueing_delay_us / 1e6),
        ),
    ),
    labelled(
        TASK,
        gauge(
            "quell_runtime_uthreads_ready",
            "",
            "Uthreads of the runtime that are ready.",
            |scrape, out| each_runtime(scrape, out, |runtime| runtime.ready_uthreads as f64),
        ),
    ),
    labelled(
        TASK,
        gauge(
            "quell_runtime_cores_used",
            "",
            "Cores that the runtime uses, smoothed.",
            |scrape, out| each_runtime(scrape, out, |runtime| runtime.cores_used),
        ),
    ),
    labelled(
        TASK,
        counter(
            "quell_runtime_steals_total",
            "",
            "Uthreads that a kernel thread took from another one.",
            |scrape, out| each_runtime(scrape, out, |runtime| runtime.steals as f64),
        ),
    ),
    labelled(
        TASK,
        counter(
            "quell_runtime_parks_total",
            "",
            "Times that a kernel thread of the runtime parked for want of work.",
            |scrape, out| each_runtime(scrape, out, |runtime| runtime.parks as f64),
        ),
    ),
    labelled(
        TASK,
        counter(
            "quell_runtime_preemptions_total",
            "",
            "Uthreads that were made to yield at the end of their quantum.",
            |scrape, out| each_runtime(scrape, out, |runtime| runtime.preemptions as f64),
        ),
    ),
    labelled(
        TASK,
        counter(
            "quell_runtime_grants_total",
            "",
            "Cores granted to kernel threads of the runtime.",
            |scrape, out| each_runtime(scrape, out, |runtime| runtime.grants as f64),
        ),
    ),
    labelled(
        TASK,
        counter(
            "quell_runtime_revokes_total",
            "",
            "Cores revoked from kernel threads of the runtime.",
            |scrape, out| each_runtime(scrape, out, |runtime| runtime.revokes as f64),
        ),
    ),
    labelled(
        TASK,
        counter(
            "quell_runtime_forced_revokes_total",
            "",
            "Revoked cores that the kthread did not leave before the deadline, so that it was migrated.",
            |scrape, out| each_runtime(scrape, out, |runtime| runtime.forced_revokes as f64),
        ),
    ),
    labelled(
        TASK,
        counter(
            "quell_runtime_rejected_claims_total",
            "",
            "Kthread claims rejected because the thread is not in the registered process.",
            |scrape, out| each_runtime(scrape, out, |runtime| runtime.rejected_claims as f64),
        ),
    ),
    labelled(
        &["task", "member"],
        counter(
            "quell_lane_slices_total",
            "",
            "Slices of the member of a lane that began.",
            |scrape, out| {
                for (task, lane) in lanes(scrape) {
                    for member in &lane.members {
                        out.add(&[task, &member.name], member.slices as f64);
                    }
                }
            },
        ),
    ),
    labelled(
        &["task"],
        counter(
            "quell_lane_switches_total",
            "",
            "Slices of a lane that went to another member than the one before.",
            |scrape, out| {
                lanes(scrape).for_each(|(task, lane)| out.add(&[task], lane.switches as f64));
            },
        ),
    ),
    labelled(
        &["task"],
        counter(
            "quell_lane_late_looks_total",
            "",
            "Looks by time of a lane's scheduler that came more than 50 us late.",
            |scrape, out| {
                lanes(scrape).for_each(|(task, lane)| out.add(&[task], lane.late as f64));
            },
        ),
    ),
    labelled(
        &["task"],
        gauge(
            "quell_unresolved_congestion",
            "",
            "1 while the LC task is congested and the plan cannot resolve it, else 0.",
            |scrape, out| {
                for task in lc_tasks(scrape) {
                    out.add(
                        &[&task.name],
                        f64::from(u8::from(task.unresolved_congestion.is_some())),
                    );
                }
            },
        ),
    ),
    labelled(
        &["task", "cause"],
        counter(
            "quell_unresolved_congestion_seconds_total",
            "seconds",
            "Time during which the LC task was congested and the plan could not resolve it, by cause.",
            |scrape, out| {
                for task in lc_tasks(scrape) {
                    for cause in CongestionCause::ALL {
                        let seconds =
                            task.unresolved_congestion_s.get(&cause).copied().unwrap_or(0.0);
                        out.add(&[&task.name, cause.label()], seconds);
                    }
                }
            },
        ),
    ),
    Metric {
        name: "quell_core_info",
        kind: Kind::Info,
        unit: "",
        labels: &["core", "mode", "owner"],
        help: "The mode of a core and the task that owns it; no owner is an empty label.",
        read: |scrape, out| {
            for core in &scrape.status.cores {
                let owner = core.owner.as_deref().unwrap_or_default();
                out.add(&[&core.core.to_string(), &core.mode, owner], 1.0);
            }
        },
    },
    labelled(
        &["core"],
        gauge(
            "quell_core_lc_busy_ratio",
            "ratio",
            "Share of the last 100 ms that LC threads ran on the core; absent where it is not known.",
            |scrape, out| {
                for core in &scrape.status.cores {
                    let busy = core.lc_busy_percent.map(|percent| percent / 100.0);
                    busy.into_iter().for_each(|busy| out.add(&[&core.core.to_string()], busy));
                }
            },
        ),
    ),
];

fn each_task(scrape: &Scrape, out: &mut Samples, value: impl Fn(&TaskStatus) -> Option<f64>) {
    for task in &scrape.status.tasks {
        if let Some(value) = value(task) {
            out.add(&[&task.name, &task.class.to_ascii_lowercase()], value);
        }
    }
}

fn each_runtime(scrape: &Scrape, out: &mut Samples, value: fn(&RuntimeStatus) -> f64) {
    each_task(scrape, out, |task| task.runtime.as_ref().map(value));
}

fn lanes(scrape: &Scrape) -> impl Iterator<Item = (&str, &LaneStatus)> {
    let tasks = scrape.status.tasks.iter();
    tasks.filter_map(|task| Some((task.name.as_str(), task.lane.as_ref()?)))
}

fn lc_tasks(scrape: &Scrape) -> impl Iterator<Item = &TaskStatus> {
    scrape.status.tasks.iter().filter(|task| task.class == "LC")
}
