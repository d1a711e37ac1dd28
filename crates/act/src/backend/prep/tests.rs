use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Command};

use super::*;
use crate::host;
use crate::testing::executor;
use quell_observe::procs;
use quell_testkit::host_lock;

fn config(managed: &str) -> PrepConfig {
    PrepConfig { managed: managed.parse().unwrap(), ..Default::default() }
}

fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root
}

/// Preparations of the host whose files are below `root`.
fn prep_at(root: &Path, config: PrepConfig, ladder: Option<Ladder>) -> Prep {
    let layout = Layout::detect(root).unwrap_or_default();
    Prep { config, ladder, layout, root: root.into() }
}

fn prep(config: PrepConfig, ladder: Option<Ladder>) -> Prep {
    Prep::new(config, ladder, &Layout::detect(Path::new("/")).unwrap())
}

fn settings(plan: &PrepPlan) -> Vec<(String, String)> {
    let of = |step: &Step| match step {
        Step::Set { setting, value, .. } => {
            Some((setting.path().display().to_string(), value.clone()))
        }
        _ => None,
    };
    plan.steps.iter().filter_map(of).collect()
}

fn pair(file: &str, value: &str) -> (String, String) {
    (file.to_owned(), value.to_owned())
}

#[test]
fn interrupts_leave_managed_cores_and_others_stay() {
    let root = tree(&[
        ("sys/devices/system/cpu/online", "0-3\n"),
        ("proc/irq/4/smp_affinity_list", "0-3\n"),
        ("proc/irq/5/smp_affinity_list", "3\n"),
        ("proc/irq/6/smp_affinity_list", "0\n"),
        ("proc/irq/7/smp_affinity_list", "garbage\n"),
        ("proc/irq/default_smp_affinity", "f\n"),
    ]);
    let plan = prep_at(root.path(), config("2-3"), None).plan();
    let wanted = [
        pair("/proc/irq/4/smp_affinity_list", "0-1"),
        pair("/proc/irq/5/smp_affinity_list", "0-1"),
    ];
    assert_eq!(settings(&plan), wanted);
}

/// A host with the kernel's default limit of real-time threads, and more files.
fn throttled(release: &str, more: &[(&str, &str)]) -> tempfile::TempDir {
    let mut files = vec![
        ("proc/sys/kernel/sched_rt_runtime_us", "950000\n"),
        ("proc/sys/kernel/sched_rt_period_us", "1000000\n"),
        ("proc/sys/kernel/osrelease", release),
        ("sys/kernel/debug/sched/preempt", "none voluntary (full) lazy \n"),
        ("sys/kernel/debug/sched/fair_server/cpu1/runtime", "50000000\n"),
    ];
    files.extend_from_slice(more);
    tree(&files)
}

/// A host on which LC leaves a tenth and nothing fills a core by design.
fn plain_config() -> PrepConfig {
    PrepConfig { leaves_a_tenth: true, ..config("1") }
}

/// Other notes depend on the host of the test: threads are always those.
fn throttling_notes(plan: &PrepPlan) -> usize {
    plan.notes.iter().filter(|note| note.what.contains("sched_rt_runtime_us stays at")).count()
}

#[test]
fn throttling_is_switched_off_or_left() {
    let root = throttled("6.1.0", &[]);
    let plan = |rt_throttling, ladder| {
        prep_at(root.path(), PrepConfig { rt_throttling, ..config("1-2") }, ladder).plan()
    };
    let off = [pair("/proc/sys/kernel/sched_rt_runtime_us", "-1")];
    for wanted in [RtThrottling::Off, RtThrottling::OffIfActive] {
        let plan = plan(wanted, Some(Ladder::default()));
        assert_eq!((&settings(&plan)[..], plan.preemption.as_str()), (&off[..], "full"));
    }
    let left = plan(RtThrottling::Leave, Some(Ladder::default()));
    assert_eq!(settings(&left), []);
    assert_eq!(throttling_notes(&left), 1);
    let cpusets = plan(RtThrottling::Off, None);
    assert_eq!(settings(&cpusets), [], "nothing is elevated, so nothing is stopped");
}

#[test]
fn host_without_lane_or_dedicated_scheduler_keeps_its_settings() {
    // With and without RT throttling of its own, and with budgets of cgroups.
    let budgets =
        [("proc/mounts", "cgroup /cg cgroup rw,cpu 0 0\n"), ("cg/cpu.rt_runtime_us", "950000\n")];
    for (release, more) in [("6.1.0", &[][..]), ("6.12.1", &[]), ("6.12.1", &budgets)] {
        let root = throttled(release, more);
        let plan = prep_at(root.path(), plain_config(), Some(Ladder::default())).plan();
        assert_eq!(settings(&plan), [], "{release}");
        assert_eq!(throttling_notes(&plan), 0, "{release}: LC keeps below the limit");
    }
}

#[test]
fn limit_that_lc_reaches_is_reported_and_not_changed() {
    let notes = |runtime: &str, period: &str, leaves_a_tenth| {
        let root = throttled("6.1.0", &[]);
        fs::write(root.path().join("proc/sys/kernel/sched_rt_runtime_us"), runtime).unwrap();
        fs::write(root.path().join("proc/sys/kernel/sched_rt_period_us"), period).unwrap();
        let config = PrepConfig { leaves_a_tenth, ..config("1") };
        let plan = prep_at(root.path(), config, Some(Ladder::default())).plan();
        assert_eq!(settings(&plan), []);
        throttling_notes(&plan)
    };
    assert_eq!(notes("950000", "1000000", true), 0);
    assert_eq!(notes("950000", "1000000", false), 1, "no roles");
    assert_eq!(notes("500000", "1000000", true), 1, "half of each core");
    assert_eq!(
        notes("95000", "100000", true),
        1,
        "shorter than the window in which LC keeps below"
    );
    assert_eq!(notes("-1", "1000000", false), 0);
}

#[test]
fn a_setting_that_stops_no_real_time_thread_is_left() {
    let plan = |release: &str, more: &[(&str, &str)], rt_throttling| {
        let root = throttled(release, more);
        let config = PrepConfig { rt_throttling, ..config("1") };
        settings(&prep_at(root.path(), config, Some(Ladder::default())).plan()).len()
    };
    let without = [("boot/config-6.12.1", "# CONFIG_RT_GROUP_SCHED is not set\n")];
    let active = RtThrottling::OffIfActive;
    assert_eq!(plan("6.12.1", &without, active), 0);
    assert_eq!(plan("6.12.1", &without, RtThrottling::Off), 1, "as configured");
    assert_eq!(plan("6.11.1", &without, active), 1, "the kernel throttles");
    let with = [("boot/config-6.12.1", "CONFIG_RT_GROUP_SCHED=y\n")];
    assert_eq!(plan("6.12.1", &with, active), 1, "groups are throttled");
    let booted = [with[0], ("proc/cmdline", "quiet rt_group_sched=0\n")];
    assert_eq!(plan("6.12.1", &booted, active), 0);
    assert_eq!(plan("6.12.1", &[], active), 1, "nothing tells");
    let v1 = [
        ("proc/mounts", "cgroup /cg cgroup rw,cpu 0 0\n"),
        ("cg/cpu.rt_runtime_us", "950000\n"),
        without[0],
    ];
    assert_eq!(plan("6.12.1", &v1, active), 1, "groups have budgets");
}

#[test]
fn the_fair_server_is_no_part_of_a_plan() {
    for release in ["6.1.0-40-amd64", "6.12.3", "7.0-rc1"] {
        let root = throttled(release, &[]);
        let config = PrepConfig { rt_throttling: RtThrottling::Off, ..plain_config() };
        let plan = prep_at(root.path(), config, Some(Ladder::default())).plan();
        let only = [pair("/proc/sys/kernel/sched_rt_runtime_us", "-1")];
        assert_eq!(settings(&plan), only, "{release}");
        assert!(plan.notes.iter().all(|note| !note.what.contains("fair server")), "{release}");
    }
}

#[test]
fn the_preemption_model_is_read_where_the_kernel_tells_it() {
    let of = |version: &str, boot: &str| {
        let root = tree(&[("proc/sys/kernel/version", version), ("proc/cmdline", boot)]);
        kernel::preemption(root.path())
    };
    assert_eq!(of("#1 SMP PREEMPT_DYNAMIC Debian", "quiet preempt=full"), "full");
    assert_eq!(of("#1 SMP PREEMPT_DYNAMIC Debian", "quiet"), "dynamic, unknown");
    assert_eq!(of("#1 SMP PREEMPT_RT", ""), "rt");
    assert_eq!(of("#2 SMP Mon", "preempt=full"), "none or voluntary");
}

/// A process that calls itself what it likes.
fn impostor(name: &str) -> Child {
    let script = format!("printf %s '{name}' > /proc/$$/comm; sleep 60 & wait");
    Command::new("sh").args(["-c", &script]).spawn().unwrap()
}

fn end(mut child: Child) {
    let pid = child.id() as i32;
    for member in procs::descendants(pid) {
        // SAFETY: a signal to a process that this test started and that is still its descendant.
        unsafe { libc::kill(member, libc::SIGKILL) };
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

fn wait_for_name(child: &Child, name: &str) {
    let comm = format!("/proc/{}/comm", child.id());
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while text(comm.as_ref()).as_deref() != Some(name) {
        assert!(std::time::Instant::now() < end, "the child never took its name");
        std::thread::yield_now();
    }
}

#[test]
fn a_process_that_borrows_a_name_of_the_kernels_is_not_raised() {
    let child = impostor("ksoftirqd/1");
    wait_for_name(&child, "ksoftirqd/1");
    let plan = prep(config("1"), Some(Ladder::default())).plan();
    let raised = |pid: i32| {
        plan.steps
            .iter()
            .any(|step| matches!(step, Step::Raise { thread, .. } if thread.tid.0 == pid))
    };
    assert!(!raised(child.id() as i32));
    assert!(
        plan.steps
            .iter()
            .any(|step| matches!(step, Step::Raise { name, .. } if name == "ksoftirqd/1"))
    );
    let steps: Vec<String> = plan.steps.iter().map(Step::to_string).collect();
    assert!(steps.iter().any(|step| step.starts_with("raise ksoftirqd/1 ")), "{steps:?}");
    end(child);
}

#[test]
fn a_bystander_is_listed_and_moved_only_on_request_and_put_back() {
    let name = "by\x1b[31m\"st";
    let child = impostor(name);
    wait_for_name(&child, name);
    let pid = Tid(child.id() as i32);
    let thread = ThreadRef::of(pid, pid).unwrap();
    let of = |config: PrepConfig| {
        let mut plan = prep(config, None).plan();
        // Nobody else on this host is touched.
        plan.steps
            .retain(|step| matches!(step, Step::Move { thread: other, .. } if *other == thread));
        plan
    };
    let listed = of(config("1"));
    assert_eq!(listed.steps, []);
    let entry = listed.bystanders.iter().find(|one| one.thread == thread).unwrap();
    assert!(!entry.to_string().contains('\x1b'), "a name cannot write to the terminal");
    assert!(
        of(PrepConfig { known: vec![pid], ..config("1") })
            .bystanders
            .iter()
            .all(|b| b.thread != thread)
    );

    let moving = PrepConfig { move_bystanders: true, ..config("1") };
    let (prep, plan) = (prep(moving.clone(), None), of(moving.clone()));
    let before = host::allowed(&thread).unwrap();
    let mut exec = executor();
    assert_eq!(prep.apply(&plan, &mut exec).done, 1);
    assert_eq!(host::allowed(&thread).unwrap(), "0".parse().unwrap());
    assert!(prep.undo(&plan, &mut exec).is_complete());
    assert_eq!(host::allowed(&thread).unwrap(), before);

    crate::sched::set_affinity(pid, &"1".parse().unwrap()).unwrap();
    let pinned = of(moving);
    assert!(pinned.bystanders.iter().any(|one| one.thread == thread && one.pinned));
    assert_eq!(pinned.steps, [], "its own choice is left alone");
    end(child);
}

/// What the preparations touch, as the host shows it.
fn dump(plan: &PrepPlan) -> BTreeMap<String, String> {
    let show = |step: &Step| match step {
        Step::Set { setting, .. } => {
            let file = setting.path();
            let value = fs::read_to_string(&file).unwrap_or_else(|error| error.to_string());
            (file.display().to_string(), value)
        }
        Step::Raise { thread, name } | Step::Move { thread, name, .. } => {
            let task = format!("/proc/{}/task/{}", thread.tgid, thread.tid);
            let allowed = host::allowed(thread).unwrap();
            (format!("{name} {task}"), format!("{:?} {allowed}", quell_os::sched::attr(thread.tid)))
        }
    };
    plan.steps.iter().map(show).collect()
}

#[test]
fn prepared_and_undone_the_host_is_as_found() {
    let _quiet = host_lock().unwrap();
    let config = PrepConfig { rt_throttling: RtThrottling::OffIfActive, ..config("1") };
    let prep = prep(config, Some(Ladder::for_this_host().unwrap()));
    let plan = prep.plan();
    let before = dump(&plan);
    assert!(!before.is_empty());

    let mut exec = executor();
    let report = prep.apply(&plan, &mut exec);
    eprintln!("{} steps done, refused: {:?}", report.done, report.refused);
    assert!(report.done > 0);
    let refused: Vec<usize> = plan
        .steps
        .iter()
        .enumerate()
        .filter(|(_, step)| report.refused.iter().any(|(other, _)| other == *step))
        .map(|(at, _)| at)
        .collect();
    for (at, step) in plan.steps.iter().enumerate().filter(|(at, _)| !refused.contains(at)) {
        match step {
            Step::Set { setting, value, .. } => {
                assert_eq!(fs::read_to_string(setting.path()).unwrap().trim(), value, "step {at}");
            }
            Step::Raise { thread, .. } => {
                let attr = quell_os::sched::attr(thread.tid).unwrap();
                assert!(attr.same_effect(&prep.ladder.unwrap().attr(Rung::Softirq).unwrap()));
            }
            Step::Move { .. } => panic!("nothing is to be moved here"),
        }
    }
    let again = prep.plan();
    let throttles = |step: &Step| matches!(step, Step::Set { why: Why::Throttling, .. });
    assert!(!again.steps.iter().any(throttles), "it is off now");
    assert!(prep.undo(&plan, &mut exec).is_complete());
    assert_eq!(dump(&plan), before);
    assert!(exec.changes().is_empty());
    assert!(Path::new("/proc/sys/kernel/sched_rt_runtime_us").exists());
}
