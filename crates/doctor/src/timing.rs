//! Clocks, timers, power states, and time that the hypervisor takes.

use std::time::{Duration, Instant};

use quell_model::CoreId;

use super::cores::is_virtual;
use super::finding::{Check, Finding, Topic};
use super::host::Host;
use super::probe;

/// A gap in a spinning loop that is too long for an interrupt.
const GAP: Duration = Duration::from_micros(100);
const SLEEP: Duration = Duration::from_micros(100);
const SLEEPS: usize = 100;
/// A timer wheel without high resolution ticks at 1 ms or more.
const OVERSHOOT_GOOD: Duration = Duration::from_micros(500);
/// What a service with answers of tens of microseconds does not notice.
const IDLE_EXIT_US_GOOD: u64 = 10;
/// Time lost to stalls above this share shows in a service's p99.9.
const STALLED_PERMILLE: u128 = 1;

/// How late sleeps of 100 us ended.
#[derive(Debug)]
pub(super) struct Overshoot {
    pub resolution: Duration,
    pub median: Duration,
    pub longest: Duration,
}

/// Measures [`Overshoot`] in a thread of its own, whose timer slack is taken away. Takes some 20 ms.
pub(super) fn measure_overshoot() -> Option<Overshoot> {
    std::thread::spawn(|| {
        // The default slack of 50 us would be measured instead. It ends with this thread.
        rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1)).ok()?;
        let mut late: Vec<Duration> = (0..SLEEPS)
            .map(|_| {
                let start = Instant::now();
                std::thread::sleep(SLEEP);
                start.elapsed().saturating_sub(SLEEP)
            })
            .collect();
        late.sort();
        let resolution = rustix::time::clock_getres(rustix::time::ClockId::Monotonic);
        let resolution = Duration::try_from(resolution).ok()?;
        Some(Overshoot { resolution, median: late[SLEEPS / 2], longest: late[SLEEPS - 1] })
    })
    .join()
    .ok()
    .flatten()
}

/// Timer resolution, stated and measured.
pub(super) fn timers(overshoot: Option<&Overshoot>) -> Finding {
    let check = Check { id: "timers", topic: Topic::Timing, title: "Timers" };
    let Some(overshoot) = overshoot else {
        return check
            .degraded(
                "could not be measured",
                "unknown: the scheduler may wake late",
                "allow prctl(PR_SET_TIMERSLACK) (a seccomp filter forbids it)",
            )
            .seen("clock_getres(CLOCK_MONOTONIC)", "failed");
    };
    let found = format!(
        "resolution {} ns; sleeps of 100 us end {} us late (median of {SLEEPS}), at most {} us",
        overshoot.resolution.as_nanos(),
        overshoot.median.as_micros(),
        overshoot.longest.as_micros(),
    );
    let finding = if overshoot.resolution > Duration::from_micros(1) {
        check.degraded(
            found,
            "the scheduler wakes only at timer interrupts: decisions take milliseconds",
            "boot a kernel with CONFIG_HIGH_RES_TIMERS, without highres=off",
        )
    } else if overshoot.median > OVERSHOOT_GOOD {
        check.degraded(
            found,
            "the scheduler wakes late at normal priority; at its own rung it wakes sooner",
            "look for other work that keeps all cores busy, and try again",
        )
    } else {
        check.pass(found, "the scheduler can wake within microseconds of the time it asked for")
    };
    finding.seen("clock_getres(CLOCK_MONOTONIC)", format_args!("{:?}", overshoot.resolution))
}

/// Gaps seen by a loop that does nothing but read the clock.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    pub spun: Duration,
    /// Gaps during which no other thread ran on the core.
    pub stalls: u32,
    pub stalled: Duration,
    pub longest: Duration,
    /// Gaps in which the kernel ran other threads.
    pub preempted: u32,
    /// Time that the hypervisor admits to have taken from all cores.
    pub steal: Option<Duration>,
}

/// Spins at normal priority for `time` at most.
pub(super) fn spin(host: &Host, time: Duration) -> Gaps {
    let mut gaps = Gaps::default();
    let steal_before = steal(host);
    let mut switches = probe::preemptions();
    let start = Instant::now();
    let mut last = start;
    while last - start < time {
        let now = Instant::now();
        let gap = now - last;
        last = now;
        if gap < GAP {
            continue;
        }
        let switches_now = probe::preemptions();
        if switches_now == switches {
            gaps.stalls += 1;
            gaps.stalled += gap;
            gaps.longest = gaps.longest.max(gap);
        } else {
            gaps.preempted += 1;
            switches = switches_now;
        }
        // The look at the counter is not a gap.
        last = Instant::now();
    }
    gaps.spun = last - start;
    gaps.steal = steal(host).zip(steal_before).map(|(after, before)| after.saturating_sub(before));
    gaps
}

/// Steal time of all cores since boot (proc_stat(5)).
fn steal(host: &Host) -> Option<Duration> {
    const TICK: Duration = Duration::from_millis(10); // USER_HZ is 100 on every architecture that has it
    let stat = host.read("/proc/stat").ok()?;
    let ticks: u32 = stat.lines().next()?.split_whitespace().nth(8)?.parse().ok()?;
    Some(TICK * ticks)
}

/// Time lost without any thread having taken it: to the hypervisor, firmware, or long interrupts.
pub(super) fn stalls(gaps: &Gaps) -> Finding {
    let check = Check { id: "stalls", topic: Topic::Timing, title: "Stalls" };
    let steal =
        gaps.steal.map_or_else(|| "unknown".into(), |time| format!("{} ms", time.as_millis()));
    let found = format!(
        "{} gaps over 100 us in {} ms of spinning ({} us in all, longest {} us), besides {} in which \
         other threads ran; steal of all cores {steal}",
        gaps.stalls,
        gaps.spun.as_millis(),
        gaps.stalled.as_micros(),
        gaps.longest.as_micros(),
        gaps.preempted,
    );
    let share = gaps.stalled.as_nanos() * 1000;
    let finding = if gaps.spun.is_zero() {
        check.degraded(
            "not measured",
            "unknown: the hypervisor may stop cores for milliseconds",
            "run without a spinning time of zero",
        )
    } else if share >= gaps.spun.as_nanos() * STALLED_PERMILLE {
        check.degraded(
            found,
            "cores stop without the kernel's doing: no scheduler in this host can repair that, and it \
             sets the floor of every tail latency. Benchmarks show figures with and without it",
            "dedicated cores from the provider, bare metal, or a quieter machine",
        )
    } else {
        check.pass(found, "cores run when the kernel lets them")
    };
    finding.seen("clock_gettime loop", format_args!("{gaps:?}")).seen("/proc/stat steal", steal)
}

/// The hypervisor, if there is one, and how it was recognised.
pub(super) fn hypervisor(host: &Host) -> Finding {
    let check = Check { id: "hypervisor", topic: Topic::Timing, title: "Hypervisor" };
    if !is_virtual(host) {
        return check
            .pass("none found", "nothing below the kernel takes cores away")
            .seen("/proc/cpuinfo flags", "no `hypervisor`");
    }
    let names =
        ["/sys/hypervisor/type", "/sys/class/dmi/id/sys_vendor", "/sys/class/dmi/id/product_name"];
    let named = names.into_iter().find_map(|file| Some((file, host.read(file).ok()?)));
    let (file, name) = named.unwrap_or(("/proc/cpuinfo flags", "hypervisor".into()));
    check
        .degraded(
            format!("this is a virtual machine ({name})"),
            "waking an idle core takes several times as long as on bare metal, and cores may be \
             stopped without notice",
            "for the best tails use bare metal, or a provider that pins virtual cores",
        )
        .seen(file, name)
}

/// The clock.
pub(super) fn clock(host: &Host) -> Finding {
    let check = Check { id: "clock", topic: Topic::Timing, title: "Clock" };
    let file = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let name = host.text(file);
    // Those that the vDSO reads without a system call.
    let fast = ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"];
    let finding = if fast.contains(&name.as_str()) {
        check.pass(name.clone(), "reading the clock needs no system call")
    } else {
        let shown = if name.is_empty() { "unknown" } else { &name };
        check.degraded(
            shown,
            "each look at the clock is a system call: ticks and measurements cost more",
            "boot with tsc=reliable where the processor's TSC is invariant",
        )
    };
    finding.seen(file, name)
}

/// The frequency governor.
pub(super) fn frequency(host: &Host) -> Finding {
    let check = Check { id: "frequency", topic: Topic::Timing, title: "Clock frequency" };
    let core = host.online().iter().last().unwrap_or(CoreId(0));
    let file = format!("/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor");
    match host.read(&file) {
        Ok(name) if name == "performance" => {
            check.pass(name.clone(), "cores keep their highest frequency").seen(file, name)
        }
        Ok(name) => check
            .degraded(
                name.clone(),
                "a core that was idle starts slowly: requests after a pause take longer",
                "cpupower frequency-set -g performance",
            )
            .seen(file, name),
        Err(error) => check
            .pass("not in the hands of this kernel", "the hypervisor or the firmware sets it")
            .seen(file, error),
    }
}

/// The idle driver.
pub(super) fn idle(host: &Host) -> Finding {
    let check = Check { id: "idle", topic: Topic::Timing, title: "Idle states" };
    let driver = host.text("/sys/devices/system/cpu/cpuidle/current_driver");
    let file = "/sys/devices/system/cpu/cpu0/cpuidle";
    let slowest = host
        .list(file)
        .iter()
        .filter(|state| host.text(&format!("{file}/{state}/disable")) != "1")
        .filter_map(|state| host.number::<u64>(&format!("{file}/{state}/latency")))
        .max();
    // A driver that halts does not know what the exit to the hypervisor costs on top.
    let halts = matches!(driver.as_str(), "" | "none" | "haltpoll");
    let finding = match slowest {
        _ if halts && is_virtual(host) => check.degraded(
            "idle cores halt, which gives them to the hypervisor",
            "a request to an idle core waits 5 to 70 us; batch work on the core keeps it awake",
            "keep batch work on managed cores, or boot with idle=poll (it costs power)",
        ),
        Some(latency_us) if latency_us > IDLE_EXIT_US_GOOD => check.degraded(
            format!("{driver}, up to {latency_us} us to wake"),
            "a request to an idle core waits that much longer",
            format!(
                "cpupower idle-set -D {IDLE_EXIT_US_GOOD}, or boot with intel_idle.max_cstate=1"
            ),
        ),
        Some(latency_us) => check.pass(
            format!("{driver}, at most {latency_us} us to wake"),
            "a request to an idle core waits no longer than that",
        ),
        None => check.pass("idle cores halt", "an idle core wakes within microseconds"),
    };
    finding.seen("/sys/devices/system/cpu/cpuidle/current_driver", driver)
}
